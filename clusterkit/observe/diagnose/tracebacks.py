"""Exceptions after which Python goes on: at its end, in a destructor, in a thread."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ENDING = (
    b"Exception ignored ",
    b"Error in atexit._run_exitfuncs:",
    b"--- Logging error ---",
)
"""What stands before such a traceback (CPython Python/errors.c, atexitmodule.c, logging)."""
_SHARER = "/multiprocessing/resource_sharer.py"
_FINALIZERS = ", in _run_finalizers"
"""multiprocessing/util.py prints what a finalizer raises at the end of a process, and goes on."""
IGNORED = (
    *_ENDING,
    *(b"Exception in thread ", b"in _pin_memory_loop", _SHARER.encode(), _FINALIZERS.encode()),
)
"""Without any of these before it, no exception is one."""
_HEADS = tuple(head.decode() for head in _ENDING)
_THREAD = re.compile(r'Exception in thread (?!")|, in _pin_memory_loop$')
"""What stands before the traceback of a thread (CPython Lib/threading.py), or in one of PyTorch's.

It may follow a progress bar. Java has names in quotes, and tells of what ended the process as well.
"""
_OF_PROCESS = re.compile(
    r"\b(?:CUDA|HIP|NCCL)\b|OutOfMemory|out of memory|MemoryError|\[Errno (?:28|122)\]"
)
"""What a thread has met of memory, GPUs and disks, the others meet as well."""
_LOST = re.compile(
    r"(?:\w+\.)*(?:Connection\w*Error|BrokenPipeError|EOFError)\b"
    r"|FileNotFoundError: \[Errno 2\] No such file or directory$"
)
"""The process at the other end of a pipe or a socket of this machine is no more."""
_TRACEBACK = "Traceback (most recent call last):"
_CHAINS = ("During handling of the above exception,", "The above exception was the direct cause")


def ignored(exception: str, before: Iterable[str]) -> bool:
    """Tell whether a line is of a traceback after which its process went on.

    `before` are the lines before it, the last first. Processes that end together print theirs at
    once: of the same exception as often as it stands there, so often there has to be a head.
    A data-loader worker that was lost has a rule of its own, and none for the exception.
    """
    heads = 1
    chained = False
    lost = _LOST.match(exception) is not None
    threads = not _OF_PROCESS.search(exception)
    for line in before:
        if line.startswith(_HEADS) or (threads and _THREAD.search(line)):
            heads -= 1
            if not heads:
                return True
        elif (lost and _SHARER in line) or line.endswith(_FINALIZERS):
            return True
        elif line.startswith(_CHAINS):
            chained = True
        elif line and not line.startswith((" ", "\t", _TRACEBACK)):
            if line != exception and not chained:
                return False
            heads += not chained
            chained = False
    return False


def of_thread(line: str) -> bool:
    """Tell whether a line begins the traceback of a thread that Python goes on without."""
    return _THREAD.search(line) is not None


def ended_thread(after: Iterable[str]) -> bool:
    """Tell whether what stands below such a line ends with an exception, of no lost connection."""
    for line in after:
        if not line.startswith((" ", "\t", _TRACEBACK)) and not of_thread(line):
            return _LOST.match(line) is None
    return False
