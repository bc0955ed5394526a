"""What Slurm says of nodes: recordings, records of many versions, and mangled ones."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterkit.core.hosts import hostlist
from clusterkit.preflight.bundle import Bundle
from clusterkit.preflight.checks.base import Check
from clusterkit.preflight.evaluate import evaluate
from clusterkit.preflight.probes import sinfo
from clusterkit.preflight.targets import with_slurm
from clusterkit.transport import slurm_nodes
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import Missing, Output, PreflightJob, Reach, Unparsed, read_output
from tests.helpers.evidence import evidence
from tests.helpers.probe_run import named, rulings
from tests.helpers.recordings import recording

MULTI, ONE = "scontrol_show_node_h100_drain.txt", "scontrol_show_node_oneline_25_11.txt"


def _slurm(*hosts: str, gpus: int | None = None) -> PreflightJob:
    return PreflightJob(hosts=hosts, kind="slurm", gpus_per_node=gpus, uses_gpus=gpus is not None)


def test_the_drained_nodes_of_the_recording_are_named() -> None:
    """Two drained with their reasons, two allocated in maintenance without one."""
    records = slurm_nodes.split_records(recording(MULTI))
    prefix = "cluster-h100-9-"
    assert list(records) == [prefix + number for number in ("78", "69", "79", "75")]
    job = _slurm(*records)
    ruled = rulings(
        named("slurm-state"),
        evidence({name: {"slurm-node": text} for name, text in records.items()}, job=job),
    )
    found = {str(name).removeprefix(prefix): ruling for name, ruling in ruled.items()}
    assert [str(found[n].verdict) for n in ("78", "79", "69", "75")] == [
        "fail", "fail", "warn", "warn",
    ]  # fmt: skip
    assert "Prolog error: 571 xid 13 errors" in found["78"].summary
    assert "SAM" in found["79"].summary
    assert "root@2023-12-24T06:51:08" in found["78"].evidence
    assert "maintenance" in found["69"].summary
    node = slurm_nodes.parse(records[prefix + "78"])
    assert node.states == ("IDLE", "DRAIN", "MAINTENANCE", "RESERVED")
    assert node.gres == {"gpu": 8}
    assert node.features == ("gpu", "h100", "cluster-h100-9")


@pytest.mark.parametrize(
    ("state", "tres", "free"),
    [
        ("MIXED", "CfgTRES=cpu=96,gres/gpu=8 AllocTRES=cpu=8,gres/gpu=3,gres/gpu:a100=3", 5),
        ("MIXED", "CfgTRES=cpu=96,gres/gpu=8 AllocTRES=cpu=8", 8),
        ("MIXED", "CfgTRES=cpu=96 AllocTRES=cpu=8", None),  # GPUs are not accounted there
        ("ALLOCATED", "CfgTRES=cpu=96 AllocTRES=cpu=8", 0),
        ("IDLE", "CfgTRES=cpu=96 AllocTRES=", 8),
        ("IDLE+CLOUD+POWERED_DOWN", "CfgTRES=cpu=96 AllocTRES=", 8),
        ("IDLE+DRAIN", "CfgTRES=cpu=96,gres/gpu=8 AllocTRES=", 0),
        ("MIXED", "CfgTRES=cpu=96,gres/gpu=8 AllocTRES=gres/gpu=99", 0),
        ("MIXED", "CfgTRES=cpu=96,gres/gpu=8 AllocTRES=gres/gpu=-1", None),
    ],
)
def test_what_is_free_of_a_node_is_counted(state: str, tres: str, free: int | None) -> None:
    text = f"NodeName=n1 CPUAlloc=8 CPUEfctv=90 CPUTot=96 Gres=gpu:a100:8 State={state} {tres}\n"
    node = slurm_nodes.parse(text)
    assert (node.gpus, node.free_gpus) == (8, free)
    assert node.free_cpus == (82 if node.open else 0)
    assert slurm_nodes.parse("NodeName=n1 State=IDLE CPUTot=x").free_cpus is None


def test_the_one_line_record_is_read() -> None:
    """Blanks and "#" in OS, "=" in CfgTRES, (null) is nothing."""
    text = recording(ONE)
    node = slurm_nodes.parse(slurm_nodes.split_records(text)["worker-1"])
    assert node.states == ("ALLOCATED",)
    assert node.gres == {}
    assert node.features == ()
    job = _slurm("worker-1")
    ruled = rulings(named("slurm-state"), evidence({"worker-1": {"slurm-node": text}}, job=job))
    assert ruled["worker-1"].verdict == "pass"


@pytest.mark.parametrize(
    ("written", "verdict", "summary"),
    [
        ("IDLE+CLOUD+POWERED_DOWN", "skip", "powered down: checked when it starts"),
        ("IDLE*+CLOUD+POWERED_DOWN", "skip", "powered down: checked when it starts"),
        ("IDLE+CLOUD+POWER", "skip", "powered down: checked when it starts"),
        ("ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP", "skip", "powering up: checked"),
        ("IDLE+CLOUD+POWERING_DOWN", "skip", "powering down: checked"),
        ("MIXED+DYNAMIC_NORM+POWER_DOWN", "skip", "about to be powered down: checked"),
        ("IDLE+REBOOT_REQUESTED", "skip", "about to reboot: checked"),
        ("IDLE+NOT_RESPONDING+REBOOT_ISSUED", "skip", "rebooting: checked"),
        ("IDLE+CLOUD", "pass", "Slurm would start a job there"),
        ("MIXED+CLOUD+PLANNED", "pass", "Slurm would start a job there"),
        ("DOWN+CLOUD+POWERED_DOWN", "fail", "down, powered down"),
        ("IDLE+CLOUD+DRAIN+POWERED_DOWN", "fail", "drained, powered down"),
        ("IDLE+CLOUD+NOT_RESPONDING", "fail", "not responding"),
        ("IDLE+MAINTENANCE+RESERVED", "warn", "in maintenance, reserved"),
    ],
)
def test_a_node_that_is_not_up_is_no_fault(written: str, verdict: str, summary: str) -> None:
    """The words of node_state_flags, which follow the base state."""
    record = f"NodeName=c1 Gres=(null) State={written} Partitions=q\n"
    ruled = rulings(
        named("slurm-state"), evidence({"c1": {"slurm-node": record}}, job=_slurm("c1"))
    )
    assert str(ruled["c1"].verdict) == verdict
    assert ruled["c1"].summary.startswith(summary)


@pytest.mark.parametrize(
    ("written", "states"),
    [
        ("IDLE", ("IDLE",)),
        ("DOWN*", ("DOWN", "NOT_RESPONDING")),
        ("IDLE*+CLOUD+POWERED_DOWN", ("IDLE", "NOT_RESPONDING", "CLOUD", "POWERED_DOWN")),
        ("idle~", ("IDLE", "POWERED_DOWN")),
        ("MIXED+DRAIN+NOT_RESPONDING", ("MIXED", "DRAIN", "NOT_RESPONDING")),
    ],
)
def test_states_and_their_symbols_are_read(written: str, states: tuple[str, ...]) -> None:
    """A "*" of old versions is the flag NOT_RESPONDING of new ones."""
    assert slurm_nodes.parse(f"NodeName=n1 State={written} CPUTot=8\n").states == states


@pytest.mark.parametrize(
    ("written", "gres"),
    [
        ("gpu:8", {"gpu": 8}),
        ("gpu:a100:8(S:0-1,3)", {"gpu": 8}),
        ("gpu:tesla_v100:2,gpu:kepler:2,nic:1", {"gpu": 4, "nic": 1}),
        ("gpu:nvidia_a100_1g.5gb:7", {"gpu": 7}),
        ("gpu", {"gpu": 1}),
        ("craynetwork:no_consume:4,bandwidth:lustre:4G", {"craynetwork": 4, "bandwidth": 4}),
        ("(null)", {}),
    ],
)
def test_gres_are_counted(written: str, gres: dict[str, int]) -> None:
    """Types add up, sockets are left out (man gres.conf)."""
    assert slurm_nodes.parse(f"NodeName=n1 Gres={written} State=IDLE\n").gres == gres


def test_a_reason_cannot_forge_other_fields() -> None:
    """What an operator writes is text, in one line as in many."""
    reason = "State=IDLE Gres=gpu:99 =odd= [bracket] [ops@2026-01-01T00:00:00]"
    one = f"NodeName=n1 Gres=gpu:8 State=DOWN Reason={reason} Comment=x\n"
    many = f"NodeName=n1 Gres=gpu:8\n   State=DOWN\n   Reason={reason}\n   Comment=x\n"
    for text in (one, many, f"NodeName=n1 Reason={reason} Gres=gpu:8 State=DOWN\n"):
        node = slurm_nodes.parse(text)
        assert (node.states, node.gres, node.reason_by) == (("DOWN",), {"gpu": 8}, "ops"), text


def test_each_node_gets_its_own_record() -> None:
    """One question for all; a node that Slurm lacks is unknown, and so are all without answer."""
    text = "NodeName=n1 State=IDLE\nNodeName=n2 State=DOWN\nNode n3 not found\n"
    found = slurm_nodes.answers(("n1", "n2", "n3"), Output(stdout=text, exit_code=1))
    assert slurm_nodes.parse(found["n2"].stdout).states == ("DOWN",)
    lost = read_output(slurm_nodes.PROBE, found["n3"])
    assert isinstance(lost, Missing)
    assert "knows no node" in lost.reason
    none = slurm_nodes.answers(("n1",), Output(stdout="", stderr="cannot connect", exit_code=1))
    silent = read_output(slurm_nodes.PROBE, none["n1"])
    assert isinstance(silent, Missing)
    assert "cannot connect" in silent.reason
    assert slurm_nodes.query(("n1", "n2", "n2"))[-1] == "n[1-2]"
    assert slurm_nodes.PROBE.snippet(_slurm("n1")) is None


@given(data=st.data())
def test_mangled_records_are_refused_and_never_guessed(data: st.DataObject) -> None:
    """Whatever is cut out or put in, nothing but Unparsed is raised."""
    for name in (MULTI, ONE):
        text = recording(name)
        begin = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 200))
        noise = data.draw(st.text(max_size=20))
        mangled = text[:begin] + noise + text[begin + length :]
        for record in [mangled, *slurm_nodes.split_records(mangled).values()]:
            try:
                slurm_nodes.parse(record)
            except Unparsed:
                continue


@pytest.mark.parametrize(
    ("file", "nodes", "states"),
    [
        ("sinfo_deepops_alloc_idle.txt", 9, {"ALLOCATED": 1, "IDLE": 8}),
        ("sinfo_hyperpod_commas.txt", 4, {"IDLE": 4}),
    ],
)
def test_sinfo_tables_are_read(file: str, nodes: int, states: dict[str, int]) -> None:
    """Every node that the table names, as a record that the same parser reads."""
    records = sinfo.records(sinfo.parse(recording(file)))
    found = [slurm_nodes.parse(record).states[0] for record in records.values()]
    assert len(found) == nodes
    assert {state: found.count(state) for state in found} == states
    if nodes == 9:
        assert slurm_nodes.parse(records["dgx1"]).states == ("ALLOCATED",)


def test_sinfo_states_are_translated() -> None:
    """Compact words and symbols lead to the same verdicts as scontrol's."""
    table = (
        "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n"
        "gpu*         up 1-00:00:00      1   drng n1\n"
        "gpu*         up 1-00:00:00      1  down* n2\n"
        "gpu*         up 1-00:00:00      1    mix n3\n"
        "gpu*         up 1-00:00:00      0    n/a n/a\n"
    )
    records = sinfo.records(sinfo.parse(table))
    nodes = {name: {"slurm-node": text} for name, text in records.items()}
    ruled = rulings(named("slurm-state"), evidence(nodes, job=_slurm(*nodes)))
    assert {name: str(r.verdict) for name, r in ruled.items()} == {
        "n1": "fail", "n2": "fail", "n3": "pass",
    }  # fmt: skip


