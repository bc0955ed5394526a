"""Everything that Python code may call; `import clusterkit` shows it, and loads it when asked for.

Each function is the verb of the same name, and its result holds the document that `--json` prints.
Errors are `clusterkit.UserError` and `clusterkit.RemoteError`, whose text ends with what to do.
"""

from clusterkit.api.arguments import ClusterkitWarning
from clusterkit.api.diagnosing import Diagnosed, diagnose
from clusterkit.api.estimating import Estimate, estimate
from clusterkit.api.jobs import JobHandle, Rendered, find_job, render, submit
from clusterkit.api.preflighting import Preflight, preflight
from clusterkit.core.heartbeat import heartbeat

__all__ = [
    "ClusterkitWarning",
    "Diagnosed",
    "Estimate",
    "JobHandle",
    "Preflight",
    "Rendered",
    "diagnose",
    "estimate",
    "find_job",
    "heartbeat",
    "preflight",
    "render",
    "submit",
]
