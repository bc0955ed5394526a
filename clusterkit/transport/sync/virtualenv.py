"""`clusterkit nodes prepare`: the virtual environment on each node, made or brought up to date."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

from clusterkit.core import files
from clusterkit.core.data import read_template
from clusterkit.core.distribution import DISTRIBUTION, FOREIGN
from clusterkit.core.errors import RemoteError
from clusterkit.core.model import ClusterSpec
from clusterkit.core.shell import quote_path
from clusterkit.core.text import cut
from clusterkit.core.untrusted import whole
from clusterkit.core.version import __version__
from clusterkit.transport.login import LoginNode
from clusterkit.transport.ssh.config import SshOptions
from clusterkit.transport.ssh.session import Session, on_nodes
from clusterkit.transport.sync.deliver import PRIVATE, Place, deliver
from clusterkit.transport.sync.helper import Helper, NoPython
from clusterkit.transport.sync.ingredients import LOCK_NAME, Ingredients
from clusterkit.transport.sync.manifest import MIB
from clusterkit.transport.sync.wheel import WHEEL_NAME

OLDEST_PYTHON = (3, 11)
_OLDEST = ".".join(map(str, OLDEST_PYTHON))
_NO_PYTHON = f"install Python {_OLDEST} or later there, or name it: --python /PATH/TO/PYTHON"
_ROOM_MIB = 150
"""What an environment with our own dependencies needs, and some room for pip to work in."""
_UNPACKED = 4
"""How much larger wheels are once they are installed, torch included."""
_PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "install")
_INPUTS = ".inputs"
"""Behind the name of the environment: the folder beside it with what it is made from."""
_LONGEST = 500
"""Characters of what a node says of itself."""


class Readiness(StrEnum):
    """What became of a node."""

    UP_TO_DATE = "up to date"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """One node after it was prepared, or why it is not."""

    node: str
    readiness: Readiness
    detail: str = ""
    hint: str | None = None


def prepare_nodes(
    cluster: ClusterSpec, nodes: Sequence[str], ingredients: Ingredients
) -> tuple[Prepared, ...]:
    """Prepare all of the nodes at once; one that is up to date already is left alone.

    Of a cluster that has `login`, that login node is all.

    Raises:
        UserError: ssh's configuration cannot be read, or a wheel has changed meanwhile.
    """
    answers: Mapping[str, Prepared | RemoteError]
    if cluster.login is not None:
        answers = _on_login_node(LoginNode(cluster.login), ingredients)
    else:
        options = SshOptions.of(cluster)
        answers = on_nodes(options, nodes, lambda session: _prepare(session, ingredients))
    return tuple(
        Prepared(
            node=node,
            readiness=Readiness.FAILED,
            detail=cut(answer.message, _LONGEST),
            hint=_NO_PYTHON if isinstance(answer, NoPython) else answer.hint,
        )
        if isinstance(answer, RemoteError)
        else answer
        for node, answer in answers.items()
    )


def _on_login_node(node: LoginNode, ingredients: Ingredients) -> dict[str, Prepared | RemoteError]:
    try:
        return {node.name: _prepare(node.session(), ingredients)}
    except RemoteError as error:
        return {node.name: error}


def _prepare(session: Session, ingredients: Ingredients) -> Prepared:
    helper = Helper(session, ingredients.python)
    stamp_file = f"{ingredients.venv}/clusterkit-stamp.json"
    python = f"{ingredients.venv}/bin/python"
    seen = helper.ask(
        "look",
        place=ingredients.venv,
        read=stamp_file,
        need=[python],
        lock=True,
        trusted=[f"{ingredients.venv}{_INPUTS}"],
    )
    made = files.parse_json((seen["text"] or "").encode()) or {}
    if seen["full"] and not made:  # another Python than the one that made it would break it
        if seen["missing"]:
            raise RemoteError(
                f"{seen['place']} is not a virtual environment, and not empty",
                hint="set `venv:` of the cluster to one, or to a folder that does not exist yet",
            )
        return _checked(helper, python, ingredients)
    version = _require_python(seen, ingredients)
    stamp = ingredients.stamp(seen["python"])
    if made.get("stamp") == stamp and _proven(helper, python) == __version__:
        return Prepared(node=session.node, readiness=Readiness.UP_TO_DATE, detail=version)
    _require_room(seen, ingredients)
    other = made.get("python") not in {None, version}  # one that we have made, for another Python
    about = {"python": version, "clusterkit": __version__}
    _run(helper, ["mkdir", "-p", ingredients.venv])
    # Ours from the start, and without its stamp: whoever breaks it off has to do it again.
    helper.ask("write", path=stamp_file, text=json.dumps(about))
    _run(
        helper,
        [ingredients.python, "-m", "venv", *(("--clear",) if other else ()), ingredients.venv],
    )
    helper.ask("write", path=stamp_file, text=json.dumps(about))
    _install(helper, ingredients, again=bool(seen["full"]))
    there = _proven(helper, python)
    if there != __version__:
        raise RemoteError(
            f"clusterkit {there} is there, and {__version__} here"
            if there
            else "clusterkit cannot be imported there",
            hint="remove the environment there and try again: rm -r "
            + quote_path(ingredients.venv),
        )
    helper.ask("write", path=stamp_file, text=json.dumps({**about, "stamp": stamp}))
    return Prepared(node=session.node, readiness=Readiness.READY, detail=version)


def _checked(helper: Helper, python: str, ingredients: Ingredients) -> Prepared:
    """Return a node whose `venv:` is an environment that we have not made, and do not change."""
    what, hint = f"{ingredients.venv} was not made by nodes prepare", None
    if ingredients.wheels or ingredients.requirements is not None:
        what += ", which installs nothing in it"
        hint = "leave --wheels and --requirements out"
    elif (there := _proven(helper, python)) != __version__:
        what += f", and has clusterkit {there}" if there else ", and cannot import clusterkit"
        hint = f"install clusterkit {__version__} in it"
    if hint is not None:
        raise RemoteError(
            what, hint=f"{hint}; or set `venv:` of the cluster to a folder that does not exist yet"
        )
    version = cut(str(helper.ask("run", argv=[python, "-V"])["said"]).strip(), _LONGEST)
    detail = f"{version}; an environment of your own, used as it is"
    return Prepared(node=helper.node, readiness=Readiness.UP_TO_DATE, detail=detail)


def _require_python(seen: dict[str, Any], ingredients: Ingredients) -> str:
    version = ".".join(str(whole(str(number), maximum=999)) for number in seen["python"][:3])
    if tuple(seen["python"][:2]) < OLDEST_PYTHON:
        raise RemoteError(
            f"{ingredients.python} is Python {version}, and {_OLDEST} or later is needed",
            hint=f"name another one of that node: --python python{_OLDEST}",
        )
    return f"Python {version}"


def _require_room(seen: dict[str, Any], ingredients: Ingredients) -> None:
    needed = _ROOM_MIB + ingredients.files.size * (1 + _UNPACKED) // MIB
    free = seen["free"] // MIB
    if free < needed:
        raise RemoteError(
            f"{free} MiB are free at {seen['place']}, and about {needed} MiB are needed",
            hint="free some space there, or set `venv:` of the cluster to another disk",
        )


def _install(helper: Helper, ingredients: Ingredients, *, again: bool) -> None:
    """Install what clusterkit requires, what the user requires, then clusterkit from its file.

    Constraints keep what others require from bringing a clusterkit of somebody else along.
    """
    python = f"{ingredients.venv}/bin/python"
    place = Place(folder=f"{ingredients.venv}{_INPUTS}", folder_mode=PRIVATE)
    sent = deliver(helper, ingredients.files, place).folder
    if not sent.startswith("/"):
        raise RemoteError(f"it names no folder: {cut(sent, _LONGEST)!r}", node=helper.node)
    if again:
        _run(helper, [python, "-m", "pip", "uninstall", "--yes", FOREIGN])
    constraints = f"{sent}/constraints.txt"
    own_file = f"{DISTRIBUTION} @ {PurePosixPath(sent, WHEEL_NAME).as_uri()}"
    helper.ask("write", path=constraints, text=f"{own_file}\n{FOREIGN}<0\n")
    arguments = ["--constraint", constraints, *ingredients.own]
    if ingredients.wheels:
        arguments += ["--find-links", sent]
    else:
        locked = ("--no-deps", "--require-hashes", "--requirement", f"{sent}/{LOCK_NAME}")
        _run(helper, [python, *_PIP, *locked], index=True)
    if not ingredients.index:
        arguments.append("--no-index")
    if ingredients.requirements is not None:
        path = f"{sent}/requirements.txt"
        helper.ask("write", path=path, text=ingredients.requirements)
        arguments += ["--requirement", path]
    if ingredients.wheels or ingredients.requirements is not None:
        _run(helper, [python, *_PIP, *arguments], index=ingredients.index)
    # The same version may have other contents than what is installed.
    own = ("--no-index", "--no-deps", "--force-reinstall", f"{sent}/{WHEEL_NAME}")
    _run(helper, [python, *_PIP, *own])


def _proven(helper: Helper, python: str) -> str:
    try:
        program = read_template("programs/machine/installed.py")
        done = helper.ask("run", argv=[python, "-I", "-c", program, FOREIGN, DISTRIBUTION])
    except RemoteError:
        return ""
    return str(done["said"]).strip() if done["code"] == 0 else ""


def _run(helper: Helper, argv: Sequence[str], *, index: bool = False) -> None:
    done = helper.ask("run", argv=list(argv), env={"PYTHONNOUSERSITE": "1"})
    if done["code"]:
        output = str(done["said"])
        if index and _UNREACHABLE.search(output):
            raise RemoteError(f"{helper.node} reaches no package index", hint=_WITHOUT_INDEX)
        raise RemoteError(_reason(output, argv), node=helper.node, hint=_hint(output, index=index))


_UNREACHABLE = re.compile(
    r"NewConnectionError|ConnectTimeoutError|ProxyError|name resolution|Network is unreachable"
)
"""Of pip's warnings, before the error that it saw no versions at all."""
_WITHOUT_INDEX = (
    "bring all packages (pip download; the page docs/how-to/air-gapped.md has it): --wheels DIR\n"
    "or write below the cluster in clusterkit.yaml which environment there has clusterkit:\n"
    "      venv: /path/to/env\n"
    "      python: /path/to/env/bin/python"
)


def _reason(output: str, argv: Sequence[str]) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or [f"{' '.join(argv)} has failed"])[-1]


def _hint(output: str, *, index: bool) -> str | None:
    """Return what to do about the `output` of pip; it has looked in its `index`, or not."""
    if "ensurepip" in output:
        return "Python lacks its venv module there: apt install python3-venv, or another --python"
    if f"(constraint) {FOREIGN}" in output:
        return f"a requirement asks for {FOREIGN}, which on the index is somebody else's project"
    if "DO NOT MATCH THE HASHES" in output:
        return "its index has other files than those that were locked: bring wheels: --wheels DIR"
    if "No matching distribution" in output or "Could not find a version" in output:
        more = "" if index else ", or let pip look in its index: --index"
        return f"give a wheel of it: --wheels DIR{more}"
    if "No space left" in output:
        return "free some space there, or set `venv:` of the cluster to another disk"
    return None
