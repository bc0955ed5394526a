"""Measured collectives: what recordings and our documents say, and what they are compared with."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from clusterkit.cli.bench.report import allreduce_lines
from clusterkit.cli.frame.main import app
from clusterkit.core.errors import UserError
from clusterkit.estimate.factors import Calibration
from clusterkit.observe.bench.allreduce.answer import Answer, answer, document, learned
from clusterkit.observe.bench.allreduce.document import read_document, read_nccl_tests, read_result
from clusterkit.observe.bench.allreduce.result import (
    MEASURED,
    Operation,
    Result,
    parse_operations,
    parse_sizes,
    size_in_words,
)
from clusterkit.preflight.probes.gpu.nccl_tests import published_for
from clusterkit.transport.probe import Unparsed
from tests.helpers.mangling import mangled
from tests.helpers.recordings import recording

MIB, GIB = 1 << 20, 1 << 30
A100, OCI = "nccl_ar_a100_1node.txt", "nccl_ar_h100_oci_2node.txt"
WRONG = "nccl_ar_slingshot_wrong_values.txt"


def test_wrong_values_name_their_nodes_and_sizes() -> None:
    result = read_nccl_tests(recording(WRONG))
    assert result.suspects == ("gpu-1-1", "gpu-1-7")
    assert [(one.bytes, one.elements) for one in result.wrong] == [(MIB, 128)]


def test_programs_one_after_the_other_are_told_apart() -> None:
    nebius, gather = (
        recording(name) for name in ("nccl_ar_h100_nebius_2node.txt", "nccl_ag_a3mega.txt")
    )
    result = read_nccl_tests(nebius + gather)
    assert result.operations == (Operation.ALL_REDUCE, Operation.ALL_GATHER)
    assert result.best(Operation.ALL_REDUCE).busbw == 468.46e9
    assert result.best(Operation.ALL_GATHER).busbw == 188.90e9
    with pytest.raises(Unparsed, match="8 and 16 ranks"):
        read_nccl_tests(nebius + recording(A100))
    listed = read_nccl_tests(recording(OCI) + recording(OCI))
    assert (listed.ranks, listed.node_count) == (16, 2)


def test_a_program_that_is_not_read_is_refused() -> None:
    text = recording("nccl_ar_h100_nebius_2node.txt")
    with pytest.raises(Unparsed, match="hypercube_perf is none"):
        read_nccl_tests(text.replace("all_reduce_perf", "hypercube_perf"))
    assert read_nccl_tests(text.replace("all_reduce_perf", "all_reduce_perf_mpi")).measured


def test_a_run_that_failed_is_told_and_blames_nobody(tmp_path: Path) -> None:
    text = recording(OCI)
    (tmp_path / "log").write_text(
        text[: text.index("  4294967296")] + "n2: Test CUDA failure common.cu:1 'out of memory'\n"
        " .. n2 pid 7: Test failure common.cu:406\n"
    )
    done = CliRunner().invoke(app, ["bench", "collectives", "--from", str(tmp_path / "log")])
    assert done.exit_code == 1
    assert "the run failed\n  n2: out of memory\n" in done.stdout
    assert "do not train" not in done.stdout


def test_a_reduce_scatter_is_known_by_its_counts() -> None:
    row = "  1048576   131072  float  sum  -1  10.0  104.86  52.43  0  11.0  95.33  47.66  0\n"
    result = read_nccl_tests(row)
    assert (result.operations, result.ranks) == ((Operation.REDUCE_SCATTER,), 2)


def test_small_messages_are_computed_from_their_time() -> None:
    result = read_nccl_tests(recording("nccl_ar_p5_8gpu_mpiprefix.txt"))
    smallest, *_, largest = result.measured
    assert smallest.algbw == pytest.approx(8 / 12.90e-6)
    assert smallest.busbw == pytest.approx(8 / 12.90e-6 * 2 * 7 / 8)
    assert (largest.algbw, largest.busbw) == (276.20e9, 483.35e9)


SHARED = "1048576  32768  float{}  80.0  13.11  11.47  {}  81.0  12.95  11.33  {}\n"
WHOLE = "1048576  262144  float{}  80.0  13.11  13.11  {}  81.0  12.95  12.95  {}\n"
OLD = "size  count  type{}  time  algbw  busbw  error  time  algbw  busbw  error\n"
RANK = "  Rank  {0} Group  0 Pid  7 on n1 device  {0} [0x0f] NVIDIA H100 80GB HBM3\n"
NEW = "size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong\n"


@pytest.mark.parametrize(
    ("text", "found", "perhaps"),
    [
        # Before 2.13 each program printed its own columns, since then all have redop and root.
        (OLD.format("") + SHARED.format("", "0e+00", "0e+00"), "all_gather", ()),
        (OLD.format(" redop") + SHARED.format("      ", "0e+00", "0e+00"), "alltoall", ()),
        (OLD.format(" redop") + SHARED.format(" sum", "N/A", "N/A"), "reduce_scatter", ()),
        (OLD.format(" redop") + WHOLE.format(" sum", "1e-07", "1e-07"), "all_reduce", ()),
        (OLD.format(" root") + WHOLE.format("    0", "N/A", "N/A"), "broadcast", ()),
        (OLD.format(" redop root") + WHOLE.format(" max  3", "1e-7", "1e-7"), "reduce", ()),
        (OLD.format("") + WHOLE.format("", "0e+00", "0e+00"), "sendrecv", ()),
        (OLD.format(" root") + SHARED.format("    0", "N/A", "N/A"), "gather", ("scatter",)),
        (NEW + SHARED.format(" none -1", "0", "0"), "all_gather", ()),
        (NEW + SHARED.format(" none -1", "0", "N/A"), "alltoall", ()),
        (NEW + SHARED.format(" none -1", "N/A", "N/A"), "all_gather", ("alltoall",)),
        (NEW + SHARED.format(" sum -1", "0", "0"), "reduce_scatter", ()),
        (NEW + WHOLE.format(" sum -1", "0", "N/A"), "sendrecv", ()),
        (NEW + WHOLE.format(" sum -1", "0", "0"), "all_reduce", ()),
        (NEW + WHOLE.format(" sum -1", "N/A", "N/A"), "all_reduce", ("sendrecv",)),
        ("".join(RANK.format(k) for k in range(4)) + NEW + WHOLE.format(" sum -1", "N/A", "N/A"),
         "sendrecv", ()),
        (NEW + WHOLE.format(" none 0", "0", "0"), "broadcast", ()),
        (NEW + WHOLE.format(" prod 0", "0", "0"), "reduce", ()),
        ("+ srun ./scatter_perf_mpi -b 1M\n" + NEW + SHARED.format(" none 0", "0", "0"),
         "scatter", ()),
        ("$ alltoall_perf -c 0 \\\n" + NEW + SHARED.format(" none -1", "N/A", "N/A"),
         "alltoall", ()),
        # What else is named before a table does not turn it into another one.
        ("$ all_reduce_perf -b 1M\n" + NEW + WHOLE.format(" none 0", "0", "0"), "broadcast", ()),
        ("Collective test starting: build/gather_perf\n" + NEW + SHARED.format(" none 0", "0", "0"),
         "gather", ()),
    ],
)  # fmt: skip
def test_a_collective_is_known_by_its_name_or_its_columns(
    text: str, found: str, perhaps: tuple[str, ...]
) -> None:
    result = read_nccl_tests(text)
    assert [op.value for op in result.operations] == [found]
    assert tuple(op.value for op in result.perhaps) == perhaps
    (one,) = result.measured
    factor = {"all_reduce": 1, "sendrecv": 1, "broadcast": 1, "reduce": 1}.get(found, 7 / 8)
    assert one.busbw == pytest.approx(one.algbw * factor, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "error"),
    [("validation: 1", "0"), ("validation: 0", "0"), ("validation: 1", "N/A")],
)
def test_only_results_that_were_checked_are_right(options: str, error: str) -> None:
    head = f"nThread 1 nGpus 8 {options} graph: 0\n" + NEW
    cell = f"0 0 float sum -1 0.2 0.00 0.00 {error} 0.2 0.00 0.00 {error}\n"
    text = head + cell + WHOLE.format(" sum -1", error, error) + "Out of bounds values : 0 OK\n"
    right = (options, error) == ("validation: 1", "0")
    assert read_nccl_tests(text).correct is (True if right else None)


def test_more_columns_are_passed_over() -> None:
    """-S puts the date behind a row, -I four figures behind each side."""
    dated = read_nccl_tests(
        NEW + WHOLE.format(" sum -1", "0", "0").strip() + " 2025-10-28 12:00:01"
    )
    sides = " ".join(["time algbw busbw #wrong i_min i_max i_p99 i_cv%"] * 2)
    side = "80.0 13.11 13.11 0 79.0 90.0 89.0 1.25"
    each = read_nccl_tests(
        f"size count type redop root {sides}\n1048576 262144 float sum -1 {side} {side}\n"
    )
    assert dated.measured == each.measured


def test_prose_around_a_table_is_no_row() -> None:
    said = "8 16 GPUs were used\n2 4 nodes, as `alltoall_perf` -b 8 showed\n"
    result = read_nccl_tests(said + row(GIB, 8000, 134.22, 234.88) + said)
    assert (len(result.measured), result.ranks) == (1, 8)
    assert result.operations == (Operation.ALL_REDUCE,)


def test_a_test_that_failed_before_its_table_has_no_bandwidth() -> None:
    text = (
        "# Using devices\n"
        "n7: Test CUDA failure common.cu:893 'no CUDA-capable device is detected'\n"
        " .. n7 pid 3: Test failure common.cu:843\n"
    )
    result = read_nccl_tests(text)
    assert (result.measured, result.correct) == ((), None)
    assert result.error == "n7: no CUDA-capable device is detected"
    told = document(answer(result, interconnect=None, gpu=None))
    assert (told["measured"], told["best"], told["complete"]) == ([], {}, False)


def test_small_messages_are_not_compared_with_what_is_published_of_large_ones() -> None:
    text = recording(A100)
    last = next(line for line in text.splitlines() if line.lstrip().startswith("1073741824"))
    found = answer(read_nccl_tests(text.replace(last, "")), interconnect=None, gpu=None)
    assert found.published is not None
    assert found.published_share is None


def row(size: int, time_us: float, algbw: float, busbw: float) -> str:
    side = f"{time_us:.2f} {algbw:.2f} {busbw:.2f} 0"
    return f"{size} {size // 4} float sum -1 {side} {side}\n"


def test_bandwidths_that_are_all_rounded_away_tell_no_ranks() -> None:
    unknown = read_nccl_tests(row(8, 12.9, 0, 0))
    assert (unknown.ranks, unknown.measured[0].busbw) == (None, 0)
    said = unknown.on(ranks=4, node_count=2)
    assert said.measured[0].busbw == pytest.approx(8 / 12.9e-6 * 1.5)
    alone = read_nccl_tests(row(8, 12.9, 0, 0) + row(GIB, 1000, 1073.74, 0))
    assert (alone.ranks, alone.best(Operation.ALL_REDUCE).bytes) == (1, GIB)


def test_whoever_looked_at_the_results_is_known() -> None:
    cut_off = recording("nccl_ar_p4de_2node_label.txt")
    assert read_nccl_tests(cut_off).checked
    unseen = "".join(f"{line.removesuffix('0')}N/A\n" for line in cut_off.splitlines()[2:])
    assert not read_nccl_tests(unseen.replace("      0  ", "    N/A  ")).checked


@pytest.mark.parametrize("name", [A100, WRONG, "nccl_ag_a3mega.txt"])
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_mangled_recordings_are_refused_or_sound(name: str, data: st.DataObject) -> None:
    text = data.draw(mangled(recording(name)))
    try:
        result = read_nccl_tests(text)
    except Unparsed:
        return
    told = document(answer(result, interconnect=None, gpu=None))
    assert json.dumps(told, default=str)
    assert all(math.isfinite(one.busbw) for one in result.measured)


def torch_run(**changes: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "kind": "clusterkit-collectives",
        "complete": True,
        "backend": "gloo",
        "device": "cpu",
        "nodes": ["n1", "n1", "n2", "n2"],
        "torch": "2.9.0",
        "measured": [
            {"op": "all_reduce", "bytes": MIB, "seconds": [0.3, 0.1, 0.2], "iterations": 6},
            {"op": "all_gather", "bytes": MIB, "seconds": [0.1], "iterations": 2},
        ],
        "wrong": [],
        "left_out": [{"op": "all_gather", "bytes": 2 * MIB, "why": "no time"}],
        **changes,
    }


def test_our_document_counts_bandwidth_as_nccl_tests() -> None:
    result = read_document(torch_run())
    assert (result.ranks, result.node_count, result.per_node, result.nodes) == (
        4, 2, 2, ("n1", "n2"),
    )  # fmt: skip
    reduced, gathered = result.measured
    assert (reduced.seconds, reduced.algbw) == (0.2, MIB / 0.2)
    assert reduced.busbw == pytest.approx(MIB / 0.2 * 2 * 3 / 4)
    assert reduced.slowest == pytest.approx(MIB / 0.3 * 2 * 3 / 4)
    assert reduced.fastest == pytest.approx(MIB / 0.1 * 2 * 3 / 4)
    assert gathered.busbw == pytest.approx(MIB / 0.1 * 3 / 4)
    assert result.correct is True
    assert read_document(torch_run(complete=False)).correct is None


def test_groups_of_a_layout_count_by_their_own_ranks_and_links() -> None:
    def of(over: str, ranks: int, stride: int, op: str = "all_reduce") -> Answer:
        found = read_document(
            torch_run(
                group={"over": over, "ranks": ranks, "stride": stride},
                nodes=["n1"] * 8 + ["n2"] * 8,
                device="NVIDIA H100 80GB HBM3",
                measured=[{"op": op, "bytes": GIB, "seconds": [0.01], "iterations": 1}],
            )
        )
        return answer(found, interconnect=None, gpu=None)

    within, across = of("tp", 8, 1), of("dp", 2, 8)
    for found, factor in ((within, 2 * 7 / 8), (across, 2 * 1 / 2)):
        assert found.result.measured[0].busbw == pytest.approx(GIB / 0.01 * factor)
        assert found.published is None  # of all ranks
    assert within.assumptions[Operation.ALL_REDUCE].over == "the links in a node of H100-SXM5-80GB"
    between = across.assumptions[Operation.ALL_REDUCE]
    assert between.over == "infiniband-ndr"
    # The eight groups of a node share its adapters: each has one.
    assert between.busbw == pytest.approx(50e9, rel=0.2)
    assert Operation.ALLTOALL in of("dp", 2, 8, "alltoall").assumptions
    assert not of("dp", 2, 8, "broadcast").assumptions


@pytest.mark.parametrize(("gbs", "level"), [(450, ""), (350, "warn"), (250, "replace")])
def test_limits_that_a_source_gives_are_told(gbs: int, level: str) -> None:
    seconds = GIB * 2 * 15 / 16 / (gbs * 1e9)
    found = read_document(
        torch_run(
            nodes=["n1"] * 8 + ["n2"] * 8,
            device="NVIDIA H100 80GB HBM3",
            measured=[{"op": "all_reduce", "bytes": GIB, "seconds": [seconds], "iterations": 1}],
        )
    )
    lines = "\n".join(allreduce_lines(answer(found, interconnect=None, gpu=None)))
    limits = "below 400 GB/s warn, below 300 replace a node (Azure, ND H100 v5)"
    assert [one in lines for one in (f"  {level:<11} {limits}", limits)] == [bool(level)] * 2


def test_wrong_sums_are_named_by_rank() -> None:
    wrong = {"op": "all_reduce", "bytes": MIB, "elements": 3, "rank": 2, "node": "n2"}
    result = read_document(torch_run(complete=False, wrong=[{**wrong, "detail": "x"}]))
    assert (result.correct, result.suspects) == (False, ("n2",))
    assert result.wrong[0].rank == 2


def test_texts_of_nccl_tests_in_our_document_are_read() -> None:
    texts = {"all_reduce": recording(A100), "all_gather": recording("nccl_ag_a3mega.txt")}
    device = "NVIDIA A100-SXM4-80GB"
    result = read_document(
        torch_run(nccl_tests=texts, nodes=["n1"] * 8, backend="nccl", device=device)
    )
    assert (result.source, result.device, result.ranks) == ("nccl-tests", device, 8)
    assert result.operations == (Operation.ALL_REDUCE, Operation.ALL_GATHER)
    failed = read_document(torch_run(nccl_tests={"all_reduce": recording(WRONG)}, nodes=["n1"] * 8))
    assert (failed.correct, failed.suspects) == (False, ("n1",))


def one_row(**changes: Any) -> dict[str, Any]:
    usual = {"op": "all_reduce", "bytes": 1, "seconds": [1], "iterations": 1}
    return {"measured": [{**usual, **changes}]}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kind": "other"}, "its kind is 'other'"),
        ({"schema": 2}, "its kind"),
        ({"measured": [{"op": "all_reduce"}]}, "measured[0].bytes is missing"),
        (one_row(op="gather"), "measured[0].op is damaged: 'gather'"),
        ({"group": {"over": "vpp", "ranks": 2, "stride": 1}}, "group.over is damaged: 'vpp'"),
        ({"group": {"over": "tp", "ranks": 3, "stride": 1}}, "group is damaged: 3"),
        ({"group": {"over": "tp", "ranks": 2, "stride": 10**400}}, "group.stride is damaged"),
        (one_row(op=["x"]), "measured[0].op is damaged"),
        (one_row(bytes=math.inf), "measured[0].bytes is damaged: inf"),
        (one_row(bytes=10**400), "measured[0].bytes is damaged: 1000"),
        (one_row(bytes=-1), "measured[0].bytes is damaged: -1"),
        (one_row(bytes=True), "measured[0].bytes is damaged: True"),
        (one_row(seconds=[]), "measured[0].seconds is damaged: []"),
        (one_row(seconds=1.0), "measured[0].seconds is damaged: 1.0"),
        (one_row(seconds=[0.0]), "measured[0].seconds[0] is damaged: 0.0"),
        (one_row(seconds=[1, math.nan]), "measured[0].seconds[1] is damaged: nan"),
        (one_row(seconds=[math.inf]), "measured[0].seconds[0] is damaged: inf"),
        (one_row(seconds=[-1]), "measured[0].seconds[0] is damaged: -1"),
        (one_row(seconds=[5e-324]), "measured[0].seconds[0] is damaged"),
        (one_row(iterations="6"), "measured[0].iterations is damaged: '6'"),
        ({"measured": None}, "measured is missing"),
        ({"measured": ["x"]}, "measured[0] is damaged: 'x'"),
        ({"wrong": {}}, "wrong is damaged: {}"),
        ({"left_out": [{"op": "all_reduce", "bytes": 1}]}, "left_out[0].why is missing"),
        ({"nodes": None}, "nodes is missing"),
        ({"nodes": "n1"}, "nodes is damaged: 'n1'"),
        ({"nodes": []}, "nodes is damaged: []"),
        ({"device": ["x"]}, "device is damaged: ['x']"),
        ({"nccl_tests": {}}, "nccl_tests is damaged: {}"),
        ({"nccl_tests": ["x"]}, "nccl_tests is damaged: ['x']"),
        ({"nccl_tests": {"all_reduce": 3}}, "nccl_tests.all_reduce is damaged: 3"),
        ({"nccl_tests": {"all_reduce": "nothing"}}, "nccl_tests.all_reduce: no table"),
    ],
    ids=str,
)
def test_damaged_documents_are_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(Unparsed, match=re.escape(why)):
        read_document(torch_run(**change))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no table of nccl-tests"),
        (b"\x7fELF\0\0", "binary"),
        (b"loss 1.0\n" * 100, "no table of nccl-tests"),
        (b"x" * (17 << 20), "more than 16 MiB"),
        (b'{"schema": 1}', "its kind is None"),
        (b'{"a":' * 100_000, "no table of nccl-tests"),
        (b"0 0 float none -1 0.3 0.00 0.00 0 0.26 0.00 0.00 0\n", "no message"),
    ],
    ids=["empty", "binary", "log", "huge", "other", "deep", "no size"],
)
def test_what_is_no_result_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(UserError, match=why):
        read_result(io.BytesIO(data), source="x")


def test_sizes() -> None:
    assert parse_sizes("1M:4M") == (MIB, 2 * MIB, 4 * MIB)
    assert parse_sizes("3M:7MiB") == (3 * MIB, 6 * MIB)
    assert parse_sizes("64k") == (65536,)
    assert [size_in_words(n) for n in (4, 1020, 65536, 1048572, 3 << 19, GIB)] == [
        "4 B", "1020 B", "64 KiB", "1 MiB", "1.5 MiB", "1 GiB",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", ":", "1M:", "2M:1M", "0", "-1M", "1M-1G", "x", "2T", "1.5M"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--sizes"):
        parse_sizes(text)


def test_collectives_are_named_as_people_do() -> None:
    assert parse_operations("all_gather,all-reduce, ALL-GATHER") == (
        Operation.ALL_GATHER,
        Operation.ALL_REDUCE,
    )
    assert parse_operations("all") == MEASURED
    assert parse_operations("all-to-all,send_recv,sendrecv") == (
        Operation.ALLTOALL,
        Operation.SENDRECV,
    )
    for text in ("", "gather", "all-reduce,"):
        with pytest.raises(UserError, match="--ops"):
            parse_operations(text)


def oci() -> Result:
    return read_nccl_tests(recording(OCI))


def test_the_estimate_and_what_is_published_stand_beside_it() -> None:
    found = answer(oci(), interconnect=None, gpu=None)
    one = found.assumptions[Operation.ALL_REDUCE]
    assert one.over == "infiniband-ndr"
    assert one.bytes == 16 * GIB
    assert one.share == pytest.approx(oci().large(Operation.ALL_REDUCE).busbw / one.busbw)
    assert found.published is not None
    assert found.published.gbs == 468
    assert found.published_share == pytest.approx(471.22 / 468)
    halved = answer(oci(), interconnect="4xndr", gpu=None).assumptions[Operation.ALL_REDUCE]
    assert halved.share == pytest.approx(2 * one.share, rel=0.02)


def test_what_is_published_of_another_network_is_not_compared_with() -> None:
    def figure(interconnect: str | None) -> float | None:
        found = answer(oci(), interconnect=interconnect, gpu=None).published
        return None if found is None else found.gbs

    assert (figure("roce-400"), figure("efa-p5"), figure("ethernet-100")) == (468, 438, None)


@pytest.mark.parametrize(
    ("device", "nodes", "per_node", "network", "gbs"),
    [
        ("NVIDIA H100 80GB HBM3", 2, 8, "infiniband-ndr", 468),
        ("NVIDIA A100-SXM4-80GB", 2, 8, "infiniband-hdr", 191),
        ("NVIDIA A100-SXM4-40GB", 2, 8, "efa-p4d", 78),
        ("NVIDIA H100 PCIe", 2, 8, "infiniband-ndr", None),
        ("NVIDIA H100 NVL", 2, 8, "roce-400", None),
        ("NVIDIA A100-PCIE-40GB", 2, 8, "infiniband-hdr", None),
        ("NVIDIA A100 80GB PCIe", 2, 8, "efa-p4d", None),
        ("NVIDIA A100-PCIE-40GB", 1, 4, None, 25),
        ("NVIDIA A100 80GB PCIe", 1, 4, None, 25),
        ("NVIDIA A100-PCIE-40GB", 1, 8, None, None),
    ],
)
def test_what_is_published_is_of_the_same_form_of_gpu(
    device: str, nodes: int, per_node: int, network: str | None, gbs: float | None
) -> None:
    found = published_for(device, nodes=nodes, per_node=per_node, network=network)
    assert (None if found is None else found.gbs) == gbs


def test_within_a_node_the_links_of_the_gpu_count() -> None:
    found = answer(read_nccl_tests(recording(A100)), interconnect=None, gpu=None)
    assert 0.8 < found.assumptions[Operation.ALL_REDUCE].share < 1.2
    assert found.published_share == pytest.approx(1, abs=0.01)


def test_without_gpus_only_a_named_network_can_be_compared_with() -> None:
    result = read_document(torch_run())
    assert not answer(result, interconnect=None, gpu=None).assumptions
    found = answer(result, interconnect="ethernet-10", gpu=None).assumptions
    reduced = found[Operation.ALL_REDUCE]
    assert reduced.busbw == pytest.approx(10e9 / 8 * 0.8)
    assert reduced.share == pytest.approx(result.measured[0].busbw / reduced.busbw)


def test_the_table_says_less_than_the_user_who_knows_more() -> None:
    result = read_nccl_tests(recording("nccl_ar_p4de_2node_label.txt"))
    assert not answer(result, interconnect=None, gpu="a100-80").assumptions
    known = result.on(ranks=16, node_count=2)
    assert answer(known, interconnect="efa-p4d", gpu="a100-sxm4-80gb").assumptions


def test_what_is_saved_makes_the_estimate_what_was_measured() -> None:
    found = answer(oci(), interconnect=None, gpu=None)
    assert found.fabric is not None
    before = Calibration(intra_busbw_scale=0.9, utilisation_scale=1.1, gpu="H100-SXM5-80GB")
    calibration = learned(found.result, found.fabric, before=before)
    share = found.assumptions[Operation.ALL_REDUCE].share
    assert calibration.inter_busbw_scale == pytest.approx(share, rel=1e-6)
    assert (calibration.intra_busbw_scale, calibration.utilisation_scale) == (0.9, 1.1)
    assert calibration.gpu == "H100-SXM5-80GB"
    other = learned(found.result, found.fabric, before=Calibration(gpu="other", reserved_ratio=2.0))
    assert other.reserved_ratio is None


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (lambda: read_nccl_tests(recording(WRONG)), "wrong"),
        (lambda: read_document(torch_run()), "gloo"),
        (lambda: read_nccl_tests(recording("nccl_ag_a3mega.txt")), "on which GPUs"),
    ],
    ids=["wrong", "gloo", "unknown"],
)
def test_what_says_nothing_of_estimates_is_not_saved(result: Any, why: str) -> None:
    found = answer(result(), interconnect=None, gpu=None)
    with pytest.raises(UserError, match=why):
        learned(found.result, found.fabric, before=None)


def test_a_network_that_it_cannot_have_been_is_not_saved() -> None:
    found = answer(oci(), interconnect="ethernet-10", gpu=None)
    with pytest.raises(UserError, match="--interconnect"):
        learned(found.result, found.fabric, before=None)
