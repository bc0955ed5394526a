"""Lists of interfaces and of HCAs: what they match, and what not."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterkit.core.findings import Verdict
from clusterkit.preflight.env_lint.rules.base import Remark, Rule, includes, items
from clusterkit.preflight.env_lint.setting import Setting, Slip
from clusterkit.preflight.env_lint.variables import Variable

_LISTS = frozenset({"interfaces", "hcas", "devices"})
# The kernel and rdma-core count without leading zeros, so mlx5_0 is the prefix of no other; names
# by place (enp12s0f1, eno8303) are never continued.
_COUNTED_HCA = re.compile(r"(?:[a-z]{1,15}\d{0,3}_){0,3}(?:[a-z]{1,15}\d?_|[a-z]{1,15})[1-9]")
_COUNTED_INTERFACE = re.compile(r"(?:eth|ib|bond)1")
_HCA = re.compile(r"mlx[45]_\w+|bnxt_re\w*|hfi1_\d+|efa_\d+|irdma\d+|rocep\w+")
_INTERFACE = re.compile(r"(?:ib|eth|bond|eno|ens)\d+")
_FEW = re.compile(r"bnxt|irdma|efa|hfi|cxi")
"""Kinds of which machines have ten at most."""
_OWN_ONLY = re.compile(r"=?(lo|docker\d*|virbr\d*|podman\d*)(:|$)")


def _list(setting: Setting, variable: Variable | None) -> str:
    """Return the value of a list of interfaces or HCAs; empty for anything else."""
    if variable is None or variable.type not in _LISTS or Slip.QUOTES_KEPT in setting.slips:
        return ""
    return setting.value or ""


def _blanks(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    value = _list(setting, variable)
    if re.search(r"\s", value):
        tight = re.sub(r"[\s,]+", ",", value.strip())
        yield Remark(
            summary="the blanks become part of the names, which then match nothing",
            hint=f"write {tight}",
        )


def _twice(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    listed = items(_list(setting, variable))
    doubled = dict.fromkeys(item for item in listed if item and listed.count(item) > 1)
    if doubled:
        yield Remark(
            summary=f"named twice: {', '.join(doubled)}", hint="was another one meant, or port 2?"
        )


def _prefixes(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    value = _list(setting, variable)
    if variable is None or not variable.name.startswith("NCCL_") or not value:
        return
    exclude, names = ("^", value[1:]) if value.startswith("^") else ("", value)
    counted = _COUNTED_HCA if variable.type == "hcas" else _COUNTED_INTERFACE
    bare = [item.partition(":")[0] for item in names.split(",")]
    wide = [name for name in bare if counted.fullmatch(name)]
    if not names.startswith("=") and wide:
        # Machines have more than ten HCAs of a kind, and hardly ever more than twenty.
        name = next((one for one in wide if one.endswith("1")), wide[0])
        likely = (name.endswith("1") and not _FEW.match(name)) or "bond" in name
        yield Remark(
            summary=f"a prefix: {name} also {'leaves out' if exclude else 'takes'} {name}0 to "
            f"{name}9",
            hint=f"for exactly these: {exclude}={names}",
            verdict=None if likely else Verdict.PASS,
        )


def _other_kind(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    value = _list(setting, variable)
    if variable is None or not value:
        return
    names = [item.partition(":")[0] for item in items(value)]
    if variable.type == "interfaces" and (hcas := [n for n in names if _HCA.fullmatch(n)]):
        yield Remark(
            summary=f"{hcas[0]} is an HCA, and no interface is called so",
            hint="write the interface of `ip -br address`, such as ib0",
        )
    elif variable.type == "hcas" and (found := [n for n in names if _INTERFACE.fullmatch(n)]):
        yield Remark(
            summary=f"{found[0]} is how interfaces are called, and hardly an HCA",
            hint="write the HCA of `ibv_devices`, such as mlx5_0",
            verdict=Verdict.WARN,
        )


def _not_exact(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    value = _list(setting, variable)
    if variable is None or variable.name.startswith("NCCL_"):
        return
    if value.startswith("=") or (value.startswith("^") and variable.family != "ucx"):
        yield Remark(
            summary=f"{value[0]} is NCCL's notation: here it becomes part of the name",
            hint="name the interfaces exactly, comma-separated",
        )


def _no_port(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    value = _list(setting, variable)
    if variable is None or variable.type != "devices":
        return
    bare = [item for item in items(value) if re.fullmatch(r"mlx[45]_\w+", item)]
    if bare:
        yield Remark(
            summary=f"without a port UCX finds no device {bare[0]}", hint=f"write {bare[0]}:1"
        )


def _own_only(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    value = _list(setting, variable)
    own = [item for item in items(value) if _OWN_ONLY.match(item)] if includes(value) else []
    if own:
        yield Remark(
            summary=f"{own[0]} reaches no other machine",
            hint="name the interface that the nodes share",
        )


RULES = (
    Rule(
        id="NCCL121",
        name="blanks-in-list",
        verdict=Verdict.FAIL,
        what="blanks inside of a list of interfaces or HCAs",
        why="The names are not trimmed: `eth0, eth1` names eth0 and a second one that starts "
        "with a blank.",
        fix="Write the list without blanks.",
        alone=_blanks,
    ),
    Rule(
        id="NCCL122",
        name="named-twice",
        verdict=Verdict.WARN,
        what="the same interface or HCA twice in a list",
        why="The second one does nothing; mostly another one was meant, and a rail stays unused.",
        fix="Name every rail once.",
        alone=_twice,
    ),
    Rule(
        id="NCCL123",
        name="prefix-match",
        verdict=Verdict.WARN,
        what="a name that also matches longer ones that machines have (mlx5_1 takes mlx5_10)",
        why="NCCL matches by prefix unless the list starts with `=`. On a machine with more than "
        "ten devices it takes those that nobody meant.",
        fix="Start the list with `=`, or with `^=` for one that excludes.",
        alone=_prefixes,
    ),
    Rule(
        id="NCCL124",
        name="exact-names-only",
        verdict=Verdict.FAIL,
        what="`^` or `=` for a library that knows no such thing (Gloo, UCX)",
        why="They take exact names only, so a name with a sign before it matches nothing.",
        fix="Name the interfaces one by one.",
        alone=_not_exact,
    ),
    Rule(
        id="NCCL125",
        name="port-missing",
        verdict=Verdict.WARN,
        what="an HCA without its port in UCX_NET_DEVICES",
        why="UCX names InfiniBand devices as device:port.",
        fix="Write mlx5_0:1.",
        alone=_no_port,
    ),
    Rule(
        id="NCCL126",
        name="local-interface",
        verdict=Verdict.WARN,
        what="an interface that reaches this machine only (lo, docker0)",
        why="Ranks on other nodes then wait until they time out.",
        fix="Name the interface of the network that the nodes share.",
        alone=_own_only,
    ),
    Rule(
        id="NCCL127",
        name="other-kind-of-name",
        verdict=Verdict.FAIL,
        what="an HCA (mlx5_0) where an interface (ib0) belongs, or the other way round",
        why="Each list is compared with names of its own kind, so nothing matches: NCCL finds no "
        "interface and ends, or no HCA and goes over TCP.",
        fix="`ip -br address` lists interfaces, `ibv_devices` HCAs.",
        alone=_other_kind,
    ),
)
