"""An all-reduce between the GPUs of one node: `all_reduce_perf` of NVIDIA's nccl-tests.

It keeps all GPUs busy for up to a minute, so it is run only where the site or the job sets
`CLUSTERKIT_NCCL_TESTS=1`. The parser reads any of the programs of nccl-tests, over any number of
nodes, and what srun -l and mpirun --tag-output put before the lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from clusterkit.probes.base import PreflightJob, Probe, Unparsed, first_line
from clusterkit.probes.nvidia import LANE, nvidia
from clusterkit.shell import quote

ASK = "CLUSTERKIT_NCCL_TESTS"
"""Variable of the job or the site that asks for it."""

# It ends with 1 where a sum was wrong; what it printed is the answer then too.
_SNIPPET = """command -v all_reduce_perf >/dev/null 2>&1 || { echo 'no all_reduce_perf'; exit 77; }
n=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
[ "$n" -gt 1 ] || { echo 'no two GPUs'; exit 77; }
said=$(all_reduce_perf -b 1G -e 4G -f 2 -g "$n" -w 2 -n 10 2>&1)
c=$?
printf '%s\\n' "$said"
case $said in *busbw*) exit 0 ;; esac
exit "$c"
"""
_PREFIX = re.compile(r"^(?:\[\d{1,9},\d{1,9}\]<std(?:out|err)>:|\d{1,9}:)")
_RANK = re.compile(
    r"Rank +(\d{1,9}) (?:Group +\d{1,9} )?Pid +\d{1,10} on +(\S+)"
    r" device +\d{1,4} \[[\w:.]{1,40}\] (.+)"
)
_NUMBER = re.compile(r"\d{1,18}")
_FIGURE = re.compile(r"\d{1,12}(?:\.\d{1,6})?(?:e[+-]?\d{1,2})?")
"""A time of 10 s and more, and a million wrong values, are written with an exponent."""
_SUMMED = re.compile(r"Out of bounds values : (\d{1,18}) (OK|FAILED)")
_AVERAGE = re.compile(r"Avg bus bandwidth +: (\d{1,9}(?:\.\d{1,9})?)")
_FAILURE = re.compile(r"(?<!\S)(\S{1,255}) pid \d{1,10}: Test failure")
_ERROR = re.compile(r"(\S{1,255}): Test (?:NCCL|CUDA|MPI) failure \S{1,255} '(.{1,300}?)(?: / )?'?")
_HEAD = re.compile(r"size +count +type +redop\b.*")
_PROGRAM = re.compile(r"Collective test concluded: (\w{1,40})")
_COLUMNS = (12, 13)
"""Cells of a row: size, count, type, operation, since 2.11 root; then time, algbw, busbw and wrong
values (before that an error, which counts nothing), out of place and in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One message size."""

    size: int
    """Bytes."""
    count: int
    """Elements: of all ranks together, or of one where each has a part of the result."""
    type: str
    """Of the elements, such as `float`."""
    operation: str
    """The reduction, such as `sum`; `none` where nothing is reduced."""
    time_us: float
    """Of the faster of out of place and in place, as the two figures that follow."""
    alg_gb_s: float
    bus_gb_s: float
    wrong: int | None
    """Values that were wrong; None where they were not looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTest:
    """One run."""

    rows: tuple[Row, ...]
    ranks: int | None
    """None where the run does not list them; the highest that is listed counts."""
    listed: int
    """How many ranks the run lists."""
    hosts: tuple[str, ...]
    """Where those run that are listed."""
    device: str | None
    average_gb_s: float | None
    """Over all sizes; says little where the smallest messages are small."""
    correct: bool | None
    """None where nobody looked, or the end is missing."""
    failed: tuple[str, ...] = ()
    """The hosts that end with a test failure: wrong values, or an error of CUDA or NCCL."""
    error: str | None = None
    """The first such error, and its host."""
    program: str | None = None
    """Its name, where the end says it, such as `all_gather_perf`."""

    @property
    def peak(self) -> Row:
        """The size with the highest bus bandwidth."""
        return max(self.rows, key=lambda row: row.bus_gb_s)


def parse(text: str) -> NcclTest:
    """Read the table, and what stands above and below it.

    Raises:
        Unparsed: there is no table, or a row of it is damaged.
    """
    return _parse(_lines(text))


