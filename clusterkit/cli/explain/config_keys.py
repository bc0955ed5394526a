"""The keys of `clusterkit.yaml` and of job files, from the descriptions in their schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clusterkit.cli.explain.reference import KeyDoc, cluster_keys, file_keys, job_keys
from clusterkit.cli.explain.topic import Topic, first_sentence, paragraphs, table


def topics() -> Iterator[Topic]:
    """Yield the lists of keys, and one topic for each key of a cluster."""
    top, clusters = file_keys(), cluster_keys()
    yield Topic(
        name="config",
        summary="the keys of clusterkit.yaml, and which layer wins",
        text="\n\n".join(
            (
                paragraphs(
                    "Flags beat CLUSTERKIT_* variables, which beat the nearest clusterkit.yaml "
                    "from here upward, which beats ~/.config/clusterkit/config.yaml. `clusterkit "
                    "config show --origin` tells where each value came from. A key without a "
                    "value goes back to its default.",
                    "A file that another user can write is refused: `--config-file FILE` names "
                    "and trusts it.",
                    "Keys of the file:",
                ),
                _listed(top),
                paragraphs("Keys of a cluster:"),
                _listed(clusters),
            )
        ),
    )
    yield Topic(
        name="job-file",
        summary="the keys of a job file (submit --job FILE)",
        text=paragraphs("The flags of a job as YAML keys; flags win over the file.")
        + "\n\n"
        + _listed(job_keys()),
    )
    for doc in (*top.values(), *clusters.values()):
        yield Topic(
            name=doc.name,
            summary=first_sentence(doc.description),
            text=paragraphs(doc.description) + "\n\n" + table(key_facts(doc)),
            group="config",
        )


def _listed(docs: Mapping[str, KeyDoc]) -> str:
    return table((doc.name, first_sentence(doc.description)) for doc in docs.values())


def key_facts(doc: KeyDoc) -> Iterator[tuple[str, str]]:
    """Yield what is known of a key beside its description, as rows of a table."""
    if doc.kinds:
        yield "kinds", ", ".join(doc.kinds)
    if doc.choices:
        yield "choices", ", ".join(doc.choices)
    yield "default", doc.default or "none"
    yield "example", f"{doc.name}: {doc.example}"
    if doc.variable:
        yield "variable", doc.variable
