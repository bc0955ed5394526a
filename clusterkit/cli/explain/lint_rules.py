"""The rules of `clusterkit lint-env`."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.cli.explain.topic import Topic, paragraphs, table
from clusterkit.preflight.env_lint import RULES


def topics() -> Iterator[Topic]:
    """Yield the list of rules, and one topic for each."""
    yield Topic(
        name="lint-rules",
        summary="what `lint-env` and preflight look for in NCCL variables",
        text=table((f"{rule.id} {rule.verdict}", f"{rule.name}: {rule.what}") for rule in RULES),
    )
    for rule in RULES:
        yield Topic(
            name=rule.id,
            summary=rule.what,
            text=paragraphs(
                f"{rule.name} ({rule.verdict}): {rule.what}.",
                rule.why,
                rule.fix,
                "To leave a variable alone: `--allow NAME`, or `allowed_env: [NAME]` in the "
                "cluster. The page docs/how-to/nccl-environment.md lists all rules.",
            ),
            group="lint-rules",
        )
