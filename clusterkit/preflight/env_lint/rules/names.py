"""Names: misspelt, unknown, removed, renamed, undocumented, or of a plug-in."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.core.findings import Verdict
from clusterkit.preflight.env_lint.rules.base import Violation, alone
from clusterkit.preflight.env_lint.setting import Mistake, Setting
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


@alone("NCCL101")
def _misspelt(setting: Setting, variable: Variable | None) -> Iterator[Violation]:
    right: str | None
    if Mistake.OWN in setting.mistakes:
        return
    if variable is not None and variable.kind is Kind.TYPO:
        right = variable.replaced_by.replace("*", setting.name.removeprefix("NCCL_OFI_"))
        known = find_variable(right)
        removed = known is not None and known.kind is Kind.REMOVED
        dead = " Remove it: that one is dead too" if removed else ""
        yield Violation(
            "no release reads this name", variable.note or f"did you mean {right}?{dead}"
        )
    elif variable is None and (right := _near(setting.name)):
        yield Violation("nothing reads this name", f"did you mean {right}?")


def _near(name: str) -> str | None:
    # In an open family a name that we do not know may well be a real one.
    is_open = name.startswith(_OPEN) and not name.startswith(tuple(_CLOSED))
    return None if is_open and name == name.upper() else meant(name)


@alone("NCCL102")
def _unknown(setting: Setting, variable: Variable | None) -> Iterator[Violation]:
    if {Mistake.OWN, Mistake.NOT_EXPORTED} & set(setting.mistakes):
        return
    if variable is None and setting.name.startswith(tuple(_CLOSED)) and not meant(setting.name):
        what = next(who for prefix, who in _CLOSED.items() if setting.name.startswith(prefix))
        yield Violation(
            f"{what} does not read it",
            "remove it, or allow it (`allowed_env`, --allow) if a plug-in reads it",
            Verdict.FAIL if setting.name.startswith("OFI_NCCL_") else None,
        )


@alone("NCCL103")
def _removed(_: Setting, variable: Variable | None) -> Iterator[Violation]:
    if variable is None or variable.kind is not Kind.REMOVED:
        return
    who = _READERS.get(variable.family, "NCCL")
    more = f"; {variable.note}" if variable.note else ""
    yield Violation(
        f"no {who} after {variable.until} reads it{more}",
        f"use {variable.replaced_by}" if variable.replaced_by else "remove it",
        Verdict.FAIL if more else None,
    )
