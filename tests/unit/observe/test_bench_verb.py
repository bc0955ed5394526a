"""`clusterkit bench collectives` where nothing is submitted: what is read, refused and shown."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterkit.cli.bench.job import kept
from clusterkit.cli.frame import console
from clusterkit.core.model import ClusterKind, JobState, JobStatus
from clusterkit.estimate.factors import load_calibration
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.jobs.state.load import Job
from clusterkit.observe.bench.allreduce.answer import empty_document
from clusterkit.observe.bench.allreduce.document import FILE
from tests.helpers.command_line import outcome
from tests.helpers.recordings import recording
from tests.unit.observe.test_collectives import A100, OCI, WRONG, torch_run

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the verb in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def run(*args: str, stdin: str = "") -> tuple[int, str, str]:
        return outcome("bench", "collectives", *args, stdin=stdin)

    return run


def test_a_recording_is_read_from_stdin(run: Run) -> None:
    code, out, err = run("--from", "-", stdin=recording(A100))
    assert (code, err) == (0, "")
    assert (
        out
        == """\
8 ranks on 1 node: {hostname}
nccl, NVIDIA A100-SXM4-80GB; measured by nccl-tests

all-reduce              time     algbw     busbw  GB/s
        32 MiB        345 us      97.3       170
        64 MiB        556 us       121       211
       128 MiB       1.15 ms       117       204
       256 MiB       2.11 ms       127       223
       512 MiB       4.14 ms       130       227
         1 GiB       8.11 ms       132       232
  best        232 GB/s at 1 GiB
  estimate    103% of the 226 GB/s that it assumes for 1 GiB over the links in a
              node of A100-SXM4-80GB
  published   100% of 231.7 GB/s, 8 A100 SXM, NVSwitch (facebookresearch/gcm), 1
              GiB and more

