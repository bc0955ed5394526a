"""What diagnose makes of files that are no plain text: rotated logs, torn ones, and no logs."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from clusterkit.cli.frame.main import app
from clusterkit.core import files
from clusterkit.observe.diagnose import open_log as opening
from clusterkit.observe.diagnose import scan
from clusterkit.observe.diagnose.events import Source
from clusterkit.observe.diagnose.open_log import NotALogError, open_log
from clusterkit.observe.diagnose.rules import Rule
from clusterkit.observe.diagnose.verdict import Diagnosis, diagnose
from tests.helpers.diagnose_rules import engine_rules, root_cause

MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
DISK = "OSError: [Errno 28] No space left on device"
TRACEBACK = f"[rank3]: Traceback\n[rank3]:   File x\n[rank3]: {MEMORY}\n[rank3]: end\n"
REPORT = root_cause("n2", 2, "2026-11-21_12:30:00")
CHANCE = random.Random(7)
STEPS = "".join(
    f"2026-11-21 12:{n // 60000 % 60:02}:{n // 1000 % 60:02} step {n} loss {CHANCE.random():.9f}\n"
    for n in range(60_000)
)
COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "gz": partial(gzip.compress, compresslevel=1),  # the quickest: how small it gets is not tested
    "bz2": partial(bz2.compress, compresslevel=1),
    "xz": partial(lzma.compress, preset=0),
    "two.gz": lambda data: gzip.compress(data[:99_999], 1) + gzip.compress(data[99_999:], 1),
    "utf-16": lambda data: data.decode().encode("utf-16"),
    "utf-16-be": lambda data: data.decode().encode("utf-16-be"),
    "gz of utf-16": lambda data: gzip.compress(data.decode().encode("utf-16"), 1),
}


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rule, ...]:
    return engine_rules(tmp_path_factory.mktemp("rules"))


def told(*words: object) -> Result:
    return CliRunner().invoke(app, ["diagnose", *map(str, words)])


def notes(answer: Result) -> str:
    return " ".join(answer.stderr.split())


@pytest.mark.parametrize("kind", COMPRESSED)
def test_what_is_found_is_the_same_as_in_the_plain_log(
    kind: str, tmp_path: Path, rules: tuple[Rule, ...]
) -> None:
    handled = f"{DISK}, kept the last\n"
    logs = (
        f"{STEPS}{handled}{STEPS}[rank2]: {DISK}\n{TRACEBACK}{'x' * 99}\n" + REPORT,
        "NCCL version: 2.21\n" + "step 1 loss nan\n" * 3,
        f"{STEPS}{DISK}",
    )

    def read(folder: Path, write: Callable[[bytes], bytes]) -> Diagnosis:
        folder.mkdir()
        sources = [Source(path=folder / f"{n}.log", node=f"n{n + 1}") for n in range(3)]
        for source, log in zip(sources, logs, strict=True):
            source.path.write_bytes(write(log.encode()))
        return diagnose(rules, sources)

    plain = read(tmp_path / "plain", bytes)
    found = read(tmp_path / "other", COMPRESSED[kind])
    assert plain.cause is not None
    shown = json.dumps(files.plain(found)).replace("/other/", "/plain/")
    assert json.loads(shown) == files.plain(plain)


def test_what_stands_around_a_find_is_kept_in_bounds(
    tmp_path: Path, rules: tuple[Rule, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_MOST", 1 << 18)
    log = tmp_path / "x.log.gz"
    parts = [f"{STEPS[: 1 << 17]}\n[rank{n}]: {DISK}\n" for n in range(40)]
    log.write_bytes(gzip.compress("".join(parts).encode()))
    found = diagnose(rules, [Source(path=log)])
    assert found.cause is not None
    assert len(found.cause.ranks) == 40
    kept = opening.excerpts_around(log, range(0, 1 << 23, 1 << 17))
    assert 1 << 17 < sum(len(text) for _, text in kept.parts) <= 1 << 18


def test_large_compressed_logs_are_read_side_by_side(
    tmp_path: Path, rules: tuple[Rule, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [Source(path=tmp_path / f"{n}.gz", node=f"n{n}") for n in range(2)]
    for source in sources:
        source.path.write_bytes(gzip.compress(f"{STEPS}{TRACEBACK}".encode()))
    alone = diagnose(rules, sources)
    size = sum(source.path.stat().st_size for source in sources)
    monkeypatch.setattr(scan, "_WORTH_IT", 5 * size)
    shared = scan._in_processes
    calls = []

    def counted(*given: Any) -> Any:
        calls.append(given)
        return shared(*given)

    monkeypatch.setattr(scan, "_in_processes", counted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert files.plain(diagnose(rules, sources)) == files.plain(alone)
    assert len(calls) == 1


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_a_torn_archive_is_read_up_to_where_it_ends(kind: str, tmp_path: Path) -> None:
    whole = COMPRESSED[kind](f"{TRACEBACK}{STEPS}".encode())
    log = tmp_path / f"x.log.{kind}"
    log.write_bytes(whole[: len(whole) * 9 // 10])
    answer = told(log)
    assert (answer.exit_code, "where  rank 3" in answer.stdout) == (1, True)
    assert f"{log}: cut off; read up to there" in notes(answer)
    assert any("cut off" in note for note in json.loads(told(log, "--json").stdout)["notes"])
    log.write_bytes(whole[:-8] + b"\x55" * 8)
    answer = told(log)
    assert (answer.exit_code, "where  rank 3" in answer.stdout) == (1, True)
    assert f"{log}: damaged" in notes(answer)
    log.write_bytes(whole[:20])
    answer = told(log)
    assert (answer.exit_code, "there is nothing to read" in answer.stdout) == (2, True)
    assert "cut off" in notes(answer)


def of_zip() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.log", TRACEBACK)
    return stream.getvalue()


def of_tar() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        info = tarfile.TarInfo("x.log")
        info.size = len(TRACEBACK)
        archive.addfile(info, io.BytesIO(TRACEBACK.encode()))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (of_zip(), "a zip archive, not a log: unzip -p FILE | clusterkit diagnose -"),
        (of_tar(), "a tar archive, not a log: tar -xOf FILE | clusterkit diagnose -"),
        (gzip.compress(of_tar()), "gzip, a tar archive, not a log"),
        (b"\x28\xb5\x2f\xfd" + bytes(range(256)), "zstd, not a log: zstd -dc FILE"),
        (random.Random(2).randbytes(100_000) + TRACEBACK.encode(), "binary, not a log"),
        (Path(sys.executable).resolve().read_bytes(), "binary, not a log"),
        (b"\x93NUMPY\x01\x00v\x00{'descr': '<f8'}\n" + random.Random(3).randbytes(9999), "binary"),
        (gzip.compress(random.Random(4).randbytes(9999)), "gzip, binary, not a log"),
        (b"", "empty"),
        (gzip.compress(b""), "gzip, empty"),
    ],
    ids=[
        "zip",
        "tar",
        "tar.gz",
        "zstd",
        "random",
        "program",
        "npy",
        "random.gz",
        "empty",
        "empty.gz",
    ],
)
def test_what_is_no_log_is_told_and_not_called_healthy(
    data: bytes, why: str, tmp_path: Path
) -> None:
    log, fine = tmp_path / "x.log", tmp_path / "fine.log"
    log.write_bytes(data)
    fine.write_text("step 1\n")
    answer = told(log)
    assert (answer.exit_code, answer.stdout) == (2, "there is nothing to read\n")
    assert f"{log}: {why}" in notes(answer)
    both = told(log, fine, "--json")
    document = json.loads(both.stdout)
    assert (both.exit_code, document["files"], document["found"]) == (0, 1, False)
    assert [note.startswith(f"{log}: {why}") for note in document["notes"]] == [True]


@pytest.mark.parametrize(
    "data",
    [
        TRACEBACK.encode() + random.Random(5).randbytes(3000) + b"\n",
        bytes(200_000) + TRACEBACK.encode(),
        b"step 1\n" + bytes(70_000) + b"\n" + TRACEBACK.encode(),
        "обучение началось, шаг 1\n".encode("cp1251") * 99 + TRACEBACK.encode(),
        "训练开始\n".encode("gbk") * 99 + TRACEBACK.encode(),
        b"\x1b[32m 10%|\xe2\x96\x88 |\x1b[0m\b\b\r" * 99 + TRACEBACK.encode(),
        b"BZh9 is how it begins\n" + TRACEBACK.encode(),
    ],
    ids=["after", "emptied", "cut", "cp1251", "gbk", "bars", "BZh"],
)
def test_logs_with_garbage_in_them_are_logs(data: bytes, tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(data)
    answer = told(log)
    assert (answer.exit_code, "where  rank 3" in answer.stdout, notes(answer)) == (1, True, "")


def test_of_a_folder_rotated_logs_are_read_and_what_is_left_out_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("step 3\n")
    (tmp_path / "x.log.1").write_text("step 2\n")
    (tmp_path / "x.log-20261122.gz").write_bytes(gzip.compress(TRACEBACK.encode()))
    for name in ("a.json", "b.json", "c.tar.gz", "d.csv"):
        (tmp_path / name).write_text("x")
    (tmp_path / "empty.err").touch()
    (tmp_path / "none.err").touch()
    answer = told(tmp_path, "--json")
    document = json.loads(answer.stdout)
    assert (answer.exit_code, document["files"]) == (1, 3)
    assert document["cause"]["evidence"]["file"].endswith("x.log-20261122.gz")
    assert document["notes"] == [
        f"{tmp_path}: not read, as not named as logs are: a.json, b.json, c.tar.gz and 1 more",
        f"{tmp_path}/empty.err, {tmp_path}/none.err: empty",
    ]


@pytest.mark.parametrize("name", ["gone.log.gz", "gone.out.1", "gone.err-20261122.xz"])
def test_a_word_that_ends_as_rotated_logs_do_is_a_file(name: str) -> None:
    assert f"there is no file {name}" in str(told(name).exception)


def test_what_is_piped_in_is_named_as_it_was_typed(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "clusterkit", "diagnose", "-"]
    for data, code, said in (
        (gzip.compress(TRACEBACK.encode()), 1, ""),
        (of_zip(), 2, "-: a zip archive, not a log"),
        (b"", 2, "-: empty"),
    ):
        piped = subprocess.run(argv, input=data, capture_output=True, check=False)
        assert (piped.returncode, said in piped.stderr.decode()) == (code, True), piped


def test_any_part_of_the_text_can_be_gone_to(tmp_path: Path) -> None:
    text = STEPS.encode()
    for kind, compress in {"plain": bytes, **COMPRESSED}.items():
        path = tmp_path / "x"
        path.write_bytes(compress(text))
        for start in (0, 5, 1 << 16, (1 << 20) + 1, len(text) + 5):
            with open_log(path) as log:
                log.skip(start)
                found = b"".join(iter(lambda: log.read(1 << 17), b""))
                assert found == text[start:], (kind, start)
                assert log.plain == (kind == "plain")
    path.write_bytes(b"")
    with pytest.raises(NotALogError, match="empty"), open_log(path):
        pass
