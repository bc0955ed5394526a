"""Output of nccl-tests: recordings of many layouts, and what GPU027 concludes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterkit.preflight.probes.gpu.nccl_tests import ASK, PROBE, parse
from clusterkit.transport.probe import Output, PreflightJob, Unparsed
from tests.helpers.evidence import evidence
from tests.helpers.mangling import mangled
from tests.helpers.needs import require
from tests.helpers.probe_run import SHELLS, named
from tests.helpers.recordings import recording

GIB = 1 << 30
RUNS = [
    # file, ranks, hosts, peak, its size, average, correct
    ("nccl_ag_a3mega.txt", None, 0, 188.90, 8 * GIB, 53.8932, True),
    ("nccl_ar_a100_1node.txt", 8, 1, 231.72, GIB, 210.99, True),
    ("nccl_ar_dgxa100_2node_oldcols.txt", None, 0, 191.56, 4 * GIB, 113.289, True),
    ("nccl_ar_gb200_1440.txt", 1440, 1, 405.74, 16 * GIB, 297.808, True),
    ("nccl_ar_h100_nebius_2node.txt", None, 0, 468.46, 8 * GIB, 125.499, True),
    ("nccl_ar_h100_oci_2node.txt", 16, 2, 471.22, 16 * GIB, 464.075, True),
    ("nccl_ar_p4de_2node_label.txt", None, 0, 78.33, 2 * GIB, None, None),
    ("nccl_ar_p5_8gpu_mpiprefix.txt", None, 0, 483.35, 16 * GIB, 156.742, True),
    ("nccl_ar_slingshot_wrong_values.txt", None, 0, 22.87, 128 << 20, 4.79995, False),
]
JOB = PreflightJob(hosts=("a", "b", "c"), env={ASK: "1"})


@pytest.mark.parametrize(
    ("name", "ranks", "hosts", "peak", "size", "average", "correct"), RUNS, ids=str
)
def test_recordings(
    name: str,
    ranks: int | None,
    hosts: int,
    peak: float,
    size: int,
    average: float | None,
    correct: bool | None,
) -> None:
    test = parse(recording(name))
    assert (test.ranks, len(test.hosts)) == (ranks, hosts)
    assert (test.peak.bus_gb_s, test.peak.size) == (peak, size)
    assert (test.average_gb_s, test.correct) == (average, correct)


def test_wrong_values_are_counted_by_size() -> None:
    rows = parse(recording("nccl_ar_slingshot_wrong_values.txt")).rows
    assert {row.size: row.wrong for row in rows if row.wrong} == {1 << 20: 128}
    # The old layout has an error there, and not a number of wrong values.
    assert {row.wrong for row in parse(recording(RUNS[2][0])).rows} == {None}


OCI = "nccl_ar_h100_oci_2node.txt"
CRASH = (
    "n2: Test NCCL failure common.cu:303 'unhandled system error (run with NCCL_DEBUG=INFO) / '\n"
    " .. n2 pid 1943531: Test failure common.cu:406\n"
)


def test_a_crash_is_no_corruption() -> None:
    text = recording(OCI)
    cut = text[: text.index("  4294967296")] + CRASH
    test = parse(cut)
    assert (test.correct, test.failed) == (None, ("n2",))
    assert test.error == "n2: unhandled system error (run with NCCL_DEBUG=INFO)"
    assert verdicts({"a": cut}) == {"a": "fail"}


def test_values_that_nobody_compared_are_not_right() -> None:
    unseen = recording(OCI).replace("      0 ", "    N/A ").replace("      0\n", "    N/A\n")
    assert {row.wrong for row in parse(unseen).rows} == {None}
    assert parse(unseen).correct is None


def test_figures_with_an_exponent() -> None:
    text = recording(OCI)
    slow = parse(text.replace("  68359  251.32  471.22", "2.7e+07    0.63    1.18"))
    assert len(slow.rows) == len(parse(text).rows)
    row = "  1073741824     268435456     float     sum      -1   4478.8  239.74  449.51      0"
    assert row in text
    wrong = parse(text.replace(row, f"{row[:-1]}2.68435e+08"))
    assert (wrong.correct, wrong.rows[0].wrong) == (False, 268435000)


@pytest.mark.parametrize(
    "before",
    [
        "0: ",
        " 0: ",
        "[1,0]<stdout>:",
        "2026-03-01T10:00:00.1234567Z ",
        "2026-03-01T10:00:00.123456789+01:00 0: ",
        "2026-03-01 10:00:00,123 ",
        "[pod/nccl-launcher-x7/launcher] ",
    ],
)
def test_what_stands_before_each_line(before: str) -> None:
    plain = recording(OCI)
    assert parse("".join(f"{before}{line}\n" for line in plain.splitlines())) == parse(plain)


def test_ranks_by_the_whole_address_of_their_gpu() -> None:
    test = parse(recording(OCI).replace("[0x", "[0000:"))
    assert (test.ranks, len(test.hosts)) == (16, 2)


@pytest.mark.parametrize("name", [run[0] for run in RUNS])
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_mangled_recordings_are_unparsed_or_sound(name: str, data: st.DataObject) -> None:
    text = data.draw(mangled(recording(name)))
    try:
        test = parse(text)
    except Unparsed:
        return
    assert hash(test)
    assert all(row.bus_gb_s >= 0 for row in test.rows)


def verdicts(nodes: dict[str, str | Output], job: PreflightJob = JOB) -> dict[str | None, str]:
    said = {node: {PROBE.name: text} for node, text in nodes.items()}
    return {
        node: str(r.verdict) for node, r in named("gpu-all-reduce").judge(evidence(said, job=job))
    }


def test_nodes_are_compared_with_each_other_and_then_with_what_is_published() -> None:
    good = recording("nccl_ar_a100_1node.txt")
    assert verdicts(dict.fromkeys("abc", good)) == dict.fromkeys("abc", "pass")
    # Only the last rows have more; without them the best is 204 GB/s, then 170.
    lines = good.split("\n")
    rows = [k for k, line in enumerate(lines) if line.split()[2:3] == ["float"]]
    less, least = (
        "\n".join(line for k, line in enumerate(lines) if k not in rows[kept:]) for kept in (3, 1)
    )
    assert verdicts({"a": good, "b": least, "c": good}) == {"a": "pass", "b": "warn", "c": "pass"}
    assert verdicts(dict.fromkeys("abc", less)) == dict.fromkeys("abc", "pass")
    assert verdicts(dict.fromkeys("abc", least)) == dict.fromkeys("abc", "warn")
    halved = least.replace("170.31", "70.31").replace("167.99", "67.99")
    assert verdicts({"a": good, "b": halved, "c": good})["b"] == "fail"


def test_corruption_fails_and_a_missing_end_is_unknown() -> None:
    assert verdicts({"a": recording("nccl_ar_slingshot_wrong_values.txt")}) == {"a": "fail"}
    assert verdicts({"a": recording("nccl_ar_p4de_2node_label.txt")}) == {"a": "unknown"}
    assert verdicts({"a": Output(stdout="", exit_code=124)}) == {"a": "unknown"}
    assert verdicts({"a": ""}, PreflightJob(hosts=("a",))) == {}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", ["nccl_ar_a100_1node.txt", "nccl_ar_slingshot_wrong_values.txt"])
def test_it_is_asked_with_the_variables_of_the_job(
    tmp_path: Path, shell: tuple[str, ...], name: str
) -> None:
    """A double of all_reduce_perf, as no GPU is here: how it is called, and its exit code."""
    (tmp_path / "said").write_text(recording(name), encoding="utf-8")
    for tool, body in {
        "nvidia-smi": 'echo "GPU 0: X (UUID: GPU-0)"; echo "GPU 1: X (UUID: GPU-1)"',
        "all_reduce_perf": f'echo "$NCCL_ALGO $*" >{tmp_path}/asked; cat {tmp_path}/said; exit 1',
    }.items():
        (tmp_path / tool).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (tmp_path / tool).chmod(0o755)
    snippet = PROBE.snippet(PreflightJob(hosts=("a",), env={ASK: "1", "NCCL_ALGO": "Ring it"}))
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    require(shell[0])
    done = subprocess.run(
        [*shell, "-c", snippet or ""], env=env, capture_output=True, text=True, check=True
    )
    assert parse(done.stdout) == parse(recording(name))
    asked = (tmp_path / "asked").read_text(encoding="utf-8")
    assert asked == "Ring it -b 1G -e 4G -f 2 -g 2 -w 2 -n 10\n"
    assert PROBE.snippet(PreflightJob(hosts=("a",))) is None
