"""The variables of NCCL and its siblings that the lint knows, and its rules."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.cli.explain.topic import Topic, paragraphs, table, texts
from clusterkit.preflight.env_lint import RULES
from clusterkit.preflight.env_lint.variables import NEWEST_NCCL, Kind, Variable, all_variables

_ALLOW = (
    "To leave a variable alone: `--allow NAME`, or `allowed_env: [NAME]` in the cluster. "
    "The page docs/how-to/nccl-environment.md lists all rules."
)


def rules() -> Iterator[Topic]:
    """Yield the list of rules of `clusterkit lint-env`, and one topic for each."""
    yield Topic(
        name="lint-rules",
        summary="what `lint-env` and preflight look for in NCCL variables",
        text=table((f"{rule.id} {rule.verdict}", f"{rule.name}: {rule.what}") for rule in RULES),
    )
    for rule in RULES:
        first = f"{rule.name} ({rule.verdict}): {rule.what}."
        text = paragraphs(first, rule.why, rule.fix, _ALLOW)
        yield Topic(name=rule.id, summary=rule.what, text=text, group="lint-rules")


def topics() -> Iterator[Topic]:
    """Yield what variables are, and one topic for each."""
    yield Topic(
        name="variables",
        summary="NCCL_*, TORCH_NCCL_*, UCX_*, GLOO_*, ...: each by its name",
        text=paragraphs(
            "`clusterkit explain NCCL_IB_HCA` says what is known of a variable: whether anything "
            f"reads it (NCCL up to {NEWEST_NCCL}), its values and its default. `clusterkit "
            "lint-env` judges those of a script, a file or a shell, and preflight those of a job."
        ),
    )
    families, kinds, types = texts("families"), texts("kinds"), texts("types")
    for variable in all_variables():
        family = families.get(variable.family, variable.family)
        state = kinds[variable.kind].format(until=variable.until or "a while")
        facts = table(_facts(variable, types.get(variable.type, variable.type)))
        yield Topic(
            name=variable.name,
            summary=f"a variable of {family}",
            text=paragraphs(f"A variable of {family}: {state}.") + "\n\n" + facts,
            group="variables",
        )


def _facts(variable: Variable, value: str) -> Iterator[tuple[str, str]]:
    if variable.kind not in {Kind.REMOVED, Kind.TYPO, Kind.PLUGIN}:
        yield "value", value
    known = {
        "allowed": variable.allowed.replace(",", ", "),
        "default": variable.default,
        "write": variable.replaced_by,
        "note": variable.note,
        "see": "docs/how-to/nccl-environment.md",
    }
    yield from ((name, text) for name, text in known.items() if text)
