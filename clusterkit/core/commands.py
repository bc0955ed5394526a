"""Run a command of this machine (Slurm's, mostly) with a time limit, and tell how it failed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MISSING = 127
TIMED_OUT = 124
CANNOT_RUN = 126
_FIELD = re.compile(r"\{([a-z_]+)\}")
_SPEAKER = re.compile(r"^[a-z]+: (?:error|fatal): ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command said."""

    code: int
    output: str = ""
    errors: str = ""
    ran: bool = True
    """Whether there was such a program, and it was started."""

    @property
    def found(self) -> bool:
        """Whether there is such a program."""
        return self.ran or self.code != MISSING

    @property
    def ok(self) -> bool:
        """Whether it ran and ended well."""
        return self.code == 0

    @property
    def complaint(self) -> str:
        """The first line of what went wrong, without the name of the tool."""
        lines = (self.errors.strip() or self.output.strip()).splitlines()
        return _SPEAKER.sub("", lines[0].strip()) if lines else f"exit code {self.code}"


def run_command(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    folder: str | None = None,
    timeout_s: float = 30.0,
    given: bytes = b"",
) -> Answer:
    """Run `command` to its end, `given` what it reads; `code` says where it has no own end.

    It answers in English, unless it is given an `environment`: sbatch hands that on to the job.
    Bytes that are no UTF-8 (job names may hold any) are replaced. It runs in `folder`, or here.
    """
    try:
        done = subprocess.run(
            list(command),
            check=False,
            capture_output=True,
            input=given,
            cwd=folder,
            env=dict(environment if environment is not None else {**os.environ, "LC_ALL": "C"}),
            timeout=timeout_s,
        )
    except FileNotFoundError:
        return Answer(code=MISSING, errors=f"{command[0]}: command not found", ran=False)
    except PermissionError:
        return Answer(code=MISSING, errors=f"{command[0]}: permission denied", ran=False)
    except OSError as error:
        return Answer(code=CANNOT_RUN, errors=f"{command[0]}: {error.strerror}", ran=False)
    except subprocess.TimeoutExpired:
        return Answer(code=TIMED_OUT, errors=f"{command[0]}: no answer in {timeout_s:.0f} s")
    return Answer(
        code=done.returncode,
        output=done.stdout.decode(errors="replace"),
        errors=done.stderr.decode(errors="replace"),
    )


def filled_in(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return the words of a command with its value for each `{NAME}`; other names stay.

    They are filled in one by one and no shell reads them: a value may hold anything.
    """
    return [_FIELD.sub(lambda name: values.get(name[1], name[0]), word) for word in words]


def require_utf8() -> None:
    """Begin this process anew in Python's UTF-8 mode, where the locale gives names another one.

    There (PYTHONUTF8=0 with LC_ALL=C, or a locale of Latin-1) Python cannot open a file that a
    configuration in UTF-8 names, and writes other bytes into a script than the name has. To be
    called before anything was done: it is the same process, and has all arguments.
    """
    if sys.getfilesystemencoding() != "utf-8" and not sys.flags.utf8_mode:
        argv = [sys.executable, "-X", "utf8", *sys.orig_argv[1:]]
        os.execv(sys.executable, argv)  # noqa: S606 - it is this very program
