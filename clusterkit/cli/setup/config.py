"""`clusterkit config`: the settings in force, and where each of them came from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained, group
from clusterkit.core.text import wrapped

if TYPE_CHECKING:
    from clusterkit.config.settings import Settings
    from clusterkit.core.errors import Problem
    from clusterkit.core.model import ClusterSpec

app = group("Show the configuration, and where it came from.")

Row = tuple[str, str, str]
"""Key, value and origin."""


@app.command()
@explained
def show(
    cluster: str | None = None,
    origin: bool = False,
    json: JsonFlag = False,
) -> None:
    """Show the effective values of every cluster."""
    from clusterkit.config.load import load_settings

    settings = load_settings()
    names = [settings.cluster(cluster).name] if cluster else list(settings.clusters)
    for problem in _warnings(settings, names):
        console.warn(str(problem))
    if json:
        console.json_document(_document(settings, names))
        return
    sections = {name: [*_rows(settings, settings.clusters[name])] for name in names}
    top = {"default_cluster": settings.default_cluster}
    if settings.default_framework is not None:
        top["default_framework"] = settings.default_framework
    rows = [(key, value, str(settings.origin(key))) for key, value in top.items()]
    console.say(*_lines(rows, origin=origin))
    for name, rows in sections.items():
        console.say("\n" + console.bold(name))
        console.say(*_lines(rows, origin=origin, indent="  "))


@app.command()
def path(json: JsonFlag = False) -> None:
    """Print the files that are read, the strongest first."""
    from clusterkit.config.load import load_settings

    files = load_settings().files
    if json:
        console.json_document({"files": files})
        return
    for file in files:
        console.say(str(file))
    if not files:
        console.note("no configuration file; `clusterkit init` writes one")


def _document(settings: Settings, names: list[str]) -> dict[str, Any]:
    from clusterkit.config.schema import as_mapping

    prefixes = tuple(f"clusters.{name}." for name in names)
    return {
        "default_cluster": settings.default_cluster,
        "default_framework": settings.default_framework,
        "files": settings.files,
        "clusters": {name: as_mapping(settings.clusters[name]) for name in names},
        "origins": {
            key: value
            for key, value in settings.origins.items()
            if key.startswith((*prefixes, "default_"))
        },
        "warnings": _warnings(settings, names),
    }


def _warnings(settings: Settings, names: list[str]) -> tuple[Problem, ...]:
    return settings.warnings + tuple(w for name in names for w in settings.warnings_of(name))


def _rows(settings: Settings, spec: ClusterSpec) -> Iterator[Row]:
    from clusterkit.cli.explain.reference import spell
    from clusterkit.config.schema import as_mapping, kinds_of
    from clusterkit.core.hosts.hostlist import fold

    for key, value in as_mapping(spec).items():
        place = f"clusters.{spec.name}.{key}"
        if spec.kind not in kinds_of(key) or value in (None, (), {}):
            continue
        if isinstance(value, dict):
            for name, text in value.items():
                yield f"{key}.{name}", text, str(settings.origin(f"{place}.{name}"))
        elif key == "hosts":
            place = place if place in settings.origins else f"clusters.{spec.name}.hostfile"
            yield key, fold(host.name for host in value), str(settings.origin(place))
        else:
            yield key, spell(value), str(settings.origin(place))


def _lines(rows: list[Row], *, origin: bool, indent: str = "") -> Iterator[str]:
    keys = max(len(key) for key, _, _ in rows)
    room = 80 - len(indent) - keys - 4
    values = max((len(v) for _, v, source in rows if len(v) + len(source) <= room), default=0)
    below = " " * (len(indent) + keys + 2)
    for key, value, source in rows:
        first, shown = f"{indent}{key:<{keys}}  ", _shown(value)
        if origin and len(shown) <= values <= room - len(source):
            yield f"{first}{shown:<{values}}  {source}"
            continue
        yield from wrapped(shown, first, below) or [first.rstrip()]
        if origin:  # too long to stand beside it
            yield from wrapped(source, f"{below}  ", f"{below}  ")


def _shown(value: str) -> str:
    return value if value.isprintable() else repr(value)
