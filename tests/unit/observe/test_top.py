"""`clusterkit top`: what is shown of nodes, and that a slow one holds up nobody else."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from clusterkit.cli.frame.main import app
from clusterkit.core import files
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.findings import Verdict
from clusterkit.core.model import ClusterKind, ClusterSpec, JobState, JobStatus
from clusterkit.core.text import cut
from clusterkit.core.throughput import Throughput
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.jobs.logs import LogReader
from clusterkit.jobs.nodes import Part, Subject, of_cluster, of_job
from clusterkit.jobs.state.load import Job
from clusterkit.observe.prometheus import write_nodes
from clusterkit.observe.top.snapshot import JobNow, NodeNow, Snapshot, document_of, warnings_of
from clusterkit.observe.top.table import bars, lines_of, short
from clusterkit.observe.top.watch import Training, Watcher, latest
from clusterkit.observe.vitals.sample import NodeSample, rates
from clusterkit.preflight.request import PreflightOptions
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import Output, Reach, ReachProblem
from clusterkit.transport.script import Compound
from tests.unit.observe.test_vitals import LATER, READING, RUN, UNITS, gpu, sample

JOB = JobNow(
    job_id="1234",
    name="train",
    run_id=RUN,
    state=JobState.RUNNING,
    speed=Throughput(rate=431.2, unit="samples", step=60),
    speed_of=0,
    history=(100.0, 200.0, 431.2),
)


def node(name: str, last: NodeSample | None = None, **more: object) -> NodeNow:
    last = last or sample(LATER, *(gpu(k) for k in range(8)))
    return NodeNow(name=name, sample=last, rates=rates(sample(), last), **more)


def calm(name: str, *, busy: float = 97.0) -> NodeNow:
    """Return a node of which there is nothing to say."""
    text = LATER.replace("70 15", "70 10").replace("1300 200 400 8200 200", "1300 200 400 8400 100")
    text = text.replace("60 400", "60 300").replace("1 6 10000", "1 2 10000")
    return node(name, sample(text, *(gpu(k, busy_percent=busy) for k in range(8))))


def snapshot(*nodes: NodeNow, job: JobNow | None = None) -> Snapshot:
    return Snapshot(at=1_800_000_000.0, cluster="a100", nodes=nodes, job=job)


def texts(shown: Snapshot, **more: object) -> list[str]:
    return [line.text for line in lines_of(shown, width=80, **more)]


def test_a_node_is_a_line() -> None:
    head, job, title, row = texts(snapshot(calm("n1"), job=JOB))
    assert head.startswith("a100  1 node  8 GPUs")
    assert job == "1234  train  running  431.2 samples/s at step 60  ▃▄█"
    named = dict(zip(title.replace("IB ", "IB-").split(), row.split(), strict=True))
    assert named == {
        "NODE": "n1", "GPU": "97%", "MIN": "97%", "VRAM": "86%", "C": "61", "WATT": "5.1k",
        "CPU": "50%", "WAIT": "0%", "MEM": "75%", "IN/s": "1.0k", "OUT/s": "4.0k", "IB-IN": "1.0k",
        "IB-OUT": "1.0k", "PROC": "1",
    }  # fmt: skip


def test_a_node_without_gpus_has_no_columns_of_them() -> None:
    title = texts(snapshot(node("n1", sample(LATER))))[1]
    assert title.split() == ["NODE", "CPU", "WAIT", "MEM", "IN/s", "OUT/s", "IB", "IN", "IB",
                             "OUT", "PROC"]  # fmt: skip


@pytest.mark.parametrize("height", [10, 24, 50])
@pytest.mark.parametrize("verbose", [False, True])
def test_sixty_four_nodes_fit_a_terminal(height: int, verbose: bool) -> None:
    nodes = [calm(f"gpu-node-{k:03}") for k in range(1, 65)]
    nodes[40] = calm("gpu-node-041", busy=20.0)
    nodes[50] = NodeNow(name="gpu-node-051", problem="no answer within 5 s: connecting")
    nodes[51] = node("gpu-node-052", sample(LATER, gpu(0, clock_reasons=0x48)))
    shown = texts(snapshot(*nodes, job=JOB), height=height, verbose=verbose)
    assert len(shown) <= height
    assert max(map(len, shown)) <= 80
    if not verbose:
        (folded,) = [line for line in shown if " other nodes " in line]
        assert "97%" in folded
        assert any(line.startswith("gpu-node-051 ") for line in shown)
        assert any(line.startswith("gpu-node-041 ") for line in shown)  # who does least
    assert "does not answer: no answer within 5 s" in " ".join(shown)


def test_names_are_cut_where_they_are_alike() -> None:
    nodes = (calm("gpu-node-041"), calm("gpu-node-042"))
    shown = [line.text for line in lines_of(snapshot(*nodes), width=60)]
    assert [line.split()[0] for line in shown[2:]] == ["…ode-041", "…ode-042"]
    (folded,) = [line.text for line in lines_of(snapshot(*nodes), width=80, height=3)][2:]
    assert folded.startswith("gpu-node-[041-042] ")


def test_without_a_height_all_nodes_are_shown() -> None:
    shown = texts(snapshot(*(calm(f"n{k}") for k in range(1, 65))))
    assert len(shown) == 2 + 64
    assert max(map(len, shown)) <= 80


def test_remarks_are_folded_and_the_worst_is_last() -> None:
    hot = sample(LATER, gpu(5, temperature_c=93.0, clock_reasons=0x48))
    lost = replace(hot, gpus=(), gpu_problem="vitals-nvidia gave no answer within 20 s")
    idle = sample(LATER, gpu(0), gpu(1), gpu(2, busy_percent=0.0))
    said = warnings_of(
        snapshot(
            calm("n1"),
            node("n2"),
            node("n3"),
            node("n4", hot),
            node("n5", lost),
            NodeNow(name="n6", problem="nothing listens on its SSH port"),
            NodeNow(name="n7"),
            node("n8", idle),
            replace(calm("n9"), age_s=40.0),
        )
    )
    assert [(remark.verdict.value, remark.where, remark.text) for remark in said] == [
        ("warn", "n[2-5,8]", "limit of 2 CPUs used up in 25% of the scheduler's periods"),
        ("warn", "n[2-5,8]", "I/O wait 12% of the CPU time"),
        ("warn", "n[2-5,8]", "CPU steal 12% (the virtual machine's host)"),
        ("warn", "n8", "GPU 2 idle while 2 others work"),
        ("unknown", "n6", "does not answer: nothing listens on its SSH port"),
        ("unknown", "n7", "has not answered yet"),
        ("unknown", "n9", "has not answered for 40 s; its figures are old"),
        ("fail", "n4", "GPU 5: hardware thermal slowdown, 93 C"),
        ("fail", "n5", "GPUs: vitals-nvidia gave no answer within 20 s"),
    ]


def test_memory_and_links_that_are_in_trouble() -> None:
    text = LATER.replace("MemAvailable: 262144", "MemAvailable: 20000")
    text = text.replace("net 3000 1 6", "net 3000 1 600").replace("400 8200 200", "400 8200 500")
    text += "limit 4294967296 1 2 /job_5\n"
    said = [remark.text for remark in warnings_of(snapshot(node("n1", sample(text))))]
    assert "memory 98% used" in said
    assert "2 killed at the memory limit of 4.0 GiB" in said
    assert "eth0: 299 packets/s damaged or dropped" in said
    assert "I/O wait 36% of the CPU time" in said


def test_who_was_killed_before_it_looked_is_no_news() -> None:
    killed = READING.replace("1073741824 0 /job_5", "1073741824 2 /job_5")
    before, after = sample(killed), sample(LATER + "limit 4294967296 1 2 /job_5\n")
    for seen in (None, rates(before, after)):
        now = NodeNow(name="n1", sample=after, rates=seen)
        assert "killed" not in " ".join(remark.text for remark in warnings_of(snapshot(now)))


def test_details() -> None:
    both = sample(LATER, gpu(0, clock_mhz=1980.0, clock_reasons=0x4))
    shown = "\n".join(texts(snapshot(node("n1", both), job=JOB), verbose=True))
    assert "gpu 0   97%   68.4/79.6 GiB   61 C   640/700 W  1980 MHz  power cap" in shown
    assert "link eth0  in 1.0kB/s  out 4.0kB/s  2 packets/s bad" in shown
    assert "link mlx5_0/1  in 1.0kB/s  out 1.0kB/s" in shown
    assert "cgroup limit of 2 CPUs, used up in 25% of the scheduler's periods" in shown
    assert "rank 3    python3.11  pid 4242  S  200% CPU  0.0 GiB  8 threads" in shown
    first = sample(READING)
    shown = "\n".join(texts(snapshot(NodeNow(name="n1", sample=first)), verbose=True))
    assert f"run {RUN}" in shown
    assert "1 more process of jobs, idle" in shown


def test_the_document() -> None:
    document = document_of(snapshot(node("n1"), NodeNow(name="n2", problem="gone"), job=JOB))
    well, ill = document["nodes"]
    assert document["job"]["throughput"]["rate"] == 431.2
    assert (well["host"]["cpu_percent"], well["host"]["throttled_percent"]) == (50.0, 25.0)
    assert (well["gpus"][0]["busy_percent"], well["gpus"][0]["slowdown"]) == (97.0, None)
    assert well["ports"] == [
        {
            "name": "mlx5_0/1",
            "received_bytes_per_s": 1000.0,
            "sent_bytes_per_s": 1000.0,
            "errors_per_s": 0.0,
        }
    ]
    (process,) = well["processes"]
    assert (process["rank"], process["cpu_percent"]) == (3, 200.0)
    assert (ill["problem"], ill["host"], ill["gpus"]) == ("gone", None, [])
    assert document["remarks"][-1]["verdict"] == Verdict.UNKNOWN


def test_metrics_as_their_own_reader_sees_them(tmp_path: Path) -> None:
    path = tmp_path / "nodes.prom"
    hot = sample(LATER, gpu(0, clock_reasons=0x48))
    write_nodes(path, snapshot(node("n1", hot), NodeNow(name="n2", problem="gone"), job=JOB))
    families = text_string_to_metric_families(path.read_text())
    seen = {
        (one.name, *sorted(one.labels.values())): one.value
        for family in families
        for one in family.samples
    }
    assert seen["clusterkit_node_up", "n1"] == 1
    assert seen["clusterkit_node_up", "n2"] == 0
    assert seen["clusterkit_node_cpu_ratio", "n1"] == 0.5
    assert seen["clusterkit_node_cpu_throttled_ratio", "n1"] == 0.25
    assert seen["clusterkit_node_memory_bytes", "n1"] == 1 << 30
    assert seen["clusterkit_node_network_receive_bytes_per_second", "eth0", "n1"] == 1000
    assert seen["clusterkit_node_infiniband_transmit_bytes_per_second", "mlx5_0/1", "n1"] == 1000
    assert seen["clusterkit_gpu_utilization_ratio", "0", "n1"] == pytest.approx(0.97)
    assert seen["clusterkit_gpu_slowdown", "0", "hardware thermal slowdown", "n1"] == 1
    assert seen["clusterkit_job_throughput", "1234", "a100", "samples", "train"] == 431.2


@pytest.mark.parametrize(
    ("slots", "unit", "rate"), [(16, "tokens", 16_000.0), (None, "tokens_per_slot", 1000.0)]
)
def test_the_rate_of_a_slot_is_never_taken_for_that_of_the_job(
    tmp_path: Path, slots: int | None, unit: str, rate: float
) -> None:
    speed = Throughput(rate=1000.0, unit="tokens", per_slot=True)
    path = tmp_path / "nodes.prom"
    write_nodes(path, snapshot(node("n1"), job=replace(JOB, speed=speed, slots=slots)))
    (told,) = [
        one
        for family in text_string_to_metric_families(path.read_text())
        for one in family.samples
        if one.name == "clusterkit_job_throughput"
    ]
    assert (told.labels["unit"], told.value) == (unit, rate)


@pytest.mark.parametrize(("most", "slots"), [(None, 16), (4, None)])
def test_the_slots_of_a_job_are_those_of_its_plan(
    tmp_path: Path, most: int | None, slots: int | None
) -> None:
    run = RunFolder(tmp_path / RUN)
    run.path.mkdir()
    told = submitted(ClusterKind.LOCAL, JobState.RUNNING).submission
    files.write_json(run.submission, {"schema": 1, **files.plain(told)})
    files.write_json(run.plan, {"processes": 16, "max_nodes": most})
    assert Training(run).look().slots == slots


def test_figures_in_few_characters() -> None:
    assert (cut("node-1", 6), cut("node-12", 6)) == ("node-1", "node-…")
    numbers = (0, 0.4, 950, 999.6, 1500, 12_345, 999_999, 3.2e9, 5e18, None)
    assert [short(n) for n in numbers] == [
        "0", "0", "950", "1.0k", "1.5k", "12k", "1.0M", "3.2G", "5000P", "-",
    ]  # fmt: skip
    assert bars((0.0, 5.0, 10.0), 20) == "▁▅█"
    assert bars((1.0,), 20) == bars((0.0, 0.0), 20) == bars((1.0, 2.0), 0) == ""


def test_the_latest_speed_of_a_growing_log(tmp_path: Path) -> None:
    log = tmp_path / "node-0.log"
    log.write_text("start\nstep 1 loss 2 samples/s 10.5\nstep 2 loss 1 samples/s 20.5\nbye\n")
    reader = LogReader(log, tail=200)
    assert latest(reader) == Throughput(rate=20.5, unit="samples", step=2)
    assert latest(reader) is None
    with log.open("a") as stream:
        stream.write("\r 10%|█ | 10/100 [00:01<00:09, 9.10it/s]\r 11%|█ | 11/100 [00:01<00:09, 9.")
    assert latest(reader) == Throughput(rate=9.1, unit="steps", step=10)


@pytest.mark.parametrize("ends", ["\r", ""], ids=["bar", "no-end-at-all"])
def test_a_log_without_line_ends_is_read_in_bounded_memory(tmp_path: Path, ends: str) -> None:
    log = tmp_path / "node-0.log"
    bar = " 10%|##        | 10/100 [00:01<00:09, 9.10it/s]" + ends
    log.write_text(bar * 400_000)
    more = bar * 100_000
    tracemalloc.start()
    reader = LogReader(log, tail=200, within=1 << 20)
    first = latest(reader)
    with log.open("a") as stream:
        stream.write(more)
    latest(reader)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < log.stat().st_size / 2
    if ends:
        assert first == Throughput(rate=9.1, unit="steps", step=10)


class Fake:
    """A transport whose nodes answer when they are let, or never."""

    def __init__(self, *, slow: frozenset[str] = frozenset(), broken: bool = False) -> None:
        self.slow, self.broken = slow, broken
        self.let = threading.Event()
        self.quick = threading.Event()
        """Set once all that answer have been heard."""
        self.asked: list[tuple[str, ...]] = []

    def ask(
        self, nodes: Sequence[str], compound: Compound, *, on_reply: Callable[[Reply], None]
    ) -> tuple[Reply, ...]:
        self.asked.append(tuple(nodes))
        if self.broken:
            raise RemoteError("no srun here")
        replies = []
        for name in sorted(nodes, key=lambda one: one in self.slow):
            if name in self.slow:
                self.quick.set()
                self.let.wait(60)
                reach = Reach(problem=ReachProblem.TIMEOUT, detail="no answer within 5 s")
                reply = Reply(node=name, reach=reach)
            else:
                text = UNITS + READING + (LATER if "twice" in compound.names[0] else "")
                reply = Reply(
                    node=name, reach=Reach(), outputs={compound.names[0]: Output(stdout=text)}
                )
            on_reply(reply)
            replies.append(reply)
        return tuple(replies)


def watching(fake: Fake, *nodes: str) -> Watcher:
    return Watcher(Subject(cluster="rack", parts=(Part(nodes=nodes, transport=fake),), order=nodes))


def test_a_node_that_does_not_answer_holds_up_nobody() -> None:
    fake = Fake(slow=frozenset({"n2"}))
    watcher = watching(fake, "n1", "n2", "n3")
    watcher.refresh(timeout_s=0.1)
    assert fake.quick.wait(60)
    second = watcher.refresh(timeout_s=120)
    assert fake.asked == [("n1", "n2", "n3"), ("n1", "n3")]
    assert [one.sample is not None for one in second.nodes] == [True, False, True]
    assert second.nodes[1].problem == "", "n2 was waited for: it answers after a minute"
    fake.let.set()
    deadline = time.monotonic() + 60
    while ("n2",) not in fake.asked and time.monotonic() < deadline:
        third = watcher.refresh(timeout_s=0)
        time.sleep(0.02)
    assert ("n2",) in fake.asked  # apart from those that do answer
    assert third.nodes[1].problem == "no answer within 5 s"
    assert all(third.nodes[k].sample is not None for k in (0, 2))


def test_a_job_that_starts_again_on_other_nodes_is_looked_at_there() -> None:
    """Meanwhile nobody says which they are."""
    first, second = Fake(slow=frozenset({"n1", "n2"})), Fake()
    first.let.set()
    nodes = ("n2", "n3")
    waits = [True]

    def aim() -> Subject:
        if waits and waits.pop():
            raise UserError("7 does not run: pending")
        return Subject(cluster="rack", parts=(Part(nodes=nodes, transport=second),), order=nodes)

    watcher = watching(first, "n1", "n2")
    seen = list(itertools.islice(watcher.snapshots(0.0, aim), 3))
    assert [[node.name for node in one.nodes] for one in seen] == [["n1", "n2"]] * 2 + [[*nodes]]
    assert not any(node.problem for node in seen[-1].nodes)
    assert second.asked
    assert len(first.asked) <= 2  # the thread of the second question may not have begun


def test_where_nobody_can_be_asked_it_says_so() -> None:
    with pytest.raises(RemoteError, match="no srun here"):
        watching(Fake(broken=True), "n1").refresh(timeout_s=None)


def test_a_question_that_breaks_off_is_waited_for_by_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # the traceback is no news here

    class Broken(Fake):
        def ask(self, nodes: Sequence[str], *_: object, **__: object) -> tuple[Reply, ...]:
            raise ZeroDivisionError

    (one,) = watching(Broken(), "n1").refresh(timeout_s=None).nodes
    assert one.problem == "the question was interrupted"


def submitted(kind: ClusterKind, state: JobState) -> Job:
    submission = Submission(
        run_id=RUN, name="train", cluster="c", kind=kind, framework="torchrun", nodes=2, tasks=2,
        submitted_at=1000.0, job_id="7",
    )  # fmt: skip
    run = RunFolder(Path("/runs") / RUN)
    return Job(run=run, submission=submission, status=JobStatus(state=state))


@pytest.mark.parametrize(
    ("kind", "state", "via", "why"),
    [
        (ClusterKind.SLURM, JobState.SUCCEEDED, None, "7 has ended: succeeded"),
        (ClusterKind.SLURM, JobState.PENDING, None, "7 does not run: pending"),
        (ClusterKind.LOCAL, JobState.RUNNING, "ssh", "not for a job on a cluster of kind local"),
        (ClusterKind.SSH, JobState.RUNNING, "srun", "not for a job on a cluster of kind ssh"),
        (ClusterKind.SLURM, JobState.RUNNING, "ssh", "not in your clusterkit.yaml"),
    ],
)
def test_jobs_that_cannot_be_looked_at(
    kind: ClusterKind, state: JobState, via: str | None, why: str, slurm: Path
) -> None:
    with pytest.raises(UserError, match=why):
        of_job(submitted(kind, state), None, via=via)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a Slurm of four nodes, with two jobs of the user's; its answers are in a folder."""
    (tmp_path / "jobs").write_text("7|n[1-2]\n9|n3,other\n")
    sinfo = "printf 'n%s|gpu*\\n' 1 2 3 4"
    squeue = f'case $* in *"-j 7"*) echo "7|n[1-2]";; *) cat {tmp_path}/jobs;; esac'
    for name, body in {"sinfo": sinfo, "squeue": squeue}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return tmp_path


