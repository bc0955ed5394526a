"""Submitted jobs: find them again, tell their state, follow their output, end them.

find   a word that the user typed -> a run folder
state  run folder and scheduler -> `Job`, by what judge concludes
logs   run folder -> lines
watch  wait for the end, or bring it about
"""

from clusterkit.jobs.find import (
    NoSuchJobError,
    find_run,
    find_runs,
    list_runs,
    run_roots,
    runs_of_others,
)
from clusterkit.jobs.logs import follow, read_logs
from clusterkit.jobs.state.load import Job, load_jobs
from clusterkit.jobs.watch import cancel, wait

__all__ = [
    "Job",
    "NoSuchJobError",
    "cancel",
    "find_run",
    "find_runs",
    "follow",
    "list_runs",
    "load_jobs",
    "read_logs",
    "run_roots",
    "runs_of_others",
    "wait",
]
