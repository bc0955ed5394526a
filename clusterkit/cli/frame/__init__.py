"""What every verb stands in: the start of the program, its output, its errors, shared flags."""