def test_a_job_on_slurm_is_looked_at_through_a_step_of_its_own(slurm: Path) -> None:
    subject = of_job(submitted(ClusterKind.SLURM, JobState.RUNNING), None)
    assert (subject.order, subject.steps) == (("n1", "n2"), True)


def test_a_slurm_cluster_is_looked_at_through_the_users_own_jobs(slurm: Path) -> None:
    cluster = ClusterSpec(name="big", kind=ClusterKind.SLURM)
    subject = of_cluster(cluster, PreflightOptions())
    assert [part.nodes for part in subject.parts] == [("n1", "n2"), ("n3",)]
    assert (subject.order, subject.unasked) == (("n1", "n2", "n3"), ("n4",))
    shown = replace(snapshot(calm("n1")), unasked=("n4",), why_unasked=subject.why_unasked)
    last = texts(shown)[-1]
    assert last == "not asked: n4: no job of yours there (--via ssh asks them as well)"
    (slurm / "jobs").write_text("")
    with pytest.raises(UserError, match=r"(?s)no job of yours runs on big.*--via srun"):
        of_cluster(cluster, PreflightOptions())
    asked = of_cluster(cluster, PreflightOptions(via="srun"))
    assert (asked.order, asked.note) == (("n1", "n2", "n3", "n4"), "")
    by_itself = of_cluster(cluster, PreflightOptions(), allocate=True)  # nodes run
    assert by_itself.order == ("n1", "n2", "n3", "n4")
    assert by_itself.note.startswith("no job of yours runs on big: the command runs there in an")
    (slurm / "jobs").write_text("7|n[1-2]\n9|n3,other\n")
    both = of_cluster(cluster, PreflightOptions(), allocate=True)
    assert [part.nodes for part in both.parts] == [("n1", "n2"), ("n3",), ("n4",)]
    assert (both.order, both.unasked) == (("n1", "n2", "n3", "n4"), ())
    assert both.note.startswith("no job of yours runs on n4: the command runs there in an")
    alone = of_cluster(cluster, PreflightOptions(hosts="n[1-3]"), allocate=True)
    assert (alone.order, alone.note) == (("n1", "n2", "n3"), "")


