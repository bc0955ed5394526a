"""Hand a plan over to where it runs: this machine, Slurm, or machines over ssh.

Importing this package imports neither submitit nor a scheduler's code; `executor_for` does.
"""

from clusterkit.executors.base import Executor, Launched, SchedulerState
from clusterkit.executors.submission import executor_for, executor_of, submit_plan

__all__ = ["Executor", "Launched", "SchedulerState", "executor_for", "executor_of", "submit_plan"]
