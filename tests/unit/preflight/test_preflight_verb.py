"""`preflight` as a user types it, on bundles and on this machine."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clusterkit import __version__
from clusterkit.cli.frame.main import app
from clusterkit.core import files
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.findings import Finding, Verdict
from clusterkit.core.model import ClusterKind, ClusterSpec
from clusterkit.executors.node.health import why_broken, why_unhealthy
from clusterkit.executors.node.identity import Identity
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.submit.preflight import PreflightFailedError, SubmitCallbacks, pass_gate
from clusterkit.jobs.submit.request import JobRequest
from clusterkit.preflight import gate, on_node
from clusterkit.preflight.bundle import Bundle, write_bundle
from clusterkit.preflight.checks.base import Check
from clusterkit.preflight.report import Report
from clusterkit.preflight.request import PreflightOptions
from clusterkit.preflight.targets import aim
from clusterkit.preflight.text import drain_commands
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import PreflightJob, Reach, ReachProblem
from clusterkit.transport.ssh.transport import SshTransport
from tests.helpers.command_line import typed_in
from tests.helpers.doc_blocks import blocks
from tests.helpers.paths import ROOT
from tests.helpers.plans import make_cluster, make_plan

Verb = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def verb(tmp_path: Path) -> Verb:
    """Run `clusterkit preflight` in a folder of its own."""

    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return typed_in(tmp_path, "preflight", *words, **{"HOME": str(tmp_path), **env})

    return run


def kept(
    folder: Path,
    *,
    kind: str = "ssh",
    gpus: int | None = None,
    slots: Mapping[str, int] | None = None,
    **problems: ReachProblem | None,
) -> str:
    """Write a bundle whose nodes were reached, or not, and return its folder."""
    replies = tuple(
        Reply(node=node, reach=Reach(via="ssh", problem=problem, detail="no"))
        for node, problem in problems.items()
    )
    job = PreflightJob(
        hosts=tuple(problems),
        kind=kind,
        gpus_per_node=gpus,
        slots=slots or {},
        asked_by=__version__,
    )
    write_bundle(folder, Bundle(job=job, replies=replies, collected_at=1.0, seconds=1.0))
    return str(folder)


@pytest.mark.parametrize("words", [("--select", "GPU,IB"), ("--ignore", "SSH"), ("--strict",)])
def test_nodes_that_nobody_reached_are_never_usable(
    verb: Verb, tmp_path: Path, words: tuple[str, ...]
) -> None:
    folder = kept(tmp_path / "b", n1=ReachProblem.TIMEOUT, n2=ReachProblem.SCHEDULER)
    done = verb("--replay", folder, *words, "--json", "--write-hostfile", "good")
    document = json.loads(done.stdout)
    assert (done.returncode, document["usable"]) == (1, [])
    assert not (tmp_path / "good").exists()


@pytest.mark.parametrize(
    ("gpus", "slots", "text"),
    [
        (None, {}, "n1\nn2\n"),
        (8, {}, "n1 slots=8\nn2 slots=8\n"),
        (8, {"n2": 4}, "n1 slots=8\nn2 slots=4\n"),
        (None, {"n1": 2, "n2": 4}, "n1 slots=2\nn2 slots=4\n"),
        (None, {"n2": 4}, "n1\nn2\n"),
    ],
)
def test_a_hostfile_holds_the_slots_that_are_known_and_no_others(
    verb: Verb, tmp_path: Path, gpus: int | None, slots: dict[str, int], text: str
) -> None:
    folder = kept(tmp_path / "b", gpus=gpus, slots=slots, n1=None, n2=None, n3=ReachProblem.AUTH)
    done = verb("--replay", folder, "--select", "SSH", "--write-hostfile", "usable")
    assert done.returncode == 1
    assert (tmp_path / "usable").read_text() == text
    assert ("names only" in done.stderr) is (text == "n1\nn2\n" and bool(slots))


def test_the_nodes_to_be_left_out_are_a_hostfile_too(verb: Verb, tmp_path: Path) -> None:
    words = ("--select", "SSH", "--write-excluded", "bad")
    some = kept(tmp_path / "some", gpus=8, n1=None, n2=ReachProblem.AUTH, n3=ReachProblem.TIMEOUT)
    assert verb("--replay", some, *words).returncode == 1
    assert (tmp_path / "bad").read_text() == "n2 slots=8\nn3 slots=8\n"
    done = verb("--replay", kept(tmp_path / "none", n1=None), *words)
    assert done.returncode == 0
    assert (tmp_path / "bad").read_text() == ""
    assert "no node is to be left out" in done.stderr


def test_slots_of_a_hostfile_stay_with_their_hosts(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("n1 slots=2\nn2 slots=4\n")
    spec = ClusterSpec(name="c", kind=ClusterKind.SSH)
    target = aim(PreflightOptions(hostfile=tmp_path / "hosts"), spec)
    assert target.job.slots == {"n1": 2, "n2": 4}


def test_drain_commands_are_for_nodes_that_slurm_knows(verb: Verb, tmp_path: Path) -> None:
    done = verb("--replay", kept(tmp_path / "rack", n1=None), "--drain-command")
    assert (done.returncode, done.stdout) == (2, "")
    assert "a cluster of kind ssh" in done.stderr
    assert verb("--hosts", "n1", "--drain-command").returncode == 2


def test_nodes_that_were_not_reached_are_not_drained(verb: Verb, tmp_path: Path) -> None:
    folder = kept(tmp_path / "b", kind="slurm", n1=ReachProblem.AUTH, n2=ReachProblem.SCHEDULER)
    done = verb("--replay", folder, "--drain-command")
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing to drain: n[1-2]" in done.stderr


def test_a_reason_is_cut_between_words() -> None:
    finding = Finding(
        id="GPU901", check="c", verdict=Verdict.FAIL, nodes=("n1",), summary="word " * 60 + "end"
    )
    report = Report(nodes=("n1",), findings=(finding,))
    bundle = Bundle(job=PreflightJob(hosts=("n1",)), replies=(), collected_at=0, seconds=0)
    (line,) = drain_commands(report, bundle)
    assert line.endswith("word word ...'")
    assert len(line) < 280


@pytest.mark.parametrize("kind", ClusterKind)
@pytest.mark.parametrize(
    ("via", "kinds"), [("ssh", "ssh slurm"), ("srun", "slurm"), (None, "ssh slurm")]
)
def test_other_hosts_are_not_this_machine(kind: ClusterKind, via: str | None, kinds: str) -> None:
    """Checks leave out what one machine alone cannot get wrong."""
    target = aim(PreflightOptions(hosts="n[1-2]", via=via), ClusterSpec(name="c", kind=kind))
    assert target.job.kind in kinds.split()
    assert target.slurm is (target.job.kind == "slurm")
    if via is None:
        assert isinstance(target.transport, SshTransport) is (kind is not ClusterKind.SLURM)


def test_a_node_that_cannot_be_checked_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And nothing is held against it: the job on it continues."""
    hanging = tmp_path / "sh"
    hanging.write_text("#!/bin/sh\nexec sleep 300\n")
    hanging.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(on_node, "NODE_CHECKS_S", 0.5)
    with pytest.raises(RemoteError, match="n1: no answer within"):
        on_node.examine_here({"job": {"hosts": []}}, "n1")


