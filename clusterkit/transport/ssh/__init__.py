"""Scripts over SSH: the user's configuration, keys and sessions."""
