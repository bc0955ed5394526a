"""`clusterkit bench compute`: what is judged of made-up figures, and what is read at all."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterkit.observe.bench import compute
from clusterkit.observe.bench.compute import Result, read_document
from clusterkit.transport.probe import Unparsed
from tests.helpers.command_line import outcome

H100 = "NVIDIA H100 80GB HBM3"
HEADER = (
    "index, name, uuid, power.draw [W], enforced.power.limit [W], temperature.gpu, "
    "clocks.current.sm [MHz], clocks.max.sm [MHz], clocks_event_reasons.active\n"
)

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the verb in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str, stdin: str = "") -> tuple[int, str, str]:
        return outcome("bench", "compute", *args, stdin=stdin)

    return run


def rank(node: str = "n1", gpu: int = 0, tflops: float = 700.0, **changes: Any) -> dict[str, Any]:
    seconds = 2 * 8192**3 / 1e12 / tflops
    measured = {"dtype": "bfloat16", "size": 8192, "seconds": [seconds] * 3, "checks": 4}
    me = {"node": node, "gpu": gpu, "device": H100, "uuid": f"GPU-{node}-{gpu}"}
    return {**me, **measured, "failed": 0, "wrong": 0, "detail": "", **changes}


def reading(node: str, *reasons: int, when: str = "load") -> dict[str, Any]:
    rows = (
        f"{k}, {H100}, GPU-{node}-{k}, 690.12 W, 700.00 W, {60 + k}, 1410 MHz, 1980 MHz, "
        f"{mask:#018x}\n"
        for k, mask in enumerate(reasons)
    )
    return {"when": when, "exit_code": 0, "text": HEADER + "".join(rows)}


def document(*ranks: Any, **changes: Any) -> dict[str, Any]:
    head = {"schema": 1, "kind": "clusterkit-compute", "complete": True, "torch": "2.9.0"}
    return {**head, "ranks": list(ranks), **changes}


def found(*ranks: Any, **changes: Any) -> list[tuple[str, str, str]]:
    result = read_document(document(*ranks, **changes))
    return [(one.kind, one.where, one.summary) for one in compute.findings(result)]


def test_healthy_gpus_have_no_findings() -> None:
    ranks = [rank(node, gpu, 700 + gpu) for node in ("n1", "n2") for gpu in range(4)]
    assert found(*ranks) == []
    told = compute.document(read_document(document(*ranks)))
    (device,) = told["devices"]
    assert (told["correct"], told["complete"], told["nodes"]) == (True, True, ("n1", "n2"))
    assert device["median_tflops"] == pytest.approx(702)
    assert device["peak_tflops"] == 989
    assert device["share_of_peak"] == pytest.approx(702 / 989)


def test_a_slow_gpu_is_named() -> None:
    ranks = [rank("n1", 0), rank("n1", 1), rank("n2", 0), rank("n2", 1, 560)]
    assert found(*ranks) == [("slow", "n2, GPU 1", "560 TFLOP/s, 80% of the median of 4")]
    pair = [("slow", "n1, GPU 1", "350 TFLOP/s, 50% of the median of 2")]
    assert found(rank(), rank(gpu=1, tflops=350)) == pair, "the faster of two is the measure"
    assert found(rank(), rank(gpu=1, tflops=640)) == []


def test_other_gpus_have_a_median_of_their_own() -> None:
    old = [rank("n2", k, 250, device="NVIDIA A100-SXM4-80GB") for k in range(2)]
    assert found(rank(), rank(gpu=1), *old) == []


def test_processors_are_slow_at_less() -> None:
    cpu = {"device": "cpu", "uuid": None, "dtype": "float32"}
    assert found(rank(tflops=0.02, **cpu), rank("n2", tflops=0.014, **cpu)) == []
    slow = found(rank(tflops=0.02, **cpu), rank("n2", tflops=0.01, **cpu))
    assert slow == [("slow", "n2, slot 0", "0.01 TFLOP/s, 50% of the median of 2")]


def test_a_node_whose_gpus_torch_does_not_see_is_named() -> None:
    blind = rank("n2", tflops=0.02, device="cpu", uuid=None, dtype="float32")
    assert found(rank(), blind) == [("failed", "n2, slot 0", "torch sees no GPU there")]


def test_wrong_bits_are_named_first() -> None:
    bad: dict[str, Any] = {"failed": 2, "wrong": 3, "detail": "row 5, column 7 is 12 and not 8"}
    ranks = [rank(), rank(gpu=1, tflops=300), rank("n2", 3, **bad)]
    wrong, slow = found(*ranks)
    assert wrong[:2] == ("wrong", "n2, GPU 3")
    assert wrong[2] == "2 of 4 products are wrong, elements in all: 3, the first: " + bad["detail"]
    assert slow[0] == "slow"
    assert compute.correct(read_document(document(*ranks))) is False


def test_ranks_that_never_answer_are_named() -> None:
    began = {"node": "n2", "gpu": 1, "device": H100, "uuid": "GPU-n2-1"}
    lost = {**began, "gpu": 2, "error": "CUDA error: out of memory"}
    ranks = [rank(), None, began, lost]
    names = ["n1", "n1", "n2", "n2"]
    result = read_document(document(*ranks), names=names)
    assert [(one.kind, one.where) for one in compute.findings(result)] == [
        ("silent", "n1, rank 1"),
        ("silent", "n2, GPU 1"),
        ("failed", "n2, GPU 2"),
    ]
    assert compute.correct(result) is None
    assert found(*ranks, complete=False)[0][0] == "failed", "the job tells why it ended early"
    assert not read_document(document(began, None)).measured


def test_throttling_is_named_and_the_power_cap_is_none() -> None:
    readings = [reading("n1", 0x1, 0x1, when="before"), reading("n1", 0x4, 0x48)]
    result = read_document(document(rank(readings=readings), rank(gpu=1)))
    (one,) = compute.findings(result)
    assert (one.kind, one.where, one.summary) == (
        *("throttled", "n1, GPU 1"),
        "hardware thermal slowdown",
    )
    capped, held = compute.document(result)["gpus"]
    assert (capped["held_down_by"], held["held_down_by"]) == (
        ("power cap",),
        ("hardware thermal slowdown",),
    )
    before, load = held["readings"]
    assert (before["when"], load["clock_mhz"], load["temperature_c"]) == ("before", 1410, 61)


def test_a_gpu_has_the_index_of_nvidia_smi() -> None:
    """Where CUDA numbers them otherwise, or sees a part of them."""
    readings = [reading("n1", 0, 0, 0)]
    result = read_document(document(rank(uuid="GPU-n1-2", readings=readings)))
    assert [(one.rank, one.gpu) for one in result.workers] == [(0, 2)]
    nonsense = [{"when": "load", "exit_code": 0, "text": "Segmentation fault"}]
    assert read_document(document(rank(gpu=1, readings=nonsense))).workers[0].gpu == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"seconds": [math.nan]}, "ranks[0].seconds[0] is damaged: nan"),
        ({"seconds": [math.inf]}, "ranks[0].seconds[0] is damaged: inf"),
        ({"seconds": [-0.001]}, "ranks[0].seconds[0]"),
        ({"seconds": [0.0]}, "ranks[0].seconds[0]"),
        ({"seconds": ["fast"]}, "ranks[0].seconds[0]"),
        ({"seconds": [0.1] * 20_000}, "ranks[0].seconds"),
        ({"size": 1 << 40}, "ranks[0].size"),
        ({"wrong": -1}, "ranks[0].wrong"),
        ({"node": "n" * 400}, "ranks[0].node"),
        ({"dtype": "int3"}, "ranks[0].dtype"),
        ({"readings": [{"when": "never", "exit_code": 0, "text": ""}]}, "readings[0].when"),
    ],
    ids=str,
)
def test_what_no_rank_can_say_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(Unparsed, match=re.escape(why)):
        read_document(document(rank(**change)))


def test_ranks_and_hosts_that_do_not_belong_are_refused() -> None:
    with pytest.raises(Unparsed, match="it is of 2 ranks, and the job has 1"):
        read_document(document(rank(), rank()), names=["n1"])
    with pytest.raises(Unparsed, match="rank 1 is on n2, and says 'n1'"):
        read_document(document(rank(), rank()), names=["n1", "n2"])
    assert read_document(document(rank(), rank()), names=["n1", None]).complete


def test_the_answer_is_shown(run: Run) -> None:
    readings = [reading("n1", 0x4, 0x48)]
    said = document(rank(readings=readings), rank(gpu=1, tflops=400), rank("n2"), rank("n2", 1))
    code, out, err = run("--from", "-", stdin=json.dumps(said))
    assert (code, err) == (1, "")
    assert (
        out
        == """\
