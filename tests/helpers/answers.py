"""Read what a node has printed as a whole."""

from __future__ import annotations

from clusterkit.transport.script import Answer, AnswerReader, Compound


def read_answer(text: str, compound: Compound) -> Answer | None:
    """Return the answer in all that a node printed; None where there is no frame in it."""
    reader = AnswerReader(compound)
    reader.feed(text.encode(errors="replace"))
    return reader.answer()
