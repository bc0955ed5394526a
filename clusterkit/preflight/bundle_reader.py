"""Read a bundle back, which may come from anywhere: nothing in it is taken on trust."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from clusterkit.core import files
from clusterkit.core.bounds import LATEST_S
from clusterkit.core.errors import UserError
from clusterkit.core.version import __version__
from clusterkit.preflight.bundle import MANIFEST, SCHEMA, Bundle, uncollected
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import Output, PreflightJob, Reach
from clusterkit.transport.script import MOST_OF_PROBE

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")
"""Names of nodes and probes, which are names of files."""
_MOST_MANIFEST = 64 << 20
_MOST_OUTPUTS = 256 << 20
"""Bytes: more than thousands of nodes print, and what fits into memory."""
_MOST_EXIT_CODE = 255
_LONGEST_S = 1e7
"""Of what takes minutes."""
_MOST_SLOTS = 100_000
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


@uncollected()
def read_bundle(folder: Path) -> Bundle:
    """Return the bundle in `folder`.

    Raises:
        UserError: it is none, it is damaged, or a newer clusterkit wrote it.
    """
    path = folder / MANIFEST
    text = _manifest_text(folder)
    _check_schema(path, _parsed(path, text))
    manifest = _valid(_Manifest, text, str(path), hint=_AGAIN)
    _check_names(path, manifest)
    _check_figures(path, manifest)
    return Bundle(
        job=manifest.job,
        replies=_replies(folder, manifest),
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
    job = _valid(PreflightJob, json.dumps(document.get("job")), "the job of a preflight")
    return dataclasses.replace(job, hosts=hosts)


def _manifest_text(folder: Path) -> bytes:
    path = folder / MANIFEST
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {what}: it is not a folder of a bundle", hint=_SAVE)
    if path.is_symlink():
        _refuse_link(path)
    if not path.is_file():
        raise UserError(f"{folder} is not a bundle: there is no file {MANIFEST} in it", hint=_SAVE)
    with files.explained(path, "read"), open(path, "rb", buffering=0, opener=_no_link) as file:
        text = _all_of(file, _MOST_MANIFEST)
    if text is None:
        _refuse_size(path, _MOST_MANIFEST)
    return text


def _no_link(path: str, flags: int) -> int:
    """Open a file itself, without waiting for whoever writes to a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _all_of(file: FileIO, most: int) -> bytes | None:
    """Return what is in a file; None where that is more than `most` bytes."""
    parts, left = [], most + 1
    while left and (part := file.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts) if left else None


def _refuse_size(path: Path, most: int) -> NoReturn:
    raise UserError(f"{path} is larger than {most >> 20} MiB: no bundle has that", hint=_AGAIN)


def _parsed(path: Path, text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:  # also bytes that are no UTF-8
        raise UserError(f"{path} is damaged: not complete JSON: {error}", hint=_AGAIN) from error
    except RecursionError:
        raise UserError(f"{path} is damaged: nested too deeply", hint=_AGAIN) from None


def _check_schema(path: Path, document: Any) -> None:
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema is None:
        raise UserError(f"{path} is not a manifest of a bundle: it names no schema", hint=_SAVE)
    if type(schema) is not int or schema < SCHEMA:
        raise UserError(f"{path} is damaged: there is no schema {schema!r}", hint=_AGAIN)
    if schema > SCHEMA:
        raise UserError(
            f"{path} has schema {schema}, this clusterkit {__version__} reads {SCHEMA}"
            f" (written by clusterkit {document.get('clusterkit', 'of unknown version')})",
            hint="read it with the clusterkit that wrote it, or a newer one",
        )


def _valid(kind: type[T], text: str | bytes, source: str, *, hint: str | None = None) -> T:
    """Return `text` as `kind`; what is in it and not known is left out."""
    # A sixth of the time in which a node looks at itself, which reads no bundle.
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415

    try:
        return TypeAdapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise UserError(f"{source} is damaged: {where}: {first['msg']}", hint=hint) from error


def _check_names(path: Path, manifest: _Manifest) -> None:
    names = tuple(node.name for node in manifest.nodes)
    probes = {probe for node in manifest.nodes for probe in node.probes}
    odd = next((name for name in (*names, *probes) if not _SAFE.fullmatch(name)), None)
    if odd is not None:
        why = f"{odd!r} is not a name of a node or a probe"
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


def _check_figures(path: Path, manifest: _Manifest) -> None:
    """Refuse numbers that no clusterkit has written, which would not stand in any page or sum."""
    job = manifest.job
    for name, value, most in (
        ("collected_at", manifest.collected_at, LATEST_S),
        ("seconds", manifest.seconds, _LONGEST_S),
        ("job.port", job.port, 65535),
        ("job.gpus_per_node", job.gpus_per_node, _MOST_SLOTS),
        *((f"job.slots.{host}", slots, _MOST_SLOTS) for host, slots in job.slots.items()),
        *(one for node in manifest.nodes for one in _figures(node)),
    ):
        if value is not None and not 0 <= value <= most:  # also what is not a number
            raise UserError(f"{path} is damaged: {name} is {value!s:.40}", hint=_AGAIN)


def _figures(node: _Node) -> Iterator[tuple[str, float | None, float]]:
    reach = node.reach
    skew_s = None if reach.clock_skew_s is None else abs(reach.clock_skew_s)
    for name, value, most in (
        ("connect_s", reach.connect_s, _LONGEST_S),
        ("latency_s", reach.latency_s, _LONGEST_S),
        ("clock_skew_s", skew_s, LATEST_S),
        ("seconds", reach.seconds, _LONGEST_S),
        *(("exit_code", abs(one.exit_code or 0), _MOST_EXIT_CODE) for one in node.probes.values()),
        *(("seconds", one.seconds, _LONGEST_S) for one in node.probes.values()),
    ):
        yield f"{name} of {node.name}", value, most


def _replies(folder: Path, manifest: _Manifest) -> tuple[Reply, ...]:
    replies, left = [], _MOST_OUTPUTS
    for node in manifest.nodes:
        replies.append(_reply(folder, node))
        texts = (text for one in replies[-1].outputs.values() for text in (one.stdout, one.stderr))
        left -= sum(map(len, texts))
        if left < 0:
            _refuse_size(folder, _MOST_OUTPUTS)
    return tuple(replies)


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
                with open(at, "rb", buffering=0, opener=_no_link) as file:
                    data = _all_of(file, MOST_OF_PROBE)
                if data is None:
                    _refuse_size(Path(at), MOST_OF_PROBE)
                texts[entry.name] = data.decode(errors="replace")
    except FileNotFoundError:
        return texts  # nothing was printed there
    except OSError as error:
        raise UserError(f"cannot read {at}: {error.strerror or error}", hint=_AGAIN) from error
    return texts


def _refuse_link(path: Path) -> NoReturn:
    what = "a symbolic link" if path.is_symlink() else "no regular file"
    raise UserError(f"{path} is {what}: there is none in a bundle", hint=_AGAIN)
