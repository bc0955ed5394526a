"""Sizes, rates and reasons of `bench scaling`, from values alone."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from clusterkit.cli.bench.report import scaling_lines
from clusterkit.cli.bench.scaling import _exit_code, _tell
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.html import require_drawing
from clusterkit.core.model import ClusterKind, ClusterSpec, LaunchPlan
from clusterkit.core.throughput import Throughput, Unit
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.nodes import of_plan
from clusterkit.launch.options import JobSpec
from clusterkit.launch.plan import make_plan
from clusterkit.observe.bench.scaling.causes import causes_of
from clusterkit.observe.bench.scaling.evidence import (
    MICROBENCHMARK,
    ROUNDS,
    CpuTime,
    GpuEvidence,
    NodeEvidence,
    evidence_of,
)
from clusterkit.observe.bench.scaling.page import page
from clusterkit.observe.bench.scaling.rates import (
    Bounds,
    Rate,
    Reading,
    ThroughputLog,
    common_unit,
    counted,
    enough,
    progress_of,
    rates,
    stalled,
)
from clusterkit.observe.bench.scaling.result import (
    By,
    Cause,
    Row,
    Scaling,
    Size,
    chosen_by,
    document,
    doubling,
    parse_at,
    sizes_of,
)
from clusterkit.observe.vitals.host import read_host
from clusterkit.observe.vitals.sample import NodeSample
from clusterkit.transport.probe import PreflightJob, read_output
from tests.helpers.needs import require
from tests.helpers.probe_run import SHELLS, run_probe

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def plan(nodes: int = 1, slots: int = 1) -> LaunchPlan:
    cluster = ClusterSpec(name="c", kind=ClusterKind.LOCAL)
    job = JobSpec(framework="torchrun", script="t.py", nodes=nodes, gpus_per_node=(slots,))
    return make_plan(job, cluster, workdir="/w")


def test_sizes_double_up_to_that_of_the_job() -> None:
    assert doubling(1) == (1,)
    assert doubling(8) == (1, 2, 4, 8)
    assert doubling(6) == (1, 2, 4, 6)
    assert chosen_by(None, plan(nodes=2)) is By.NODES
    assert chosen_by(None, plan(slots=4)) is By.SLOTS
    assert sizes_of(plan(nodes=3, slots=2), By.NODES, None) == tuple(
        Size(count=n, nodes=n) for n in (1, 2, 3)
    )


def test_slots_fill_a_node_and_then_whole_ones() -> None:
    sizes = sizes_of(plan(nodes=4, slots=2), By.SLOTS, None)
    assert [(one.count, one.nodes, one.slots) for one in sizes] == [
        (1, 1, 1),
        (2, 1, 2),
        (4, 2, 2),
        (8, 4, 2),
    ]
    with pytest.raises(UserError, match="3 slots are not whole nodes of 2"):
        sizes_of(plan(nodes=4, slots=2), By.SLOTS, (1, 3))


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UserError, match="nothing to compare with"):
        sizes_of(plan(), By.SLOTS, None)
    with pytest.raises(UserError, match="--at 8: the job has 2 nodes"):
        sizes_of(plan(nodes=2), By.NODES, (1, 8))
    for text in ("", "0", "1,x", "-1", "1,,2", "1.5"):
        with pytest.raises(UserError, match="whole numbers"):
            parse_at(text)
    assert parse_at("4, 1,2,2") == (1, 2, 4)
    with pytest.raises(UserError, match="--by node"):
        chosen_by("node", plan())


def readings(*told: tuple[float, int | None, float], unit: Unit = "samples") -> list[Reading]:
    """Return readings out of time, step and rate."""
    return [
        Reading(at_s=at, throughput=Throughput(rate=rate, unit=unit, step=step))
        for at, step, rate in told
    ]


def test_the_warm_up_and_the_first_line_do_not_count() -> None:
    seen = counted(readings((0, 1, 5), (1, 5, 50), (2, 20, 90), (3, 40, 110), (4, 60, 100)), 10)
    assert [one.throughput.step for one in seen.readings] == [20, 40, 60]
    assert (seen.steps, seen.seconds) == (55, 3)
    found = rates(seen, slots=2, global_batch=False)
    all_at_once = 55 / (15 / 90 + 20 / 110 + 20 / 100)
    assert found == {"samples": Rate(per_s=pytest.approx(all_at_once), low=90, high=110, lines=3)}
    assert counted(readings((0, 50, 5)), 10).readings == ()
    assert counted([], 10).steps == 0


def test_lines_that_are_skipped_and_lines_that_are_read_together() -> None:
    told = readings((0, 2, 1), (5, 20, 2), (5, 100, 3), (6, 120, 4), (7, 140, 5))
    seen = counted(told, 10, skip=3)
    assert [one.throughput.rate for one in seen.readings] == [4, 5]
    assert (seen.steps, seen.step_s) == (40, 0.05)
    assert counted(told, 10).step_s == pytest.approx(7 / 138)
    assert counted(told[:1], 10, skip=9).readings == ()
    assert counted(told[1:3], 0).step_s is None


def test_lines_without_steps_count_one_each_and_epochs_go_on() -> None:
    assert progress_of(readings((0, None, 1), (1, None, 1))) == (1, 2)
    assert progress_of(readings((0, 50, 1), (1, 100, 1), (2, 30, 1))) == (50, 100, 130)


def test_steps_alone_count_the_batches_of_the_slots() -> None:
    seen = counted(readings((0, 1, 5), (1, 20, 10), (2, 40, 10), unit="steps"), 0)
    assert rates(seen, slots=4, global_batch=False)["steps"].per_s == 40
    assert rates(seen, slots=4, global_batch=True)["steps"].per_s == 10
    slot = Throughput(rate=10, unit="tokens", step=9, per_slot=True)
    told = counted([*readings((0, 1, 5)), Reading(at_s=1, throughput=slot)], 0)
    assert rates(told, slots=4, global_batch=True)["tokens"].per_s == 40


def bar_and_lines(*told: tuple[int | None, float], epoch: int = 10**9) -> list[Reading]:
    """Return a line for each step and rate, and before each a bar that begins anew each epoch."""
    found = []
    for at, (step, rate) in enumerate(told):
        found += readings((at, 10 * at % epoch, 0.5), unit="steps")
        found += readings((at, step, rate))
    return found


def test_a_line_is_about_the_steps_since_the_last_of_its_unit() -> None:
    told = [(10 * at, 100.0 if at % 2 else 50.0) for at in range(1, 6)]
    seen = counted(bar_and_lines((0, 9.0), *told), 10)
    assert (seen.steps, seen.weights) == (40, (10,) * 8)
    found = rates(seen, slots=1, global_batch=False)["samples"]
    assert found == Rate(per_s=pytest.approx(66.7, abs=0.1), low=50, high=100, lines=4)


def test_a_bar_and_lines_beside_it_tell_of_the_same_steps() -> None:
    assert progress_of(bar_and_lines((None, 9), (None, 9), (None, 9)))[-1] == 20
    per_epoch = bar_and_lines(*((10 * at, 9) for at in range(8)), epoch=30)
    assert progress_of(per_epoch)[-1] == 70
    micro = bar_and_lines(*((at, 9) for at in range(8)))  # ten batches are one step
    assert progress_of(micro)[-1] == 70


def test_the_steps_before_those_that_count_weigh_nothing() -> None:
    told = bar_and_lines((0, 9.0), (10, 1.0), (20, 100.0), (30, 50.0))
    seen = counted(told, 0, skip=3)  # the bar at 10 is the last that does not count
    assert [(one.throughput.rate, n) for one, n in zip(seen.readings, seen.weights, strict=True)][
        ::2
    ] == [(1.0, 0), (100.0, 10), (50.0, 10)]


def test_of_averages_the_last_counts_and_only_without_anything_better() -> None:
    average = Reading(at_s=9, throughput=Throughput(rate=7, unit="samples", average=True))
    alone = rates(counted([average], 10), slots=1, global_batch=False)
    assert alone == {"samples": Rate(per_s=7, low=7, high=7, lines=1, average=True)}
    more = [*readings((0, 1, 1), (1, 20, 9)), average]
    assert rates(counted(more, 10), slots=1, global_batch=False)["samples"].per_s == 9


def test_enough_is_seen_by_steps_or_by_time() -> None:
    told = readings((0, 1, 5), (1, 20, 90), (2, 40, 110))
    assert enough(told, Bounds(warmup=10, steps=39), 2.0)
    assert not enough(told, Bounds(warmup=10, steps=40), 99.0)
    assert enough(told, Bounds(warmup=10, seconds=3), 3.0)
    assert not enough(told, Bounds(warmup=10, seconds=3), 2.9)
    assert not enough(told[:2], Bounds(warmup=10, steps=1, seconds=1), 99.0)
    assert not enough(told, Bounds(warmup=10), 1e9)


def test_time_is_not_enough_while_a_run_is_silent() -> None:
    bounds = Bounds(warmup=0, seconds=5)
    quick = readings((0, 1, 5), (1, 20, 90), (2, 40, 110))
    assert not enough(quick, bounds, 60.0)
    assert enough([*quick, *readings((60, 60, 90))], bounds, 60.0)
    seldom = readings((0, 1, 5), (50, 20, 90), (100, 40, 110))
    assert enough(seldom, bounds, 149.0)
    assert not enough(seldom, bounds, 151.0)


def test_a_run_that_is_ended_after_a_long_silence_had_hung() -> None:
    quick = counted(readings((0, 1, 5), (1, 20, 90), (2, 40, 110)), 0)
    seldom = counted(readings((0, 1, 5), (50, 20, 90), (100, 40, 110)), 0)
    assert [stalled(quick, silent_s) for silent_s in (30.0, 61.0)] == [False, True]
    assert [stalled(seldom, silent_s) for silent_s in (61.0, 101.0)] == [False, True]


def test_runs_are_compared_in_a_unit_that_all_have_told() -> None:
    rate = Rate(per_s=1, low=1, high=1, lines=1)
    assert common_unit([{"samples": rate, "steps": rate}, {"steps": rate}]) == "steps"
    assert common_unit([{"samples": rate}, {"steps": rate}]) is None
    assert common_unit([]) is None


def row(count: int, per_s: float, *nodes: NodeEvidence, **more: Any) -> Row:
    rate = Rate(per_s=per_s, low=per_s * 0.9, high=per_s * 1.1, lines=5)
    return Row(
        size=Size(count=count, nodes=count),
        slots=count,
        rates={"samples": rate} if per_s else {},
        step_s=0.1 * count,
        evidence=nodes,
        **more,
    )


def scaling(*rows: Row, shares_machine: bool = False) -> Scaling:
    return Scaling(
        script="train.py",
        framework="torchrun",
        cluster="lab",
        shares_machine=shares_machine,
        by=By.NODES,
        rows=rows,
    )


def kinds(causes: tuple[Cause, ...]) -> list[str]:
    return [cause.kind for cause in causes]


def test_efficiency_is_against_the_smallest_run() -> None:
    found = scaling(row(2, 200), row(4, 300), row(8, 0, problem="it failed"))
    assert [found.efficiency(one) for one in found.rows] == [1.0, 0.75, None]
    assert [found.short(one) for one in found.rows] == [False, True, False]
    told = document(found, {})
    assert (told["base"], told["unit"]) == (2, "samples/s")
    assert [one["efficiency"] for one in told["rows"]] == [1.0, 0.75, None]


def node(name: str, **told: Any) -> NodeEvidence:
    return NodeEvidence(node=name, **{"yardstick_s": 0.2, "cpus": 8, "cpu_percent": 30.0, **told})


def gpu(**told: Any) -> GpuEvidence:
    said: dict[str, Any] = {
        "index": 0, "busy_percent": 98.0, "power_w": 600.0, "clock_mhz": 1900.0,
        "clock_max_mhz": 1980.0, "temperature_c": 60.0,
    }  # fmt: skip
    return GpuEvidence(**{**said, **told})


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"yardstick_s": 0.9}, "takes 0.90 s there, 0.20 s on n[1,3]"),
        ({"throttled_percent": 80.0, "throttled_at_cpus": 0.5}, "CPU limit of 0.5 CPUs is"),
        ({"stolen_percent": 30.0}, "CPU steal 30 % there"),
        ({"gpus": (gpu(clock_mhz=1200.0),)}, "runs at 1200 MHz, those of n[1,3] at 1900 MHz"),
        ({"load": 31.0}, "31 processes want its 8 CPUs, on n[1,3] 5"),
    ],
)
def test_a_node_that_is_behind_the_others_is_named(odd: dict[str, Any], words: str) -> None:
    usual: dict[str, Any] = {"gpus": (gpu(),), "load": 5.0}
    nodes = (node("n1", **usual), node("n2", **{**usual, **odd}), node("n3", **usual))
    found = scaling(row(1, 100, nodes[0]), row(3, 150, *nodes))
    causes = causes_of(found, found.rows[1])
    straggler = next(cause for cause in causes if cause.kind == "straggler")
    assert straggler.nodes == ("n2",)
    assert words in " ".join(straggler.evidence)
    assert kinds(causes).count("straggler") == 1


def test_nodes_alike_are_no_stragglers_nor_is_one_with_another_awk() -> None:
    nodes = (node("n1"), node("n2", yardstick_s=0.28), node("n3", load=20.0))
    found = scaling(row(1, 100), row(3, 290, *nodes))
    assert causes_of(found, found.rows[1]) == ()
    full = (node("n1", cpu_percent=99.0), node("n2", cpu_percent=99.0, yardstick_s=0.4))
    assert causes_of(scaling(row(1, 100), row(2, 200, *full)), row(2, 200, *full)) == ()
    other = (node("n1"), node("n2", yardstick_s=0.9, yardstick_program="/usr/bin/gawk"))
    assert causes_of(scaling(row(1, 100), row(2, 200, *other)), row(2, 200, *other)) == ()


@pytest.mark.parametrize(
    ("one", "kind"),
    [
        (node("n", cpu_percent=95.0, gpus=(gpu(busy_percent=40.0),)), "data-loading"),
        (node("n", waiting_percent=40.0, gpus=(gpu(busy_percent=40.0),)), "data-loading"),
        (node("n", gpus=(gpu(slowdowns=("hardware thermal slowdown",)),)), "throttle"),
        (node("n", throttled_percent=50.0), "throttle"),
        (node("n", cpu_percent=97.0), "processors"),
        (node("n", gpus=(gpu(power_w=350.0),)), "communication"),
        (node("n", gpus=(gpu(busy_percent=30.0),)), "communication"),
        (node("n", cpu_percent=40.0), "communication"),
        (node("n", cpu_percent=40.0, bytes_per_s=2e3), "unknown"),  # nobody sends anything
        (node("n", gpus=(gpu(),)), "unknown"),
        (NodeEvidence(node="n", problem="no answer"), "unknown"),
    ],
)
def test_what_holds_all_nodes_up_alike(one: NodeEvidence, kind: str) -> None:
    nodes = tuple(dataclasses.replace(one, node=name) for name in ("n1", "n2"))
    found = scaling(row(1, 100, node("n1", gpus=(gpu(),))), row(2, 120, *nodes))
    causes = causes_of(found, found.rows[1])
    assert kinds(causes)[0] == kind
    assert "straggler" not in kinds(causes)
    assert all(cause.hint for cause in causes)


def test_traffic_is_put_beside_what_the_network_gives() -> None:
    nodes = tuple(node(name, cpu_percent=85.0, bytes_per_s=9e8) for name in ("n1", "n2"))
    found = scaling(row(1, 100, node("n1")), row(2, 120, *nodes))
    known = dataclasses.replace(found, interconnect="ethernet-10", node_bytes_per_s=1e9)
    (cause,) = causes_of(known, known.rows[1])
    assert (cause.kind, cause.summary) == ("communication", "the network between the nodes is full")
    assert "that is 90 % of the 1 GB/s that ethernet-10 gives a node" in cause.evidence
    assert kinds(causes_of(found, found.rows[1])) == ["unknown"]


def test_a_run_that_is_fast_enough_has_no_reasons() -> None:
    busy = node("n1", cpu_percent=99.0)
    found = scaling(row(1, 100, busy), row(2, 190, busy, node("n2", cpu_percent=99.0)))
    assert all(causes_of(found, one) == () for one in found.rows)


def test_evidence_without_readings_says_why() -> None:
    stick = CpuTime(program="/usr/bin/mawk", seconds=(0.3, 0.2, 0.4))
    assert evidence_of("n1", (), (stick,)).yardstick_s == 0.2
    assert evidence_of("n1", (), (), "no route").problem == "no route"


@pytest.mark.parametrize(
    ("links", "bytes_per_s"),
    [
        (("net {} 0 0 0 0 0 ib0", "port {} 0 mlx5_0/1"), 40.0),
        (("net {} 0 0 0 0 0 ibs3", "net {} 0 0 0 0 0 eth0", "port {} 0 mlx5_0/1"), 50.0),
        (("net {} 0 0 0 0 0 eth0", "port {} 0 mlx5_0/1"), 50.0),  # RoCE passes the interface by
        (("net {} 0 0 0 0 0 ib0",), 10.0),
    ],
)
def test_what_goes_over_infiniband_counts_once(links: tuple[str, ...], bytes_per_s: float) -> None:
    samples = []
    for at, told in ((1000, 0), (1002, 20)):  # words of four bytes, for a port
        host = f"units 100 4096\nreading {at}.00\ncpu  {at} 0 0 {at} 0 0 0 0 0 0\n"
        host += "load 1.0\nmemory MemTotal: 1000\nmemory MemAvailable: 500\ncpus 4\n"
        lines = "".join(f"{link.format(told)}\n" for link in links)
        samples += [NodeSample(host=one) for one in read_host(host + lines)]
    assert evidence_of("n1", samples).bytes_per_s == bytes_per_s


@pytest.mark.parametrize("shell", SHELLS)
def test_the_microbenchmark_runs_and_is_read(shell: tuple[str, ...]) -> None:
    output = run_probe(MICROBENCHMARK, PreflightJob(hosts=("n1",)), shell=shell)
    found = read_output(MICROBENCHMARK, output)
    assert isinstance(found, CpuTime)
    assert len(found.seconds) == ROUNDS
    assert all(second > 0 for second in found.seconds)
    assert "awk" in found.program or "busybox" in found.program


def test_log_lines_are_read_as_they_come(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.logs.mkdir()
    log = ThroughputLog(run)
    log.read(1.0)
    assert log.readings == []
    second = run.log(1)
    second.write_text("hello\nstep 1 samples/s 10\nstep 2 samp")
    run.log(0).write_text("nothing here\n")
    log.read(2.0)
    with second.open("a") as stream:
        stream.write("les/s 20\nEpoch 0:  3%| | 3/100 [00:01<00:05, 12.0it/s]\rEpoch 0:  4%|")
    run.log(0).write_text("nothing here\nstep 2 samples/s 99\n")
    log.read(3.0)
    told = [(one.at_s, one.throughput.rate) for one in log.readings]
    assert told == [(2.0, 10), (3.0, 20), (3.0, 12)]
    second.write_text("step 9 samples/s 90")  # begun anew
    log.read(4.0)
    assert len(log.readings) == 3
    log.read(5.0, over=True)
    assert log.readings[-1].throughput.rate == 90


def test_all_that_was_printed_is_read_at_the_last_look(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.logs.mkdir()
    talk = ("." * 4095 + "\n") * 300
    run.log(0).write_text(f"step 1 samples/s 10\n{talk}step 2 samples/s 20\n{talk}tokens/s 30")
    log = ThroughputLog(run)
    log.read(1.0, over=True)
    assert [one.throughput.rate for one in log.readings] == [10, 20, 30]


def example() -> tuple[Scaling, dict[int, tuple[Cause, ...]]]:
    slow = node("n2", yardstick_s=0.9, throttled_percent=81.0, bytes_per_s=9e6, gpus=(gpu(),))
    found = scaling(
        row(1, 431.2, node("n1", gpus=(gpu(),)), job_id="7"),
        row(2, 401.5, node("n1", gpus=(gpu(),)), slow, job_id="8"),
        row(4, 0, state="failed", problem="the job failed (exit 3): n2 exited with 3\nBoom <b>",
            hint="clusterkit logs 9\nits output: /runs/" + "x" * 90),
    )  # fmt: skip
    return found, {one.size.count: causes_of(found, one) for one in found.rows}


def test_a_size_that_gains_too_much_makes_the_smallest_doubtful() -> None:
    found = scaling(row(1, 22.66), row(2, 371.5), row(4, 99.0))
    told = {one.size.count: causes_of(found, one) for one in found.rows}
    assert [kinds(causes) for causes in told.values()] == [[], ["base"], []]
    assert "1 node, which all is told against, was too slow" in told[2][0].summary
    text = "\n".join(scaling_lines(found, told))
    assert "820 %" in text
    assert "no size falls short" not in text
    assert _exit_code(found, told) == 1
    assert kinds(causes_of(scaling(row(1, 100), row(2, 240)), row(2, 240))) == []


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ((row(1, 100), row(2, 200)), 0),
        ((row(1, 100), row(2, 0, state="refused", problem="no such node")), 1),
        ((row(1, 0, state="failed", problem="it failed", failed=True), row(2, 0, problem="x")), 1),
        ((row(1, 0, problem="silent"), row(2, 0, state="not tried", problem="silent")), 2),
        ((row(1, 0, state="refused", problem="no such node"),), 2),
        ((), 2),
    ],
)
def test_a_job_that_failed_is_a_finding_and_nothing_measured_is_none(
    rows: tuple[Row, ...], code: int
) -> None:
    assert _exit_code(scaling(*rows), {}) == code


def test_the_report_fits_a_terminal_and_holds_what_matters() -> None:
    lines = [_ANSI.sub("", line) for line in scaling_lines(*example())]
    text = "\n".join(lines)
    assert "samples/s" in text
    assert " 47 %" in text
    assert "n2 is slower than the others" in text
    assert "the job failed (exit 3)" in text
    assert all(len(line) <= 80 for line in lines if "/runs/" not in line)


def test_the_page_is_whole_escaped_and_loads_nothing() -> None:
    text = page(*example())
    assert "47 % efficiency at 2 nodes" in text
    assert "Boom &lt;b&gt;" in text
    assert "http" not in text.replace("http-equiv", "")
    assert "n2 is slower" in text
    empty = page(scaling(row(1, 0, problem="it printed nothing")), {})
    assert "Nothing could be measured" in empty


@pytest.mark.parametrize("rates", [(431.2, 401.5), (1.2e6, 2.2e6, 9.9e6), (100, 900, 50)])
def test_lines_axes_and_bars_of_the_page_lie_within_their_frames(rates: tuple[float, ...]) -> None:
    found = scaling(*(row(2**k, rate) for k, rate in enumerate(rates)))
    drawings = re.findall(r"<svg.*?</svg>", page(found, {}), re.DOTALL)
    assert len(drawings) == 1 + len(rates), "the picture, and a bar in each row"
    for drawing in map(ET.fromstring, drawings):
        _, _, width, height = map(float, drawing.attrib["viewBox"].split())
        for place in drawing.iter():
            across, down = _extent(place)
            assert 0 <= min(across) <= max(across) <= width, ET.tostring(place)
            assert 0 <= min(down) <= max(down) <= height, ET.tostring(place)


def _extent(shape: ET.Element) -> tuple[list[float], list[float]]:
    """Return all x and all y of a shape of the page; of a text roughly, from its letters."""
    at = {name: float(shape.get(name, 0)) for name in ("x", "y", "cx", "cy", "r", "width")}
    match shape.tag:
        case "path":
            words = re.findall(r"([MLHV]?)\s*([0-9.e+-]+)(?:\s+([0-9.e+-]+))?", shape.attrib["d"])
            across = [float(one) for kind, one, _ in words if kind != "V"]
            down = [float(one) for kind, one, _ in words if kind == "V"]
            return across, down + [float(two) for kind, _, two in words if two]
        case "circle":
            return [at["cx"] - at["r"], at["cx"] + at["r"]], [
                at["cy"] - at["r"],
                at["cy"] + at["r"],
            ]
        case "rect":
            return [at["x"], at["x"] + at["width"]], [
                at["y"],
                at["y"] + float(shape.attrib["height"]),
            ]
        case "text":
            wide = 7.2 * len(shape.text or "")  # of 12 pixels, in a wide font
            left = {"end": wide, "middle": wide / 2}.get(shape.get("text-anchor", ""), 0.0)
            return [at["x"] - left, at["x"] - left + wide], [at["y"] - 10, at["y"] + 3]
    return [0.0], [0.0]


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    require("matplotlib")
    from clusterkit.observe.bench.scaling.page import draw  # noqa: PLC0415

    found, _ = example()
    draw(tmp_path / "scaling.png", found)
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
    odd = dataclasses.replace(found, script="/home/$x{$/train.py")
    draw(tmp_path / "scaling.SVG", odd)
    assert b"<svg" in (tmp_path / "scaling.SVG").read_bytes()
    with pytest.raises(UserError, match="cannot write"):
        draw(tmp_path / "absent" / "scaling.png", found)
    with pytest.raises(UserError, match="cannot draw"):
        require_drawing(tmp_path / "scaling.doc")


@pytest.mark.parametrize("error", [UserError("no", hint="yes"), RuntimeError("no such glyph")])
@pytest.mark.parametrize("as_json", [False, True])
def test_what_was_measured_is_printed_whatever_comes_of_the_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    *,
    as_json: bool,
) -> None:
    def draw(path: Path, found: Scaling) -> None:
        raise error

    monkeypatch.setattr("clusterkit.observe.bench.scaling.page.draw", draw)
    page = tmp_path / "scaling.html"
    places = {"plot": tmp_path / "scaling.png", "html": page}
    if isinstance(error, UserError):
        assert _tell(*example(), None, **places, as_json=as_json) == [error]
        assert "47 % efficiency" in page.read_text()
    else:
        with pytest.raises(RuntimeError):
            _tell(*example(), None, **places, as_json=as_json)
    out = capsys.readouterr().out
    if not as_json:
        assert " 47 %" in out
        return
    told = json.loads(out)
    assert [one["size"] for one in told["rows"]] == [1, 2, 4]
    if isinstance(error, UserError):
        assert told["error"]["problems"][0]["hint"] == "yes"


def test_an_error_that_ends_the_measurement_is_told_as_by_other_verbs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for error, expected in (
        (
            RemoteError("gone", node="n1", hint="wait"),
            {"message": "gone", "node": "n1", "hint": "wait"},
        ),
        (
            UserError("wrong"),
            {"problems": [{"message": "wrong", "hint": None, "key": None, "position": None}]},
        ),
    ):
        assert _tell(scaling(), {}, error, plot=None, html=None, as_json=True) == [error]
        assert json.loads(capsys.readouterr().out)["error"] == expected


def test_nodes_that_slurm_does_not_tell_come_with_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "squeue").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    slurm = dataclasses.replace(plan().cluster, kind=ClusterKind.SLURM)
    with pytest.raises(RemoteError, match=r"squeue lists none\nhint: squeue -j 7"):
        of_plan(dataclasses.replace(plan(), cluster=slurm), "7")