def test_this_machine_as_typed() -> None:
    done = CliRunner().invoke(app, ["top", "--cluster", "local", "--json"])
    document = json.loads(done.stdout)
    # Tests may run on a machine that is in trouble now, such as a GPU too hot.
    bad = [one for one in document["remarks"] if one["verdict"] != Verdict.WARN]
    assert done.exit_code == (1 if bad else 0), done.output
    assert (document["schema"], document["cluster"]) == (1, "local")
    (here,) = document["nodes"]
    assert here["host"]["cpus"] >= 1
    assert here["problem"] is None


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--interval", "0"], "twice a second at most"),
        (["--interval", "nan"], "twice a second at most"),
        (["--interval", "inf"], "once a day at least"),
        (["--interval", "1e10"], "once a day at least"),
        (["--via", "carrier-pigeon"], "unknown"),
        (["--prometheus", "nodes.txt"], r"\*.prom"),
        (["--prometheus", "."], r"\*.prom"),
        (["--prometheus", "/"], r"\*.prom"),
        (["latest", "--hosts", "n1"], "both say which nodes"),
    ],
)
def test_what_cannot_be_meant(words: list[str], why: str) -> None:
    done = CliRunner().invoke(app, ["top", "--cluster", "local", *words])
    assert done.exit_code != 0
    with pytest.raises(Exception, match=why):
        raise done.exception or AssertionError(done.output)
