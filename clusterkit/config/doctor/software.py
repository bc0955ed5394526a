"""Python, the packages that clusterkit needs, and those that a training job needs."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
from collections.abc import Iterator

from clusterkit.config.doctor.machine import Condition, Item, Patient
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


def python(_patient: Patient) -> Iterator[Item]:
    """Yield this Python and clusterkit itself."""
    version = platform.python_version()
    wanted = ".".join(map(str, MIN_PYTHON))
    good = sys.version_info[:2] >= MIN_PYTHON
    yield Item(
        name="python",
        condition=Condition.OK if good else Condition.FAIL,
        summary=f"{version} ({sys.executable})",
        fix=None if good else f"install Python {wanted} or newer",
        needed=True,
    )
    yield Item(name="clusterkit", condition=Condition.OK, summary=__version__)
    foreign = foreign_distribution()
    if foreign is not None:
        yield _foreign(f"this Python has {FOREIGN} {foreign.version}", sys.executable)


def packages(_patient: Patient) -> Iterator[Item]:
    """Yield the packages of this Python."""
    for name in ("submitit", "fabric"):
        yield _package(name, _version(name), needed=True)
    for name in FRAMEWORK_PACKAGES:
        yield _package(name, _version(name), needed=False)


def training_pythons(patient: Patient) -> Iterator[Item]:
    """Yield what the interpreters that clusters name have, where they are on this machine."""
    script = (
        "import importlib.metadata as m, json\n"
        "def v(n):\n"
        " try: return m.version(n)\n"
        " except m.PackageNotFoundError: return None\n"
        "print(json.dumps({n: v(n) for n in "
        f"{(FOREIGN, *FRAMEWORK_PACKAGES)}}}))"
    )
    for python in patient.pythons():
        answer = patient.run((python, "-c", script))
        if not answer.found:
            summary = f"{python} is not on this machine; the nodes may have it"
            yield Item(name="job python", condition=Condition.WARN, summary=summary)
            continue
        try:
            versions = json.loads(answer.output) if answer.ok else {}
        except ValueError:
            versions = {}
        foreign = versions.pop(FOREIGN, None)
        if foreign is not None and python != sys.executable:  # of this one, all is said above
            yield _foreign(f"{python} has {FOREIGN} {foreign}", python)
        complaint = "no training framework" if answer.ok else answer.complaint
        there = ", ".join(f"{package} {v}" for package, v in versions.items() if v)
        yield Item(
            name="job python",
            condition=Condition.OK if there else Condition.WARN,
            summary=f"{python}: {there or complaint}",
            fix=None if there else f"{python} -m pip install torch",
        )


def torch_stores(patient: Patient) -> Iterator[Item]:
    """Yield the interpreters whose torch cannot make the store by which its processes meet."""
    here = (sys.executable,) if _version("torch") else ()
    for python in dict.fromkeys((*here, *patient.pythons())):
        answer = patient.run((python, "-c", _MAKE_STORE))
        if answer.ok and "libuv" in answer.output:
            yield Item(
                name="torch",
                condition=Condition.WARN,
                summary=f"{python}: its torch was built without libuv: torchrun and accelerate "
                "cannot meet over several nodes",
                fix=f"{python} -m pip install torch (a build with libuv); or --env USE_LIBUV=0 "
                "with --framework env, mpi, horovod or deepspeed",
            )


def _foreign(where: str, python: str) -> Item:
    return Item(
        name="clusterkit",
        condition=Condition.FAIL,
        summary=f"{where}, another project whose files lie over ours (or ours under its old name)",
        fix=f"{python} -m pip uninstall {FOREIGN}, then install {DISTRIBUTION} again",
    )


def _package(name: str, version: str | None, *, needed: bool) -> Item:
    return Item(
        name=name,
        condition=Condition.OK if version else Condition.MISSING,
        summary=version or "not in this Python",
        fix=None if version else f"{sys.executable} -m pip install {name}",
        needed=needed,
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
