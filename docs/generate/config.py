"""The keys of `clusterkit.yaml` and of job files, from their schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from clusterkit.cli.explain.reference import (
    KeyDoc,
    cluster_keys,
    file_keys,
    job_keys,
    key_facts,
)
from docs.generate.page import Page, anchor, blocks, code, fenced, prose, table

_ORDER = (
    "Flags beat `CLUSTERKIT_*` variables, which beat the nearest `clusterkit.yaml` from here "
    "upward, which beats `~/.config/clusterkit/config.yaml`, which beats the defaults. "
    "`clusterkit config show --origin` tells where each value came from. Unknown keys are errors. "
    "A key without a value goes back to its default. Top-level keys that begin with `x-` are "
    "yours."
)


def pages(root: Path) -> Iterator[Page]:
    """Yield the page of `clusterkit.yaml`, and that of job files."""
    del root
    yield Page(
        path="reference/config.md",
        text=blocks(
            "# clusterkit.yaml",
            _ORDER,
            "## Keys of the file",
            *_sections(file_keys(), "file"),
            "## Keys of a cluster",
            *_sections(cluster_keys(), "config"),
        ),
    )
    yield Page(
        path="reference/job-file.md",
        text=blocks(
            "# Job files",
            "`clusterkit submit --job FILE` reads a job from a file: the flags of a job as the "
            "keys of YAML. Flags beat the file.",
            table(
                ("key", "meaning", "example"),
                (
                    (code(doc.name), prose(doc.description), code(doc.example))
                    for doc in job_keys().values()
                ),
            ),
        ),
    )


def _sections(docs: Mapping[str, KeyDoc], prefix: str) -> Iterator[str]:
    for doc in docs.values():
        yield anchor(f"{prefix}-{doc.name}")
        yield f"### {doc.name}"
        yield prose(doc.description)
        yield fenced(f"{doc.name}: {doc.example}")
        yield " ".join(
            f"{name.capitalize()}: {text if text == 'none' else code(text)}."
            for name, text in key_facts(doc)
            if name != "example"
        )