@pytest.mark.parametrize(
    ("flag", "place", "said"),
    [
        ("--html", ".", "not a regular file"),
        ("--html", "nosuch/page.html", "No such file or directory"),
        ("--html", "/dev/null", "not a regular file"),
        ("--write-hostfile", "file/hosts", "Not a directory"),
        ("--write-excluded", "file/hosts", "Not a directory"),
        ("--save", "/proc/x", "cannot create /proc/x"),
    ],
)
def test_a_place_that_takes_nothing_is_refused_before_nodes_are_asked(
    verb: Verb, tmp_path: Path, flag: str, place: str, said: str
) -> None:
    (tmp_path / "file").touch()
    done = verb("--via", "local", "--select", "HOST014", flag, place)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert f"hint: name a {'new folder' if flag == '--save' else 'file'} in a" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_what_cannot_be_written_after_all_takes_nothing_of_the_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = kept(tmp_path / "b", n1=ReachProblem.AUTH, n2=None)

    def full(path: Path, _: str, *, mode: int = 0) -> None:
        raise UserError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr(files, "write_text", full)
    words = ("--replay", folder, "--html", str(tmp_path / "p"), "--json")
    done = CliRunner().invoke(app, ["preflight", *words])
    assert done.exit_code == 2
    assert json.loads(done.stdout)["exclude"] == ["n1"]
    assert "No space left on device" in done.stderr