the results are right on all ranks
"""
    )


def test_the_name_of_old_does_the_same_and_is_not_listed(run: Run) -> None:
    old = outcome("bench", "allreduce", "--from", "-", stdin=recording(A100))
    assert old == run("--from", "-", stdin=recording(A100))
    listed = outcome("bench", "--help")[1]
    assert " collectives " in listed
    assert "allreduce" not in listed


def test_wrong_results_are_a_failure_whatever_the_bandwidth(run: Run, tmp_path: Path) -> None:
    (tmp_path / "said").write_text(recording(WRONG))
    code, out, _ = run("--from", "said")
    assert code == 1
    assert "WRONG RESULTS" in out
    assert "gpu-1-[1,7]" in out
    code, out, _ = run("--from", "said", "--json")
    document = json.loads(out)
    assert code == 1
    assert (document["schema"], document["correct"]) == (1, False)
    assert document["suspects"] == ["gpu-1-1", "gpu-1-7"]


def test_ranks_with_wrong_sums_are_named(run: Run) -> None:
    wrong = [
        {"op": "all_reduce", "bytes": 1 << 20, "elements": 7, "rank": k, "node": f"n{k // 2 + 1}",
         "detail": "element 5 is 9 and not 10"}
        for k in range(4)
    ]  # fmt: skip
    code, out, _ = run("--from", "-", stdin=json.dumps(torch_run(wrong=wrong, measured=[])))
    assert code == 1
    assert "rank 2 on n2: all-reduce of 1 MiB, 7 elements" in out
    assert max(map(len, out.splitlines())) <= 80


def test_the_document_has_all_that_is_shown(run: Run) -> None:
    code, out, _ = run("--from", "-", "--json", stdin=recording(OCI))
    document = json.loads(out)
    assert code == 0
    assert document["nodes"] == ["h100-ord01-03-14", "h100-ord01-03-294"]
    assert document["best"]["all_reduce"]["busbw_gbs"] == pytest.approx(471.22)
    assert document["large"]["all_reduce"]["bytes"] == 16 << 30
    assert document["expected"]["estimate"]["all_reduce"]["over"] == "infiniband-ndr"
    assert document["expected"]["published"]["busbw_gbs"] == 468
    assert (document["job"], document["calibration"]) == (None, None)


def test_the_gpu_that_a_result_names_counts(run: Run) -> None:
    code, out, _ = run("--from", "-", "--gpu", "a100-sxm4-80gb", "--json", stdin=recording(OCI))
    assert code == 0
    assert json.loads(out)["expected"]["estimate"]["all_reduce"]["over"] == "infiniband-ndr"
    code, out, _ = run("--from", "-", "--gpu", "h100-sxm5", stdin=json.dumps(torch_run()))
    assert code == 0
    assert "estimate" not in out, "processors are no GPUs"


def test_a_run_folder_is_read_as_well(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "bench-collectives-1"
    (folder / "results").mkdir(parents=True)
    (folder / "results" / FILE).write_text(json.dumps(torch_run()))
    code, out, err = run("--from", str(folder))
    assert (code, err) == (0, "")
    assert "the results are right" in out


def test_a_test_failure_without_a_reason_is_no_good_run(run: Run) -> None:
    said = recording(OCI).partition("# Out of bounds")[0]
    said += " .. n1 pid 12345: Test failure common.cu:401\n"
    code, out, _ = run("--from", "-", stdin=said)
    assert code == 1
    assert "n1: a test failed" in out


def test_what_is_saved_counts_for_estimates(run: Run, tmp_path: Path) -> None:
    (tmp_path / "clusterkit.yaml").write_text("clusters:\n  oci: {kind: slurm}\n")
    code, out, err = run("--from", "-", "--save", "--cluster", "oci", stdin=recording(OCI))
    assert code == 0, err
    place = tmp_path / "config" / "clusterkit" / "calibration" / "oci.json"
    assert str(place.name) in "".join(out.split())
    kept = load_calibration(place)
    assert kept is not None
    assert 1.2 < kept.inter_busbw_scale < 1.5


def test_what_cannot_be_saved_is_shown_all_the_same(run: Run, tmp_path: Path) -> None:
    code, out, err = run("--from", "-", "--save", stdin=json.dumps(torch_run()))
    assert code == 2
    assert "the results are right" in out
    assert "estimates are of GPUs" in err
    code, out, _ = run("--from", "-", "--save", "--json", stdin=json.dumps(torch_run()))
    document = json.loads(out)
    assert code == 2
    assert "estimates are of GPUs" in document["error"]["problems"][0]["message"]
    assert document["calibration"] is None
    assert not (tmp_path / "config" / "clusterkit").exists()


def test_a_run_without_its_end_says_so(run: Run) -> None:
    code, out, _ = run("--from", "-", stdin=json.dumps(torch_run(complete=False)))
    assert code == 0
    assert "right so far, and the end is missing" in out


def test_a_table_without_its_end_whose_values_were_right_says_so(run: Run) -> None:
    code, out, _ = run("--from", "-", stdin=recording("nccl_ar_p4de_2node_label.txt"))
    assert code == 0
    assert "right so far, and the end is missing" in out
    assert "\n           8 B        164 us  0.000049  0.000091\n" in out


@pytest.mark.parametrize(
    ("rows", "where", "why"),
    [
        (("1048576 262144", "9.80 107.00 0.00"), (), "none: one rank has nobody"),
        (("8 2", "12.90 0.00 0.00"), (), "unknown: nccl-tests prints two decimals"),
        (("8 2", "12.90 0.00 0.00"), ("--nodes", "2", "--gpus-per-node", "8"), "1.16 MB/s"),
    ],
    ids=["one GPU", "small", "small, ranks said"],
)
def test_a_bandwidth_of_nothing_is_explained(
    run: Run, rows: tuple[str, str], where: tuple[str, ...], why: str
) -> None:
    size, figures = rows
    said = f"{size} float sum -1 {figures} 0 {figures} 0\n# Out of bounds values : 0 OK\n"
    more = (*where, "--gpu", "h100-sxm5")
    code, out, err = run("--from", "-", *more, stdin=said)
    assert (code, err) == (0, "")
    assert why in out
    assert "the results are right" in out
    code, out, _ = run("--from", "-", *more, "--json", stdin=said)
    assert (code, json.loads(out)["measured"][0]["seconds"] > 0) == (0, True)


def test_what_is_no_number_is_null_in_documents(capsys: pytest.CaptureFixture[str]) -> None:
    console.json_document({"a": [math.nan, {"b": -math.inf}], "c": 1.5})
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert told == {"schema": 1, "a": [None, {"b": None}], "c": 1.5}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (json.dumps(torch_run(nccl_tests=["x"])), "nccl_tests is damaged: ['x']"),
        ('{"a":' * 100_000, "no table of nccl-tests"),
        (json.dumps(torch_run(measured=[{"op": "all_reduce", "bytes": float("inf")}])), "bytes"),
    ],
    ids=["list", "deep", "infinite"],
)
def test_an_odd_document_is_refused_by_file_and_field(
    run: Run, tmp_path: Path, said: str, why: str
) -> None:
    (tmp_path / "odd.json").write_text(said)
    code, out, err = run("--from", "odd.json")
    assert (code, out) == (2, "")
    assert why in err
    assert "odd.json" in err
    assert "bug" not in err


def test_the_document_of_nothing_has_the_keys_of_others(run: Run) -> None:
    _, out, _ = run("--from", "-", "--json", stdin=json.dumps(torch_run()))
    whole = json.loads(out)
    nothing = json.loads(json.dumps(empty_document()))
    assert {"schema", "job", "calibration", *nothing} == whole.keys()
    assert nothing["expected"].keys() == whole["expected"].keys()
    assert (nothing["correct"], nothing["complete"], nothing["measured"]) == (None, False, [])
    assert (nothing["source"], nothing["backend"], nothing["ranks"]) == (None, None, None)


def test_a_table_that_does_not_say_where_it_ran_is_told(run: Run) -> None:
    said = recording("nccl_ar_h100_nebius_2node.txt")
    code, out, _ = run("--from", "-", stdin=said)
    assert code == 0
    assert "published" not in out
    where = ("--nodes", "2", "--gpus-per-node", "8", "--gpu", "h100-sxm5")
    code, out, _ = run("--from", "-", *where, stdin=said)
    assert code == 0
    assert "infiniband-ndr" in out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "one slot"),
        (("--nodes", "2:4"), "fixed size"),
        (("--nodes", "x"), "--nodes 'x' is not a number"),
        (("--nodes", "2", "--sizes", "big"), "--sizes big"),
        (("--nodes", "2", "--sizes", "2G:1G"), "--sizes 2G:1G"),
        (("--nodes", "2", "--ops", "broadcas"), "did you mean 'broadcast'?"),
        (("--nodes", "2", "--over", "tpp"), "did you mean 'tp'?"),
        (("--nodes", "2", "--over", "dp"), "these are all ranks"),
        (("--nodes", "2", "--ep", "2", "--over", "dp"), "these are all ranks"),
        (("--nodes", "2", "--over", "ep"), "hint: --ep 2 --over ep"),
        (("--nodes", "2", "--tp", "2", "--over", "pp"), "hint: --pp 2 --over pp"),
        (("--nodes", "2", "--tp", "3", "--over", "tp"), "--tp"),
        (("--nodes", "2", "--tp", "2", "--over", "tp", "--by", "nccl-tests"), "leave --over out"),
        (("--nodes", "2", "--backend", "mpi"), "--backend mpi"),
        (("--nodes", "2", "--by", "hand"), "--by hand"),
        (("--nodes", "2", "--by", "nccl-tests", "--backend", "gloo"), "not gloo"),
        (("--nodes", "2", "--iters", "1"), "hint: --iters 2"),
        (("--nodes", "2", "--seconds", "0"), "hint: --seconds 1"),
        (("--nodes", "2", "--seconds", "90000"), "hint: --seconds 86400"),
        (("--nodes", "2", "--interconnect", "string"), "no network"),
        (("--nodes", "2", "--gpu", "toaster"), "no GPU"),
        (("--nodes", "2", "--cluster", "nowhere"), "nowhere"),
        (("--nodes", "2", "--backend", "gloo", "--save"), "--save"),
        (("--from", "absent.txt"), "cannot read absent.txt"),
        (("--from", "."), "cannot read"),
        (("--from", sys.executable), "hint:"),
        (("--from", "-", "--nodes", "2:3"), "--nodes 2:3"),
        (("--from", "-", "--save", "--cluster", "nowhere"), "nowhere"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused(run: Run, words: tuple[str, ...], why: str) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert why in err
    assert "bug" not in err


def test_the_job_is_shown_before_it_is_submitted(run: Run) -> None:
    code, out, err = run("--nodes", "2", "--sizes", "1M:2M", "--dry-run")
    assert code == 0, err
    assert "clusterkit_collectives.py" in out
    assert "torchrun on 2 nodes x 1 slot" in err
    code, out, _ = run("--nodes", "2", "--dry-run", "--json")
    plan = json.loads(out)["plan"]
    assert code == 0
    assert {"clusterkit_collective.py", "clusterkit_collectives.py"} <= set(
        plan["command"]["files"]
    )


def test_a_result_that_is_seen_late_is_waited_for(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "bench-20261122-120000-abcdef")
    (folder.results).mkdir(parents=True)
    place = folder.results / "collectives.json"
    place.write_text(json.dumps(torch_run(complete=False)))  # of a moment before the end
    submission = Submission(
        run_id=folder.run_id,
        name="bench",
        cluster="here",
        kind=ClusterKind.LOCAL,
        framework="torchrun",
        nodes=2,
        tasks=2,
        submitted_at=0.0,
    )
    later = threading.Timer(0.7, place.write_text, (json.dumps(torch_run()),))
    later.start()
    succeeded = Job(
        run=folder, submission=submission, status=JobStatus(state=JobState.SUCCEEDED), results=()
    )
    document = kept(succeeded, FILE)
    later.join()
    assert document is not None
    assert document["complete"] is True
    place.write_text(json.dumps(torch_run(complete=False)))
    failed = dataclasses.replace(succeeded, status=JobStatus(state=JobState.FAILED))
    assert kept(failed, FILE) == torch_run(complete=False)
