"""Answer a question: every strategy that there is for it, and the one to take."""

from __future__ import annotations

import os
from dataclasses import dataclass

from clusterkit.core.model import ClusterSpec
from clusterkit.estimate.advice.recommend import (
    Judge,
    Recommendation,
    Tried,
    candidates,
    recommend,
)
from clusterkit.estimate.factors import Calibration, calibration_file, load_calibration
from clusterkit.estimate.query.arguments import EstimateWords
from clusterkit.estimate.query.parse import Asked, read_words

LOCAL = "local"
"""The cluster whose measurements count where none is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a question."""

    words: EstimateWords
    asked: Asked
    judge: Judge
    tried: Tried
    advice: Recommendation


def answer(words: EstimateWords) -> Answer:
    """Return which strategies fit, how fast they are, and which to take.

    Raises:
        UserError: words are missing or make no sense; all of them at once.
    """
    cluster = _cluster(words.cluster) if words.cluster is not None else None
    asked = read_words(words, cluster=cluster)
    judge = Judge(
        margin=asked.margin,
        calibration=_calibration(words.cluster or LOCAL, asked.wish.gpu.name),
        host_memory=asked.host_memory,
    )
    tried = candidates(asked.wish, judge, asked.chosen)
    return Answer(words=words, asked=asked, judge=judge, tried=tried, advice=recommend(tried))


def _cluster(name: str) -> ClusterSpec:
    from clusterkit.config import load_settings  # noqa: PLC0415 - a tenth of a second: pydantic

    return load_settings().cluster(name)


def _calibration(cluster: str, gpu: str) -> Calibration | None:
    """Return what was measured on a cluster, if that was the same sort of GPU."""
    if not os.environ.get("HOME") and not os.environ.get("XDG_CONFIG_HOME"):
        return None
    known = load_calibration(calibration_file(cluster, os.environ))
    known = known.on(gpu) if known is not None else None
    return None if known == Calibration() else known