def test_a_choice_of_nothing_is_no_choice(verb: Verb, tmp_path: Path) -> None:
    """An empty --select once chose everything, and traffic between the nodes with it."""
    folder = kept(tmp_path / "b", n1=None)
    for words in (("--select", ""), ("--ignore", " ,")):
        done = verb("--replay", folder, *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{words[0]} names no check" in done.stderr
        assert "clusterkit explain checks" in done.stderr


@pytest.mark.parametrize("words", [("--network",), ("--cluster", "rack")])
def test_no_flag_beside_a_replay_is_ignored(
    verb: Verb, tmp_path: Path, words: tuple[str, ...]
) -> None:
    folder = kept(tmp_path / "b", n1=None)
    done = verb("--replay", folder, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"so {words[0]} has no meaning beside it" in done.stderr
    assert verb("--replay", folder, CLUSTERKIT_CLUSTER="rack").returncode == 0


def test_the_lines_that_drain_are_part_of_the_document(tmp_path: Path) -> None:
    folder = kept(tmp_path / "b", kind="slurm", n1=None)
    words = ("--replay", folder, "--drain-command", "--strict", "--json", "--select", "HOST014")
    done = CliRunner().invoke(app, ["preflight", *words])
    document = json.loads(done.stdout)
    assert document["exclude"] == ["n1"]
    (line,) = document["drain_commands"]
    assert line.startswith("scontrol update NodeName=n1 State=DRAIN 'Reason=clusterkit: HOST014")


def test_where_no_node_is_left_nobody_is_told_to_leave_them_out(verb: Verb, tmp_path: Path) -> None:
    folder = kept(tmp_path / "b", n1=ReachProblem.AUTH, n2=ReachProblem.TIMEOUT)
    done = verb("--replay", folder)
    assert done.returncode == 1
    assert "no node of the 2 asked is usable" in done.stdout
    assert "--exclude" not in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--hostfile", "nosuch"), ["cannot read nosuch", "check the path"]),
        (("--hostfile", "empty"), ["empty is empty", "one host per line"]),
        (("--hostfile", "-"), ["<stdin> is empty", "one host per line"]),
        (("--hostfile", "binary"), ["is not UTF-8", "binary:1", "save the file as UTF-8"]),
        (("--via", "local", "--nodes", "0"), ["--nodes 0: there are 1", "hint: --nodes 1, or"]),
        (("--hosts", "n[1-3]", "--nodes", "4"), ["--nodes 1 to --nodes 3"]),
    ],
)
def test_nodes_that_are_not_there(
    verb: Verb, tmp_path: Path, words: tuple[str, ...], said: list[str]
) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"\x89PNG")
    done = verb(*words)
    assert (done.returncode, done.stdout) == (2, "")
    for part in said:
        assert part in done.stderr


