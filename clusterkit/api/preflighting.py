"""`preflight`: prove that every node is fit."""

from __future__ import annotations

import dataclasses
import html
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterkit.api.arguments import several, takes
from clusterkit.api.results import warn
from clusterkit.config import load_settings
from clusterkit.core.errors import UserError
from clusterkit.core.files import versioned
from clusterkit.core.findings import Finding
from clusterkit.preflight.bundle import Bundle, prepare_folder, write_bundle
from clusterkit.preflight.bundle_reader import read_bundle
from clusterkit.preflight.evaluate import evaluate
from clusterkit.preflight.report import Report
from clusterkit.preflight.request import Wanted
from clusterkit.preflight.selection import checks_to_ask, checks_to_judge
from clusterkit.preflight.targets import aim, gather
from clusterkit.preflight.text import report_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightWords:
    """Which nodes to ask what; they are the flags of `clusterkit preflight`."""

    cluster: str | None = None
    nodes: int | None = None
    hosts: str | None = None
    """A hostlist."""
    hostfile: str | os.PathLike[str] | None = None
    via: str | None = None
    timeout: float | None = None
    """Seconds to reach a node, or to get an allocation."""
    select: str | Sequence[str] = ()
    """Ids or areas of checks."""
    ignore: str | Sequence[str] = ()
    network: bool = False
    framework: str | None = None
    gpus_per_node: int | None = None
    path: str | Sequence[str] = ()
    env: Mapping[str, object] = field(default_factory=dict)
    image: str | None = None
    strict: bool = False
    replay: str | os.PathLike[str] | None = None
    """A folder that `Preflight.save` has made: nobody is asked."""


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
        """The nodes that are not fit."""
        return self.report.exclude

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What each check found."""
        return self.report.findings

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Keep what the nodes said in a new folder, for `preflight(replay=...)`."""
        prepare_folder(Path(folder))
        write_bundle(Path(folder), self.bundle)

    def __str__(self) -> str:
        """Show the report as the command line does."""
        return "\n".join(line for _, line in report_lines(self.report))

    def __repr__(self) -> str:
        """Show how many nodes are usable."""
        fit = "fit" if self.fit else "not fit"
        return f"<preflight: {fit}, {len(self.usable)} of {len(self.report.nodes)} nodes usable>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


@takes(PreflightWords)
def preflight(words: PreflightWords) -> Preflight:
    """Prove that every node is fit for a job, and name those that are not; changes nothing there.

    Arguments are the flags of `clusterkit preflight`.

    Raises:
        UserError: what is asked for is wrong.
        RemoteError: the cluster cannot be asked at all; of one node, a finding says so.
    """
    if words.replay is not None:
        return _replayed(words, Path(words.replay))
    wanted = Wanted(
        nodes=words.nodes,
        hosts=words.hosts,
        hostfile=Path(words.hostfile) if words.hostfile is not None else None,
        via=words.via,
        timeout_s=words.timeout,
        framework=words.framework,
        gpus_per_node=words.gpus_per_node,
        paths=several(words.path),
        env={name: str(value) for name, value in words.env.items()},
        image=words.image,
    )
    checks = checks_to_ask(several(words.select), several(words.ignore), network=words.network)
    settings = load_settings()
    cluster = settings.cluster(words.cluster)
    for problem in settings.warnings_of(cluster.name):
        warn(str(problem))
    bundle = gather(aim(wanted, cluster), checks)
    return Preflight(bundle, evaluate(bundle, checks, strict=words.strict))


def _replayed(words: PreflightWords, folder: Path) -> Preflight:
    asked = dataclasses.replace(words, replay=None, select=(), ignore=(), strict=False)
    if asked != PreflightWords():
        raise UserError(
            "replay asks no node, so what says which to ask has no meaning beside it",
            hint="give select, ignore and strict only, or leave replay out",
        )
    bundle = read_bundle(folder)
    checks = checks_to_judge(several(words.select), several(words.ignore), bundle)
    return Preflight(bundle, evaluate(bundle, checks, strict=words.strict))
