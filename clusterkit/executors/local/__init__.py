"""Jobs on this machine, started by a controller of their own."""
