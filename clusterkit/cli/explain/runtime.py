"""The `CK_*` variables that every process of a job can read."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.cli.explain.topic import Topic, first_sentence, paragraphs, table
from clusterkit.core.model import Ref, Runtime

_MEANING = {
    Runtime.JOB_ID: "Id of the job, as the scheduler knows it.",
    Runtime.RESTART_COUNT: "How often the job has been started again; 0 the first time.",
    Runtime.NNODES: "Number of nodes that the job really has.",
    Runtime.NODE_RANK: "Rank of this node, from 0; the order is the scheduler's own.",
    Runtime.NODE_NAME: "Name of this node.",
    Runtime.NODES: "Names of all nodes in rank order, separated by single spaces.",
    Runtime.SLOTS: "Slots of all nodes in rank order, separated by single spaces.",
    Runtime.HEAD_ADDR: "Address of the node of rank 0, as the others reach it.",
    Runtime.PORT: "Port on the node of rank 0 that the framework's rendezvous uses.",
    Runtime.TMP: "Folder of this job on this node; removed when the job ends there.",
    Runtime.RESULTS: "Folder for what is to be kept, results/ of the run folder. From nodes that "
    "share no file system with you, it is brought back when the job has ended.",
}


def topics() -> Iterator[Topic]:
    """Yield the list of variables, and one topic for each."""
    each = tuple(_topic(ref) for ref in vars(Runtime).values() if isinstance(ref, Ref))
    yield Topic(
        name="runtime",
        summary="the CK_* variables that a job finds on every node",
        text=paragraphs("Every executor sets these on every node, for setup lines and scripts:")
        + "\n\n"
        + table((topic.name, topic.summary) for topic in each),
    )
    yield from each


def _topic(ref: Ref) -> Topic:
    text = _MEANING.get(ref, "A runtime variable.")
    return Topic(
        name=ref.name, summary=first_sentence(text), text=paragraphs(text), group="runtime"
    )
