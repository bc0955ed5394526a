"""What NCCL's RAS says of a job that hangs: asked over its port, and folded into who is behind.

The answers are ours, after the format of NCCL 2.24 to 2.30 (src/ras/client_support.cc).
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from clusterkit.core import processes
from clusterkit.executors.node import nccl_ras as client
from clusterkit.observe.diagnose.facts import told_by_ras
from tests.helpers.lab_jobs import await_true

HEAD = """\
OK
NCCL version 2.27.5 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12090

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.01s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   RUNNING  {errors}

Errors
======

"""
BEHIND = (
    HEAD.format(errors="MISMATCH")
    + """\
Warnings
========

#0-0 (5e1f0c2b3a4d5e6f) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 1234
  Rank 3 has launched up to operation 1233 -- GPU 3 managed by process 4714 on node 10.0.0.1

"""
)
LOST = (
    HEAD.format(errors="INCOMPLETE")
    + """\
INCOMPLETE
  Missing communicator data from 1 job process
  Process 4811 on node 10.0.0.2 managing GPU 1

DEAD
  2 job processes are considered dead (unreachable via the RAS network)
  Process 4812 on node 10.0.0.3 managing GPU 2
  Process 4813 on node 10.0.0.3 managing GPU 3

#0-0 (5e1f0c2b3a4d5e6f) INCOMPLETE
  Missing communicator data from 3 ranks
  Rank 5 -- GPU 1 managed by process 4811 on node 10.0.0.2
  Rank 6 -- GPU 2 managed by process 4812 on node 10.0.0.3
  Rank 7 -- [process information not found]

#1-0 (6e1f0c2b3a4d5e6f) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 1 -- GPU 1 managed by process 4811 on node 10.0.0.2

Warnings
========

TIMEOUT
  Encountered 1 communication timeout while gathering communicator data

"""
)


def test_the_rank_that_has_launched_less_is_behind() -> None:
    (said,) = told_by_ras(BEHIND)
    assert said == (
        "nccl-behind=rank 3 on 10.0.0.1; AllReduce; number 1233; 7 others at number 1234; "
        "communicator 0-0"
    )


def test_of_several_that_are_behind_all_are_named() -> None:
    text = BEHIND.replace("  7 ranks", "  6 ranks").replace(
        "  Rank 3 has launched up to operation 1233 -- GPU 3",
        "  2 ranks have not launched any operations\n"
        "  Rank 2 -- GPU 2 managed by process 4713 on node 10.0.0.1\n"
        "  Rank 3 -- GPU 3",
    )
    (said,) = told_by_ras(text)
    assert said == (
        "nccl-behind=ranks 2-3 on 10.0.0.1; AllReduce; none; 6 others at number 1234; "
        "communicator 0-0"
    )


def test_processes_that_are_dead_or_do_not_answer_are_told_with_their_nodes() -> None:
    assert list(told_by_ras(LOST)) == [
        "nccl-lost=10.0.0.3; is dead; 2 processes",
        "nccl-lost=10.0.0.2; does not answer; ranks 5-7",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        HEAD.format(errors="OK"),
        BEHIND.replace("7 ranks", "1 ranks"),  # as many are behind as ahead
        BEHIND.replace("  Rank 3", "  Bank 3"),  # it has more, and names none
        BEHIND.replace("AllReduce", "A" * 99),
        "#0-0 (1) MISMATCH\n" * 99999 + "\0" * 99999,
        "Rank 3 -- " * 9999,
    ],
)
def test_where_nobody_stands_out_nothing_is_told(text: str) -> None:
    assert list(told_by_ras(text)) == []


class Ras:
    """A server that answers as RAS, in a process's place."""

    def __init__(self, answer: bytes, *, ends: bool = True) -> None:
        self.asked = b""
        self._answer, self._ends = answer, ends
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            connection, _ = self._server.accept()
            with connection:
                while not self.asked.endswith(b"status\n"):
                    self.asked += connection.recv(99)
                connection.sendall(self._answer)
                if not self._ends:
                    connection.recv(1)  # until the other side has had enough

    def close(self) -> None:
        self._server.close()


def ask(port: object, timeout_s: float = 60, *, host: str = "127.0.0.1") -> str:
    """Ask for a job of which one process was told_by_ras of this address."""
    environment = {**os.environ, "NCCL_RAS_ADDR": f"{host}:{port}"}
    with subprocess.Popen(["sleep", "600"], env=environment) as process:
        try:
            # Popen returns in the middle of exec, before the kernel shows the new variables.
            await_true(lambda: any(processes.environment(process.pid)))
            return client.ask([1 << 30, process.pid], timeout_s)
        finally:
            process.kill()


@pytest.fixture
def ras(request: pytest.FixtureRequest) -> Iterator[Ras]:
    made = Ras(**request.param)
    yield made
    made.close()


@pytest.mark.parametrize("ras", [{"answer": BEHIND.encode()}], indirect=True)
def test_the_job_s_own_address_is_asked_by_the_protocol(ras: Ras) -> None:
    assert ask(ras.port) == BEHIND
    assert ras.asked == b"timeout 20\nverbose status\n"


@pytest.mark.parametrize("ras", [{"answer": b"x" * (1 << 20)}], indirect=True)
def test_no_more_is_read_than_anybody_needs(ras: Ras) -> None:
    assert len(ask(ras.port)) == 1 << 19


@pytest.mark.parametrize("ras", [{"answer": b"half", "ends": False}], indirect=True)
def test_one_that_never_ends_is_waited_for_for_a_while(ras: Ras) -> None:
    assert ask(ras.port, 15) == "half"


@pytest.mark.parametrize("port", [0, 70000, "x", "1;rm", ""])
def test_what_is_no_address_is_not_asked(port: object) -> None:
    assert ask(port) == ""


@pytest.mark.parametrize("ras", [{"answer": BEHIND.encode()}], indirect=True)
@pytest.mark.parametrize("host", ["a..b", "\udcff"])
def test_a_host_that_no_name_can_be_is_not_asked(ras: Ras, host: str) -> None:
    assert ask(ras.port, host=host) == ""


@pytest.mark.parametrize("ras", [{"answer": BEHIND.encode()}], indirect=True)
def test_a_stranger_at_the_port_is_not_asked(ras: Ras, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1 << 20)
    assert ask(ras.port) == ""
    assert ras.asked == b""
