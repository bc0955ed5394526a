"""The program of `bench compute`, in one process: matrices, checks, patience."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from clusterkit.cli.bench.compute import _more
from clusterkit.core.data import data_dir
from clusterkit.observe.bench.compute import read_document
from tests.helpers.loading import load
from tests.helpers.needs import require
from tests.helpers.paths import ROOT

require("torch")
DOUBLES = ROOT / "tests" / "doubles"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a copy of the program, with its question to nvidia-smi beside it."""
    for source in (data_dir("templates/programs") / "compute").glob("*.py"):
        shutil.copy(source, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return load(tmp_path / "clusterkit_compute.py")


@pytest.fixture
def meeting() -> ModuleType:
    return load(data_dir("templates/programs") / "compute" / "clusterkit_meeting.py")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_products_are_exact_whatever_the_order_of_sums(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    torch = program.torch
    kind = getattr(torch, dtype)
    largest = 1 if dtype == "float16" else 31
    monkeypatch.setattr(program, "kind_of", lambda device: (kind, largest, 512))
    product = program.Product(torch.device("cpu"))
    parts = (product.left.double(), product.right.double())
    exact = parts[0] @ parts[1]
    assert torch.equal(
        exact.float().to(kind), product.expected.expand(2, -1, 2, -1).reshape(512, 512)
    )
    # The largest sum of absolute values on the largest matrix: float32 holds all whole numbers
    # up to 2^24, float16 has numbers up to 65504.
    assert 8192 * largest**2 < (65504 if dtype == "float16" else 1 << 24)
    for order in (torch.arange(512).flip(0), torch.randperm(512)):
        torch.matmul(
            parts[0][:, order].float(), parts[1][order].float(), out=(sums := torch.empty(512, 512))
        )
        assert torch.equal(sums.double(), exact)


def test_one_wrong_element_is_found(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = program.torch
    monkeypatch.setattr(program, "kind_of", lambda device: (torch.float32, 31, 512))
    product = program.Product(torch.device("cpu"))
    product.timed(1)
    assert product.wrong() == (0, "")
    right = product.result[300, 511].item()
    product.result[300, 511] += 1
    assert product.wrong() == (1, f"row 300, column 511 is {right + 1:g} and not {right:g}")
    product.result.fill_(float("nan"))
    assert product.wrong()[0] == 512 * 512


def test_a_matrix_fits_into_a_part_of_the_memory(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = program.torch
    device = torch.device("cuda", 0)
    for free, size in ((80e9, 8192), (1e9, 4096), (1e6, 256)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 80e9))
        assert program.size_for(8192, torch.bfloat16, device) == size


def test_ranks_that_say_nothing_are_returned(meeting: ModuleType) -> None:
    torch = meeting.torch
    store, known, kept = torch.distributed.HashStore(), [None, {"node": "n1"}, None, None], []
    store.set("answer/0", json.dumps({"node": "n0"}))
    store.set("answer/2", "x" * (meeting.LARGEST + 1))
    missing = meeting.gather(
        store, "answer", known, lambda _: 0.3, lambda: kept.append(list(known))
    )
    assert missing == [1, 3]
    assert known == [{"node": "n0"}, {"node": "n1"}, None, None], "what is too long says nothing"
    assert kept == [known]


def test_a_rank_that_never_starts_is_waited_for_as_long_as_others_took(meeting: ModuleType) -> None:
    assert 0 < meeting.age_s() < 3600
    quick, slow, absurd = ({"start_s": seconds} for seconds in (2.0, 20.0, float("nan")))
    assert meeting.start_patience_s([quick, None]) == 38
    assert meeting.start_patience_s([quick, slow, None]) == 110
    assert meeting.start_patience_s([{"start_s": 100.0}, None]) == meeting.PATIENCE_S
    assert meeting.start_patience_s([None, None]) == meeting.PATIENCE_S
    assert meeting.start_patience_s([absurd]) <= meeting.PATIENCE_S


@pytest.mark.parametrize(
    ("script", "whens"),
    [
        ("exit 77", set()),
        ("echo index, name", {"before", "load", "after"}),
    ],
)
def test_gpus_are_read_before_while_and_after(
    program: ModuleType, tmp_path: Path, script: str, whens: set[str]
) -> None:
    (tmp_path / "clusterkit_vitals.sh").write_text(script)
    watch = program.Watch(0.4)
    watch.start()
    assert watch.began.wait(120)
    if whens:
        watch.ended.wait(0.5)
    watch.ended.set()
    watch.join(120)
    assert {one["when"] for one in watch.readings} == whens
    assert all(one["exit_code"] == 0 for one in watch.readings)


def test_readings_of_nvidia_smi_find_their_gpu(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(DOUBLES), prepend=":")
    monkeypatch.setenv("CLUSTERKIT_GPUS", str(DOUBLES / "gpus" / "sick8"))
    (tmp_path / "clusterkit_vitals.sh").write_text(_more()["clusterkit_vitals.sh"])
    watch = program.Watch(1)
    assert watch.read("load") == 0
    row = (DOUBLES / "gpus" / "sick8" / "gpus.csv").read_text().splitlines()[3]
    uuid = next(cell for cell in row.split(", ") if cell.startswith("GPU-"))
    me = {"node": "n1", "gpu": 0, "device": "x", "uuid": uuid, "readings": watch.readings}
    head = {"schema": 1, "kind": "clusterkit-compute"}
    (worker,) = read_document({**head, "ranks": [me]}).workers
    assert worker.gpu == int(row.split(", ")[0])
    assert [one.when for one in worker.readings] == ["load"]
    assert worker.readings[0].gpu.power_w is not None
