"""Faults of the practice cluster, on Slurm and over ssh: see `tests.helpers.faults`.

With CLUSTERKIT_FAULT_ROUNDS=10 each strikes ten times, and its figures are printed (`-rP`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.helpers.faults import FAULTS, STRIKES, suffer
from tests.helpers.lab_jobs import Cluster
from tests.lab import Lab

pytestmark = pytest.mark.lab
ROUNDS = int(os.environ.get("CLUSTERKIT_FAULT_ROUNDS", "1"))


@pytest.mark.parametrize(("kind", "name"), STRIKES)
def test_what_the_user_is_told(lab: Lab, tmp_path: Path, kind: str, name: str) -> None:
    rounds = [suffer(Cluster(lab, tmp_path, kind), FAULTS[name]) for _ in range(ROUNDS)]
    print(*rounds, sep="\n")
    for told in rounds:
        assert re.fullmatch(FAULTS[name].ends[kind], told.end), told
        assert told.seconds < FAULTS[name].within_s
