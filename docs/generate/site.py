"""All pages of the site: those of `docs/`, some that stand elsewhere, and those from the code."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from clusterkit.core.data import read_table
from docs.generate import (
    api,
    checks,
    config,
    documents,
    failures,
    frameworks,
    how_to,
    images,
    lint,
    reference,
    templates,
    topics,
    verbs,
)
from docs.generate.links import FILES, relocated, targets
from docs.generate.page import Page

ROOT = Path(__file__).resolve().parent.parent.parent

PROVIDERS = (
    verbs,
    config,
    checks,
    lint,
    failures,
    frameworks,
    images,
    templates,
    topics,
    documents,
    api,
    reference,
    how_to,
)

BORROWED: Mapping[str, str] = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "compose/README.md": "project/practice-clusters.md",
    "examples/README.md": "project/examples.md",
}
"""Pages that stand beside what they are about; README.md is the front of the repository, not of
the site, so links to it lead to the first page."""


def written(root: Path) -> Mapping[str, str]:
    """Return the pages that people write: paths in the repository, and on the site."""
    found = {
        str(path.relative_to(root)): str(path.relative_to(root / "docs"))
        for path in sorted(root.glob("docs/**/*.md"))
    }
    return {**found, **BORROWED}


def made(root: Path) -> Iterator[Page]:
    """Yield the pages that are made from the code of the repository at `root`."""
    for provider in PROVIDERS:
        yield from provider.pages(root)


def write_site(root: Path, folder: Path) -> None:
    """Write the sources of the site into `folder`, in place of what is there.

    Raises:
        ValueError: `searched.tsv` names a page that is missing.
    """
    shutil.rmtree(folder, ignore_errors=True)
    pages = tuple(made(root))
    homes = {**written(root), "README.md": "index.md"}
    homes |= {f"docs/{page.path}": page.path for page in pages}
    words = {row["page"]: row["words"] for row in read_table(__file__, "searched.tsv")}
    for page in pages:
        _write(folder / page.path, indexed(page.text, words.pop(page.path, "")))
    for origin, path in written(root).items():
        text = (root / origin).read_text(encoding="utf-8")
        text = indexed(text, words.pop(path, ""))
        _write(folder / path, relocated(text, origin=origin, page=path, homes=homes))
        for target in targets(text, origin=origin):
            if target not in homes:
                _copy(root / target, folder / FILES / target)
    if words:
        raise ValueError(f"searched.tsv names pages that are missing: {', '.join(words)}")


def indexed(text: str, words: str) -> str:
    """Return a page that the search of the site finds first by each of `words`, between commas.

    Sphinx's search ranks main entries of the index (`!`) before titles and words of a page.
    """
    if not words:
        return text
    title, _, rest = text.partition("\n")
    entries = ", ".join(f"! {word.strip()}" for word in words.split(","))
    return f"{title}\n\n```{{index}} {entries}\n```\n{rest}"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    if source.is_file():  # of what is missing, Sphinx will say so
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
