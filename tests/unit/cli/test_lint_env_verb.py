"""`clusterkit lint-env` as its users meet it: answers, messages, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command_line import typed_in
from tests.helpers.paths import ROOT


@pytest.fixture(autouse=True)
def _a_bare_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tuple(os.environ):
        if name.startswith("NCCL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def run(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return typed_in(cwd, "lint-env", *words, **environment)


def piped(text: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "clusterkit", "lint-env", "-", *words],
        cwd=cwd, input=text, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_a_script(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("#!/bin/sh\n\nexport NCCL_IB_DISABLE=true\n")
    done = run("train.sh", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == (
        "train.sh:3: NCCL111 fail NCCL_IB_DISABLE=true\n"
        "    not a number: it is read as 0\n"
        "    hint: write 1\n"
        "\n"
        "1 variable looked at: 1 fail\n"
    )


def test_line_ends_of_windows_reach_the_lint(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_bytes(b"#!/bin/sh\r\nexport NCCL_IB_SL=1\r\n")
    done = run("train.sh", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("train.sh:2: NCCL140 fail NCCL_IB_SL=1\n")


def test_json_from_stdin(tmp_path: Path) -> None:
    done = piped("NCCL_GDR_LEVEL=4\nNCCL_IB_RETRY_CNT=7\n", "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert (done.returncode, document["schema"]) == (1, 1)
    first, second = document["findings"]
    assert first == {
        "id": "NCCL101", "rule": "misspelt-name", "name": "NCCL_GDR_LEVEL", "value": "4",
        "source": "<stdin>", "line": 1, "verdict": "fail", "summary": "no release reads this name",
        "hint": "did you mean NCCL_NET_GDR_LEVEL?",
    }  # fmt: skip
    assert second["verdict"] == "pass"


def test_notes_alone_are_clean(tmp_path: Path) -> None:
    done = piped("NCCL_NET_FORCE_FLUSH=1\n", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 only worth knowing (--verbose)" in done.stdout
    assert "NCCL106 pass" in piped("NCCL_NET_FORCE_FLUSH=1\n", "-v", cwd=tmp_path).stdout


def test_this_shell_and_its_files(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("NCCL_IB_SL=2\n")
    done = run(cwd=tmp_path, NCCL_IB_SL="1", NCCL_SOCKET_IFNAME="=eth0")
    assert done.returncode == 1
    assert "~/.nccl.conf:1: NCCL139 warn NCCL_IB_SL=2" in done.stdout


def test_what_the_site_allows(tmp_path: Path) -> None:
    (tmp_path / "clusterkit.yaml").write_text(
        "clusters:\n  a: {kind: slurm, allowed_env: [NCCL_OURS_*]}\n"
    )
    assert piped("NCCL_OURS_X=1\n", cwd=tmp_path).returncode == 1
    assert piped("NCCL_OURS_X=1\n", "--cluster", "a", cwd=tmp_path).returncode == 0
    assert piped("NCCL_OURS_X=1\n", "--allow", "NCCL_OURS_X", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.sh"], "cannot read missing.sh"),
        (["-", "--as", "xml"], "there is no format 'xml'"),
        (["--as", "conf"], "--as is for a FILE"),
        (["-", "--cluster", "nope"], "nope"),
    ],
)
def test_what_cannot_be_done(words: list[str], message: str, tmp_path: Path) -> None:
    done = run(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "hint: " in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "train.py",
            "import os\nos.environ['NCCL_SOKET_IFNAME'] = 'eth0'\n",
            "no such variable found in train.py; it was read as shell (--as env-file|",
        ),
        ("empty.env", "", "no such variable found in empty.env; it was read as env-file"),
        ("job.yaml", "a: b\n", "no such variable found in job.yaml; it was read as yaml"),
    ],
)
def test_nothing_found_is_not_nothing_wrong(
    name: str, text: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    done = run(name, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith(said)
    assert "nothing wrong" not in done.stdout


def test_a_shell_that_sets_none_says_so(tmp_path: Path) -> None:
    assert run(cwd=tmp_path).stdout == "no such variable is set here, nor in a nccl.conf\n"


def test_what_was_not_read_as_meant_is_told(tmp_path: Path) -> None:
    script = 'export NCCL_DEBUG="WARN\nexport NCCL_SOKET_IFNAME=eth0\n'
    done = piped(script, cwd=tmp_path)
    assert done.returncode == 1
    assert "<stdin>:2: NCCL101 fail NCCL_SOKET_IFNAME=eth0" in done.stdout
    assert "warning: <stdin>: line 1: no end of a quote" in done.stderr
    document = json.loads(piped(script, "--json", cwd=tmp_path).stdout)
    assert [note.startswith("<stdin>: line 1: ") for note in document["notes"]] == [True]