4 ranks: n[1-2]; torch 2.9.0

NVIDIA H100 80GB HBM3, bfloat16, 8192 x 8192
node  GPU  TFLOP/s  slowest  of median     clock  power  warmest
n1      0      700      700       100%  1410 MHz  690 W     60 C  power cap
n2      0      700      700       100%         -      -        -
n2      1      700      700       100%         -      -        -
n1      1      400      400        57%  1410 MHz  690 W     61 C  slowed down
  median 700 TFLOP/s, 71% of the peak of H100-SXM5-80GB, 989; the most that was
  measured elsewhere is 794

slow: n1, GPU 1: 400 TFLOP/s, 57% of the median of 4
throttled: n1, GPU 1: hardware thermal slowdown
without them: --exclude n1
all products are right
"""
    )
    code, out, _ = run("--from", "-", "--json", stdin=json.dumps(said))
    told = json.loads(out)
    assert (code, told["job"]) == (1, None)
    assert [one["kind"] for one in told["findings"]] == ["slow", "throttled"]
    empty = json.loads(json.dumps(compute.document(Result())))
    assert {"schema", "job", *empty} == told.keys()


def test_thousands_of_gpus_are_a_page(run: Run, tmp_path: Path) -> None:
    ranks = [rank(f"n{k // 8}", k % 8, 700 + k % 50) for k in range(2048)]
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "compute.json").write_text(json.dumps(document(*ranks)))
    code, out, _ = run("--from", ".")
    assert code == 0
    assert "  and 2032 that are faster" in out
    assert len(out.splitlines()) < 30


def test_a_job_that_was_cut_off_says_so(run: Run) -> None:
    said = document(rank(), {"node": "n1", "gpu": 1, "device": H100}, complete=False)
    code, out, _ = run("--from", "-", stdin=json.dumps(said))
    assert code == 0
    assert "not all ranks have checked their products, and the end is missing" in out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--nodes", "2:4"), "fixed size"),
        (("--seconds", "0"), "--seconds"),
        (("--from", "absent.json"), "cannot read absent.json"),
        (("--from", sys.executable), "hint:"),
        (("--from", "-"), "its kind is None"),
        (("--nodes", "2", "--cluster", "nowhere"), "nowhere"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused(run: Run, words: tuple[str, ...], why: str) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert why in err
    assert "bug" not in err


def test_the_job_is_shown_before_it_is_submitted(run: Run) -> None:
    code, out, err = run("--dry-run")
    assert code == 0, err
    assert "clusterkit_compute.py" in out
    assert "torchrun on 1 node x 1 slot" in err
