from clusterkit.core.peers import *  # noqa: F403 - the same file
