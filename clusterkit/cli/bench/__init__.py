"""`clusterkit bench`: measure what the nodes of a job reach."""

from __future__ import annotations

from clusterkit.cli.bench.allreduce import allreduce
from clusterkit.cli.bench.compute import compute
from clusterkit.cli.bench.scaling import scaling
from clusterkit.cli.bench.storage import storage
from clusterkit.cli.frame.flags import group
from clusterkit.cli.frame.job_options import CONTEXT_SETTINGS

app = group("Measure what the nodes of a job reach, and compare it with what is expected.")
app.command("collectives")(allreduce)
app.command("allreduce", hidden=True)(allreduce)  # its name of old
app.command("compute")(compute)
app.command("storage")(storage)
app.command("scaling", context_settings=CONTEXT_SETTINGS)(scaling)
