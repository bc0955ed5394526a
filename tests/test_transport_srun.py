"""What is made of a Slurm that does not answer, played by programs of the same names."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterkit.errors import RemoteError
from clusterkit.probes.base import PreflightJob, Probe, ReachProblem
from clusterkit.probes.compound import compose
from clusterkit.transport.base import Reply
from clusterkit.transport.srun import SrunOptions, SrunTransport

Fake = Callable[[str, str], None]

NO_CONTROLLER = """\
{0}: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host
{0}: error: fetch_config: DNS SRV lookup failed
{0}: error: _establish_config_source: failed to fetch config
{0}: fatal: Could not establish a configuration source
"""
"""Slurm 22.05 on a machine that no cluster knows."""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Put programs on PATH; there are none but these, cat and a shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "cat").symlink_to("/bin/cat")
    monkeypatch.setenv("PATH", str(folder))

    def make(name: str, body: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{textwrap.dedent(body)}")
        (folder / name).chmod(0o755)

    return make


def failing(words: str) -> str:
    return f"cat >&2 <<'END'\n{words}\nEND\nexit 1\n"


def ask(*nodes: str) -> tuple[Reply, ...]:
    probe = Probe(name="name", command="uname -n", parse=str)
    compound = compose([probe], PreflightJob(hosts=nodes), token="cktoken")
    return SrunTransport(SrunOptions()).ask(nodes, compound, heard=lambda _: None)


@pytest.mark.parametrize("sinfo_is_there", [True, False])
@pytest.mark.parametrize(
    "words",
    [
        NO_CONTROLLER,
        (
            "{0}: error: Unable to allocate resources: Unable to contact slurm controller"
            " (connect failure)"
        ),
        "{0}: error: If munged is up, restart with --num-threads=10",
        "{0}: error: Unable to allocate resources: Zero Bytes were transmitted or received",
    ],
)
def test_a_slurm_that_does_not_answer_is_no_fault_of_a_node(
    fake: Fake, words: str, sinfo_is_there: bool
) -> None:
    fake("srun", failing(words.format("srun")))
    if sinfo_is_there:
        fake("sinfo", failing(words.format("sinfo")))
    with pytest.raises(RemoteError, match=r"(?s)Slurm does not answer s(info|run): .*--via ssh"):
        ask("n1", "n2")


@pytest.mark.parametrize(
    "words",
    [
        (
            "srun: error: invalid partition specified: nowhere\n"
            "srun: error: Unable to allocate resources: Invalid partition name specified"
        ),
        (
            "srun: error: Unable to allocate resources: Invalid account or account/partition"
            " combination specified"
        ),
        "srun: error: Unable to confirm allocation for job 7: Invalid job id specified",
    ],
)
def test_a_request_that_slurm_refuses_is_no_fault_of_a_node(fake: Fake, words: str) -> None:
    fake("srun", failing(words))
    with pytest.raises(RemoteError, match="Slurm refuses the request of srun"):
        ask("n1", "n2")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("Unable to allocate resources: Requested nodes are busy", ReachProblem.BUSY),
        (
            "Task launch for StepId=7.0 failed on node n1: Protocol authentication error",
            ReachProblem.SCHEDULER,
        ),
        ("Required node not available (down, drained or reserved)", ReachProblem.SCHEDULER),
    ],
)
def test_what_is_said_of_nodes_stays_with_them(
    fake: Fake, words: str, problem: ReachProblem
) -> None:
    fake("srun", failing(f"srun: error: {words}"))
    fake("sinfo", "exit 1\n")
    assert [reply.reach.problem for reply in ask("n1", "n2")] == [problem, problem]
