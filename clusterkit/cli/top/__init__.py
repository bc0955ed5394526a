"""`top`: its flags and its screen."""