def test_a_hostfile_from_a_pipe(tmp_path: Path) -> None:
    piped = subprocess.run(
        [sys.executable, "-m", "clusterkit", "preflight", "--hostfile", "-", "--nodes", "5"],
        cwd=tmp_path,
        input="n1 slots=2\nn2 slots=4\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "there are 2: n[1-2]" in piped.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("preflight", "--replay", "b", "--select", "SSH"),
        ("preflight", "--replay", "b", "--select", "SSH", "--json"),
        ("hostfile", "--hostlist", "n1", "--format", "names"),
    ],
)
def test_a_full_disk_behind_the_output_is_no_bug(tmp_path: Path, words: tuple[str, ...]) -> None:
    kept(tmp_path / "b", n1=None)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "clusterkit", *words],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert "error: cannot write the output: No space left on device\nhint: " in done.stderr
    for word in ("bug", "Exception ignored"):
        assert word not in done.stderr


@pytest.mark.parametrize(
    ("left", "needed", "said"),
    [
        (0, 2, ["no node is left and 2 are needed", "hint: fix the findings above, or --force"]),
        (1, 2, ["1 of the 2 asked is left and 2 are needed", "ask for fewer with --nodes 1, or"]),
        (0, 1, ["no node is left and 1 is needed"]),
        (2, 3, ["2 of the 3 asked are left and 3 are needed", "--nodes 2, or"]),
    ],
)
def test_what_submit_says_of_too_few_nodes(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    left: int,
    needed: int,
    said: list[str],
) -> None:
    names = tuple(f"n{number}" for number in range(left + 1))
    finding = Finding(id="GPU901", check="c", verdict=Verdict.FAIL, nodes=("n0",), summary="hot")
    report = Report(nodes=names, findings=(finding,))
    monkeypatch.setattr(gate, "examine", lambda *_, **__: report)
    request = JobRequest(verb="submit", flags={}, file=None, warn=print)
    plan = make_plan(make_cluster(tmp_path), nodes=needed)
    listener = SubmitCallbacks(warn=print, note=print, on_reply=print)
    with pytest.raises(PreflightFailedError) as refused:
        pass_gate(request, plan, "full", listener)
    assert refused.value.report is report
    for part in said:
        assert part in str(refused.value)


@pytest.mark.parametrize(
    ("mode", "unasked", "force", "checks"),
    [
        ("auto", (), False, ()),
        ("auto", ("n1",), False, ("n1", "n7")),
        ("auto", ("n1",), True, ()),
        ("full", ("n1",), False, ("n0", "n1", "n7")),
    ],
)
def test_a_node_that_was_not_asked_checks_itself_when_it_starts(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    mode: str,
    unasked: tuple[str, ...],
    force: bool,
    checks: tuple[str, ...],
) -> None:
    """And no other does in `auto`, such as n0; n7 came to the partition since."""
    report = Report(nodes=("n0", "n1"), findings=(), unasked=unasked)
    monkeypatch.setattr(gate, "examine", lambda *_, **__: report)
    request = JobRequest(verb="submit", flags={"force": force}, file=None, warn=print)
    plan = make_plan(make_cluster(tmp_path), nodes=2)
    listener = SubmitCallbacks(warn=print, note=print, on_reply=print)
    passed = pass_gate(request, plan, mode, listener)
    run = RunFolder(tmp_path)
    for name, document in passed.documents.items():
        files.write_json(run.path / name, document)
    asked = nodes_that_ask(monkeypatch, report)
    for node in ("n0", "n1", "n7"):
        assert why_unhealthy(run, identity(node)) is None
    assert tuple(asked) == tuple((node, False) for node in checks)


