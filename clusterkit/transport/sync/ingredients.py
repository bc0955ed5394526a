"""What the environment of a node is made from: our wheel and its lock, and what the user adds."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterkit.core.data import data_dir
from clusterkit.core.distribution import DISTRIBUTION, FOREIGN, is_ours, own_requirements
from clusterkit.core.errors import UserError
from clusterkit.core.model import ClusterSpec
from clusterkit.core.version import __version__
from clusterkit.transport.sync.manifest import Manifest, manifest_of
from clusterkit.transport.sync.wheel import WHEEL_NAME, pack_wheel

LOCK_NAME = "lock.txt"
_NAME = re.compile(r"\s*([A-Za-z0-9][\w.-]*)")
_ELSEWHERE = ("-r", "-c", "--requirement", "--constraint", "-e", "--editable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingredients:
    """What the environment is made from."""

    venv: str
    """Where it is on the nodes; `~/` is the home there."""
    python: str
    """What makes it, as the nodes know it."""
    files: Manifest
    """What is sent: our wheel (of what runs here), its lock, and wheels of the user."""
    wheels: bool = False
    """Whether requirements come from wheels of the user; from nowhere else unless `index`."""
    requirements: str | None = None
    """The text of a requirements file."""
    index: bool = True
    """Whether pip may look where it looks by itself, beside the wheels."""
    own: tuple[str, ...] = ()
    """What clusterkit requires."""

    def stamp(self, python: Sequence[int]) -> str:
        """Return what tells an environment made from the same by this Python from all others."""
        made_of = [
            __version__,
            self.python,
            list(python),
            self.files.digest,
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
        UserError: a file is missing, or is no wheel; one asks for clusterkit itself; `index`
            without wheels.
    """
    if index and not wheels:
        raise UserError(
            "--index counts with --wheels only",
            hint="leave it out: without --wheels, pip looks in its index anyway",
        )
    sent = dict(_wheels(wheels))
    lock = data_dir("locks") / "core.txt"
    return Ingredients(
        venv=cluster.venv,
        python=python or "python3",
        files=manifest_of({**sent, WHEEL_NAME: pack_wheel(), LOCK_NAME: lock}),
        wheels=bool(wheels),
        requirements=_requirements(requirements) if requirements else None,
        index=index or not wheels,
        own=own_requirements(),
    )


def _wheels(paths: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield the wheels of the user; of ours, the one that runs here is sent instead."""
    for path in paths:
        here = sorted(path.glob("*.whl")) if path.is_dir() else [path]
        if not here or not all(one.is_file() and one.suffix == ".whl" for one in here):
            raise UserError(
                f"no wheel: {path}",
                hint="--wheels takes .whl files, and folders that hold some: "
                "pip download --only-binary :all: --dest wheels PACKAGE",
            )
        for one in here:
            if not is_ours(name := one.name.partition("-")[0]):
                yield one.name, one.absolute()
            elif name == FOREIGN:
                raise UserError(
                    f"{one} is not this clusterkit: on the index, that name is somebody else's",
                    hint="remove it; nodes get the clusterkit that runs here without being asked",
                )


def _requirements(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}",
            hint="--requirements FILE, as for pip",
        ) from error
    for line in text.splitlines():
        if line.strip().startswith(_ELSEWHERE):
            raise UserError(
                f"{path}: {line.strip()!r} names a file that the nodes do not have",
                hint="write all requirements into the one file: pip freeze > requirements.txt",
            )
        if (named := _NAME.match(line)) and is_ours(named[1]):
            raise UserError(
                f"{path}: {line.strip()!r} asks for clusterkit, which no index has "
                f"({FOREIGN} there is another project)",
                hint="remove the line: nodes get the clusterkit that runs here anyway "
                f"(distribution {DISTRIBUTION})",
            )
    return text
