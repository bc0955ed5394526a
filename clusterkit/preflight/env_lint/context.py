"""What a text tells beside its settings: the names that it reads itself, and what it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from clusterkit.preflight.env_lint.setting import Format, Mistake, Setting, Source, Trait
from clusterkit.preflight.env_lint.variables import Kind, find_variable, meant

_PERF = re.compile(
    r"\$\{\w+\}_perf\b|\b(?:all_reduce|all_gather|reduce_scatter|alltoall|broadcast|reduce|gather|scatter|sendrecv)"
    r"_perf(?:_mpi)?\b"
)
_TRAINS = re.compile(
    r"\b(?:torchrun|torch\.distributed|deepspeed|accelerate|horovodrun|run_and_time)\b"
    r"|(?:train|tune|sft)\w{0,60}\.py\b"
)
_TRAITS = {
    Trait.ONE_MACHINE: re.compile(
        r"^\s*(?:export\s+)?MASTER_ADDR=[\"']?(?:localhost|127\.0\.0\.1)\b|--standalone\b"
        r"|--nnodes[= ]1\b|--master[-_]addr[= ][\"']?(?:localhost|127\.0\.0\.1)\b"
        r"|^#SBATCH\s+(?:-N|--nodes)[ =]*1\s*$|^\s*(?:export\s+)?\w*N(?:UM_)?NODES=1\s*$",
        re.MULTILINE,
    ),
    Trait.SOURCES: re.compile(
        r"^\s*(?:source|\.)\s+(?!\S*(?:activate|bashrc|profile|conda|modules?\b|setvars))\S",
        re.MULTILINE,
    ),
    Trait.AMD: re.compile(
        r"\b(?:RCCL_|HSA_|HIP_|ROCM|rocm)|(?<![A-Za-z\d])MI[23]\d\d[AX](?![A-Za-z\d])"
    ),
    Trait.DETERMINISTIC: re.compile(
        r"NONDETERMINISTIC_ALGO[\"']?\s*[:=]\s*[\"']?0|\bdeterministic[-_](?:mode|algorithms)"
        r"|\bCUBLAS_WORKSPACE_CONFIG\b"
    ),
    Trait.GOOGLE: re.compile(
        r"\bNCCL_(?:FASTRAK|GPUDIRECTTCPX|SHIMNET)_|/usr/local/gib\b|/var/lib/tcpx"
    ),
}
_DOCKERFILE = re.compile(r"^FROM\s+[\w$.{]", re.MULTILINE)
_SHOWS = re.compile(r"\s*(?:echo\b|printf\b|#|//)")


def is_dockerfile(text: str) -> bool:
    """Tell whether a text is a Dockerfile."""
    return _DOCKERFILE.search(text) is not None


def with_context(source: Source, text: str) -> Source:
    """Return a source with what the whole of its text tells."""
    settings = [_marked_own(setting, text) for setting in source.settings]
    # Docker takes the carriage returns of its own files away.
    if source.format in {Format.SHELL, Format.CONF} and not is_dockerfile(text):
        lines = text.split("\n")
        ends = ((n, s) for n, s in enumerate(settings) if s.line and lines[s.line - 1][-1:] == "\r")
        for index, setting in islice(ends, 1):
            mistakes = (*setting.mistakes, Mistake.CARRIAGE_RETURN)
            settings[index] = replace(setting, mistakes=mistakes)
    return replace(
        source, settings=tuple(settings), traits=tuple(_traits(f"{text}\n# {source.name}"))
    )


def _traits(text: str) -> Iterator[Trait]:
    if _PERF.search(text) and not _TRAINS.search(text):
        yield Trait.MEASURES
    yield from (trait for trait, sign in _TRAITS.items() if sign.search(text))


def _marked_own(setting: Setting, text: str) -> Setting:
    variable = find_variable(setting.name)
    if variable is not None and variable.kind is not Kind.TYPO:
        return setting
    # `NAME=${NAME:-VALUE}` is how a script takes an option, and how a misspelt name is copied, too.
    takes = re.search(rf"\$\{{{setting.name}:?-", text) and meant(setting.name) is None
    own = takes or _reads(text, setting.name)
    return replace(setting, mistakes=(Mistake.OWN,)) if own else setting


def _reads(text: str, name: str) -> bool:
    """Tell whether a text uses a variable: not only to show it, or to pass it on as it is."""
    used = re.compile(
        rf"(?<!\b{name}=)(?<!\b{name}=[\"'])\$\{{?{name}\b|\$\{{[#!]{name}\b"
        rf"|(?:environ(?:\.\w+)?|getenv|env)\s*[\[(]\s*[\"']{name}[\"']"
    )
    return any(
        used.search(line) for line in text.splitlines() if name in line and not _SHOWS.match(line)
    )