def test_a_machine_checks_itself_and_is_silent_while_it_is_healthy(
    verb: Verb, tmp_path: Path
) -> None:
    done = verb("--self", "--for", "healthcheck", "--ignore", "HOST", "--spool", "found.json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["usable"] == found["nodes"]
    assert {f["id"] for f in found["findings"]}.isdisjoint({"SSH001", "SLURM001", "GPU020"})


def test_the_units_of_systemd_are_valid_and_write_metrics(verb: Verb, tmp_path: Path) -> None:
    units = list(blocks(ROOT / "docs/how-to/preflight.md", "ini"))
    paths = [tmp_path / f"clusterkit-self.{kind}" for kind in ("service", "timer")]
    for path, unit in zip(paths, units, strict=True):
        path.write_text(unit)
    if shutil.which("systemd-analyze"):
        checked = subprocess.run(
            ["systemd-analyze", "verify", *paths], capture_output=True, text=True, check=False
        )
        told = [line for line in checked.stderr.splitlines() if "clusterkit-self" in line]
        assert (checked.returncode, told) == (0, [])
    command = units[0].partition(" clusterkit preflight ")[2]
    *words, place = shlex.split(command)
    assert place.endswith("/node-exporter/self.prom")
    assert verb(*words, "self.prom").returncode in {0, 1}
    assert "clusterkit_" in (tmp_path / "self.prom").read_text()


def test_a_machine_that_checks_itself_starts_nothing_that_only_a_job_needs(
    verb: Verb, tmp_path: Path
) -> None:
    assert verb("--self", "--save", "kept").returncode in {0, 1}
    kept = json.loads((tmp_path / "kept/manifest.json").read_text())
    (node,) = kept["nodes"]
    assert "host-system" in node["probes"]
    assert {"job-python", "imex"}.isdisjoint(node["probes"])
    code = (
        "import sys; from clusterkit.preflight.checks import all_checks\n"
        "from clusterkit.preflight.on_node import ELSEWHERE, checks_of_one_node\n"
        "alone = checks_of_one_node(all_checks(ELSEWHERE))\n"
        "files = {'net', 'fs', 'slurm'} & {name.rpartition('.')[2] for name in sys.modules\n"
        "    if name.startswith('clusterkit.preflight.checks.')}\n"
        "print(files, alone == checks_of_one_node(all_checks()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "set() True\n", done.stderr


def test_a_machine_that_is_unhealthy_says_why_in_one_line(verb: Verb) -> None:
    done = verb("--self", "--gpus-per-node", "8", "--select", "GPU002")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == "clusterkit: GPU002 no GPU, the job wants 8\n"


def test_a_tool_that_hangs_is_told_and_no_reason_to_drain(verb: Verb, tmp_path: Path) -> None:
    hanging = tmp_path / "bin/nvidia-smi"
    hanging.parent.mkdir()
    hanging.write_text(f"#!/bin/sh\nsleep 60\ntouch {tmp_path}/came-to-an-end\n")
    hanging.chmod(0o755)
    path = f"{hanging.parent}:{os.environ['PATH']}"
    done = verb("--self", "--select", "GPU001", "--budget", "1", PATH=path)
    assert not (tmp_path / "came-to-an-end").exists()
    assert (done.returncode, done.stdout) == (0, "")
    assert "warning: GPU001" in done.stderr
    strict = verb("--self", "--select", "GPU001", "--budget", "1", "--strict", PATH=path)
    assert strict.returncode == 1
    assert strict.stdout.startswith("clusterkit: GPU001 ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--self", "--hosts", "n1"), "--self asks this machine alone, so --hosts has no meaning"),
        (("--self", "--drain-command"), "so --drain-command has no meaning beside it"),
        (("--self", "--network"), "so --network has no meaning beside it"),
        (("--self", "--select", "SSH"), "no check is left that a machine can evaluate of itself"),
        (("--self", "--for", "prologue"), "did you mean 'prolog'"),
        (("--self", "--budget", "0"), "--budget 0: no time at all"),
        (("--budget", "5"), "--budget goes with --self"),
        (("--for", "prolog"), "--for goes with --self"),
    ],
)
def test_what_has_no_meaning_for_one_machine_is_refused(
    verb: Verb, words: tuple[str, ...], said: str
) -> None:
    done = verb(*words)
    assert done.returncode == 2
    assert said in done.stderr


def identity(node: str, *, attempt: int = 0) -> Identity:
    return Identity(job_id="7", attempt=attempt, rank=0, of=1, name=node, among=(node,))


