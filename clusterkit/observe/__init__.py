"""Look at jobs that run or have run: their ends, their speed, their nodes."""
