"""Where a machine stands, and whether its cloud takes it: metadata servers, and Slurm's blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from clusterkit.core import metadata
from clusterkit.core.announcements import TELLS, Announcement, read_announcements
from clusterkit.core.data import read_snippet
from clusterkit.core.files import parse_json
from clusterkit.core.metadata import CLOUDS
from clusterkit.core.records import text_of
from clusterkit.core.shell import quote
from clusterkit.preflight.probes import snippets
from clusterkit.transport.probe import PreflightJob, Probe, Unparsed

_WORD = re.compile(r"[\w./:@+-]{1,400}", re.ASCII)
_OF_OCI = "customerNetworkBlock"
_SHOWN = 12
"""The last characters of Oracle's names; the first are those of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What a cloud says of one machine."""

    cloud: str
    places: Mapping[str, str]
    """From large to small: `zone`, `block`, `placement group`; empty where it does not say."""
    notices: tuple[Announcement, ...] | None
    """None where it does not say."""


def _command(job: PreflightJob) -> str | None:
    if not job.asks_cloud:
        return None
    questions = {cloud: "".join(map(_question, _rows(cloud))) for cloud in CLOUDS}
    return read_snippet(
        "placement",
        signs="\n".join(
            f"says {name} {quote(text)} && cloud={cloud}" for cloud, (name, text) in CLOUDS.items()
        ),
        questions="case $cloud in\n"
        + "\n".join(f"{cloud}){text} ;;" for cloud, text in questions.items())
        + "\nesac",
    )


def _rows(cloud: str) -> list[Mapping[str, str]]:
    return [row for row in metadata.questions(cloud) if row["tells"] != metadata.INSTANCE_TYPE]


def _question(row: Mapping[str, str]) -> str:
    header = "" if row["header"] == "-" else f"-H {quote(row['header'])} "
    return f'\ntell "{row["tells"]}=$(ask {header}"$server"{quote(row["path"])})"'


def parse(text: str) -> Placement:
    """Read the pairs of the snippet; a page where a word should be is no answer."""
    pairs = snippets.read_pairs(text)
    cloud = pairs.pop("cloud", "")
    if cloud not in CLOUDS or {*pairs} != {row["tells"] for row in _rows(cloud)}:
        raise Unparsed(f"cloud {cloud[:40]!r}")
    try:
        notices = read_announcements(cloud, pairs)
    except ValueError as error:
        raise Unparsed(str(error)) from error
    places = {kind: _word(cloud, at) for kind, at in pairs.items() if kind not in TELLS and at}
    return Placement(
        cloud=cloud,
        places={k: at for k, at in places.items() if at},
        notices=notices,
    )


def _word(cloud: str, answer: str) -> str:
    if cloud == "oci":
        if (document := parse_json(answer.encode())) is None:
            raise Unparsed(f"no document: {answer[:40]!r}")
        answer = text_of(document, _OF_OCI) or ""
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