def nodes_that_ask(monkeypatch: pytest.MonkeyPatch, report: Report) -> list[tuple[str, bool]]:
    """Return where it is noted which nodes check themselves, and whether only their hardware."""
    asked: list[tuple[str, bool]] = []

    def examine_here(_: object, node: str, *, hardware: bool) -> Report:
        asked.append((node, hardware))
        return report

    monkeypatch.setattr(on_node, "examine_here", examine_here)
    return asked


@pytest.mark.parametrize(("requeue", "force"), [(0, False), (1, False), (1, True)])
def test_a_node_looks_at_its_hardware_where_a_job_may_start_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, requeue: int, force: bool
) -> None:
    """After a failure, and before the next attempt; not where it was forced to be as it is."""
    found = Finding(id="GPU011", check="c", verdict=Verdict.FAIL, nodes=("n0",), summary="hot")
    report = Report(nodes=("n0", "n1"), findings=(found,) if force else ())
    monkeypatch.setattr(gate, "examine", lambda *_, **__: report)
    request = JobRequest(verb="submit", flags={"force": force}, file=None, warn=print)
    plan = make_plan(make_cluster(tmp_path), nodes=2, requeue=requeue)
    listener = SubmitCallbacks(warn=print, note=print, on_reply=print)
    run = RunFolder(tmp_path)
    for name, document in pass_gate(request, plan, "auto", listener).documents.items():
        files.write_json(run.path / name, document)
    asked = nodes_that_ask(monkeypatch, report)
    for attempt in (0, 1):
        why_unhealthy(run, identity("n1", attempt=attempt))
    looks = requeue == 1 and not force
    assert asked == [("n1", True)] * looks
    why_broken(run, identity("n1"))
    assert asked == [("n1", True)] * 2 * looks


def test_what_a_node_checks_of_itself_ends_well_though_its_disk_takes_no_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A full disk may be why the command failed, and how that ended still has to be told."""
    run = RunFolder(tmp_path)
    run.node_checks.write_text("{}")
    found = Finding(id="GPU011", check="c", verdict=Verdict.FAIL, nodes=("n1",), summary="Xid 79")
    nodes_that_ask(monkeypatch, Report(nodes=("n1",), findings=(found,)))
    monkeypatch.setattr(files, "open_for_append", lambda _: os.open("/dev/full", os.O_WRONLY))
    assert why_broken(run, identity("n1")) == "GPU011 Xid 79"


def test_heat_and_settings_are_no_cause_of_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask_here(_: object, checks: tuple[Check, ...], **__: object) -> Bundle:
        asked.extend(check.id for check in checks)
        raise RemoteError("asked")

    monkeypatch.setattr(on_node, "ask_here", ask_here)
    with pytest.raises(RemoteError):
        on_node.examine_here({"job": {"hosts": ["n1"], "kind": "slurm"}}, "n1", hardware=True)
    assert {"GPU007", "GPU008", "GPU011", "IB006"} <= set(asked)
    assert {"GPU013", "GPU014", "GPU025", "IB007"}.isdisjoint(asked)


def test_a_node_finds_that_it_lacks_the_interpreter_of_its_job(tmp_path: Path) -> None:
    """It may not have been asked, as it was busy when the job was submitted."""
    job = {"hosts": ["n1"], "kind": "slurm", "python": str(tmp_path / "bin" / "python")}
    report = on_node.examine_here({"job": job}, "n1")
    found = next(finding for finding in report.findings if finding.id == "HOST013")
    assert (found.verdict, found.summary) == (Verdict.FAIL, f"{job['python']} not found")
    here = on_node.examine_here({"job": {**job, "python": sys.executable}}, "n1")
    assert "HOST013" not in {finding.id for finding in here.bad}


def test_what_every_node_runs_loads_no_reader_of_configurations() -> None:
    code = (
        "import sys, clusterkit.preflight.on_node as on_node\n"
        "on_node.all_checks()\n"
        "print({'pydantic', 'yaml', 'clusterkit.preflight.targets'} & sys.modules.keys())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "set()\n", done.stderr
