"""Where a machine stands, and whether its cloud takes it: metadata servers, and Slurm's blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from clusterkit.core.data import read_snippet
from clusterkit.core.dmi import CLOUDS
from clusterkit.core.files import parse_json
from clusterkit.core.metadata import told_by_clouds
from clusterkit.core.records import text_of, texts_of
from clusterkit.core.shell import quote
from clusterkit.core.text import harmless
from clusterkit.preflight.probes import snippets
from clusterkit.transport.probe import PreflightJob, Probe, Unparsed

_WORD = re.compile(r"[\w./:@+-]{1,400}", re.ASCII)
_OF_OCI = "customerNetworkBlock"
_NO_PLACES = frozenset({"spot", "events", "name"})
_LONGEST = 120
_SHOWN = 12
"""The last characters of Oracle's names; the first are those of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What a cloud announces of a machine."""

    text: str
    soon: bool
    """Whether that is a matter of minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What a cloud says of one machine."""

    cloud: str
    places: Mapping[str, str]
    """From large to small: `zone`, `block`, `placement group`; empty where it does not say."""
    notices: tuple[Notice, ...] | None
    """None where it does not say."""


def _command(job: PreflightJob) -> str | None:
    if not job.asks_cloud:
        return None
    questions = dict.fromkeys(CLOUDS, "")
    for row in told_by_clouds():
        header = "" if row["header"] == "-" else f"-H {quote(row['header'])} "
        ask = f'tell "{row["tells"]}=$(ask {header}"$server"{quote(row["path"])})"'
        questions[row["cloud"]] += f"\n{ask}"
    return read_snippet(
        "placement",
        signs="\n".join(
            f"says {name} {quote(text)} && cloud={cloud}" for cloud, (name, text) in CLOUDS.items()
        ),
        questions="case $cloud in\n"
        + "\n".join(f"{cloud}){text} ;;" for cloud, text in questions.items())
        + "\nesac",
    )


def parse(text: str) -> Placement:
    """Read the pairs of the snippet; a page where a word should be is no answer."""
    pairs = snippets.read_pairs(text)
    cloud = pairs.pop("cloud", "")
    if cloud not in CLOUDS or {*pairs} != {
        r["tells"] for r in told_by_clouds() if r["cloud"] == cloud
    }:
        raise Unparsed(f"cloud {cloud[:40]!r}")
    read = _NOTICES.get(cloud)
    notices = tuple(read(pairs)) if read else ()
    places = {kind: _word(cloud, at) for kind, at in pairs.items() if kind not in _NO_PLACES and at}
    return Placement(
        cloud=cloud,
        places={k: at for k, at in places.items() if at},
        notices=notices if notices or pairs.get("events") else None,
    )


def _of_aws(pairs: Mapping[str, str]) -> Iterator[Notice]:
    if action := pairs["spot"]:
        yield Notice(text=f"AWS takes back the Spot instance at {_say(action, 'time')}", soon=True)
    for event in _events('{"Events": ' + (pairs["events"] or "[]") + "}"):
        if event.get("State") == "active":
            what = f"AWS plans {_text(event, 'Code')} from {_text(event, 'NotBefore')}"
            yield Notice(text=what, soon=False)


def _of_azure(pairs: Mapping[str, str]) -> Iterator[Notice]:
    for event in _events(pairs["events"] or '{"Events": []}'):
        kind = _text(event, "EventType")
        if kind != "Freeze" and pairs["name"] in texts_of(event, "Resources"):  # of some seconds
            what = f"Azure announces {kind} from {_text(event, 'NotBefore')}"
            yield Notice(text=what.rstrip(), soon=kind == "Preempt")


def _of_gcp(pairs: Mapping[str, str]) -> Iterator[Notice]:
    if pairs["spot"] == "TRUE":
        yield Notice(text="GCP takes back the Spot VM", soon=True)
    if (event := pairs["events"]) not in {"", "NONE"}:
        if not _WORD.fullmatch(event):
            raise Unparsed(f"no event: {event[:40]!r}")
        yield Notice(text=f"GCP announces {event[:80]}", soon=event.startswith("TERMINATE"))


_NOTICES = {"aws": _of_aws, "azure": _of_azure, "gcp": _of_gcp}


def _events(text: str) -> list[Mapping[str, Any]]:
    found = (parse_json(text.encode()) or {}).get("Events")
    if not isinstance(found, list) or not all(isinstance(event, dict) for event in found):
        raise Unparsed(f"no list of events: {text[:40]!r}")
    return found


def _say(text: str, key: str) -> str:
    if (document := parse_json(text.encode())) is None:
        raise Unparsed(f"no document: {text[:40]!r}")
    return _text(document, key)


def _text(document: Mapping[str, Any], key: str) -> str:
    return harmless(text_of(document, key) or "")[:_LONGEST]


def _word(cloud: str, answer: str) -> str:
    answer = _say(answer, _OF_OCI) if cloud == "oci" else answer
    if answer and not _WORD.fullmatch(answer):
        raise Unparsed(f"no place: {answer[:40]!r}")
    if cloud == "gcp":  # /block/subblock/host
        return answer.strip("/").partition("/")[0]
    return answer.rpartition(".")[2][-_SHOWN:] if cloud == "oci" else answer


def parse_block(text: str) -> str:
    """Return the block of Slurm in which a node is."""
    block = snippets.text_of(snippets.read_pairs(text), "block")
    if not _WORD.fullmatch(block):
        raise Unparsed(f"no block: {block[:40]!r}")
    return block


def _not_there(job: PreflightJob) -> None:
    """Ask nothing on the nodes: the client asks Slurm, once for all."""


BLOCK = Probe(name="slurm-block", command=_not_there, parse=parse_block)
PROBE = Probe(name="placement", command=_command, parse=parse)
