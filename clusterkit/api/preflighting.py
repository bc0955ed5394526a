"""`preflight`: prove that every node is fit."""

from __future__ import annotations

import dataclasses
import html
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterkit.api.arguments import several, takes, warn
from clusterkit.config.load import load_settings
from clusterkit.core.errors import UserError
from clusterkit.core.files import versioned
from clusterkit.core.findings import Finding
from clusterkit.preflight.bundle import Bundle, prepare_folder, write_bundle
from clusterkit.preflight.bundle_reader import read_bundle
from clusterkit.preflight.collect import checks_to_ask, checks_to_evaluate
from clusterkit.preflight.evaluate import evaluate
from clusterkit.preflight.report import Report
from clusterkit.preflight.request import PreflightOptions
from clusterkit.preflight.targets import aim, gather
from clusterkit.preflight.text import report_lines


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was found, and which nodes are usable."""

    bundle: Bundle
    report: Report

    @property
    def document(self) -> dict[str, Any]:
        """What `clusterkit preflight --json` prints."""
        return versioned(self.report.document())

    @property
    def fit(self) -> bool:
        """Whether nothing is wrong."""
        return not self.report.bad

    @property
    def usable(self) -> tuple[str, ...]:
        """The nodes that a job may use."""
        return self.report.usable

    @property
    def exclude(self) -> tuple[str, ...]:
        """The nodes that are unhealthy."""
        return self.report.exclude

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What each check found."""
        return self.report.findings

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Keep the answers of the nodes, for `preflight(replay=...)`.

        Args:
            folder: A new one.
        """
        prepare_folder(Path(folder))
        write_bundle(Path(folder), self.bundle)

    def __str__(self) -> str:
        """Show the report as the command line does."""
        return "\n".join(line for _, line in report_lines(self.report))

    def __repr__(self) -> str:
        """Show how many nodes are usable."""
        how = "healthy" if self.fit else "unhealthy"
        return f"<preflight: {how}, {len(self.usable)} of {len(self.report.nodes)} nodes usable>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


@takes(PreflightOptions)
def preflight(options: PreflightOptions) -> Preflight:
    """Prove that every node is healthy, and name those that are not; changes nothing there.

    Arguments are the flags of `clusterkit preflight`.

    Raises:
        UserError: what is asked for is wrong.
        RemoteError: the cluster cannot be asked at all; of one node, a finding says so.
    """
    select, ignore = several(options.select), several(options.ignore)
    if options.replay is not None:
        cleared = dataclasses.replace(options, replay=None, select=(), ignore=(), strict=False)
        if cleared != PreflightOptions():
            raise UserError(
                "replay asks no node, so what says which to ask has no meaning beside it",
                hint="give select, ignore and strict only, or leave replay out",
            )
        bundle = read_bundle(Path(options.replay))
        checks = checks_to_evaluate(select, ignore, bundle)
        return Preflight(bundle, evaluate(bundle, checks, strict=options.strict))
    options = dataclasses.replace(options, select=select)
    checks = checks_to_ask(select, ignore, network=options.network)
    settings = load_settings()
    cluster = settings.cluster(options.cluster)
    for problem in settings.warnings_of(cluster.name):
        warn(str(problem))
    bundle = gather(aim(options, cluster), checks)
    return Preflight(bundle, evaluate(bundle, checks, strict=options.strict))
