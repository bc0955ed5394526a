"""A session on this very machine: what a node would run, without ssh."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path


class TalkHere:
    """A script of sh on this machine, with its input and output."""

    def __init__(self, script: str, home: Path) -> None:
        self.process = subprocess.Popen(
            ["sh"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin"},
        )
        self.send(script.encode())

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def expect(self, limit_s: float) -> None:
        """Nothing here is hostile."""

    def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def line(self) -> bytes | None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return line.rstrip(b"\n") if line else None

    def take(self, count: int) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.read(count)

    def error_output(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode().strip()

    def exit_code(self) -> int:
        return self.process.wait(60)

    def leave(self) -> None:
        """End the conversation, as a closed connection does."""
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            with suppress(BrokenPipeError):  # what was still to be sent, to one who has left
                stream.close()
        self.process.wait(60)


class SessionHere:
    """A login on this machine with a home of its own."""

    node = "here"

    def __init__(self, home: Path) -> None:
        self.home = home
        self.talks: list[TalkHere] = []

    def within(self, limit_s: float) -> SessionHere:
        del limit_s
        return self

    def talk(self, script: str) -> TalkHere:
        self.talks.append(TalkHere(script, self.home))
        return self.talks[-1]

    def leave(self) -> None:
        while self.talks:
            self.talks.pop().leave()
