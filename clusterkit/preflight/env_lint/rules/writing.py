"""How a setting was written down, and whether it reaches a process at all."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.core.findings import Verdict
from clusterkit.preflight.env_lint.rules.base import Alone, Remark, Rule
from clusterkit.preflight.env_lint.setting import Format, Setting, Slip
from clusterkit.preflight.env_lint.variables import Variable

_KEPT_IN = frozenset({Slip.NOT_EXPORTED, Slip.CHAIN_ENDED})


def _slipped(slip: Slip, summary: str, hint: str) -> Alone:
    def judge(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
        # A name that no library reads may well be meant for the script alone.
        own = variable is None or variable.family == "tools"
        if slip in setting.slips and not (slip in _KEPT_IN and own):
            yield Remark(summary=summary, hint=hint.format(name=setting.name))

    return judge


def _export_kept(setting: Setting, _: Variable | None) -> Iterator[Remark]:
    if Slip.EXPORT_KEPT in setting.slips:
        in_conf = setting.format is Format.CONF
        yield Remark(
            summary=f"`export` becomes part of the name{'' if in_conf else ' for docker'}",
            hint=f"write {setting.name}=...",
            verdict=Verdict.FAIL if in_conf else None,
        )


RULES = (
    Rule(
        id="NCCL131",
        name="not-exported",
        verdict=Verdict.FAIL,
        what="a variable that a script sets and never exports",
        why="It stays in the shell; the training processes never see it.",
        fix="Put `export` before it.",
        alone=_slipped(
            Slip.NOT_EXPORTED, "set, but not exported: no process sees it", "write export {name}="
        ),
    ),
    Rule(
        id="NCCL132",
        name="export-chain-ended",
        verdict=Verdict.FAIL,
        what="an `export` over several lines that ends before this one",
        why="The line before lacks its backslash, has a blank behind it, or is a comment; what "
        "follows is set, but not exported.",
        fix="End every line but the last with a backslash, and with nothing behind it.",
        alone=_slipped(
            Slip.CHAIN_ENDED,
            "not exported: the `export` above ends before this line",
            "end the line before with a backslash and nothing behind it",
        ),
    ),
    Rule(
        id="NCCL133",
        name="blanks-around",
        verdict=Verdict.FAIL,
        what="blanks before or after the `=`, or before the name",
        why="A shell takes it for a command or for two names; docker and NCCL make the blanks "
        "part of the name or of the value.",
        fix="Write NAME=VALUE without blanks.",
        alone=_slipped(Slip.SPACED, "blanks around the =", "write {name}=... without blanks"),
    ),
    Rule(
        id="NCCL134",
        name="quotes-kept",
        verdict=Verdict.WARN,
        what="quotes in an env file or in nccl.conf",
        why="docker --env-file and NCCL keep them as part of the value, and a number in quotes "
        "is read as 0. Python's dotenv and compose take them away.",
        fix="Leave the quotes out.",
        alone=_slipped(Slip.QUOTES_KEPT, "docker and NCCL keep the quotes", "leave them out"),
    ),
    Rule(
        id="NCCL135",
        name="export-kept",
        verdict=Verdict.WARN,
        what="`export` in an env file or in nccl.conf",
        why="Only shells know the word; NCCL and docker make it part of the name, or refuse it.",
        fix="Write NAME=VALUE.",
        alone=_export_kept,
    ),
    Rule(
        id="NCCL136",
        name="comment-kept",
        verdict=Verdict.WARN,
        what="a comment behind a value in an env file or in nccl.conf",
        why="A comment has to be a line of its own there; behind a value it is part of it.",
        fix="Put the comment on a line of its own.",
        alone=_slipped(
            Slip.COMMENT_KEPT, "the comment becomes part of the value", "put it on its own line"
        ),
    ),
    Rule(
        id="NCCL137",
        name="not-expanded",
        verdict=Verdict.WARN,
        what="`~/` or `$NAME` where nothing expands it",
        why="Files and quotes are not a shell's words, and NCCL expands neither.",
        fix="Write the whole path.",
        alone=_slipped(Slip.UNEXPANDED, "nothing expands this", "write it out"),
    ),
    Rule(
        id="NCCL140",
        name="carriage-returns",
        verdict=Verdict.FAIL,
        what="a script or nccl.conf with the line ends of Windows",
        why="A shell, and NCCL, keep the carriage return as the last character of every value: "
        "words match nothing, and interfaces and files are not found.",
        fix="`sed -i 's/\\r$//' FILE` takes them away.",
        alone=_slipped(
            Slip.CARRIAGE_RETURN,
            "the lines end as on Windows: every value ends in a carriage return",
            "sed -i 's/\\r$//' the file",
        ),
    ),
)
