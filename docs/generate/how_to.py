"""The index of the how-to guides: every page of `docs/how-to/`, in groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from docs.generate.page import Page, blocks, fenced

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Clusters and nodes": (
        "cluster",
        "ssh",
        "laptop",
        "preflight",
        "topology",
        "nccl-environment",
        "write-a-check",
    ),
    "Clouds": (
        "platforms",
        "aws-parallelcluster",
        "aws-hyperpod",
        "google-cluster-toolkit",
        "azure-cyclecloud",
        "oracle",
        "rented-machines",
        "services",
    ),
    "Jobs": (
        "frameworks",
        "sweeps",
        "rerun",
        "trackers",
        "requeue",
        "hangs",
        "notify",
        "report",
        "elastic",
        "python",
        "ci",
    ),
    "Frameworks": (
        "deepspeed",
        "mpi",
        "tensorflow",
        "lightning-and-jax",
        "ray",
        "spark",
        "framework",
    ),
    "Models and GPUs": ("estimate", "layout"),
    "Images": ("images", "containers", "distribute", "air-gapped"),
    "After the launch": (
        "diagnose",
        "top",
        "inside",
        "bench-collectives",
        "bench-compute",
        "bench-storage",
        "bench-scaling",
        "metrics",
    ),
    "Make it yours": ("templates", "gpu"),
}
"""What a reader looks for, and the pages about it; a page that is named nowhere comes last."""

REST = "More"


def grouped(folder: Path) -> Mapping[str, tuple[str, ...]]:
    """Return the pages that there are in the folder of how-tos, by group."""
    there = {path.stem for path in folder.glob("*.md")}
    found = {
        title: tuple(name for name in names if name in there) for title, names in GROUPS.items()
    }
    named = {name for names in GROUPS.values() for name in names}
    found[REST] = tuple(sorted(there - named))
    return {title: names for title, names in found.items() if names}


def pages(root: Path) -> Iterator[Page]:
    """Yield the index."""
    folder = root / "docs" / "how-to"
    groups = grouped(folder)
    parts = []
    for title, names in groups.items():
        lines = (f"- [{_title(folder / f'{name}.md')}]({name}.md)" for name in names)
        parts += [f"## {title}", "\n".join(lines)]
    every = (name for names in groups.values() for name in names)
    yield Page(
        path="how-to/index.md",
        text=blocks(
            "# How-to guides",
            "Each page is one thing that you may want to do.",
            *parts,
            fenced("\n".join((":hidden:", "", *every)), "{toctree}"),
        ),
    )


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