def test_sinfo_answers_where_there_is_no_scontrol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The states are all that it tells; a double of sinfo shows how it is asked."""
    table = recording("sinfo_deepops_alloc_idle.txt")
    (tmp_path / "table").write_text(table.replace("idle", "drain"), encoding="utf-8")
    (tmp_path / "sinfo").write_text(
        f'#!/bin/sh\necho "$*" >{tmp_path}/asked\ncat {tmp_path}/table\n', encoding="utf-8"
    )
    (tmp_path / "sinfo").chmod(0o755)
    for tool in ("cat", "sh"):
        (tmp_path / tool).symlink_to(f"/bin/{tool}")
    monkeypatch.setenv("PATH", str(tmp_path))
    hosts = ("dgx1", "dgx2", "dgx10")
    bundle = Bundle(
        job=replace(_slurm(*hosts), gpus_per_node=8),
        replies=tuple(Reply(node=host, reach=Reach()) for host in hosts),
        collected_at=0.0,
        seconds=0.0,
    )
    report = evaluate(with_slurm(bundle), (named("slurm-state"), named("slurm-gres")))
    assert {(f.id, f.verdict.value, f.nodes) for f in report.findings} == {
        ("SLURM001", "pass", ("dgx1",)),
        ("SLURM001", "fail", ("dgx2",)),
        ("SLURM001", "unknown", ("dgx10",)),
        ("SLURM002", "unknown", ("dgx1", "dgx2")),
        ("SLURM002", "unknown", ("dgx10",)),
    }
    asked = (tmp_path / "asked").read_text(encoding="utf-8")
    assert asked == "--nodes=dgx[1-2,10] -o %P %a %l %D %t %N\n"


def test_a_sinfo_that_says_something_else_is_unknown() -> None:
    output = Output(stdout="slurm_load_partitions: Unable to contact slurm controller\n")
    assert sinfo.as_records(output) is output


def test_the_hostlists_of_the_recording_expand_as_the_index_says() -> None:
    """Each input of "scontrol show hostnames" with its count, first and last host."""
    inputs = recording("hostlist_inputs_open.txt").split("\n")
    index = recording("INDEX.tsv")
    (row,) = [r for r in index.splitlines() if r.startswith("hostlist_inputs_open.txt")]
    wanted = re.findall(r"(\S+) -> (\d+) hosts, first (\S+), last ([^\s;]+)", row)
    assert len(wanted) == len([line for line in inputs if line.strip()])
    for text, count, first, last in wanted:
        names = hostlist.expand(text)
        assert (len(names), names[0], names[-1]) == (int(count), first, last)


LISTED = "exit 0\n" + "".join(
    f"GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-0000000{i}-0000-0000-0000-000000000000)\n"
    for i in range(7)
)


@pytest.mark.parametrize(
    ("gres", "wanted", "listed", "verdict"),
    [
        ("gpu:8", None, LISTED, "fail"),
        ("gpu:7", None, LISTED, "pass"),
        ("gpu:4", None, LISTED, "warn"),
        ("(null)", None, LISTED, "skip"),
        ("gpu:4", 8, LISTED, "fail"),
        ("gpu:4", 4, Output(stdout="no NVIDIA GPU", exit_code=77), "skip"),
        ("gpu:4", None, Output(stdout="", exit_code=124), "unknown"),
    ],
)
def test_gres_are_held_against_the_gpus(
    gres: str, wanted: int | None, listed: str | Output, verdict: str
) -> None:
    """A GPU that fell off the bus is still in Slurm's books."""
    nodes = {"n1": {"slurm-node": f"NodeName=n1 Gres={gres} State=IDLE\n", "nvidia-list": listed}}
    ruled = rulings(named("slurm-gres"), evidence(nodes, job=_slurm("n1", gpus=wanted)))
    assert str(ruled["n1"].verdict) == verdict


def test_an_odd_kind_of_node_is_named() -> None:
    """Features and Gres by majority."""
    nodes = {
        f"n{i}": {"slurm-node": f"NodeName=n{i} ActiveFeatures={kind} Gres=gpu:8 State=IDLE\n"}
        for i, kind in enumerate(("h100", "h100", "a100"))
    }
    ruled = rulings(named("slurm-features"), evidence(nodes, job=_slurm(*nodes)))
    assert [str(ruling.verdict) for ruling in ruled.values()] == ["pass", "pass", "warn"]
    assert "a100" in ruled["n2"].summary


@pytest.mark.parametrize(
    "check", [named("slurm-state"), named("slurm-gres"), named("slurm-features")]
)
def test_without_slurm_there_is_one_skip(check: Check) -> None:
    """Nothing is said of every node."""
    found = rulings(check, evidence({"n1": {}, "n2": {}}))
    assert [(node, str(ruling.verdict)) for node, ruling in found.items()] == [(None, "skip")]
