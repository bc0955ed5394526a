"""What `bench.goodput` makes of the steps and faults of a job."""

from __future__ import annotations

import pytest

from bench.figures import BenchError
from bench.goodput import Found, Step, judge, lines


def trained(attempt: int, first: int, last: int, at: float) -> list[Step]:
    """Steps of a second each."""
    return [
        Step(at=at + k, attempt=attempt, step=step) for k, step in enumerate(range(first, last + 1))
    ]


def found(faults: list[float], *, ended: float = 100.0) -> Found:
    """Steps 1 to 20, a fault at 20.5, and from 30 on steps 15 to 85 of the next attempt."""
    steps = [*trained(0, 1, 20, at=1.0), *trained(1, 15, 85, at=30.0)]
    return judge("slurm", steps, faults, ended)


def test_goodput_is_what_was_reached_of_all_time() -> None:
    one = found([20.5])
    assert (one.faults, one.steps, one.step_s, one.wall_s) == (1, 85, 1.0, 100.0)
    assert one.goodput == pytest.approx(0.85)
    assert (one.away_s, one.again_s) == ((9.5,), (6.0,))
    assert "80% met" in lines([one])[1]


def test_a_fault_without_an_end_is_no_time_away() -> None:
    one = found([20.5, 101.0])
    assert (one.faults, len(one.away_s)) == (2, 1)
    assert "80% MISSED" in lines([found([20.5], ended=150.0)])[1]


def test_a_speed_needs_steps_before_the_first_fault() -> None:
    with pytest.raises(BenchError, match="3 steps before the first fault"):
        found([3.5])
