"""How long a job may be silent: learned from its steps, and no shorter than evaluations."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import accumulate, chain, repeat
from pathlib import Path

import pytest

from clusterkit.executors.node.progress import Activity, Patience, Signs

LOOK_S = 5.0
HOUR_S = 3600.0


def noticed_at(signs: Iterable[float], *, until: float, **does: Iterable[float]) -> float | None:
    """Return when a hang is noticed of a job that gives signs at these times.

    `busy` are times up to which a process is at work, in pairs of begin and end; `moves` those in
    which it reads and writes.
    """
    patience, times = Patience(0.0), sorted(signs)
    spans = {key: list(zip(*[iter(value)] * 2, strict=True)) for key, value in does.items()}
    now = 0.0
    while now < until:
        now += LOOK_S
        if times and times[0] <= now:
            left = [at for at in times if at > now]
            patience.hear(now, len(times) - len(left))
            times = left
        else:
            active = any(begin <= now <= end for begin, end in spans.get("busy", []))
            moved = any(begin <= now <= end for begin, end in spans.get("moves", []))
            patience.see(now, active=active, moved=moved)
        if patience.is_over(now):
            return now
    return None


def steps(*gaps: float, begin: float = 60.0) -> list[float]:
    return list(accumulate(chain([begin], gaps)))


BUSY = (0.0, 100 * HOUR_S)
"""A rank that waits in NCCL takes a processor all the time, as one that trains does."""

HEALTHY = {
    "a step each second": steps(*repeat(1.0, 3000)),
    "an evaluation of 2 minutes every 100 steps": steps(*([1.0] * 100 + [120.0]) * 20),
    "a checkpoint of 2 minutes and an evaluation of 2 minutes right after it": steps(
        *([2.0] * 200 + [240.0]) * 5
    ),
    "warm-up that compiles for 10 minutes between the first steps": steps(
        600.0, 30.0, *repeat(1.0, 500)
    ),
    "40 minutes until the first step": steps(*repeat(1.0, 500), begin=2400.0),
    "a line every 10 minutes": steps(*repeat(600.0, 20)),
    "a line every 45 minutes": steps(*repeat(2700.0, 6)),
    "evaluations that grow from 2 to 12 minutes": steps(
        *chain.from_iterable([1.0] * 50 + [120.0 * 1.5**k] for k in range(5))
    ),
    "one sign, then an hour of silent training": [60.0],
}


@pytest.mark.parametrize("signs", HEALTHY.values(), ids=HEALTHY.keys())
def test_no_job_that_works_is_told_to_hang(signs: list[float]) -> None:
    assert noticed_at(signs, until=min(signs[-1], 10 * HOUR_S), busy=BUSY) is None


@pytest.mark.parametrize("gap_s", [0.2, 1.0, 30.0, 150.0, 600.0])
def test_a_hang_is_told_within_a_minute_of_the_patience_whatever_processors_do(
    gap_s: float,
) -> None:
    """The longest silence was one step, or an evaluation of two minutes."""
    for longest_s in (gap_s, max(gap_s, 120.0)):
        signs = steps(*repeat(gap_s, 20), longest_s, *repeat(gap_s, 20))
        patience_s = max(300.0, 2 * (longest_s + LOOK_S))
        found = noticed_at(signs, until=signs[-1] + 2 * HOUR_S, busy=BUSY)
        assert found is not None
        assert signs[-1] + 290.0 <= found <= signs[-1] + patience_s + 60.0


def test_a_long_warm_up_is_forgotten() -> None:
    signs = steps(1200.0, *repeat(1.0, 60))
    found = noticed_at(signs, until=signs[-1] + HOUR_S, busy=BUSY)
    assert found == pytest.approx(signs[-1] + 300.0, abs=2 * LOOK_S)


def test_a_script_without_steps_is_judged_by_what_its_processes_do() -> None:
    assert noticed_at([], until=2 * HOUR_S, busy=BUSY) is None
    assert noticed_at([], until=2 * HOUR_S, moves=BUSY) is None
    assert noticed_at([], until=HOUR_S, busy=(0.0, 900.0)) == pytest.approx(1200.0, abs=LOOK_S)


def test_idle_ranks_after_the_first_step_are_told_at_once_and_busy_ones_late() -> None:
    assert noticed_at([60.0], until=HOUR_S) == pytest.approx(360.0, abs=LOOK_S)
    assert noticed_at([60.0], until=3 * HOUR_S, busy=BUSY) == pytest.approx(3660.0, abs=LOOK_S)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_ranks_that_are_idle_between_early_steps_are_told_at_once_and_busy_ones_late(
    n: int,
) -> None:
    signs = steps(*repeat(6.0, n - 1))
    factor = 3 if n < 4 else 1
    assert noticed_at(signs, until=HOUR_S) == pytest.approx(signs[-1] + 300.0, abs=2 * LOOK_S)
    for does in ("busy", "moves"):
        found = noticed_at(signs, until=HOUR_S, **{does: (0.0, signs[-1] + 800.0)})
        assert found is not None
        assert found >= signs[-1] + factor * 300.0 - LOOK_S


def test_idle_ranks_may_be_silent_for_twice_their_longest_silence_between_early_steps() -> None:
    patience = Patience(0.0)
    patience.hear(10.0)
    assert patience.is_over(310.0)
    patience.hear(410.0)
    assert not patience.is_over(1200.0)
    assert patience.is_over(1210.0)


def test_a_checkpoint_that_is_being_written_gets_three_times_as_long() -> None:
    signs = steps(*repeat(1.0, 100))
    last = signs[-1]
    assert (
        noticed_at([*signs, last + 600.0], until=last + 600.0, moves=(last, last + 590.0)) is None
    )
    found = noticed_at(signs, until=last + HOUR_S, moves=(last, last + HOUR_S))
    assert found == pytest.approx(last + 900.0, abs=2 * LOOK_S)


def test_a_silence_that_ended_is_learned() -> None:
    patience = Patience(0.0)
    for now in (10.0, 20.0, 30.0, 40.0, 50.0, 60.0):
        patience.hear(now)
    assert patience.is_over(400.0)
    patience.hear(460.0)
    assert patience.seconds == 800.0
    assert not patience.is_over(1200.0)


@pytest.fixture
def signs(tmp_path: Path) -> Signs:
    (tmp_path / "log").write_text("step 3 of an attempt before\n")
    since = (tmp_path / "log").stat().st_size
    return Signs(tmp_path / "log", tmp_path / "heartbeat", since=since)


def add(folder: Path, text: str) -> None:
    with (folder / "log").open("a") as stream:
        stream.write(text)


def test_steps_and_bars_that_move_are_progress_and_other_output_is_none(
    signs: Signs, tmp_path: Path
) -> None:
    assert not signs.look()
    for text, moves in (
        ("step 1 loss 2.5\n", True),
        ("step 1 loss 2.5\n", False),
        ("still waiting for rank 3\n", False),
        ("clusterkit: it hangs: no step for 9 s, after step 0\n", False),
        ("step 2 loss", True),
        (" 2.4\nwarning: slow\n", False),
        ("\rEvaluating:  10%|#  | 10/100 [00:10<01:30,  1.00it/s]", True),
        ("\rEvaluating:  10%|#  | 10/100 [00:20<03:00,  2.00s/it]", False),
        ("\rEvaluating:  11%|#  | 11/100 [00:21<03:00,  2.00s/it]", True),
        ("\nthroughput: 431.2 samples/s\n", True),
    ):
        add(tmp_path, text)
        assert bool(signs.look()) is moves, text
        assert signs.grew
    assert (signs.step, signs.by) == (2, "steps")
    assert not signs.look()
    assert not signs.grew


def test_steps_count_by_their_numbers_however_many_ranks_print_them(
    signs: Signs, tmp_path: Path
) -> None:
    add(tmp_path, "".join(f"[rank{rank}] step {n} loss 1\n" for n in range(6) for rank in range(8)))
    assert signs.look() == 4
    add(tmp_path, "[rank7] step 5 loss 1\n")
    assert not signs.look()


def test_a_log_that_is_huge_torn_emptied_or_gone_does_no_harm(signs: Signs, tmp_path: Path) -> None:
    add(tmp_path, "x" * (3 << 20) + "\nstep 7 loss 1\n")
    assert signs.look()
    (tmp_path / "log").write_text("")
    assert not signs.look()
    add(tmp_path, "step 8\n")
    assert signs.look()
    (tmp_path / "log").unlink()
    (tmp_path / "log").symlink_to("/dev/zero")
    assert not signs.look()


def test_a_heartbeat_counts_by_its_time_alone_and_only_a_file_of_ours(
    signs: Signs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat, other = tmp_path / "heartbeat", tmp_path / "other"
    beat.touch()
    assert signs.look()
    assert signs.by == "heartbeat"
    os.utime(beat, (10**9, 10**9))  # a clock that went back is another time as well
    assert signs.look()
    with beat.open("wb") as stream:
        stream.truncate(1 << 40)
    signs.look()
    assert not signs.look()
    beat.unlink()
    other.touch()
    beat.symlink_to(other)
    assert not signs.look()
    beat.unlink()
    beat.touch()
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    if beat.stat().st_uid:
        assert not signs.look()


def test_what_processes_take_is_compared_with_the_look_before() -> None:
    activity = Activity()
    me = os.getpid()
    assert activity.look([me], 0.0) == (True, False)
    assert activity.look([me, 1 << 30], 1e6) == (False, False)
    Path(os.devnull).write_bytes(b"x" * (2 << 20))
    assert activity.look([me], 2e6) == (False, True)
    sum(k * k for k in range(2_000_000))
    assert activity.look([me], 2e6 + 0.1)[0]