def parse_each(text: str) -> tuple[NcclTest, ...]:
    """Read the output of one program, or of several that ran one after the other.

    Raises:
        Unparsed: as `parse`.
    """
    runs: list[list[str]] = [[]]
    has_rows = False
    for line in _lines(text):
        if has_rows and (_HEAD.fullmatch(line) or _RANK.fullmatch(line)):
            runs.append([])
            has_rows = False
        runs[-1].append(line)
        has_rows = has_rows or _is_row(line.split())
    return tuple(_parse(lines) for lines in runs)


def _lines(text: str) -> list[str]:
    return [_PREFIX.sub("", line).strip().lstrip("# ") for line in text.splitlines()]


def _parse(lines: Sequence[str]) -> NcclTest:
    counts_wrong = not any(_HEAD.fullmatch(line) and " error" in line for line in lines)
    rows = tuple(_row(line, counts_wrong=counts_wrong) for line in lines if _is_row(line.split()))
    if not rows:
        said = first_line("\n".join(lines))
        raise Unparsed(f"no table of nccl-tests: {said[:60]!r}")
    ranks = [rank for line in lines if (rank := _RANK.fullmatch(line)) is not None]
    average = next((found for line in lines if (found := _AVERAGE.fullmatch(line))), None)
    correct = _correct(lines, rows)
    failed = tuple(dict.fromkeys(one[1] for line in lines if (one := _FAILURE.search(line))))
    untold = f"{failed[0]}: a test failed" if failed and correct is None else None
    return NcclTest(
        rows=rows,
        ranks=max((int(rank[1]) for rank in ranks), default=-1) + 1 or None,
        listed=len(ranks),
        hosts=tuple(dict.fromkeys(rank[2] for rank in ranks)),
        device=ranks[0][3] if ranks else None,
        average_gb_s=float(average[1]) if average else None,
        correct=correct,
        failed=failed,
        error=next(
            (f"{one[1]}: {one[2]}" for line in lines if (one := _ERROR.fullmatch(line))), untold
        ),
        program=next((one[1] for line in lines if (one := _PROGRAM.search(line))), None),
    )


def _is_row(words: Sequence[str]) -> bool:
    """Tell a row from titles, ranks, and lines of NCCL's own."""
    return len(words) > 2 and all(_NUMBER.fullmatch(word) for word in words[:2])


def _row(line: str, *, counts_wrong: bool) -> Row:
    words = line.split()
    if len(words) not in _COLUMNS:
        raise Unparsed(f"a row of {len(words)} cells: {line[:60]!r}")
    measured = [words[-8:-4], words[-4:]]
    if not all(_FIGURE.fullmatch(cell) for side in measured for cell in side[:3]):
        raise Unparsed(f"no figures: {line[:60]!r}")
    wrong = [
        int(float(side[3])) for side in measured if counts_wrong and _FIGURE.fullmatch(side[3])
    ]
    better = max(measured, key=lambda side: float(side[2]))
    return Row(
        size=int(words[0]),
        count=int(words[1]),
        type=words[2],
        operation=words[3],
        time_us=float(better[0]),
        alg_gb_s=float(better[1]),
        bus_gb_s=float(better[2]),
        wrong=sum(wrong) if wrong else None,
    )


def _correct(lines: Sequence[str], rows: Sequence[Row]) -> bool | None:
    summed = next((found for line in lines if (found := _SUMMED.fullmatch(line))), None)
    if any(row.wrong for row in rows) or (summed and summed[2] == "FAILED"):
        return False
    if summed is None or any("Test failure" in line for line in lines):
        return None
    # With -c 0 nobody looks, and it ends with 0 OK all the same.
    unseen = any("#wrong" in line for line in lines) and all(row.wrong is None for row in rows)
    return None if unseen else True


def asked(job: PreflightJob) -> bool:
    """Return whether this job asks for it."""
    return job.env.get(ASK) == "1"


def _command(job: PreflightJob) -> str | None:
    if not asked(job):
        return None
    exports = [f"export {name}={quote(value)}\n" for name, value in job.env.items()]
    return "".join(exports) + nvidia(_SNIPPET)(job)


PROBE = Probe(name="nccl-tests", command=_command, parse=parse, timeout_s=120.0, lane=LANE)
