"""Answer a question: every strategy that there is for it, and the one to take."""

from __future__ import annotations

import os
from dataclasses import replace

from clusterkit.core.model import ClusterSpec
from clusterkit.estimate.advice.recommend import Answer, answer_of
from clusterkit.estimate.factors import Calibration, calibration_file, load_calibration
from clusterkit.estimate.query.options import EstimateOptions
from clusterkit.estimate.query.parse import read_options

LOCAL = "local"
"""The cluster whose measurements count where none is named."""


def answer(options: EstimateOptions) -> Answer:
    """Return which strategies fit, how fast they are, and which to take.

    Raises:
        UserError: options are missing or make no sense; all of them at once.
    """
    cluster = _cluster(options.cluster) if options.cluster is not None else None
    request = read_options(options, cluster=cluster)
    calibration = _calibration(options.cluster or LOCAL, request.gpu.name)
    return answer_of(replace(request, calibration=calibration))


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
