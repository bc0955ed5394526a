"""Names: misspelt, unknown, removed, renamed, undocumented, or of a plug-in."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.core.findings import Verdict
from clusterkit.preflight.env_lint.rules.base import Remark, Rule
from clusterkit.preflight.env_lint.setting import Setting, Slip
from clusterkit.preflight.env_lint.variables import (
    NEWEST_NCCL,
    Kind,
    Variable,
    find_variable,
    meant,
)

_CLOSED = {
    "TORCH_NCCL_": "PyTorch",
    "OFI_NCCL_": "aws-ofi-nccl up to 1.21",
    "NCCL_": f"NCCL up to {NEWEST_NCCL}",
    "RDMAV_": "rdma-core",
    "FI_EFA_": "libfabric up to 2.6",
    "FI_CXI_": "libfabric up to 2.6",
}
"""Families whose names we know to the last one."""
_OPEN = ("UCX_", "FI_", "RCCL_", "GLOO_", "IBV_")
"""Families of whose names we know a few."""
_READERS = {"ofi": "aws-ofi-nccl", "libfabric": "libfabric", "rccl": "RCCL"}


def _misspelt(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    right: str | None
    if Slip.OWN in setting.slips:
        return
    if variable is not None and variable.kind is Kind.TYPO:
        right = variable.replaced_by.replace("*", setting.name.removeprefix("NCCL_OFI_"))
        dead = " Remove it: that one is dead too" if _dead(right) else ""
        hint = variable.note or f"did you mean {right}?{dead}"
        yield Remark(summary="no release reads this name", hint=hint)
    elif variable is None and (right := _near(setting.name)):
        yield Remark(summary="nothing reads this name", hint=f"did you mean {right}?")


def _dead(name: str) -> bool:
    variable = find_variable(name)
    return variable is not None and variable.kind is Kind.REMOVED


def _near(name: str) -> str | None:
    # In an open family a name that we do not know may well be a real one.
    is_open = name.startswith(_OPEN) and not name.startswith(tuple(_CLOSED))
    return None if is_open and name == name.upper() else meant(name)


def _unknown(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    if {Slip.OWN, Slip.NOT_EXPORTED} & set(setting.slips):
        return
    if variable is None and setting.name.startswith(tuple(_CLOSED)) and not meant(setting.name):
        what = next(who for prefix, who in _CLOSED.items() if setting.name.startswith(prefix))
        yield Remark(
            summary=f"{what} does not read it",
            hint="remove it, or allow it (`allowed_env`, --allow) if a plug-in reads it",
            verdict=Verdict.FAIL if setting.name.startswith("OFI_NCCL_") else None,
        )


def _removed(_: Setting, variable: Variable | None) -> Iterator[Remark]:
    if variable is not None and variable.kind is Kind.REMOVED:
        now = f"use {variable.replaced_by}" if variable.replaced_by else "remove it"
        who = _READERS.get(variable.family, "NCCL")
        more = f"; {variable.note}" if variable.note else ""
        yield Remark(
            summary=f"no {who} after {variable.until} reads it{more}",
            hint=now,
            verdict=Verdict.FAIL if more else None,
        )


def _deprecated(_: Setting, variable: Variable | None) -> Iterator[Remark]:
    if variable is not None and variable.kind is Kind.DEPRECATED:
        yield Remark(
            summary=f"deprecated since NCCL {variable.until}", hint=f"use {variable.replaced_by}"
        )


def _renamed(_: Setting, variable: Variable | None) -> Iterator[Remark]:
    if variable is not None and variable.kind is Kind.TORCH_RENAMED:
        more = f"; {variable.note}" if variable.note else ""
        yield Remark(
            summary=f"PyTorch's old name; NCCL never read it{more}",
            hint=f"use {variable.replaced_by}",
        )


def _source_only(_: Setting, variable: Variable | None) -> Iterator[Remark]:
    if variable is not None and variable.kind is Kind.SOURCE_ONLY:
        beware = f": {variable.note}" if variable.note else ""
        yield Remark(summary=f"read by NCCL, but not documented{beware}")


def _plugin(_: Setting, variable: Variable | None) -> Iterator[Remark]:
    if variable is not None and variable.kind is Kind.PLUGIN:
        yield Remark(summary=f"read only by {variable.note}")


RULES = (
    Rule(
        id="NCCL101",
        name="misspelt-name",
        verdict=Verdict.FAIL,
        what="a name that nothing reads, and that is close to one that is read",
        why="NCCL ignores names that it does not know without a word, so the setting that was "
        "meant is not in force.",
        fix="Write the name that the hint gives.",
        alone=_misspelt,
    ),
    Rule(
        id="NCCL102",
        name="unknown-name",
        verdict=Verdict.WARN,
        what="a name that no known release reads",
        why="NCCL ignores it. It may be older or newer than the releases that clusterkit knows, "
        "or belong to a plug-in.",
        fix="Remove it; or, where a plug-in of your site reads it, put it into `allowed_env` of "
        "the cluster. NCCL 2.30 and later list their own names with `ncclparam`.",
        alone=_unknown,
    ),
    Rule(
        id="NCCL103",
        name="removed-name",
        verdict=Verdict.WARN,
        what="a variable that NCCL, libfabric or a plug-in has stopped reading",
        why="It has no effect any more, or ends the process; scripts are copied for years.",
        fix="Remove it, or use its successor.",
        alone=_removed,
    ),
    Rule(
        id="NCCL104",
        name="deprecated-name",
        verdict=Verdict.PASS,
        what="a variable with a successor, still read",
        why="It works as before; some day it will go.",
        fix="Use the successor.",
        alone=_deprecated,
    ),
    Rule(
        id="NCCL105",
        name="torch-renamed",
        verdict=Verdict.WARN,
        what="an old name of PyTorch's, since then TORCH_NCCL_...",
        why="PyTorch 2.2 renamed its own variables; the old names are read with a warning at "
        "best, and NCCL never read them.",
        fix="Put TORCH_ before the name.",
        alone=_renamed,
    ),
    Rule(
        id="NCCL106",
        name="undocumented-name",
        verdict=Verdict.PASS,
        what="a name that NCCL reads and does not document",
        why="Some sites have good reasons for one; it may change or go with any release.",
        fix="Nothing, if you know why it is there.",
        alone=_source_only,
    ),
    Rule(
        id="NCCL107",
        name="plugin-name",
        verdict=Verdict.PASS,
        what="a name that only a plug-in, or RCCL, reads",
        why="Without that plug-in it has no effect.",
        fix="Nothing, where the plug-in is loaded.",
        alone=_plugin,
    ),
)
