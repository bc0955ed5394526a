"""Settings for finding a fault that should not be there once it has been found."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.envlint.rules.base import Remark, Rule, number, strtoll
from clusterkit.envlint.setting import Setting
from clusterkit.envlint.variables import Variable
from clusterkit.findings import Verdict


def _concern(variable: Variable | None, kind: str) -> tuple[str, ...] | None:
    """Return the values at which a variable is of this concern; None where it never is."""
    if variable is None:
        return None
    concern, _, values = variable.concern.partition("=")
    return tuple(values.split(",")) if concern == kind else None


def _left_on(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    values = _concern(variable, "debug")
    given = (setting.value or "").strip()
    if values and given and (values == ("*",) or given.lower() in {v.lower() for v in values}):
        yield Remark(summary="debugging is left on", hint="remove it once the fault has been found")


def _path_off(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    values = _concern(variable, "path-off")
    if values is None or variable is None or not setting.value:
        return
    read, rest = strtoll(setting.value)
    if setting.value.strip() in values or (not rest.strip() and str(read) in values):
        yield Remark(
            summary=f"switches off {variable.note}",
            hint="keep it only for a fault that was diagnosed on these machines",
        )


def _tuned(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    if _concern(variable, "tuning") is None or variable is None or not setting.value:
        return
    if not variable.default or number(setting) != int(variable.default):
        yield Remark(
            summary="overrides NCCL's own choice: meant for debugging",
            hint="remove it, or measure that it still helps",
        )


RULES = (
    Rule(
        id="NCCL161",
        name="debugging-left-on",
        verdict=Verdict.WARN,
        what="debugging output or dumps that are left on",
        why="INFO of a thousand ranks floods logs and shared file systems, and some of it slows "
        "every step.",
        fix="Use NCCL_DEBUG=WARN (or VERSION) in production.",
        alone=_left_on,
    ),
    Rule(
        id="NCCL162",
        name="path-switched-off",
        verdict=Verdict.WARN,
        what="a fast path between GPUs or nodes that is switched off",
        why="Mostly the rest of a search for a fault long ago; it can cost a factor of ten. "
        "Preflight fails it where that is NVLink or InfiniBand that a node has (NCCL006, NCCL004).",
        fix="Remove it, and measure.",
        alone=_path_off,
    ),
    Rule(
        id="NCCL163",
        name="forced-tuning",
        verdict=Verdict.WARN,
        what="a choice of NCCL's that is overridden by a variable meant for debugging",
        why="NCCL chooses by topology and message size; what was best on one machine and release "
        "is often slow on the next. Forcing LL128 where it is not supported corrupts data.",
        fix="Remove it, or measure that it still helps and put it into `allowed_env`.",
        alone=_tuned,
    ),
)
