"""Waiting times that tests shorten: the factor, its bounds, and what has to stay in order."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from clusterkit.core import timing
from tests.helpers.paths import ROOT

TIMES = """
import json
from clusterkit.executors.node import coordinator, health, peers, supervisor, task, watch
times = watch.Timeouts()
looked_s = times.poll_s + times.peer_grace_s + times.grace_s + health._READING_S
print(json.dumps({
    "calls": [peers.CALL_EVERY_S, peers.DOUBT_S, peers.SILENCE_S, peers.HEAD_SILENCE_S,
              task._CAUSE_S],
    "first node": [coordinator._DECIDE_S, peers.SILENCE_S],
    "ends": [times.poll_s, times.peer_grace_s, times.grace_s, supervisor._END_GRACE_S,
             supervisor._PEER_GRACE_S],
    "over ssh": [looked_s, supervisor._PEER_GRACE_S + supervisor._END_GRACE_S],
    "on slurm": [looked_s, task._LOOKS_S],
    "peers": [times.poll_s + times.peer_grace_s + times.poll_s, supervisor._PEER_GRACE_S],
}))
"""


@pytest.mark.parametrize("text", [None, "", "1", "1.5", "0.05", "0", "-1", "nan", "inf", "a fifth"])
def test_what_is_no_factor_up_to_one_changes_nothing(text: str | None) -> None:
    assert timing.scale_of(text) == 1.0


def test_a_factor_shortens_but_not_below_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timing.scale_of("0.2") == 0.2
    assert timing.scaled(10.0, 4.0) == 10.0
    monkeypatch.setattr(timing, "_SCALE", 0.2)
    assert timing.scaled(10.0) == 2.0
    assert timing.scaled(10.0, 4.0) == 4.0
    assert timing.scaled(3.0, 4.0) == 3.0


def test_it_is_passed_on_where_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(timing.VARIABLE, raising=False)
    assert timing.passed_on() == {}
    monkeypatch.setenv(timing.VARIABLE, "0.2")
    monkeypatch.setattr(timing, "_SCALE", 0.2)
    assert timing.passed_on() == {timing.VARIABLE: "0.2"}


@pytest.mark.parametrize("scale", ["1", "0.5", "0.2", "0.1"])
def test_who_has_to_be_later_than_another_is_so_at_every_scale(scale: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TIMES],
        env={timing.VARIABLE: scale, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    for name, times in json.loads(done.stdout).items():
        assert times == sorted(set(times)), name
