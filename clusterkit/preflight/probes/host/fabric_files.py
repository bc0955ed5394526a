"""What a job on a fast fabric has to find on a node or in its image: NCCL's plug-in, and files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from clusterkit.core.data import read_snippet
from clusterkit.core.shell import quote, quote_path
from clusterkit.preflight.probes.host.container import is_file
from clusterkit.preflight.probes.snippets import matched, read_lines, read_pairs, read_program
from clusterkit.transport.probe import PreflightJob, Probe, Unparsed

PLUGIN_VARIABLE = "NCCL_NET_PLUGIN"
HANDED_ON = ("PATH", "PYTHONPATH", "PYTHONHOME")
_NONE = frozenset({"", "none"})


def plugin_names(job: PreflightJob) -> tuple[str, ...]:
    """Return the libraries that NCCL tries to open as its network plug-in; none where it has none.

    A word may be a library or the end of its name (NCCL, src/plugin/plugin_open.cc).
    """
    named = job.env.get(PLUGIN_VARIABLE)
    if named is None:
        return (job.net_plugin,) if job.net_plugin else ()
    words = [word for word in named.split(",") if word not in _NONE]
    whole = [word for word in words if "/" in word or word.endswith(".so")]
    ends = [word for word in words if word not in whole]
    return (*whole, *(name for word in ends for name in (f"libnccl-net-{word}.so", word)))


def _plugin_command(job: PreflightJob) -> str | None:
    names = plugin_names(job)
    if not names or job.container_runtime is not None:
        return None
    folders = [os.path.dirname(name) for name in names if name.startswith("/")]  # noqa: PTH120
    known = [*folders, *filter(None, [job.env.get("LD_LIBRARY_PATH")])]
    path = quote(":".join(known)) + '"${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"' if known else ""
    exports = [f"{name}={quote(job.env[name])}" for name in HANDED_ON if name in job.env]
    exports += [f"LD_LIBRARY_PATH={path}"] if path else []
    return (f"export {' '.join(exports)}\n" if exports else "") + read_snippet(
        "job_python",
        python=quote_path(job.python),
        program=quote(read_program("net_plugin")),
        package=" ".join(map(quote, names)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """What came of opening the plug-in."""

    opened: str | None
    failures: tuple[str, ...] = ()
    """What the loader says, of each name that was tried in vain."""


def parse_plugin(text: str) -> Plugin | None:
    """Read what the program prints; see `plugin_of`."""
    return plugin_of(read_pairs(text))


def plugin_of(pairs: Mapping[str, str]) -> Plugin | None:
    """Return what the pairs of the program say; None where there is no such interpreter."""
    if "absent" in pairs:
        return None
    if "whole" not in pairs:
        raise Unparsed("not what the program prints")
    failures = tuple(value for key, value in pairs.items() if key.startswith("failed "))
    return Plugin(opened=pairs.get("opened"), failures=failures)


PLUGIN = Probe(name="nccl-plugin", command=_plugin_command, parse=parse_plugin, timeout_s=20.0)

_LINE = re.compile(r"(file|folder|unreadable|absent) (-|\d{1,10}-\d{1,7}) (.{1,4096})")


_SOURCED = re.compile(r"(?:\w+=\S*\s+)*(?:source|\.)\s+([\"']?)(~?/[\w./@+-]+)\1(?=[\s;]|$)")
_CONDITION = re.compile(r"\|\||&&|\bif\b|\[|\btest\b")
_OF_VARIABLES = ("NCCL_TOPO_FILE", "NCCL_CONF_FILE")


def files_of(
    setup: Sequence[str], env: Mapping[str, str], mounts: Sequence[str] | None
) -> dict[str, str]:
    """Return the files that a job needs on its nodes, and what names each.

    They are those that its lines of setup source in any case and, in an image (`mounts` is not
    None), what is mounted into it; else those that variables of NCCL name.
    """
    found: dict[str, str] = {}
    for line in setup:
        sourced = _SOURCED.match(line.strip())
        if sourced and not _CONDITION.search(line):
            found[sourced[2]] = "setup"
    sources = [mount.partition(":")[0] for mount in mounts or ()]
    found |= dict.fromkeys((path for path in sources if path.startswith("/")), "mounts")
    if mounts is None:
        named = {env[name]: name for name in _OF_VARIABLES if env.get(name, "").startswith("/")}
        found |= named
    return {path: name for path, name in found.items() if not {*path} & {*"$\n"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One file of a node."""

    path: str
    """As the node spells it."""
    state: str
    """`file`, `folder`, `unreadable` or `absent`."""
    text: str
    """Checksum and size of its first MiB; `-` for what is no file."""


