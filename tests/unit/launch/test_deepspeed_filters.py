"""DeepSpeed's include and exclude filters: in plans, in rendered scripts, and around a rank."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterkit.core.data import data_dir
from clusterkit.core.errors import UserError
from clusterkit.core.hosts.slots import filter_slots
from clusterkit.core.model import ClusterKind, ClusterSpec, LaunchPlan
from clusterkit.launch.options import JobSpec
from clusterkit.launch.plan import make_plan
from clusterkit.launch.render import render
from tests.helpers.render_cases import PLAIN, RACK
from tests.unit.launch.test_scripts import Desk

NODES = "w0,w1,w2"


def plan(base: ClusterSpec = PLAIN, nodes: int = 3, **options: str) -> LaunchPlan:
    job = JobSpec(framework="deepspeed", script="train.py", nodes=nodes, launcher_options=options)
    return make_plan(job, base, workdir="/work")


@pytest.mark.parametrize(
    ("options", "processes"),
    [
        ({"include": "w0@w1:0,1"}, 6),
        ({"include": "w1@w1:0"}, 4),
        ({"exclude": "w0"}, 8),
        ({"exclude": "w0@w1:3"}, 7),
        ({"include": "", "exclude": "w2:0"}, 11),
    ],
)
def test_a_plan_counts_the_ranks_that_a_filter_leaves(
    options: dict[str, str], processes: int
) -> None:
    made = plan(**options)
    assert (made.nodes, made.processes) == (3, processes)
    assert not any("--exclude" in str(word) for word in made.command.argv)


def test_a_compose_file_has_one_host_that_no_filter_names() -> None:
    assert plan(include="w1:0").one_host_command == plan().one_host_command


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"include": "w0", "exclude": "w1"}, ("deepspeed.include", "exclude each other")),
        ({"include": "w0@"}, ("HOST[:SLOT,...]", "deepspeed.include:1:4")),
        ({"include": "w0:"}, ("is not a slot number",)),
        ({"include": "w0:0-3"}, ("0,1,2",)),
        ({"include": "w 0"}, ("'w 0' is not a host name",)),
        ({"exclude": "w0:4"}, ("no slot 4", "0,1,2,3")),
        ({"include": "a@b@c@d"}, ("4 hosts", "3 nodes", "--nodes 4")),
        ({"exclude": "a@b@c"}, ("leaves no slot",)),
        ({"num_nodes": "2"}, ("deepspeed.num_nodes", "deepspeed.include")),
    ],
)
def test_a_filter_that_cannot_be_is_refused_when_planned(
    options: dict[str, str], words: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as caught:
        plan(**options)
    assert all(word in str(caught.value) for word in words), caught.value


def test_hosts_that_are_known_are_checked_by_name() -> None:
    assert plan(RACK, include="n1:0,1@n3").processes == 6
    with pytest.raises(UserError, match="no host 'n4'"):
        plan(RACK, include="n4")
    with pytest.raises(UserError, match="no host 'n2'"):
        plan(RACK, nodes=2, include="n2")  # the cluster has it, the job does not


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def sbatch(desk: Desk, **options: str) -> subprocess.CompletedProcess[str]:
    texts = desk.render(framework="deepspeed", gpus_per_node=(4,), launcher_options=options)
    return desk.sbatch(texts["job.sbatch"], nodes=NODES)


def test_the_nodes_that_are_left_are_ranked_anew(desk: Desk) -> None:
    done = sbatch(desk, include="w2:1,3@w1")
    assert done.returncode == 0, done.stderr
    assert "deepspeed.include leaves nothing of w0" in done.stdout
    assert not (desk.folder / "2.json").exists()
    for rank, name in enumerate(("w1", "w2")):
        seen = desk.seen(rank)
        assert {f"--node_rank={rank}", "--include=w1:0,1,2,3@w2:1,3"} <= set(seen["argv"])
        assert seen["files"]["hostfile"] == "w1 slots=4\nw2 slots=4\n"
        env = seen["env"]
        assert (env["CK_NODE_NAME"], env["CK_NODE_RANK"]) == (name, str(rank))
        assert (env["CK_NODES"], env["CK_NNODES"], env["CK_SLOTS"]) == ("w1 w2", "2", "4 2")
    assert desk.seen(0)["env"]["CK_PORT"] == desk.seen(1)["env"]["CK_PORT"]


def test_the_head_is_the_first_node_that_is_left(desk: Desk) -> None:
    # Multicast addresses: nothing listens there, whatever the network of this machine.
    (desk.bin / "getent").write_text('#!/bin/sh\necho "127.0.1.1 $2"; echo "224.0.9.${2#w} $2"\n')
    (desk.bin / "getent").chmod(0o755)
    for options, address in (
        ({"exclude": "w0"}, "224.0.9.1"),
        ({"include": "w2"}, "224.0.9.2"),
        ({"exclude": "w0:0"}, "224.0.9.0"),
    ):
        done = sbatch(desk, **options)
        assert done.returncode == 0, done.stderr
        assert f"--master_addr={address}" in desk.seen(0)["argv"]


@pytest.mark.parametrize(("dropped", "asked"), [("w0", "w1"), ("w2", None)])
def test_the_head_is_asked_for_the_address_of_the_interface(
    desk: Desk, dropped: str, asked: str | None
) -> None:
    (desk.bin / "ip").write_text(
        '#!/bin/sh\necho "$NODE" >>"$SEEN/asked"; echo "2: ib0 inet 127.9.0.1/24"\n'
    )
    fake_srun = (desk.bin / "srun").read_text()
    named = "named = [word.partition('=')[2] for word in words if 'nodelist' in word]\n"
    (desk.bin / "srun").write_text(
        fake_srun.replace(
            "while words",
            f"{named}if named:\n    os.environ.update(NODE=named[0], SLURM_JOB_NUM_NODES='1')\n"
            "while words",
            1,
        )
    )
    (desk.bin / "ip").chmod(0o755)
    texts = desk.render(
        framework="deepspeed",
        launcher_options={"exclude": dropped},
        cluster={"network_interface": "ib0"},
    )
    done = desk.sbatch(texts["job.sbatch"], nodes=NODES)
    assert done.returncode == 0, done.stderr
    assert (desk.folder / "asked").read_text().strip() == (asked or "")
    assert desk.seen(1)["env"]["CK_HEAD_ADDR"] == "127.9.0.1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"include": "w0@x9"}, "deepspeed.include: there is no host x9 in this job"),
        ({"exclude": "x9:1"}, "deepspeed.exclude: there is no host x9 in this job"),
    ],
)
def test_a_node_that_the_job_has_not_is_named_with_those_it_has(
    desk: Desk, options: dict[str, str], message: str
) -> None:
    done = sbatch(desk, **options)
    assert done.returncode == 2
    assert f"{message}; its hosts: w0 w1 w2\n" in done.stderr
    assert not list(desk.folder.glob("*.json"))


def test_a_node_script_by_hand_takes_the_slots_that_it_is_given(desk: Desk) -> None:
    texts = desk.render(
        framework="deepspeed", kind=ClusterKind.LOCAL, launcher_options={"include": "host2:1"}
    )
    (desk.folder / "node.sh").write_text(texts["node.sh"])

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        environment = desk.environment("", 0, CK_NODES="host1 host2", CK_NODE_RANK="1", **more)
        return subprocess.run(
            ["bash", desk.folder / "node.sh"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert run().returncode == 0
    assert {"--node_rank=0", "--master_addr=host2", "--include=host2:1"} <= set(
        desk.seen(0)["argv"]
    )
    refused = run(CK_SLOTS="1 1")
    assert refused.returncode == 2
    assert "host2 has no slot 1; it has 1" in refused.stderr


SPECS = st.lists(
    st.tuples(
        st.sampled_from(["w0", "w1", "w2"]),
        st.lists(st.sampled_from(["0", "1", "2", "03"]), max_size=3),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(specs=SPECS, option=st.sampled_from(["include", "exclude"]))
def test_the_nodes_filter_as_the_hostfile_verb_does(
    specs: list[tuple[str, list[str]]], option: str
) -> None:
    text = "@".join(host + (f":{','.join(slots)}" if slots else "") for host, slots in specs)
    pool = {host: tuple(range(4)) for host in ("w0", "w1", "w2")}
    left = filter_slots(pool, **{option: text})
    script = (
        f". {data_dir('templates/scripts')}/node/filter.sh; ck_nodes=(w0 w1 w2); ck_slots=(4 4 4)\n"
        'ck_filter "deepspeed.$1" "$2" || exit\n'
        'for i in "${!ck_nodes[@]}"; do\n'
        '  echo "${ck_was[i]} ${ck_nodes[i]} ${ck_slots[i]} ${ck_room[i]} ${ck_left[i]}"\n'
        "done\n"
    )
    done = subprocess.run(
        ["bash", "-euc", script, "bash", option, text],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (0 if left else 2)
    ranks = {host: rank for rank, host in enumerate(pool)}
    assert done.stdout.splitlines() == [
        f"{ranks[host]} {host} {len(slots)} 4 {','.join(map(str, slots))}"
        for host, slots in left.items()
    ]


@pytest.mark.parametrize(
    ("slots", "allocated", "seen"),
    [
        ("0,1", "4,5,6,7", "4,5"),
        ("1,3", "4,5,6,7", "5,7"),
        ("2", "GPU-aa,GPU-bb,GPU-cc", "GPU-cc"),
        ("10", ",".join(str(number) for number in range(20, 32)), "30"),
        ("0,1", "6", "6"),  # fewer GPUs than slots: all share it
        ("0,1", "", "0,1"),  # nothing was allocated: the launcher's numbers are right
        (None, "4,5", "4,5"),
    ],
)
def test_the_slots_of_a_rank_count_in_what_was_allocated(
    slots: str | None, allocated: str, seen: str
) -> None:
    environment: dict[str, Any] = {
        "PATH": os.environ["PATH"],
        "CK_VISIBLE_DEVICES": allocated,
        "LOCAL_RANK": "1",
    }
    if slots is not None:
        environment["CUDA_VISIBLE_DEVICES"] = slots
    rank = data_dir("templates/frameworks/deepspeed") / "rank.sh"
    # The command is `sh -u SCRIPT`, and the script says what it sees.
    done = subprocess.run(
        ["sh", rank, "3", "sh", "-u", "/dev/stdin", "a b"],
        env=environment,
        input='echo "$CUDA_VISIBLE_DEVICES"; printf "%s|" "$@"',
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{seen}\n--local_rank=1|a b|"


def test_scripts_without_a_filter_know_nothing_of_filters() -> None:
    texts = [file.text for file in render(plan())]
    assert not any("ck_filter" in text or "CK_INCLUDE" in text for text in texts)
