"""Print which release of the distribution that is the second argument is installed and works.

The first is that of somebody else whose files would lie over ours.
"""

import sys
from importlib import metadata

foreign, ours = sys.argv[1:]
if list(metadata.distributions(name=foreign)):
    print("of somebody else")
else:
    import clusterkit.executors.ssh.agent  # noqa: F401

    print(metadata.version(ours))
