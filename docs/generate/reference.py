"""The index of the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from docs.generate.page import Page, blocks, fenced

PARTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "What you type": (
        ("cli/index", "the command line: every verb with every flag"),
        ("config", "the keys of `clusterkit.yaml`"),
        ("job-file", "the keys of a job file"),
        ("python", "the Python API"),
    ),
    "What you get": (
        ("exit-codes", "exit codes of clusterkit, and of jobs"),
        ("states", "states of a job"),
        ("json", "the documents that `--json` prints"),
        ("checks/index", "the checks of preflight"),
        ("lint-rules", "the rules of `lint-env`"),
        ("failures", "the failures that `diagnose` knows"),
    ),
    "What is known": (
        ("frameworks", "frameworks, and what each needs and sets"),
        ("image-versions", "images, and the versions in them"),
        ("../images", "images: names, pins, sizes, what is unverified"),
        ("templates", "templates and their variables"),
        ("../runtime", "the `CK_*` variables on the nodes"),
        ("variables", "variables of NCCL and its siblings"),
        ("../hostfile", "hostfile formats"),
        ("links", "link classes of `nvidia-smi topo -m`"),
        ("strategies", "strategies that an estimate tries"),
        ("gpus", "GPUs that an estimate knows"),
        ("interconnects", "networks that an estimate knows"),
        ("models", "models that an estimate knows by name"),
        ("../vocabulary", "the words of all these pages"),
    ),
}


def pages(root: Path) -> Iterator[Page]:
    """Yield the index."""
    del root
    parts = []
    for title, entries in PARTS.items():
        lines = (f"- [{text[:1].upper() + text[1:]}]({name}.md)" for name, text in entries)
        parts += [f"## {title}", "\n".join(lines)]
    every = (name for entries in PARTS.values() for name, _ in entries)
    yield Page(
        path="reference/index.md",
        text=blocks(
            "# Reference",
            "These pages are made from the code when the site is built, so they say what this "
            "version does.",
            *parts,
            fenced("\n".join((":hidden:", "", *every)), "{toctree}"),
        ),
    )
