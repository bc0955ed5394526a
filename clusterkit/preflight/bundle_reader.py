"""Read a bundle back, which may come from anywhere: nothing in it is taken on trust."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError

from clusterkit import __version__, files
from clusterkit.errors import UserError
from clusterkit.preflight.bundle import MANIFEST, SCHEMA, Bundle
from clusterkit.preflight.garbage import uncollected
from clusterkit.probes.base import Output, PreflightJob, Reach
from clusterkit.transport.base import Reply

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")
"""Names of nodes and probes, which are names of files."""
_SAVE = "a bundle is written by `clusterkit preflight --save DIR`"
_AGAIN = "ask for the bundle again, whole: `clusterkit preflight --save DIR`"

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    exit_code: int | None
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    name: str
    reach: Reach
    probes: Mapping[str, _Ended]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Manifest:
    job: PreflightJob
    nodes: tuple[_Node, ...]
    collected_at: float
    seconds: float
    clusterkit: str
    checks: tuple[str, ...] = ()


_MANIFEST = TypeAdapter(_Manifest)
_JOB = TypeAdapter(PreflightJob)


@uncollected()
def read_bundle(folder: Path) -> Bundle:
    """Return the bundle in `folder`.

    Raises:
        UserError: it is none, it is damaged, or a newer clusterkit wrote it.
    """
    path = folder / MANIFEST
    text = _manifest_text(folder)
    _check_schema(path, _parsed(path, text))
    manifest = _valid(_MANIFEST, text, str(path), hint=_AGAIN)
    _check_names(path, manifest)
    return Bundle(
        job=manifest.job,
        replies=tuple(_reply(folder, node) for node in manifest.nodes),
        collected_at=manifest.collected_at,
        seconds=manifest.seconds,
        checks=manifest.checks,
        written_by=manifest.clusterkit,
    )


def read_job(document: Mapping[str, Any], *, hosts: tuple[str, ...]) -> PreflightJob:
    """Return the job in a JSON document, with these hosts instead of its own.

    Raises:
        UserError: the document is damaged.
    """
    job = _valid(_JOB, json.dumps(document.get("job")), "the job of a preflight")
    return dataclasses.replace(job, hosts=hosts)


def _manifest_text(folder: Path) -> bytes:
    path = folder / MANIFEST
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {what}: it is no folder of a bundle", hint=_SAVE)
    if path.is_symlink():
        _refuse_link(path)
    if not path.is_file():
        raise UserError(f"{folder} is no bundle: there is no file {MANIFEST} in it", hint=_SAVE)
    with files.explained(path, "read"):
        return path.read_bytes()


def _parsed(path: Path, text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:  # also bytes that are no UTF-8
        raise UserError(f"{path} is damaged: it is no whole JSON: {error}", hint=_AGAIN) from error
    except RecursionError:
        raise UserError(f"{path} is damaged: nested too deeply", hint=_AGAIN) from None


def _check_schema(path: Path, document: Any) -> None:
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema is None:
        raise UserError(f"{path} is no manifest of a bundle: it names no schema", hint=_SAVE)
    if type(schema) is not int or schema < SCHEMA:
        raise UserError(f"{path} is damaged: there is no schema {schema!r}", hint=_AGAIN)
    if schema > SCHEMA:
        raise UserError(
            f"{path} has schema {schema}, this clusterkit {__version__} reads {SCHEMA}"
            f" (written by clusterkit {document.get('clusterkit', 'of unknown version')})",
            hint="read it with the clusterkit that wrote it, or a newer one",
        )


def _valid(kind: TypeAdapter[T], text: str | bytes, source: str, *, hint: str | None = None) -> T:
    """Return `text` as `kind`; what is in it and not known is left out."""
    try:
        return kind.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise UserError(f"{source} is damaged: {where}: {first['msg']}", hint=hint) from error


def _check_names(path: Path, manifest: _Manifest) -> None:
    names = tuple(node.name for node in manifest.nodes)
    probes = {probe for node in manifest.nodes for probe in node.probes}
    odd = next((name for name in (*names, *probes) if not _SAFE.fullmatch(name)), None)
    if odd is not None:
        why = f"{odd!r} is no name of a node or a probe"
    elif not names:
        why = "it names no node"
    elif len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        why = f"node {twice} stands twice"
    elif set(manifest.job.hosts) != set(names):
        why = "its job is for other nodes than those that answered"
    else:
        return
    raise UserError(f"{path} is damaged: {why}", hint=_AGAIN)


def _reply(folder: Path, node: _Node) -> Reply:
    here = folder / node.name
    texts = _texts(here, node.probes)
    outputs = {
        probe: Output(
            stdout=texts.get(f"{probe}.out", ""),
            stderr=texts.get(f"{probe}.err", ""),
            exit_code=ended.exit_code,
            seconds=ended.seconds,
        )
        for probe, ended in node.probes.items()
    }
    return Reply(node=node.name, reach=node.reach, outputs=outputs)


def _texts(folder: Path, probes: Collection[str]) -> dict[str, str]:
    # Tens of thousands of small files: without pathlib and buffers they are read in half the time.
    texts: dict[str, str] = {}
    if folder.is_symlink():
        _refuse_link(folder)
    at = str(folder)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name[:-4] not in probes:
                    continue
                at = entry.path
                if not entry.is_file(follow_symlinks=False):
                    _refuse_link(Path(at))
                with open(at, "rb", buffering=0) as file:  # noqa: PTH123
                    texts[entry.name] = file.read().decode(errors="replace")
    except FileNotFoundError:
        return texts  # nothing was printed there
    except OSError as error:
        raise UserError(f"cannot read {at}: {error.strerror or error}", hint=_AGAIN) from error
    return texts


def _refuse_link(path: Path) -> NoReturn:
    what = "a symbolic link" if path.is_symlink() else "no regular file"
    raise UserError(f"{path} is {what}: there is none in a bundle", hint=_AGAIN)
