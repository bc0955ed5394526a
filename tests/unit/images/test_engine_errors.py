"""What Docker's clients say, explained. The sentences were recorded from 20.10.24 and 28.2.2."""

from __future__ import annotations

import pytest

from clusterkit.core.commands import Answer
from clusterkit.core.errors import UserError
from clusterkit.images import engine
from clusterkit.images.engine import docker_error

_SOCKET = "dial unix /var/run/docker.sock: connect: permission denied"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("sh: 4: docker: not found", "there is no docker"),
        ("docker: command not found", "there is no docker"),
        ("sh: 3: docker: Permission denied", "no permission to run docker"),
        (
            f"permission denied while trying to connect to the Docker daemon socket: {_SOCKET}",
            "no permission for the Docker daemon",
        ),
        (
            f"Got permission denied while trying to connect to the Docker daemon socket: {_SOCKET}",
            "no permission for the Docker daemon",
        ),
        (
            "Cannot connect to the Docker daemon at unix:///nosuch. Is the docker daemon running?",
            "the Docker daemon does not answer",
        ),
        (
            "Error processing tar file(exit status 1): write /usr/x: no space left on device",
            "the disk of Docker is full",
        ),
        (
            "\nError response from daemon: No such image: nosuch:1\n",
            "No such image: nosuch:1",
        ),
        ("Error: No such image: nosuch:1", "No such image: nosuch:1"),
        ("", "docker says nothing"),
    ],
)
def test_what_docker_says_is_explained(said: str, message: str) -> None:
    error = docker_error(said)
    assert error.message == message
    assert bool(error.hint) == (message[0].islower() and "says" not in message)


def test_an_engine_that_does_not_answer_is_not_one_without_the_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = f"permission denied while trying to connect to the Docker daemon socket: {_SOCKET}"
    refused = Answer(code=1, output="", errors=said)
    monkeypatch.setattr(engine, "ask", lambda *_: refused)
    with pytest.raises(UserError, match="cannot look at x:1: no permission for the Docker"):
        engine.inspect("x:1")
