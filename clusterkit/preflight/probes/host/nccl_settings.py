"""What a node says to NCCL: the environment of a session, nccl.conf, the topology of a VM."""

from __future__ import annotations

from clusterkit.core.data import read_snippet
from clusterkit.core.shell import quote
from clusterkit.preflight.env_lint.setting import Format, Source
from clusterkit.preflight.env_lint.sources import from_environment, read_source
from clusterkit.transport.probe import PreflightJob, Probe, Unparsed, first_line

_OWN = '"${NCCL_CONF_FILE:-${HOME-}/.nccl.conf}"'


def parse_environment(text: str) -> Source:
    """Read NAME=VALUE lines."""
    values: dict[str, str] = {}
    for line in filter(None, text.split("\n")):
        name, equals, value = line.partition("=")
        if not equals or not name.isidentifier():
            raise Unparsed(f"line {line[:40]!r}")
        values[name] = value
    return from_environment(values, "the node's environment")


def parse_conf(text: str) -> tuple[Source, ...]:
    """Read `file PATH` lines, each followed by the lines of that file behind a blank."""
    files: dict[str, list[str]] = {}
    path = None
    for line in text.removesuffix("\n").split("\n") if text else ():
        if line.startswith("file "):
            path = line.removeprefix("file ")
            files[path] = []
        elif line.startswith(" ") and path is not None:
            files[path].append(line[1:])
        else:
            raise Unparsed(f"line {line[:40]!r}")
    return tuple(read_source("\n".join(lines), name, Format.CONF) for name, lines in files.items())


def _conf_snippet(job: PreflightJob) -> str:
    given = job.env.get("NCCL_CONF_FILE")
    return read_snippet("nccl_conf", own=quote(given) if given else _OWN)


ENVIRONMENT = Probe(name="nccl-env", command=read_snippet("nccl_env"), parse=parse_environment)
CONF = Probe(name="nccl-conf", command=_conf_snippet, parse=parse_conf)


TOPO_VARIABLE = "NCCL_TOPO_FILE"
_USUAL = "/var/run/nvidia-topologyd/virtualTopology.xml"
"""NCCL reads it where the variable is not set (NCCL source, src/graph/topo.cc)."""


def _topo_snippet(job: PreflightJob) -> str:
    file = quote(job.env.get(TOPO_VARIABLE) or _USUAL)
    return f'f={file}\n[ -r "$f" ] || {{ echo \'no readable file\'; exit 77; }}\necho "file $f"\n'


def parse_topo_file(text: str) -> str:
    """Return the path in `file PATH`."""
    word, _, path = text.strip().partition(" ")
    if word != "file" or not path:
        raise Unparsed(f"no file: {first_line(text)[:60]!r}")
    return path


TOPO_FILE = Probe(name="nccl-topo-file", command=_topo_snippet, parse=parse_topo_file)
