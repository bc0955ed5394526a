"""Settings for finding a fault that should not be there once it has been found."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.core.findings import Verdict
from clusterkit.preflight.env_lint.rules.base import Remark, Rule, number, strtoll
from clusterkit.preflight.env_lint.setting import Setting
from clusterkit.preflight.env_lint.variables import Variable


def _concern(setting: Setting, variable: Variable | None, kind: str) -> str | None:
    """Return the note of a concern that a setting gives reason to; None for no reason."""
    given = (setting.value or "").strip()
    if variable is None or not given:
        return None
    read, rest = strtoll(given)
    plain = given if rest.strip() else str(read)
    return variable.concerned(kind, plain)


def _left_on(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    if _concern(setting, variable, "debug") is not None:
        yield Remark(summary="debugging is left on", hint="remove it once the fault has been found")


def _path_off(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    lost = _concern(setting, variable, "path-off")
    if lost is not None:
        yield Remark(
            summary=f"switches off {lost}",
            hint="keep it only for a fault that was diagnosed on these machines",
        )


def _needless(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    why = _concern(setting, variable, "needless")
    if why is not None:
        yield Remark(summary=f"needless: {why}", hint="remove it")


def _harmful(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    why = _concern(setting, variable, "harm")
    if why is not None:
        yield Remark(summary=why, hint="remove it")


def _tuned(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    if variable is None or variable.concern != "tuning" or not setting.value:
        return
    # To leave one out forces none: what is left is NCCL's choice.
    same = setting.value.strip().upper() == variable.default
    if variable.type == "int" and variable.default:
        same = number(setting) == int(variable.default)
    if not same and not setting.value.startswith("^"):
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
    Rule(
        id="NCCL164",
        name="needless-setting",
        verdict=Verdict.WARN,
        what="a setting of libfabric's that says what is so anyway, on today's releases",
        why="It was needed once, and is copied since. On other machines or with other values "
        "beside it, it costs huge pages or ends the process.",
        fix="Remove it; keep it only for the old release or kernel that the finding names.",
        alone=_needless,
    ),
    Rule(
        id="NCCL165",
        name="harmful-setting",
        verdict=Verdict.WARN,
        what="a setting of rdma-core's that slows every process which uses RDMA",
        why="Fork support marks each page that is registered. From Linux 5.13 on the kernel copies "
        "such pages by itself.",
        fix="Remove it; on older kernels with EFA, FI_EFA_FORK_SAFE=1 says it to libfabric alone.",
        alone=_harmful,
    ),
)
