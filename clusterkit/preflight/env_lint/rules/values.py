"""One setting alone: its name, and a value that is read as something else than it looks like."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterkit.core.data import read_table
from clusterkit.core.findings import Verdict
from clusterkit.preflight.env_lint.rules.base import (
    Violation,
    alone,
    items,
    number,
    of_types,
    strtoll,
)
from clusterkit.preflight.env_lint.setting import Mistake, Setting
from clusterkit.preflight.env_lint.variables import (
    NEWEST_NCCL,
    Kind,
    Variable,
    find_variable,
    meant,
)

_CLOSED = {
    row["prefix"]: row["reader"].format(NEWEST_NCCL=NEWEST_NCCL)
    for row in read_table(__file__, "closed.tsv")
}
"""Families whose names we know to the last one."""
_OPEN = ("UCX_", "FI_", "RCCL_", "GLOO_", "IBV_")
"""Families of whose names we know a few."""
_HOROVOD = "Horovod stops with an error"
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
def _unknown_name(setting: Setting, variable: Variable | None) -> Iterator[Violation]:
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


_LONGEST_LEVEL = 4
_TRUTHS = {row["family"]: row for row in read_table(__file__, "truths.tsv")}


@alone("NCCL111")
@of_types("int")
def _not_a_number(value: str, variable: Variable) -> Iterator[Violation]:
    read, rest = strtoll(value)
    if not rest.strip():
        return
    if variable.family == "torch":
        yield Violation("not a number: PyTorch refuses or cuts it", "write a number")
        return
    truth = {"true": "1", "yes": "1", "on": "1", "false": "0", "no": "0", "off": "0"}
    right = truth.get(value.strip().lower())
    hint = f"write {right}" if right and variable.allows(int(right)) else "write a number"
    if rest == value:
        yield Violation("not a number: it is read as 0", hint)
    else:
        yield Violation(f"read as {read}: the rest is ignored", hint)


@alone("NCCL112")
@of_types("int")
def _octal(value: str, _: Variable) -> Iterator[Violation]:
    if re.fullmatch(r"\s*[+-]?0[0-7]+\s*", value) and int(value, 8) > 7:
        yield Violation(
            f"the leading 0 makes it octal: it is read as {int(value, 8)}", f"write {int(value)}"
        )


@alone("NCCL113")
@of_types("int")
def _out_of_range(value: str, variable: Variable) -> Iterator[Violation]:
    read, rest = strtoll(value)
    if not rest.strip() and not variable.allows(read):
        yield Violation(f"{read} is outside of what it takes", f"it takes {variable.allowed}")


@alone("NCCL114")
@of_types("word", "exact", "level", "words")
def _unknown_word(value: str, variable: Variable) -> Iterator[Violation]:
    if variable.type == "level" and value.strip().lstrip("-").isdigit():
        return
    given = items(value) if variable.type == "words" else (value,)
    exact = variable.type in {"exact", "level"}
    known = set(variable.words) if exact else {word.upper() for word in variable.words}
    wrong = [word for word in given if (word if exact else word.upper()) not in known]
    if wrong:
        listed = ", ".join(dict.fromkeys(word.strip() or "a blank" for word in wrong))
        near = [w for w in variable.words if w.upper() == wrong[0].strip().upper()]
        # 2.30 reads the list at once (src/include/param/parser_bitset.h).
        ignored = "it is ignored" + ", since 2.30 with the whole list" * (variable.type == "words")
        stops = {**{name: _TRUTHS[name]["then"] for name in ("ofi", "torch")}, "horovod": _HOROVOD}
        then = stops.get(variable.family, ignored)
        yield Violation(
            f"not a word that it knows: {listed}; {then}",
            f"write {near[0]}" if near else f"it takes {', '.join(variable.words)}",
            # Words of a list choose what is logged, and nothing that a job needs.
            Verdict.WARN if variable.type == "words" else None,
        )


@alone("NCCL115")
@of_types("level")
def _level_number(value: str, _: Variable) -> Iterator[Violation]:
    if value.strip().isdigit():
        level = int(value.strip()[:_LONGEST_LEVEL])
        word = ("LOC", "PIX", "PXB", "PHB", "SYS")[min(level, 4)]
        yield Violation(f"a level of old, by number: it means {word}", f"write {word}")


@alone("NCCL116")
@of_types("algorithms")
def _algorithms(value: str, variable: Variable) -> Iterator[Violation]:
    # Since 2.24: FUNCTION:LIST;FUNCTION:LIST, or one list for all.
    lists = [part.rpartition(":")[2] for part in value.split(";") if part]
    known = {word.lower() for word in variable.words}
    wrong = [word for part in lists for word in items(part) if word.lower() not in known]
    if wrong:
        listed = ", ".join(word or "an empty item" for word in wrong)
        yield Violation(
            f"unknown: {listed}; NCCL 2.24 and later fail at start",
            f"it takes {', '.join(variable.words)}",
        )


@alone("NCCL117")
@of_types("truth")
def _not_a_truth(value: str, variable: Variable) -> Iterator[Violation]:
    reader = _TRUTHS.get(variable.family, _TRUTHS["torch"])
    accepted, then = reader["accepted"].split(), reader["then"]
    given = value.strip().lower()
    if given not in accepted and not (variable.family == "ofi" and re.fullmatch(r"-?\d+", given)):
        yield Violation(f"not a truth value: {then}", "write 1 or 0")


@alone("NCCL118")
def _empty(setting: Setting, variable: Variable | None) -> Iterator[Violation]:
    if variable is not None and setting.value == "" and variable.family in {"nccl", "torch"}:
        yield Violation("empty: as if it were not set")


@alone("NCCL119")
@of_types("int")
def _no_effect(value: str, variable: Variable) -> Iterator[Violation]:
    if variable.default and strtoll(value) == (int(variable.default), ""):
        yield Violation("the default: it changes nothing")


@alone("NCCL163")
def _tuned(setting: Setting, variable: Variable | None) -> Iterator[Violation]:
    if variable is None or variable.concern != "tuning" or not setting.value:
        return
    # To leave one out forces none: what is left is NCCL's choice.
    same = setting.value.strip().upper() == variable.default
    if variable.type == "int" and variable.default:
        same = number(setting) == int(variable.default)
    if not same and not setting.value.startswith("^"):
        yield Violation(
            "overrides NCCL's own choice: meant for debugging",
            "remove it, or measure that it still helps",
        )


# The kernel and rdma-core count without leading zeros, so mlx5_0 is the prefix of no other; names
# by place (enp12s0f1, eno8303) are never continued.
_COUNTED_HCA = re.compile(r"(?:[a-z]{1,15}\d{0,3}_){0,3}(?:[a-z]{1,15}\d?_|[a-z]{1,15})[1-9]")
_COUNTED_INTERFACE = re.compile(r"(?:eth|ib|bond)1")
_HCA = re.compile(r"mlx[45]_\w+|bnxt_re\w*|hfi1_\d+|efa_\d+|irdma\d+|rocep\w+")
_INTERFACE = re.compile(r"(?:ib|eth|bond|eno|ens)\d+")
_FEW = re.compile(r"bnxt|irdma|efa|hfi|cxi")
"""Kinds of which machines have ten at most."""
_OWN_ONLY = re.compile(r"=?(lo|docker\d*|virbr\d*|podman\d*)(:|$)")

_of_lists = of_types("interfaces", "hcas", "devices", blank=True)


@alone("NCCL121")
@_of_lists
def _blanks(value: str, _: Variable) -> Iterator[Violation]:
    if re.search(r"\s", value):
        tight = re.sub(r"[\s,]+", ",", value.strip())
        yield Violation(
            "the blanks become part of the names, which then match nothing", f"write {tight}"
        )


@alone("NCCL122")
@_of_lists
def _twice(value: str, _: Variable) -> Iterator[Violation]:
    listed = items(value)
    doubled = dict.fromkeys(item for item in listed if item and listed.count(item) > 1)
    if doubled:
        yield Violation(f"named twice: {', '.join(doubled)}", "was another one meant, or port 2?")


@alone("NCCL123")
@_of_lists
def _prefixes(value: str, variable: Variable) -> Iterator[Violation]:
    if not variable.name.startswith("NCCL_"):
        return
    exclude, names = ("^", value[1:]) if value.startswith("^") else ("", value)
    counted = _COUNTED_HCA if variable.type == "hcas" else _COUNTED_INTERFACE
    bare = [item.partition(":")[0] for item in names.split(",")]
    wide = [name for name in bare if counted.fullmatch(name)]
    if not names.startswith("=") and wide:
        # Machines have more than ten HCAs of a kind, and hardly ever more than twenty.
        name = next((one for one in wide if one.endswith("1")), wide[0])
        likely = (name.endswith("1") and not _FEW.match(name)) or "bond" in name
        verb = "leaves out" if exclude else "takes"
        yield Violation(
            f"a prefix: {name} also {verb} {name}0 to {name}9",
            f"for exactly these: {exclude}={names}",
            None if likely else Verdict.PASS,
        )


@alone("NCCL124")
@_of_lists
def _not_exact(value: str, variable: Variable) -> Iterator[Violation]:
    if variable.name.startswith("NCCL_"):
        return
    if value.startswith("=") or (value.startswith("^") and variable.family != "ucx"):
        yield Violation(
            f"{value[0]} is NCCL's notation: here it becomes part of the name",
            "name the interfaces exactly, comma-separated",
        )


@alone("NCCL125")
@of_types("devices", blank=True)
def _no_port(value: str, _: Variable) -> Iterator[Violation]:
    bare = [item for item in items(value) if re.fullmatch(r"mlx[45]_\w+", item)]
    if bare:
        yield Violation(f"without a port UCX finds no device {bare[0]}", f"write {bare[0]}:1")


@alone("NCCL126")
@_of_lists
def _own_only(value: str, _: Variable) -> Iterator[Violation]:
    own = [item for item in items(value) if _OWN_ONLY.match(item)]
    if own and not value.startswith("^"):
        yield Violation(
            f"{own[0]} reaches no other machine", "name the interface that the nodes share"
        )


@alone("NCCL127")
@_of_lists
def _other_kind(value: str, variable: Variable) -> Iterator[Violation]:
    names = [item.partition(":")[0] for item in items(value)]
    if variable.type == "interfaces" and (hcas := [n for n in names if _HCA.fullmatch(n)]):
        yield Violation(
            f"{hcas[0]} is an HCA, and no interface is called so",
            "write the interface of `ip -br address`, such as ib0",
        )
    elif variable.name == "NCCL_OOB_NET_IFNAME":  # with NCCL_NET=Socket it names interfaces
        return
    elif variable.type == "hcas" and (found := [n for n in names if _INTERFACE.fullmatch(n)]):
        yield Violation(
            f"{found[0]} is how interfaces are called, and hardly an HCA",
            "write the HCA of `ibv_devices`, such as mlx5_0",
            Verdict.WARN,
        )
