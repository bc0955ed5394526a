"""A made-up cluster: thousands of nodes with 8 H100 and 8 NICs each, one in a hundred unfit.

What the GPUs say is what the probes print over the test double of nvidia-smi; serial numbers,
temperatures, addresses, counters and fill levels differ from node to node as they do in life.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.judge import texts
from clusterkit.preflight.bundle import Bundle
from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.checks.base import Tier
from clusterkit.preflight.collect import probes_of
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import NOT_APPLICABLE, Output, PreflightJob, Reach, ReachProblem
from clusterkit.transport.script import compose
from tests.helpers.answers import read_answer

_DOUBLES = Path(__file__).resolve().parents[2] / "tests" / "doubles"
_EVERY = 100
"""One node in so many is unfit."""
_COLLECTED_AT = 1795000000.0

Outputs = dict[str, Output]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The bundle, and the nodes that have to be named."""

    bundle: Bundle
    unfit: tuple[str, ...]


def fleet(nodes: int) -> Fleet:
    """Return the answers of so many nodes; the same ones each time."""
    chance = random.Random(nodes)
    hosts = tuple(f"n{number:04}" for number in range(nodes))
    job = texts.job(hosts)
    gpus = _said_by_the_double(job)
    unfit = hosts[_EVERY // 2 :: _EVERY]
    faults = dict(zip(unfit, _turns(len(unfit)), strict=True))
    return Fleet(
        bundle=Bundle(
            job=job,
            replies=tuple(_reply(host, job, gpus, chance, faults.get(host)) for host in hosts),
            collected_at=_COLLECTED_AT,
            seconds=30.0,
            checks=tuple(check.id for check in all_checks() if check.tier is not Tier.NETWORK),
        ),
        unfit=unfit,
    )


def _said_by_the_double(job: PreflightJob) -> Mapping[str, str]:
    """Return what eight healthy GPUs print, by probe."""
    probes = probes_of(all_checks(), job)
    wanted = [probe for probe in probes if probe.name.startswith(("nvidia-", "kernel-log"))]
    compound = compose(wanted, job, token="ckbench")
    env = {
        "PATH": f"{_DOUBLES}:{os.environ['PATH']}",
        "CLUSTERKIT_GPUS": str(_DOUBLES / "gpus" / "healthy8"),
    }
    done = subprocess.run(
        ["sh"], input=compound.script, env=env, capture_output=True, text=True, check=True
    )
    found = read_answer(done.stdout, compound)
    assert found is not None
    answers = found.outputs
    return {name: output.stdout for name, output in answers.items()}


def _reply(
    host: str,
    job: PreflightJob,
    gpus: Mapping[str, str],
    chance: random.Random,
    fault: Callable[[Outputs], Outputs | None] | None,
) -> Reply:
    number = job.hosts.index(host)
    outputs = {
        **{name: Output(stdout=text) for name, text in _own(gpus, chance).items()},
        **{
            name: Output(stdout=text)
            for name, text in texts.host(host, number, job, chance).items()
        },
        "amd-gpus": Output(stdout="no AMD GPU\n", exit_code=NOT_APPLICABLE),
        "efa": Output(stdout="no EFA device\n", exit_code=NOT_APPLICABLE),
    }
    reach = Reach(
        via="srun",
        connect_s=chance.uniform(0.01, 0.2),
        clock_skew_s=chance.uniform(-0.01, 0.01),
        seconds=chance.uniform(2, 9),
    )
    if fault is None:
        return Reply(node=host, reach=reach, outputs=_timed(outputs, chance))
    changed = fault(outputs)
    if changed is None:
        lost = Reach(via="srun", problem=ReachProblem.SCHEDULER, detail="no task was started")
        return Reply(node=host, reach=lost)
    return Reply(node=host, reach=reach, outputs=_timed(changed, chance))


def _timed(outputs: Outputs, chance: random.Random) -> Outputs:
    return {
        name: Output(
            stdout=o.stdout, stderr=o.stderr, exit_code=o.exit_code,
            seconds=round(chance.uniform(0.01, 3), 3),
        )
        for name, o in outputs.items()
    }  # fmt: skip


def _own(gpus: Mapping[str, str], chance: random.Random) -> Mapping[str, str]:
    """Give every GPU an identity and a temperature of its own."""
    own = dict(gpus)
    for index in range(8):
        mark = f"GPU-0000000{index}-1111-2222-3333-444444444444"
        uuid = f"GPU-{chance.getrandbits(32):08x}-{chance.getrandbits(16):04x}-4a5b-8c6d-{chance.getrandbits(48):012x}"  # noqa: E501
        own = {name: text.replace(mark, uuid) for name, text in own.items()}
    degrees = {31 + index: chance.randint(28, 62) for index in range(8)}
    own["nvidia-gpus"] = re.sub(
        r"(0x0{15}1, |Current Temp +: |T\.Limit Temp +: |550\.127\.08, )(\d\d)\b",
        lambda found: _warm(found, degrees),
        own["nvidia-gpus"],
    )
    return own


def _warm(found: re.Match[str], degrees: Mapping[int, int]) -> str:
    """Replace a temperature, or the margin to 85 C, of the double by the one of this GPU."""
    if found[1].startswith(("T.", "550.")):  # the margin's column stands behind the driver's
        return f"{found[1]}{85 - degrees[85 - int(found[2])]}"
    return f"{found[1]}{degrees[int(found[2])]}"


def _edit(probe: str, pattern: str, by: str) -> Callable[[Outputs], Outputs]:
    def change(outputs: Outputs) -> Outputs:
        text, count = re.subn(pattern, by, outputs[probe].stdout, count=1, flags=re.MULTILINE)
        if not count:
            raise ValueError(f"{probe} says nothing like {pattern}")
        return {**outputs, probe: Output(stdout=text)}

    return change


_FAULTS: tuple[Callable[[Outputs], Outputs | None], ...] = (
    _edit(
        "nvidia-gpus", r"^5(.*), 0x0{15}1, \d\d, (.*) \d\d$", r"5\1, 0x0000000000000048, 93, \2 -8"
    ),
    _edit("nvidia-gpus", r"^3(.*), No, No, Completed", r"3\1, Yes, No, Completed"),
    _edit("nvidia-gpus", r"^0(.*), Enabled, 0, 0", r"0\1, Enabled, 2, 2"),
    _edit("nvidia-gpus", r"^7(.*), 5, 5, 16, 16", r"7\1, 5, 5, 8, 16"),
    _edit("nvidia-nvlink", r"26\.562 GB/s", "<inactive>"),
    _edit("nvidia-list", r"^GPU 7.*\n", ""),
    _edit("kernel-log", r"\Z", texts.XID),
    _edit("rdma-ports", r"4: ACTIVE\|5: LinkUp", "1: DOWN|3: Disabled"),
    _edit("rdma-counters", r"^2 mlx5_1/ports/1.*", r"\g<0> link_downed=2"),
    _edit("host-limits", r"^(Max locked memory +)\S+ +\S+", r"\g<1>65536   65536"),
    _edit("host-disks", r"^(kib=tmpfs +)\d+ +\d+ +\d+", r"\g<1>1056784384 1056784384 0"),
    _edit("slurm-node", r"State=IDLE", "State=IDLE+DRAIN"),
    _edit("shared-folders", r"(?s)state=ok.*^end", "state=hung\nend"),
    lambda _: None,
)


def _turns(count: int) -> Iterable[Callable[[Outputs], Outputs | None]]:
    return (_FAULTS[turn % len(_FAULTS)] for turn in range(count))
