"""`clusterkit nodes prepare`: the virtual environment on each node, made or brought up to date."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from clusterkit import __version__
from clusterkit.core.untrusted import whole
from clusterkit.errors import RemoteError, UserError
from clusterkit.listing import cut
from clusterkit.model import ClusterSpec
from clusterkit.sync.deliver import Place, deliver
from clusterkit.sync.helper import Helper, NoPython
from clusterkit.sync.manifest import MIB, Manifest, manifest_of
from clusterkit.transport.ssh_config import SshOptions
from clusterkit.transport.ssh_session import Session, on_nodes

OLDEST_PYTHON = (3, 11)
_ROOM_MIB = 150
"""What an environment with our own dependencies needs, and some room for pip to work in."""
_UNPACKED = 4
"""How much larger wheels are once they are installed, torch included."""
_PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "install")
_PROOF = "import clusterkit, clusterkit.executors.ssh_keeper; print(clusterkit.__version__)"
_LONGEST = 500
"""Characters of what a node says of itself."""
_REQUIREMENTS = "requirements.txt"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingredients:
    """What the environment is made from."""

    venv: str
    """Where it is on the nodes; `~/` is the home there."""
    python: str
    """What makes it, as the nodes know it."""
    wheels: Manifest | None = None
    requirements: str | None = None
    """The text of a requirements file."""
    index: bool = True
    """Whether pip may look where it looks by itself, beside the wheels."""

    def stamp(self, python: Sequence[int]) -> str:
        """Return what tells an environment made from the same by this Python from all others."""
        made_of = [
            __version__,
            self.python,
            list(python),
            self.wheels.digest if self.wheels else None,
            self.requirements,
            self.index,
        ]
        return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()


def read_ingredients(
    cluster: ClusterSpec,
    *,
    wheels: Sequence[Path],
    requirements: Path | None,
    python: str | None,
    index: bool,
) -> Ingredients:
    """Read what is to be installed.

    Raises:
        UserError: a file is not there, or is no wheel; `index` without wheels.
    """
    if index and not wheels:
        raise UserError(
            "--index counts with --wheels only",
            hint="leave it out: without --wheels, pip looks in its index anyway",
        )
    return Ingredients(
        venv=cluster.venv,
        python=python or "python3",
        wheels=_wheels(wheels) if wheels else None,
        requirements=_requirements(requirements) if requirements else None,
        index=index or not wheels,
    )


def prepare_nodes(
    cluster: ClusterSpec, nodes: Sequence[str], ingredients: Ingredients
) -> tuple[Prepared, ...]:
    """Prepare all of the nodes at once; one that is up to date already is left alone.

    Raises:
        UserError: ssh's configuration cannot be read, or a wheel has changed meanwhile.
    """

    def work(session: Session) -> Prepared:
        return _prepare(session, ingredients)

    answers = on_nodes(SshOptions.of(cluster), nodes, work)
    return tuple(
        Prepared(
            node=node,
            readiness=Readiness.FAILED,
            detail=cut(answer.message, _LONGEST),
            hint=answer.hint,
        )
        if isinstance(answer, RemoteError)
        else answer
        for node, answer in answers.items()
    )


def _failed(node: str, error: RemoteError) -> Prepared:
    why = cut(error.message, _LONGEST)
    return Prepared(node=node, readiness=Readiness.FAILED, detail=why, hint=error.hint)


def _wheels(paths: Sequence[Path]) -> Manifest:
    """Return the wheels as one manifest, by their names alone."""
    found: dict[str, Path] = {}
    for path in paths:
        here = sorted(path.glob("*.whl")) if path.is_dir() else [path]
        if not here or not all(one.is_file() and one.suffix == ".whl" for one in here):
            raise UserError(
                f"no wheel: {path}",
                hint="--wheels takes .whl files, and folders that hold some; "
                "`pip wheel --wheel-dir wheels .` makes one of a checkout",
            )
        found |= {one.name: one.absolute() for one in here}
    return manifest_of(found)


def _requirements(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}",
            hint="--requirements FILE, as for pip",
        ) from error
    for line in text.splitlines():
        if line.strip().startswith(("-r", "-c", "--requirement", "--constraint", "-e")):
            raise UserError(
                f"{path}: {line.strip()!r} names a file that the nodes do not have",
                hint="write all requirements into the one file: pip freeze > requirements.txt",
            )
    return text


def _prepare(session: Session, wanted: Ingredients) -> Prepared:
    helper = _helper(session, wanted.python)
    stamp_file = f"{wanted.venv}/clusterkit-stamp.json"
    config = f"{wanted.venv}/pyvenv.cfg"
    seen = helper.ask("look", place=wanted.venv, read=stamp_file, need=[config], lock=True)
    version = _require_python(session.node, seen, wanted)
    if seen["full"] and seen["missing"]:
        raise RemoteError(
            f"{seen['place']} is no virtual environment, and not empty",
            node=session.node,
            hint="set `venv:` of the cluster to a folder that is not there yet",
        )
    stamp = wanted.stamp(seen["python"])
    made = _parsed(seen["text"])
    python = f"{wanted.venv}/bin/python"
    if made.get("stamp") == stamp and _proven(helper, python) == __version__:
        return Prepared(node=session.node, readiness=Readiness.UP_TO_DATE, detail=version)
    _require_room(session.node, seen, wanted)
    other = made.get("python") not in {None, version}  # one that we have made, for another Python
    _run(helper, [wanted.python, "-m", "venv", *(("--clear",) if other else ()), wanted.venv])
    about = {"python": version, "clusterkit": __version__}
    # Without its stamp: whoever breaks it off has to do it again.
    helper.ask("write", path=stamp_file, text=json.dumps(about))
    _install(helper, wanted)
    there = _proven(helper, python)
    if there != __version__:
        raise RemoteError(
            f"clusterkit {there} is there, and {__version__} here"
            if there
            else "clusterkit cannot be imported there",
            node=session.node,
            hint="give the wheel of this release: --wheels FILE.whl",
        )
    helper.ask("write", path=stamp_file, text=json.dumps({**about, "stamp": stamp}))
    return Prepared(node=session.node, readiness=Readiness.READY, detail=version)


def _helper(session: Session, python: str) -> Helper:
    try:
        return Helper(session, python)
    except NoPython as error:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise RemoteError(
            error.message,
            node=session.node,
            hint=f"install Python {oldest} or later there, or name it: --python /PATH/TO/PYTHON",
        ) from error


def _require_python(node: str, seen: dict[str, Any], wanted: Ingredients) -> str:
    version = ".".join(str(whole(str(number), most=999)) for number in seen["python"][:3])
    if tuple(seen["python"][:2]) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise RemoteError(
            f"{wanted.python} is Python {version}, and {oldest} or later is needed",
            node=node,
            hint=f"name another one of that node: --python python{oldest}",
        )
    return f"Python {version}"


def _require_room(node: str, seen: dict[str, Any], wanted: Ingredients) -> None:
    size = wanted.wheels.size if wanted.wheels else 0
    needed = _ROOM_MIB + size * (1 + _UNPACKED) // MIB
    free = seen["free"] // MIB
    if free < needed:
        raise RemoteError(
            f"{free} MiB are free at {seen['place']}, and about {needed} MiB are needed",
            node=node,
            hint="free some space there, or set `venv:` of the cluster to another disk",
        )


def _install(helper: Helper, wanted: Ingredients) -> None:
    python = f"{wanted.venv}/bin/python"
    inputs = f"{wanted.venv}.inputs"
    ours = f"clusterkit=={__version__}"
    words: list[str] = []
    if wanted.wheels is not None:
        flat = deliver(helper, wanted.wheels, Place(folder=inputs))
        words += ["--find-links", flat.folder]
    if not wanted.index:
        words.append("--no-index")
    if wanted.requirements is not None:
        path = f"{inputs}.{_REQUIREMENTS}"
        helper.ask("write", path=path, text=wanted.requirements)
        words += ["-r", path]
    _run(helper, [python, *_PIP, *words, ours], index=wanted.index)
    if wanted.wheels is not None and any(
        entry.path.startswith("clusterkit-") for entry in wanted.wheels.entries
    ):
        # A wheel of the same version may have other contents than what is installed.
        again = ("--force-reinstall", "--no-deps", "--no-index")
        _run(helper, [python, *_PIP, *again, "--find-links", flat.folder, ours])


def _proven(helper: Helper, python: str) -> str:
    try:
        done = helper.ask("run", argv=[python, "-I", "-c", _PROOF])
    except RemoteError:
        return ""
    return str(done["said"]).strip() if done["code"] == 0 else ""


def _run(helper: Helper, argv: Sequence[str], *, index: bool = False) -> None:
    done = helper.ask("run", argv=list(argv), env={"PYTHONNOUSERSITE": "1"})
    if done["code"]:
        said = str(done["said"])
        raise RemoteError(_reason(said, argv), node=helper.node, hint=_hint(said, index=index))


def _reason(said: str, argv: Sequence[str]) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or [f"{' '.join(argv)} has failed"])[-1]


def _hint(said: str, *, index: bool) -> str | None:
    """Return what to do about what pip has `said`; it has looked in its `index`, or not."""
    if "ensurepip" in said:
        return "Python lacks its venv module there: apt install python3-venv, or another --python"
    if "No matching distribution" in said or "Could not find a version" in said:
        more = "" if index else ", or let pip look in its index: --index"
        return f"give a wheel of it: --wheels DIR{more}"
    if "No space left" in said:
        return "free some space there, or set `venv:` of the cluster to another disk"
    return None


def _parsed(text: str | None) -> dict[str, Any]:
    try:
        document = json.loads(text or "{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
