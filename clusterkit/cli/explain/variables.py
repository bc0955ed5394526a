"""The variables of NCCL and its siblings that the lint knows."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.cli.explain.topic import Topic, paragraphs, table
from clusterkit.preflight.env_lint.variables import NEWEST_NCCL, Kind, Variable, all_variables

FAMILIES = {
    "nccl": "NCCL",
    "sharp": "the SHARP plug-in of NCCL",
    "google": "Google's plug-ins of NCCL (TCPX, TCPXO, gIB)",
    "torch": "PyTorch",
    "rccl": "RCCL",
    "ucx": "UCX",
    "ofi": "aws-ofi-nccl",
    "libfabric": "libfabric",
    "rdma-core": "rdma-core (libibverbs)",
    "gloo": "Gloo",
    "mpi": "Open MPI",
    "gpu": "CUDA or ROCm",
    "tools": "images, builds and scripts",
}
KINDS = {
    Kind.DOCUMENTED: "read, and documented",
    Kind.SOURCE_ONLY: "read, but in no page of the documentation",
    Kind.DEPRECATED: "still read, deprecated since {until}",
    Kind.REMOVED: "not read any more; the last release that did was {until}",
    Kind.TYPO: "read by no release: a misspelt name that is often copied",
    Kind.PLUGIN: "read by a plug-in only",
    Kind.TORCH_RENAMED: "an old name of PyTorch's",
}
_TYPES = {
    "int": "a number; NCCL reads what is none as 0",
    "truth": "1 or 0",
    "word": "a word, in any case",
    "exact": "a word, in this case",
    "level": "a word; a number is read, but its meaning has changed",
    "words": "words with commas between",
    "algorithms": "names with commas between",
    "interfaces": "network interfaces with commas between, each the beginning of a name; `=` "
    "before them for whole names, `^` to leave them out (NCCL only)",
    "hcas": "NAME or NAME:PORT with commas between, each the beginning of a name; `=` before them "
    "for whole names, `^` to leave them out",
    "devices": "NAME:PORT with commas between, whole names",
    "path": "a path",
    "text": "text",
}


def topics() -> Iterator[Topic]:
    """Yield what they are, and one topic for each."""
    yield Topic(
        name="variables",
        summary="NCCL_*, TORCH_NCCL_*, UCX_*, GLOO_*, ...: each by its name",
        text=paragraphs(
            "`clusterkit explain NCCL_IB_HCA` says what is known of a variable: whether anything "
            f"reads it (NCCL up to {NEWEST_NCCL}), its values and its default. `clusterkit "
            "lint-env` judges those of a script, a file or a shell, and preflight those of a job."
        ),
    )
    for variable in all_variables():
        yield _topic(variable)


def _topic(variable: Variable) -> Topic:
    family = FAMILIES.get(variable.family, variable.family)
    state = KINDS[variable.kind].format(until=variable.until or "a while")
    return Topic(
        name=variable.name,
        summary=f"a variable of {family}",
        text=paragraphs(f"A variable of {family}: {state}.")
        + "\n\n"
        + table((*_facts(variable), ("see", "docs/how-to/nccl-environment.md"))),
        group="variables",
    )


def _facts(variable: Variable) -> Iterator[tuple[str, str]]:
    if variable.kind not in {Kind.REMOVED, Kind.TYPO, Kind.PLUGIN}:
        yield "value", _TYPES.get(variable.type, variable.type)
    if variable.allowed:
        yield "allowed", variable.allowed.replace(",", ", ")
    if variable.default:
        yield "default", variable.default
    if variable.replaced_by:
        yield "write", variable.replaced_by
    if variable.note:
        yield "note", variable.note
