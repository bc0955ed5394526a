"""Jobs over ssh: an agent on each node starts, watches and ends its ranks."""
