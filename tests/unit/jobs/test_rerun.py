"""`clusterkit rerun`, and what is kept of the code that a job ran."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterkit.cli.frame.main import command_of
from clusterkit.cli.jobs.rerun import _without_repeated
from clusterkit.core.model import ClusterKind
from clusterkit.jobs.submit.provenance import FILE, changes, job_python, provenance_of
from tests.helpers.command_line import typed_in
from tests.helpers.plans import make_cluster, make_plan

GIT = ("git", "-c", "user.name=n", "-c", "user.email=e@example.org")


def git(folder: Path, *words: str) -> str:
    return subprocess.check_output([*GIT, *words], cwd=folder, text=True)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "it's code"
    folder.mkdir()
    (folder / "say.sh").write_text('echo "$@" on $CK_NODES\n')
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def test_commit_and_what_is_not_committed_are_kept(code: Path) -> None:
    assert provenance_of(code)["diff"] == ""
    (code / "say.sh").write_text("exit 3\n")
    first = provenance_of(code)
    assert first["commit"] == git(code, "rev-parse", "HEAD").strip()
    assert "+exit 3" in first["diff"]
    assert any(one.startswith("typer==") for one in first["packages"])
    git(code, "commit", "-qam", "second")
    second = provenance_of(code)
    assert changes(first, first) == []
    assert changes(first, second) == [
        f"code: {first['commit'][:12]} then, {second['commit'][:12]} now"
    ]


def test_the_driver_and_nccl_are_kept(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = [tmp_path / name / "version" for name in ("nvidia", "amdgpu")]
    monkeypatch.setattr("clusterkit.executors.node.driver._DRIVERS", modules)
    monkeypatch.syspath_prepend(tmp_path)
    assert "driver" not in provenance_of(code)
    (tmp_path / "nvidia_nccl_cu12-2.27.5.dist-info").mkdir()
    modules[0].parent.mkdir()
    modules[0].write_text("570.86.15\n")
    then = provenance_of(code)
    assert then["driver"] == "nvidia 570.86.15"
    assert "nvidia-nccl-cu12==2.27.5" in then["packages"]
    modules[0].write_text("580.95.05\n")
    assert changes(then, provenance_of(code)) == [
        "driver: nvidia 570.86.15 then, nvidia 580.95.05 now"
    ]


def test_packages_are_those_of_the_python_that_the_job_runs(code: Path, tmp_path: Path) -> None:
    python, config = tmp_path / "venv/bin/python", code / "clusterkit.yaml"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (place,) = tmp_path.glob("venv/lib/python3*/site-packages")
    nccl = place / "nvidia_nccl_cu12-2.27.5.dist-info"
    nccl.mkdir()
    config.write_text(f"clusters: {{mine: {{kind: local, python: {python}}}}}\n")
    words = ("--cluster", "mine", "-f", "env", "--preflight", "off", "--wait", "say.sh")
    assert typed_in(code, "submit", *words, HOME=str(tmp_path)).returncode == 0
    (kept,) = tmp_path.glob(f".clusterkit/runs/*/{FILE}")
    then = json.loads(kept.read_text())
    assert then["packages_of"] == str(python)
    assert then["packages"] == ["nvidia-nccl-cu12==2.27.5"]
    assert provenance_of(code, str(tmp_path / "gone"))["packages_of"] == sys.executable
    nccl.rename(nccl.with_name("nvidia_nccl_cu12-2.28.3.dist-info"))
    again = typed_in(code, "rerun", "latest", "--dry-run", HOME=str(tmp_path))
    assert "packages: nvidia-nccl-cu12 2.27.5 -> 2.28.3\n" in again.stderr


@pytest.mark.parametrize(
    ("kind", "changes", "known"),
    [
        ("slurm", {}, True),
        ("slurm", {"modules": ("torch",)}, True),
        ("slurm", {"modules": ("torch",), "python": "python3"}, False),
        ("ssh", {"shared_filesystem": False}, False),
        ("ssh", {"shared_filesystem": True}, True),
    ],
)
def test_what_python_a_job_runs_is_known_where_nodes_see_it(
    tmp_path: Path, kind: str, changes: dict[str, Any], known: bool
) -> None:
    given = {"kind": ClusterKind(kind), "python": sys.executable, **changes}
    found = job_python(make_plan(make_cluster(tmp_path, **given)))
    assert found == (sys.executable if known else None)


def test_settings_of_a_repository_start_no_program(code: Path) -> None:
    for key in ("diff.external", "core.fsmonitor", "diff.text.textconv", "diff.text.command"):
        git(code, "config", key, f"touch '{code}/started' #")
    (code / ".gitattributes").write_text("*.sh diff=text\n")
    (code / "say.sh").write_text("exit 3\n")
    assert "+exit 3" in provenance_of(code)["diff"]
    assert not (code / "started").exists()


def test_whatever_git_is_set_to_the_diff_can_be_applied(code: Path) -> None:
    (code / "below").mkdir()
    for setting in ("color.diff always", "diff.context 0", "diff.noprefix 1", "diff.relative 1"):
        git(code, "config", *setting.split())
    (code / "say.sh").write_text("echo 1\n")
    diff = provenance_of(code / "below")["diff"]
    git(code, "checkout", "-q", ".")
    subprocess.run([*GIT, "apply"], cwd=code, input=diff, text=True, check=True)
    assert (code / "say.sh").read_text() == "echo 1\n"


def test_a_large_file_is_told_by_name(code: Path) -> None:
    (code / "say.sh").write_text("x\n" * (1 << 20))
    diff = provenance_of(code)["diff"]
    assert "say.sh" in diff
    assert len(diff) < 1000


def test_what_git_does_not_tell_is_not_taken_for_nothing(code: Path) -> None:
    first = provenance_of(code)
    head = (code / ".git" / "index").read_bytes()
    (code / ".git" / "index").write_bytes(head[:8])
    second = provenance_of(code)
    assert second["commit"] == first["commit"]
    assert "diff" not in second
    (said,) = changes(first, second)
    assert said.endswith("git does not tell what is not committed")


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"packages": ["torch==2.13.0"]}, "packages: torch 2.12.0 -> 2.13.0"),
        ({"python": "3.12.1"}, "python: 3.11.7 then, 3.12.1 now"),
        ({"diff": "+x"}, "code: abc with other changes that are not committed"),
        ({"commit": None}, "code: abc then, no commit now"),
    ],
)  # fmt: skip
def test_changes_are_told_by_name(now: dict[str, Any], said: str) -> None:
    then = {"commit": "abc", "diff": "", "python": "3.11.7", "packages": ["torch==2.12.0"]}
    assert changes(then, {**then, **now}) == [said]


def test_a_job_is_submitted_again_with_what_is_to_be_other(code: Path, tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    first = ("--cluster", "local", "--preflight", "off", "--wait", "say.sh", "a", "b  c")
    assert typed_in(code, "submit", "--name", "one", *first, **home).returncode == 0
    git(code, "commit", "-q", "--allow-empty", "-m", "second")
    again = typed_in(
        tmp_path, "rerun", "latest", "--wait", "--nodes", "2", "--", "--lr", "1", **home
    )
    assert again.returncode == 0
    assert "--nodes 2 -- say.sh a 'b  c' --lr 1" in again.stderr
    assert again.stderr.count("--wait") == 1
    assert "code: " in again.stderr
    said = typed_in(tmp_path, "logs", "latest", "--node", "0", **home).stdout
    assert said == "a b  c --lr 1 on node-0 node-1\n"
    other = ("--", "say.sh", "--lr", "2")
    third = typed_in(tmp_path, "rerun", "latest", "--dry-run", "--name", "three", *other, **home)
    assert "off --nodes 2 --dry-run --name three -- say.sh --lr 2\n" in third.stderr
    assert "--name one" not in third.stderr
    assert (
        "--wait is not taken over; to wait again: clusterkit rerun latest --wait\n" in third.stderr
    )
    assert "arguments of say.sh: a 'b  c' --lr 1 then, --lr 2 now" in third.stderr
    followed = typed_in(tmp_path, "rerun", "latest", "--dry-run", "--follow", **home)
    assert "not taken over" not in followed.stderr
    jobs = json.loads(typed_in(tmp_path, "status", "--json", **home).stdout)["jobs"]
    assert [job["name"] for job in jobs] == ["one", "one"]
    assert (Path(jobs[1]["run_dir"]) / FILE).stat().st_mode & 0o077 == 0
    for words, message in (
        (("--nods", "3"), "did you mean --nodes"),
        (("--name", "n", "say.sh"), "say.sh is not a flag of submit"),
    ):
        wrong = typed_in(tmp_path, "rerun", "latest", *words, **home)
        assert wrong.returncode == 2
        assert message in wrong.stderr
    before = typed_in(tmp_path, "rerun", "--nodes", "2", "latest", **home)
    assert before.returncode == 2
    assert "--nodes stands before JOB" in before.stderr
    code.rename(tmp_path / "elsewhere")
    gone = typed_in(tmp_path, "rerun", "latest", **home)
    assert gone.returncode == 2
    assert "is gone" in gone.stderr


def test_a_flag_that_counts_once_is_shown_once(code: Path, tmp_path: Path) -> None:
    once = ("--nodes=2", "-g1", "--name", "one", "--time", "1:00:00")
    flags = ("--cluster", "local", *once, "-eA=1", "--env", "B=2", "--preflight", "off", "--wait")
    assert typed_in(code, "submit", *flags, "say.sh", HOME=str(tmp_path)).returncode == 0
    new = "--dry-run --nodes 1 --gpus-per-node 1 --name=two --env C=3"
    again = typed_in(tmp_path, "rerun", "latest", *new.split(), HOME=str(tmp_path))
    assert again.returncode == 0, again.stderr
    merged = f"--time 1:00:00 -eA=1 --env B=2 --preflight off {new} -- say.sh"
    assert f"clusterkit submit --cluster local {merged}\n" in again.stderr


def test_other_jobs_to_wait_for_take_the_place_of_those_of_then() -> None:
    then = ["--after", "68", "-n1", "--env", "A=1"]
    kept = _without_repeated(command_of("submit"), then, ["--after=70", "--env", "B=2"])
    assert kept == ["-n1", "--env", "A=1"]


def test_the_configuration_that_a_flag_named_stays(code: Path, tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    (code / "own.yaml").write_text("clusters: {mine: {kind: local}}\n")
    flags = ("--cluster", "mine", "--preflight", "off", "--wait", "--name", "submit", "say.sh")
    first = typed_in(code, "--config-file=own.yaml", "submit", *flags, **home)
    assert first.returncode == 0, first.stderr
    for more in (("--wait",), ("--dry-run",)):
        again = typed_in(tmp_path, "rerun", "latest", *more, **home)
        assert again.returncode == 0, again.stderr
        assert shlex.join(["--config-file", f"{code}/own.yaml", "submit"]) in again.stderr
    (tmp_path / "new.yaml").write_text("clusters: {other: {kind: local}}\n")
    other = ("--config-file", "new.yaml", "rerun", "latest", "--cluster", "other", "--dry-run")
    assert typed_in(tmp_path, *other, **home).returncode == 0
    for kept in tmp_path.glob(".clusterkit/runs/*/submission.json"):
        line = ["clusterkit", "bench", "collectives", "--name", "submit"]
        kept.write_text(json.dumps({**json.loads(kept.read_text()), "command_line": line}))
    said = typed_in(code, "rerun", "latest", **home)
    assert said.returncode == 2
    assert "was not started by `clusterkit submit`" in said.stderr


def test_an_array_is_submitted_again_whole_or_one_job_of_it(code: Path, tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    flags = ("--cluster", "local", "--preflight", "off", "--wait", "--array", "n=1,2")
    assert typed_in(code, "submit", *flags, "say.sh", "{n}", **home).returncode == 0

    def jobs() -> list[dict[str, Any]]:
        found: list[dict[str, Any]]
        found = json.loads(typed_in(code, "status", "--json", **home).stdout)["jobs"]
        return found

    (name,) = {job["array"] for job in jobs()}
    for job in (f"{name}/1", "say-1"):
        one = typed_in(code, "rerun", job, "--wait", "--", "b", **home)
        assert one.returncode == 0
        assert "--elements 1 --wait -- say.sh '{n}' b\n" in one.stderr
        assert jobs()[-1]["values"] == {"n": "2"}
    assert len(jobs()) == 4
    named = ("say.sh", "--n", "{n}", "--m={n}")
    assert typed_in(code, "submit", *flags, *named, **home).returncode == 0
    again = f"{jobs()[-1]['array']}/1"
    for flag, more in (("--n", ("--n", "5")), ("--m", ("--m=5",))):
        refused = typed_in(code, "rerun", again, "--", *more, **home)
        assert refused.returncode == 2
        assert f"error: {flag} has its value from the array: n=2\n" in refused.stderr
        assert " --array n=VALUE\n" in refused.stderr
    assert len(jobs()) == 6
    assert typed_in(code, "rerun", name, "--wait", **home).returncode == 0
    assert len(jobs()) == 8


def test_arguments_of_a_job_file_are_not_taken_for_the_script(code: Path, tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    (code / "job.yaml").write_text("script: say.sh\nargs: [a]\n")
    flags = ("--cluster", "local", "--preflight", "off", "--wait", "--job", "job.yaml")
    assert typed_in(code, "submit", *flags, **home).returncode == 0
    more = typed_in(code, "rerun", "latest", "--", "b", **home)
    assert more.returncode == 2
    assert "stand in its job file" in more.stderr
