"""Lists that `clusterkit explain` knows: exit codes, states, strategies, GPUs, and the like."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clusterkit.cli.explain.topic import texts
from clusterkit.cli.explain.topics import all_topics
from clusterkit.core.model import JobState
from docs.generate.page import Page, blocks, code, fenced, prose, table

_AS_TOLD = {
    "links": "Link classes",
    "strategies": "Strategies",
    "gpus": "GPUs",
    "interconnects": "Networks between nodes",
    "models": "Models",
}
"""Topics whose text is a table already."""


def pages(root: Path) -> Iterator[Page]:
    """Yield the pages of this module."""
    del root
    yield Page(
        path="reference/exit-codes.md",
        text=blocks(
            "# Exit codes",
            "Of every clusterkit command:",
            _codes("exit-codes"),
            "The `exit_code` of a job, in `status --json` and in its run folder, is that of the "
            "training command as a shell reports it:",
            _codes("job-exit-codes"),
        ),
    )
    yield Page(
        path="reference/states.md",
        text=blocks(
            "# States of a job",
            table(
                ("state", "meaning", "final"),
                (
                    (code(state), prose(text), "yes" if JobState(state).final else "")
                    for state, text in texts("states").items()
                ),
            ),
        ),
    )
    topics = all_topics()
    for name, title in _AS_TOLD.items():
        yield Page(
            path=f"reference/{name}.md",
            text=blocks(
                f"# {title}",
                f"What `clusterkit explain {name}` says: {prose(topics[name].summary)}.",
                fenced(topics[name].text),
            ),
        )


def _codes(listed: str) -> str:
    rows = ((code(word), prose(text)) for word, text in texts(listed).items())
    return table(("code", "meaning"), rows)
