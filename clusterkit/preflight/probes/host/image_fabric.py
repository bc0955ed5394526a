"""What a job on a fast fabric finds in its image: NCCL's plug-in, and files that variables name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from clusterkit.core.data import read_snippet
from clusterkit.core.shell import quote
from clusterkit.preflight.probes.host.container import is_file
from clusterkit.preflight.probes.host.fabric_files import (
    HANDED_ON,
    PLUGIN_VARIABLE,
    Plugin,
    files_of,
    plugin_names,
    plugin_of,
)
from clusterkit.preflight.probes.snippets import read_pairs, read_program
from clusterkit.transport.probe import PreflightJob, Probe

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


def _command(job: PreflightJob) -> str | None:
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


def parse(text: str) -> Inside:
    """Read the pairs of the snippet."""
    pairs = read_pairs(text)
    lacks = tuple(key.removeprefix(_LACKS) for key in pairs if key.startswith(_LACKS))
    return Inside(plugin=plugin_of(pairs), lacks=lacks)


PROBE = Probe(name="nccl-image", command=_command, parse=parse, timeout_s=40.0)
