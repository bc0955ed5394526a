"""Recordings of nccl-tests through `bench collectives --from`, with the answers of their index."""

from __future__ import annotations

import io
import json

import pytest
from typer.testing import CliRunner

from clusterkit.cli.frame.main import app
from clusterkit.core.errors import UserError
from clusterkit.observe.bench.allreduce.document import read_result
from clusterkit.observe.bench.allreduce.result import Operation
from tests.helpers.recordings import recording

FRESH = "fresh-2026-11/"
GIB = 1 << 30

RUNS = {
    # file: collective, ranks, best GB/s, its size, correct
    "nccl_ag_a3mega.txt": ("all_gather", 16, 188.90, 8 * GIB, True),
    "nccl_ar_a100_1node.txt": ("all_reduce", 8, 231.72, GIB, True),
    "nccl_ar_dgxa100_2node_oldcols.txt": ("all_reduce", 32, 191.56, 4 * GIB, True),
    "nccl_ar_gb200_1440.txt": ("all_reduce", 1440, 405.74, 16 * GIB, True),
    "nccl_ar_h100_nebius_2node.txt": ("all_reduce", 16, 468.46, 8 * GIB, True),
    "nccl_ar_h100_oci_2node.txt": ("all_reduce", 16, 471.22, 16 * GIB, True),
    "nccl_ar_p4de_2node_label.txt": ("all_reduce", 16, 78.33, 2 * GIB, None),
    "nccl_ar_p5_8gpu_mpiprefix.txt": ("all_reduce", 8, 483.35, 16 * GIB, True),
    "nccl_ar_slingshot_wrong_values.txt": ("all_reduce", 2, 22.87, GIB // 8, False),
    FRESH + "nccl_sb_allreduce.txt": ("all_reduce", 8, 235.26, 8 * GIB, None),
    FRESH + "nccl_sb_allgather.txt": ("all_gather", 8, 230.07, 8 * GIB, None),
    FRESH + "nccl_sb_alltoall.txt": ("alltoall", 8, 226.16, 8 * GIB, None),
    FRESH + "nccl_sb_broadcast.txt": ("broadcast", 8, 234.70, 8 * GIB, None),
    FRESH + "nccl_sb_reduce.txt": ("reduce", 8, 231.28, 4 * GIB, None),
    FRESH + "nccl_sb_reducescatter.txt": ("reduce_scatter", 8, 231.52, 8 * GIB, None),
    FRESH + "nccl_oracle_h100_node.txt": ("all_reduce", 8, 326.67, 53687090, True),
    FRESH + "nccl_smc_h100_node.txt": ("all_reduce", 8, 458.63, 704643072, True),
    FRESH + "nccl_dstack_lambda.txt": ("all_reduce", 16, 702.91, 2 * GIB, True),
    FRESH + "nccl_azure_skill.txt": ("all_reduce", None, 936.93, 16 * GIB, True),
}
REFUSED = {
    # Their figures are blanked (XXX.XX), or there is no table at all.
    FRESH + "nccl_gcp_a3ultra.txt": "no figures",
    FRESH + "nccl_gcp_a3mega.txt": "no figures",
    FRESH + "nccl_gcp_slurmgke.txt": "no figures",
    FRESH + "nccl_deepops_slurm.txt": "no table of nccl-tests",
}
NO_GPU = FRESH + "nccl_oracle_nogpu.txt"


def read(name: str, *more: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["bench", "collectives", "--from", "-", *more], recording(name))
    return done.exit_code, done.output


@pytest.mark.parametrize("name", RUNS)
def test_tables(name: str) -> None:
    op, ranks, best, size, correct = RUNS[name]
    code, out = read(name, "--json")
    told = json.loads(out)
    assert code == (1 if correct is False else 0)
    assert (list(told["best"]), told["ranks"], told["correct"]) == ([op], ranks, correct)
    assert (told["best"][op]["busbw_gbs"], told["best"][op]["bytes"]) == (best, size)
    # What the program computed of the same time, but for its rounding.
    large = told["large"][op]
    assert large["algbw_gbs"] == pytest.approx(large["bytes"] / large["seconds"] / 1e9, rel=0.001)
    factor = Operation(op).bus_factor(ranks or 2)
    assert large["busbw_gbs"] == pytest.approx(large["algbw_gbs"] * factor, rel=0.003)
    published = told["expected"]["published"]
    assert published is None or size >= GIB or published["share"] is None
    assert ("the results are right" in read(name)[1]) is (correct is True)


@pytest.mark.parametrize("name", REFUSED)
def test_texts_without_figures_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=REFUSED[name]):
        read_result(io.BytesIO(recording(name).encode()), source=name)


def test_a_node_without_gpus_has_failed_and_has_no_bandwidth() -> None:
    code, out = read(NO_GPU)
    assert code == 1
    assert "the run failed\n  compute-hpc-node-73: no CUDA-capable device is detected" in out
    assert "GB/s" not in out


@pytest.mark.parametrize("folder", ["", FRESH])
def test_no_recording_is_left_out(folder: str) -> None:
    rows = (line.split("\t") for line in recording(folder + "INDEX.tsv").splitlines())
    listed = {folder + row[0] for row in rows if row[0].startswith("nccl_")}
    assert listed <= {*RUNS, *REFUSED, NO_GPU}
