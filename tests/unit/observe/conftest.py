"""What tests of diagnose share: the diagnosis of logs that a test writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clusterkit.observe.diagnose.events import Source
from clusterkit.observe.diagnose.rules import Rule, own_rules
from clusterkit.observe.diagnose.verdict import Diagnosis, Known, diagnose


@pytest.fixture(scope="session")
def rules() -> tuple[Rule, ...]:
    """Give the rules that ship; a module whose tests are of the engine gives others."""
    return own_rules()


@pytest.fixture
def say(tmp_path: Path, rules: tuple[Rule, ...]) -> Callable[..., Diagnosis]:
    """Give what diagnoses logs, of nodes n1, n2 ... where there are several, and facts by name."""

    def diagnosis_of(*logs: str | bytes, **known: object) -> Diagnosis:
        sources = []
        for number, log in enumerate(logs):
            path = tmp_path / f"node-{number}.log"
            path.write_bytes(log.encode() if isinstance(log, str) else log)
            sources.append(Source(path=path, node=f"n{number + 1}" if len(logs) > 1 else None))
        return diagnose(rules, sources, Known(**known))

    return diagnosis_of
