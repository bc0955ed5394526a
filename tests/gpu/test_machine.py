"""preflight, doctor, top and topo on the real machine; every raw answer is kept as a bundle."""

from __future__ import annotations

import pytest

from tests.gpu.looks import look
from tests.gpu.machine import keep, out

pytestmark = pytest.mark.gpu


def test_every_question_is_answered_and_nothing_false_is_found() -> None:
    found = look(out("machine"))
    keep("machine", found)
    assert found["unknown"] == []
    assert found["failed"] == [], "a fault of this GPU, or a false alarm?"
    assert found["doctor"]["condition"] == "ok"
    assert found["top"]
    assert len(found["topo"]) == len(found["top"])
    for gpu in found["top"]:
        assert gpu["memory_mib"] > 0
        assert {gpu["busy_percent"], gpu["temperature_c"], gpu["power_w"]}.isdisjoint({None})
