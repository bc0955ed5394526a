"""Values at a TAB, as the scripts of bash, zsh and fish ask for them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from clusterkit.core import files
from clusterkit.executors.run import runfolder
from tests.helpers.needs import require
from tests.unit.jobs.test_jobs import make_run

CONFIG = "clusters: {h200: {kind: local, run_dir: runs}, rack: {kind: ssh, hosts: n1}}\n"
BUDGET = 2.0
"""CPU time at most, in that of a Python that imports typer, with what is kept of the call before.

Up to 1.5 were measured beside a whole run of the tests, with 0.14 s for the import, and 2.0 once.
"""
LEAST, MOST = 5, 20
"""Times of the import that a TAB is compared with, those before it among them, and most times that
both are measured: the least of them counts, and a busy machine needs more."""


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    (tmp_path / "clusterkit.yaml").write_text(CONFIG)
    return tmp_path


def tab(
    desk: Path, shell: str, line: str, action: str = "get-args"
) -> subprocess.CompletedProcess[str]:
    words = line.split(" ")
    asked = {
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": action,
        "_CLUSTERKIT_COMPLETE": f"complete_{shell}",
    }
    return subprocess.run(
        [sys.executable, "-m", "clusterkit"],
        cwd=desk,
        env={**os.environ, "HOME": str(desk), "XDG_CACHE_HOME": str(desk / "cache"), **asked},
        capture_output=True,
        text=True,
        check=False,
    )


def cpu_of(run: Callable[[], object]) -> float:
    """Return the seconds of CPU time that the processes use which `run` starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(after[:2]) - sum(before[:2])


@pytest.mark.parametrize(
    ("line", "some", "none"),
    [
        ("submit --cluster ", ["h200", "rack", "local"], []),
        ("submit --cluster = h", ["h200"], ["rack"]),
        ("submit -n 2 -f t", ["torchrun", "tensorflow"], ["ray"]),
        ("estimate --gpu h1", ["H100-SXM5-80GB"], ["MI300X-192GB"]),
        ("estimate --model llama-3.1", ["llama-3.1-8b"], ["gpt2"]),
        ("preflight --select GPU001,IB00", ["GPU001,IB001"], ["IB001"]),
        ("explain nccl-jo", ["nccl-job-env"], ["GPU001"]),
        ("sub", ["submit"], ["status"]),
        ("--debug d", ["diagnose", "doctor"], ["submit"]),
        ("exec latest -- l", [], ["latest"]),
    ],
)
def test_values_of_each_kind(desk: Path, line: str, some: list[str], none: list[str]) -> None:
    done = tab(desk, "bash", f"clusterkit {line}")
    assert done.stderr == ""
    listed = done.stdout.splitlines()
    assert set(some) <= set(listed)
    assert not set(none) & set(listed)


def test_jobs_come_newest_first_and_their_texts_are_no_code(desk: Path) -> None:
    old = make_run(desk / "runs", "old", now=1e9, job_id="41")
    new = make_run(desk / "runs", "new", now=2e9, job_id="42", array="array-0a1b2c", index=1)
    for run, name in ((old, "a'$(touch hit)`id`:\x1b[31m\n\"b"), (new, "new-1")):
        document = files.read_json(run.submission) or {}
        files.write_json(run.submission, {**document, "name": name})
    hostile = make_run(desk / "runs", "x", now=1.5e9, job_id="43")
    document = files.read_json(hostile.submission) or {}
    files.write_json(hostile.submission, {**document, "job_id": "$(touch hit)"})
    shown = [tab(desk, shell, "clusterkit status ").stdout for shell in ("bash", "zsh", "fish")]
    assert shown[0].splitlines() == ["latest", "array-0a1b2c", "new", "42", "new-1", "41"]
    for text in shown:
        assert "\x1b" not in text
        assert not set("`$;&|<>\\") & set(text)
    assert runfolder.read_submission(new) is not None
    assert tab(desk, "fish", "clusterkit wait arr", "is-args").returncode == 0
    assert tab(desk, "fish", "clusterkit wait zzz", "is-args").returncode == 1


def test_a_changed_configuration_is_seen_and_a_broken_one_is_no_message(desk: Path) -> None:
    assert "rack" in tab(desk, "zsh", "clusterkit submit -c ").stdout
    (desk / "clusterkit.yaml").write_text(CONFIG.replace("rack", "stack"))
    assert "stack" in tab(desk, "zsh", "clusterkit submit --cluster=s").stdout
    (desk / "clusterkit.yaml").write_text("clusters: [\n")
    done = tab(desk, "zsh", "clusterkit submit -c ")
    assert (done.stdout, done.stderr, done.returncode) == ("_files\n", "", 0)


def test_a_tab_stays_within_its_budget(desk: Path) -> None:
    make_run(desk / "runs", "one", job_id="41")
    imports = partial(subprocess.run, (sys.executable, "-c", "import typer"), check=True)
    peer = [cpu_of(imports) for _ in range(LEAST)]
    for line in ("", "sub", "submit -c ", "status ", "explain n", "estimate --gpu ", "submit -f "):
        asked = partial(tab, desk, "bash", f"clusterkit {line}")
        asked()
        took, peer = list[float](), peer[-LEAST:]
        while not took or (min(took) >= BUDGET * min(peer) and len(took) < MOST):
            took.append(cpu_of(asked))
            peer.append(cpu_of(imports))
        assert min(took) < BUDGET * min(peer), line


BASH = (
    "source <(_CLUSTERKIT_COMPLETE=source_bash clusterkit)\n"
    "COMP_WORDS=(clusterkit submit --cluster h) COMP_CWORD=3\n"
    '_clusterkit_completion clusterkit\necho "${COMPREPLY[@]}"'
)
FISH = (
    "_CLUSTERKIT_COMPLETE=source_fish clusterkit | source\n"
    "complete -C 'clusterkit submit --cluster h'"
)

ZSH = (
    "zmodload zsh/zpty; zpty typed zsh -fi\n"
    "zpty -w typed 'autoload -Uz compinit; compinit -uD\n"
    "source <(_CLUSTERKIT_COMPLETE=source_zsh clusterkit)\n"
    "show() { print -r -- ${${BUFFER##* --cluster }% } >shown; exit }\n"
    "zle -N show; bindkey ^X show'\n"
    "zpty -w -n typed $'clusterkit submit --cluster h\\t\\C-x'\n"
    "while zpty -r typed line; do :; done; cat shown"
)
"""zsh completes in its line editor alone, which needs a terminal: what stands there at Ctrl-X."""


@pytest.mark.parametrize(("shell", "script"), [("bash", BASH), ("fish", FISH), ("zsh", ZSH)])
def test_the_script_for_a_shell_completes_a_cluster(desk: Path, shell: str, script: str) -> None:
    """As typer writes it, with a `clusterkit` of this Python on PATH."""
    require(shell)
    program = desk / "clusterkit"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m clusterkit "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        [shell, "-c", script],
        cwd=desk,
        env={**os.environ, "HOME": str(desk), "PATH": f"{desk}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.replace("\r", "") == "h200\n", done.stderr
