"""Folders, names and locales that others work with: nothing of them is a bug of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterkit.cli.frame.main import VERBS
from tests.helpers.paths import ROOT

LOCALES = {
    "C": {"LANG": "C"},
    "POSIX": {"LC_ALL": "POSIX"},
    "ASCII": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}
UNTOLD = ("has a bug", "Traceback")


def run(
    folder: Path, *words: str | bytes, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHON"))}
    home = {"HOME": str(folder.parent), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "clusterkit", *words],
        cwd=folder,
        env={**kept, **home, **(env or {})},
        capture_output=True,
        timeout=120,
        check=False,
    )


def text_of(done: subprocess.CompletedProcess[bytes]) -> str:
    text = (done.stdout + done.stderr).decode(errors="backslashreplace")
    assert not any(words in text for words in UNTOLD), text
    return text


@pytest.mark.parametrize("locale", LOCALES)
def test_names_are_the_same_bytes_in_every_locale(tmp_path: Path, locale: str) -> None:
    env = LOCALES[locale]
    folder = tmp_path / "café"
    folder.mkdir()
    (folder / "clusterkit.yaml").write_text("clusters: {here: {kind: local, run_dir: läufe}}\n")
    (folder / "träin.py").write_text("import os; print(os.fsencode(__file__))\n")
    words = ("--cluster", "here", "--framework", "env", "--wait", "--json", "träin.py", "größe")
    done = run(folder, "submit", *words, env=env)
    text_of(done)
    document = json.loads(done.stdout)
    assert document["state"] == "succeeded", done
    assert Path(document["run_dir"]).parent == folder / "läufe"
    assert Path(document["run_dir"]).is_dir()
    logs = text_of(run(folder, "logs", "latest", env=env))
    assert repr("träin.py".encode())[2:-1] in logs
    text_of(run(folder, "status", "latest", env=env))


@pytest.mark.parametrize("locale", ["C", "ASCII"])
def test_what_is_not_utf_8_is_refused_by_name(tmp_path: Path, locale: str) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff"))
    folder.mkdir()
    for name in ("a.py", os.fsdecode(b"b\xfe.py")):
        (folder / name).write_text("print('hello')\n")
    (folder / "sweep.json").write_text(json.dumps([{"lr": "x\ud800"}, {"lr": "2"}]))
    refused = "--framework", "env", "--preflight", "off"
    for words, said in (
        (("submit", *refused, b"b\xfe.py"), r"script is not UTF-8: b\xfe.py"),
        (("submit", *refused, "a.py"), rf"the working folder is not UTF-8: {tmp_path}/bad\xff"),
        (("submit", *refused, "a.py", b"\xfd"), r"argument is not UTF-8: \xfd"),
        (("submit", *refused, "--env", b"A=\xfc", "a.py"), r"the value of A is not UTF-8: \xfc"),
        (
            ("submit", *refused, "--array", "sweep.json", "a.py", "{lr}"),
            r"argument is not UTF-8: x\ud800",
        ),
        (("render", "--framework", "env", "--stdout", "a.py"), "the working folder is not UTF-8"),
    ):
        done = run(folder, *words, env=LOCALES[locale])
        assert done.returncode == 2
        assert said in text_of(done)
    (tmp_path / "a.py").touch()
    (tmp_path / os.fsdecode(b"c\xff.yaml")).write_text("clusters: {here: {kind: local}}\n")
    wanted = ("submit", "--cluster", "here", *refused, "--json", "--wait", "a.py")
    done = run(tmp_path, "--config-file", b"c\xff.yaml", *wanted, env=LOCALES[locale])
    assert json.loads(done.stdout)["state"] == "succeeded", text_of(done)
    for verb in ("status", "diagnose", "lint-env"):
        done = run(folder, verb, b"b\xfe.py", env=LOCALES[locale])
        assert done.returncode in {0, 1, 2}
        text_of(done)


def test_a_bug_is_told_whatever_the_arguments(tmp_path: Path) -> None:
    code = (
        "import sys; from clusterkit.cli.frame import main as m;"
        "m._run = lambda: {}[sys.argv[1]]; m.main()"
    )
    argv = [sys.executable, "-c", code, b"\xff"]
    told = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(argv, capture_output=True, check=False, env=told, cwd=tmp_path)
    assert done.returncode == 2
    assert b"clusterkit has a bug: KeyError" in done.stderr
    assert b"Traceback" not in done.stderr
    (log,) = tmp_path.glob("clusterkit-crash-*.log")
    assert "KeyError" in log.read_text()


EVERY_VERB = """
import os, sys
from clusterkit.cli import main
os.makedirs("gone"); os.chdir("gone"); os.rmdir("../gone")
for words in sys.argv[1:]:
    sys.stdout.flush()
    if not (child := os.fork()):
        sys.argv[1:] = words.split()
        main()
    print(words, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=sys.stderr)
"""


def test_a_folder_that_was_removed_is_told_by_every_verb(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", EVERY_VERB, *VERBS, "status --help", "status --json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stderr.count("has been removed\nhint: cd to one") == len(VERBS) + 1
    for words in (*VERBS, "status --json"):
        assert f"\n{words} 2\n" in done.stderr
    assert "status --help 0" in done.stderr
    told = json.loads(done.stdout[done.stdout.index("{\n") :])
    assert "has been removed" in told["error"]["problems"][0]["message"]


@pytest.mark.parametrize(("closed", "told"), [(">&-", False), ("2>&-", False), ("<&-", True)])
def test_an_output_that_is_closed_changes_no_exit_code(
    tmp_path: Path, closed: str, told: bool
) -> None:
    """Such as under a daemon: 1 would say that the machine is unhealthy."""
    few = ("--gpus-per-node 8 --select GPU002", {1})
    for words, codes in (few, ("--budget 0.01 --select GPU001", {0, 2})):
        done = subprocess.run(
            ["sh", "-c", f"{sys.executable} -m clusterkit preflight --self {words} {closed}"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=False,
        )
        assert done.returncode in codes, text_of(done)
        # A machine that is done within its budget, and healthy, says nothing.
        assert text_of(done) or not told or not done.returncode
