"""Faults of the practice cluster, on Slurm and over ssh: see `tests.helpers.faults`.

With CLUSTERKIT_FAULT_ROUNDS=10 each strikes ten times, and its figures are printed (`-rP`).
Without, those are left out whose mechanism is tested elsewhere.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.helpers.faults import ELSEWHERE, FAULTS, STRIKES, suffer
from tests.helpers.lab_jobs import Cluster, in_time
from tests.lab import Lab

ROUNDS = int(os.environ.get("CLUSTERKIT_FAULT_ROUNDS", "1"))
pytestmark = [pytest.mark.lab, pytest.mark.timeout(600 * ROUNDS)]


TESTED = [(kind, name) for kind, name in STRIKES if ROUNDS > 1 or f"{kind}-{name}" not in ELSEWHERE]


@pytest.mark.parametrize(("kind", "name"), TESTED)
def test_what_the_user_is_told(lab: Lab, tmp_path: Path, kind: str, name: str) -> None:
    for _ in range(ROUNDS):
        told = suffer(Cluster(lab, tmp_path, kind), FAULTS[name])
        print(told)
        assert re.fullmatch(FAULTS[name].ends[kind], told.end), told
        assert in_time(lab, told.seconds, FAULTS[name].within_s)


def test_what_is_struck_elsewhere_is_still_there() -> None:
    for test in ELSEWHERE.values():
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in Path(__file__).with_name(file).read_text()
    assert ELSEWHERE.keys() < {f"{kind}-{name}" for kind, name in STRIKES}
