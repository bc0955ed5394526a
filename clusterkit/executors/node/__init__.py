"""What runs once per node: `LaunchTask` starts the node's command and tells how it ended.

identity  who this node is
task      start the command, guard it, write its result
watch     signals, deadlines and failing peers while it runs
__main__  `python -m clusterkit.executors.node RUN_FOLDER`: the same inside a submitit task
"""

from clusterkit.executors.node.identity import Identity
from clusterkit.executors.node.task import LaunchTask

__all__ = ["Identity", "LaunchTask"]
