"""Nodes that lie about a job over ssh: each is one failed node, and none gets further than that.

The nodes are logins of a real sshd on this machine. The healthy ones have homes of their own, with
what a job of four nodes writes there, and a process that stands for the one that keeps the node.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

from clusterkit.core import files, processes
from clusterkit.core.model import ClusterKind, ClusterSpec, Host
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.ssh.inbox import Inbox, NotWritten
from clusterkit.executors.ssh.layout import SshLayout, write_layout
from tests.attacks import agents
from tests.attacks.nodes import Farm, Ran, farm
from tests.attacks.test_hostile_nodes import require_calm

RUN_ID = "job-20261121-120000-abcdef"
HEALTHY = ("n1", "n3", "n4")
WORDS = "epoch 1\nepoch 2\n"
CALLS = 6
"""A busy machine does not hear all nodes in the seconds of one call."""
PARTS = 4
"""Forty nodes on two processors, busy with other tests, are not heard in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A job whose nodes are these, as its client has left it."""

    farm: Farm
    run: RunFolder
    ranks: Mapping[str, int]
    agents: Mapping[str, subprocess.Popen[bytes]]
    canary: Path

    def ck(self, *words: str, within_s: float = 240) -> Ran:
        ran = self.farm.run(*words, within_s=within_s)
        require_calm_or_good(ran)
        assert not self.canary.exists()
        return ran

    def status(self) -> dict[str, object]:
        document: dict[str, object] = json.loads(
            self.ck("status", str(self.run.path), "--json").out
        )
        return document


def require_calm_or_good(ran: Ran) -> None:
    require_calm(dataclasses.replace(ran, code=ran.code or 1))


def home_of(folder: Path, name: str) -> Path:
    return folder / "homes" / name


def healthy_home(folder: Path, name: str, rank: int) -> subprocess.Popen[bytes]:
    """Make the home of a node on which its part of the job runs; return what keeps it."""
    ours = home_of(folder, name) / ".clusterkit"
    there = ours / "runs" / RUN_ID
    for one in ("keepers", "ends", "nodes", "logs", "failures", "results", "submitit"):
        (there / one).mkdir(parents=True)
    (ours / "venv").symlink_to(sys.prefix)
    (there / "logs" / f"node-{rank}.log").write_text(WORDS)
    asleep = ["bash", "-c", f"exec -a 'clusterkit.executors.ssh.agent {there}' sleep 300"]
    agent = subprocess.Popen(asleep, start_new_session=True)
    about = {
        "node": name,
        "attempt": 0,
        "pid": agent.pid,
        "start_time": processes.start_time(agent.pid),
        "boot_id": processes.boot_id(),
    }
    files.write_json(there / "keepers" / f"{rank}.json", about)
    return agent


def site(folder: Path, lies: Mapping[str, str], stack: ExitStack, *, alive: str) -> Site:
    names = (HEALTHY[0], *lies, *HEALTHY[1:])
    ranks = {name: rank for rank, name in enumerate(names)}
    canary = folder / agents.CANARY
    programs = {
        name: agents.program(
            lie, name=name, rank=ranks[name], run_id=RUN_ID, canary=canary, alive=alive
        )
        for name, lie in lies.items()
    }
    homes = {name: f"HOME={home_of(folder, name)}" for name in HEALTHY}
    one = stack.enter_context(farm(folder, programs, homes, {}))
    there = {name: healthy_home(folder, name, ranks[name]) for name in HEALTHY}
    for process in there.values():
        stack.callback(process.wait)
        stack.callback(process.kill)
    run = RunFolder(folder / "runs" / RUN_ID)
    for made in (run.agents, run.ends, run.nodes, run.failures, run.logs, run.submitit):
        made.mkdir(parents=True)
    layout = SshLayout(
        job_id="ssh-abcdef",
        names=names,
        slots=(1,) * len(names),
        tasks=len(names),
        ports=(20000, 29999),
        token="t",
        command=(sys.executable,),
        logs="/",
        cluster=ClusterSpec(
            name="farm",
            kind=ClusterKind.SSH,
            hosts=tuple(Host(name=name) for name in names),
            shared_filesystem=False,
        ),
    )
    write_layout(run, layout)
    submission = Submission(
        run_id=RUN_ID, name="job", cluster="farm", kind=ClusterKind.SSH, framework="torchrun",
        nodes=len(names), tasks=len(names), submitted_at=time.time(), job_id="ssh-abcdef",
    )  # fmt: skip
    runfolder.write_submission(run, submission)
    return Site(farm=one, run=run, ranks=ranks, agents=there, canary=canary)


@pytest.fixture(scope="module", params=range(PARTS))
def liars(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    lies = dict(list(agents.FAST.items())[request.param :: PARTS])
    with ExitStack() as stack:
        yield site(tmp_path_factory.mktemp("liars"), lies, stack, alive="alive")


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield site(tmp_path, {"n2": agents.FAST["boot"]}, stack, alive="alive")


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield site(tmp_path, agents.SLOW, stack, alive="alive")


def outside(site: Site) -> set[str]:
    """Return every file of the test but those in the run folder."""
    folder = site.farm.folder
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)) for p in found if not p.is_relative_to(site.run.path)}


def has_logs(site: Site) -> bool:
    return all(site.run.log(site.ranks[name]).exists() for name in HEALTHY)


def blames(reason: str, names: Iterable[str]) -> set[str]:
    return {name for name in names if f"{name}: " in reason}


def require_healthy(site: Site) -> None:
    for name in HEALTHY:
        assert site.run.log(site.ranks[name]).read_text() == WORDS, name
        assert files.read_json(site.run.agent(site.ranks[name])) is not None, name
        assert not site.run.result(site.ranks[name]).exists(), name
    assert not (site.run.failures / "0.json").exists()


def test_each_lie_is_told_of_the_node_that_lies(liars: Site) -> None:
    before = outside(liars)
    silent = {"attempt", "blame", "gone", "where", "script", "pickle", "objects", "error", "hint"}
    loud = set(liars.ranks) - silent - set(HEALTHY)
    told: set[str] = set()
    for _ in range(CALLS):
        status = liars.status()
        assert status["state"] == "running"
        reason = str(status["reason"])
        assert all("within" in why for why in re.findall(r"\bn[134]: ([^;]*)", reason)), reason
        told |= blames(reason, loud)
        if told == loud and has_logs(liars) and not blames(reason, HEALTHY):
            break
    assert told == loud, reason
    assert not blames(reason, HEALTHY), reason
    require_healthy(liars)
    for path in liars.run.path.rglob("*"):
        assert not path.is_symlink()
        assert path.stat().st_size < 1 << 20, path
        assert path.suffix != ".pkl"
        assert path.stat().st_mode & 0o7022 == 0, path
    assert outside(liars) - before <= {"out", "err"}


def test_logs_are_those_of_the_healthy(liars: Site) -> None:
    for _ in range(CALLS):
        said = liars.ck("logs", str(liars.run.path)).out
        assert "pwned" not in said
        if has_logs(liars):
            break
    for name in HEALTHY:
        assert said.count(f"node-{liars.ranks[name]} {name}] epoch 2") == 1, said


def test_a_cancel_ends_the_healthy_ones_and_nothing_else(four: Site) -> None:
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        ran = four.ck("cancel", str(four.run.path))
        assert ran.code == 2
        assert "n2: answers nonsense: keepers/1.json" in ran.err
        for name in HEALTHY:
            assert four.agents[name].wait(60) == -15, name
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_nodes_that_never_end_hold_nobody_up(endless: Site) -> None:
    ran = endless.ck("status", str(endless.run.path), "--json", within_s=240)
    one_after_the_other = 15 * len(agents.SLOW)
    assert ran.seconds < one_after_the_other
    status = json.loads(ran.out)
    assert status["state"] == "running"
    assert "drip: no end of its answer within" in status["reason"]
    require_healthy(endless)
    assert endless.run.log(endless.ranks["flood"]).stat().st_size <= 64 << 20
    cancel = endless.farm.start("cancel", str(endless.run.path))
    try:
        for name in HEALTHY:
            assert endless.agents[name].wait(180) == -15, name
    finally:
        cancel.kill()
        cancel.wait()


@pytest.mark.parametrize("planted", ["link", "hard link", "pipe", "folder above is a link"])
def test_what_a_node_sends_is_written_into_plain_files_of_the_run_alone(
    tmp_path: Path, planted: str
) -> None:
    outside, run = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    run.mkdir()
    precious = outside / "node-0.log"
    precious.write_text("mine")
    name = PurePosixPath("logs/node-0.log")
    if planted == "folder above is a link":
        (run / "logs").symlink_to(outside)
    else:
        (run / "logs").mkdir()
        {
            "link": lambda path: path.symlink_to(precious),
            "hard link": lambda path: path.hardlink_to(precious),
            "pipe": os.mkfifo,
        }[planted](run / name)
    with pytest.raises(NotWritten, match=r"is not written: a link, or no plain file"):
        Inbox(run, "n1").write_at(name, 0, b"evil")
    assert precious.read_text() == "mine"


def test_a_file_of_another_user_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox, name = Inbox(tmp_path, "n1"), PurePosixPath("node-0.log")
    inbox.write_at(name, 0, b"ab")
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(NotWritten, match="what is there is not yours"):
        inbox.write_at(name, 2, b"cd")
    assert (tmp_path / name).read_bytes() == b"ab"


def test_no_hole_is_made_in_a_log(tmp_path: Path) -> None:
    inbox, name = Inbox(tmp_path, "n1"), PurePosixPath("node-0.log")
    inbox.write_at(name, 0, b"ab")
    with pytest.raises(NotWritten, match="it ends before byte 4398046511104"):
        inbox.write_at(name, 1 << 42, b"evil")
    assert (tmp_path / name).read_bytes() == b"ab"