def _files_command(job: PreflightJob) -> str | None:
    if not job.files:
        return None
    return read_snippet("job_files", files=" ".join(quote_path(path) for path in job.files))


def parse_files(text: str) -> tuple[Found, ...]:
    """Return what is at the paths that a node was asked for, in their order."""
    lines = "\n".join(read_lines(text))
    return tuple(Found(path=one[3], state=one[1], text=one[2]) for one in matched(lines, _LINE))


FILES = Probe(name="job-files", command=_files_command, parse=parse_files)


_FLAGS = {"docker": "--volume", "apptainer": "--bind", "enroot": "--mount"}
_LACKS = "lacks "
_INSIDE = """for f in {files}; do [ -r "$f" ] || echo "{lacks}$f="; done | while read -r l
do echo "ck-look $l"; done
command -v python3 >/dev/null || {{ echo 'ck-look absent=1'; exit 0; }}
python3 -c {program} {names} | while IFS= read -r l; do echo "ck-look $l"; done"""


def runtime_of(job: PreflightJob) -> str | None:
    """Return what can enter the image of a job on a node by itself; None for nothing.

    Pyxis enters by a step of Slurm; a file of its images is one of enroot's.
    """
    runtime = job.container_runtime if job.image else None
    if runtime == "pyxis":
        return "enroot" if is_file(job) else None
    return runtime if runtime != "apptainer" or is_file(job) else None


def plugins_inside(job: PreflightJob) -> tuple[str, ...]:
    """Return the names by which NCCL tries its plug-in there: without a platform's folder."""
    names = plugin_names(job)
    return names if PLUGIN_VARIABLE in job.env else tuple(PurePosixPath(n).name for n in names)


def files_inside(job: PreflightJob) -> dict[str, str]:
    """Return the files that have to be in the image, and the variable that names each."""
    return files_of((), job.env, None)


def _image_command(job: PreflightJob) -> str | None:
    runtime, names, files = runtime_of(job), plugins_inside(job), files_inside(job)
    if runtime is None or not (names or files):
        return None
    handed = [name for name in (*HANDED_ON, "LD_LIBRARY_PATH") if name in job.env]
    values = {name: quote(job.env[name]) for name in handed}
    if runtime == "apptainer":
        exports = [
            f"export APPTAINERENV_{name}={value} SINGULARITYENV_{name}={value}"
            for name, value in values.items()
        ]
    else:
        exports = [f'set -- "$@" --env={name}={value}' for name, value in values.items()]
    return read_snippet(
        "image_fabric",
        tool=quote(runtime),
        image=quote(job.image or ""),
        flag=_FLAGS[runtime],
        mounts=" ".join(quote(mount) for mount in job.mounts if mount.startswith("/")),
        exports="\n".join(exports),
        inside=quote(
            _INSIDE.format(
                files=" ".join(map(quote, files)),
                lacks=_LACKS,
                program=quote(read_program("net_plugin")),
                names=" ".join(map(quote, names)),
            )
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What an image has."""

    plugin: Plugin | None
    """What came of opening it; None where there is no Python that could."""
    lacks: tuple[str, ...]
    """Files that cannot be read there."""


def parse_image(text: str) -> Inside:
    """Read the pairs of the snippet."""
    pairs = read_pairs(text)
    lacks = tuple(key.removeprefix(_LACKS) for key in pairs if key.startswith(_LACKS))
    return Inside(plugin=plugin_of(pairs), lacks=lacks)


IMAGE = Probe(name="nccl-image", command=_image_command, parse=parse_image, timeout_s=40.0)
