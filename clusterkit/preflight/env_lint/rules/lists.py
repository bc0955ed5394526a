"""Lists of interfaces and of HCAs: what they match (NCCL src/misc/utils.cc), and what not."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterkit.core.findings import Verdict
from clusterkit.preflight.env_lint.rules.base import Violation, alone, items, of_types
from clusterkit.preflight.env_lint.variables import Variable

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
    elif variable.type == "hcas" and (found := [n for n in names if _INTERFACE.fullmatch(n)]):
        yield Violation(
            f"{found[0]} is how interfaces are called, and hardly an HCA",
            "write the HCA of `ibv_devices`, such as mlx5_0",
            Verdict.WARN,
        )
