"""Python, the packages that clusterkit needs, and those that a training job needs."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
from collections.abc import Iterator

from clusterkit.config.doctor.machine import Condition, Item, Machine, bad, good
from clusterkit.core.distribution import DISTRIBUTION, FOREIGN, foreign_distribution
from clusterkit.core.version import __version__

MIN_PYTHON = (3, 11)
_MAKE_STORE = """\
import socket
try:
    from torch.distributed import TCPStore
except ImportError:
    raise SystemExit
own = socket.create_server(("127.0.0.1", 0))
words = {"is_master": True, "wait_for_workers": False, "master_listen_fd": own.fileno()}
try:
    TCPStore("127.0.0.1", own.getsockname()[1], **words)
    own.detach()
except RuntimeError as error:
    print(error)
"""
"""Torch asks for libuv by default, and says there that it has none. Nobody else can reach it."""
FRAMEWORK_PACKAGES = ("torch", "deepspeed", "horovod", "accelerate")


def python(_machine: Machine) -> Iterator[Item]:
    """Yield this Python and clusterkit itself."""
    summary = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info[:2] >= MIN_PYTHON:
        yield good("python", summary, needed=True)
    else:
        fix = f"install Python {'.'.join(map(str, MIN_PYTHON))} or newer"
        yield bad("python", Condition.FAIL, summary, fix, needed=True)
    yield good("clusterkit", __version__)
    foreign = foreign_distribution()
    if foreign is not None:
        yield _foreign(f"this Python has {FOREIGN} {foreign.version}", sys.executable)


def packages(_machine: Machine) -> Iterator[Item]:
    """Yield the packages of this Python."""
    ours = ("submitit", "fabric")
    for name in (*ours, *FRAMEWORK_PACKAGES):
        version, needed = _version(name), name in ours
        if version:
            yield good(name, version, needed=needed)
        else:
            fix = f"{sys.executable} -m pip install {name}"
            yield bad(name, Condition.MISSING, "not in this Python", fix, needed=needed)


def training_pythons(machine: Machine) -> Iterator[Item]:
    """Yield what the interpreters that clusters name have, where they are on this machine."""
    script = (
        "import importlib.metadata as m, json\n"
        "def v(n):\n"
        " try: return m.version(n)\n"
        " except m.PackageNotFoundError: return None\n"
        "print(json.dumps({n: v(n) for n in "
        f"{(FOREIGN, *FRAMEWORK_PACKAGES)}}}))"
    )
    for python in machine.pythons():
        answer = machine.run((python, "-c", script))
        if not answer.found:
            summary = f"{python} is not on this machine; the nodes may have it"
            yield bad("job python", Condition.WARN, summary)
            continue
        try:
            versions = json.loads(answer.output) if answer.ok else {}
        except ValueError:
            versions = {}
        foreign = versions.pop(FOREIGN, None)
        if foreign is not None and python != sys.executable:  # of this one, all is said above
            yield _foreign(f"{python} has {FOREIGN} {foreign}", python)
        there = ", ".join(f"{package} {v}" for package, v in versions.items() if v)
        if there:
            yield good("job python", f"{python}: {there}")
        else:
            complaint = "no training framework" if answer.ok else answer.complaint
            fix = f"{python} -m pip install torch"
            yield bad("job python", Condition.WARN, f"{python}: {complaint}", fix)


def torch_stores(machine: Machine) -> Iterator[Item]:
    """Yield the interpreters whose torch cannot make the store by which its processes meet."""
    here = (sys.executable,) if _version("torch") else ()
    for python in dict.fromkeys((*here, *machine.pythons())):
        answer = machine.run((python, "-c", _MAKE_STORE))
        if answer.ok and "libuv" in answer.output:
            summary = f"{python}: its torch was built without libuv: torchrun and accelerate cannot"
            fix = f"{python} -m pip install torch (a build with libuv); or --env USE_LIBUV=0 with"
            others = "--framework env, mpi, horovod or deepspeed"
            summary += " meet over several nodes"
            yield bad("torch", Condition.WARN, summary, f"{fix} {others}")


def _foreign(where: str, python: str) -> Item:
    summary = f"{where}, another project whose files lie over ours (or ours under its old name)"
    fix = f"{python} -m pip uninstall {FOREIGN}, then install {DISTRIBUTION} again"
    return bad("clusterkit", Condition.FAIL, summary, fix)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
