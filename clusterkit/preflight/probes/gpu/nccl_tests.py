"""An all-reduce between the GPUs of one node: `all_reduce_perf` of NVIDIA's nccl-tests.

It keeps all GPUs busy for up to a minute, so it is run only where the site or the job sets
`CLUSTERKIT_NCCL_TESTS=1`. The parser reads any of the programs of nccl-tests, over any number of
nodes, and what srun -l, mpirun --tag-output, kubectl and CI put before the lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from clusterkit.core.data import read_snippet, read_table
from clusterkit.core.records import row_of
from clusterkit.core.shell import quote
from clusterkit.preflight.probes.gpu.nvidia import LANE, nvidia
from clusterkit.transport.probe import PreflightJob, Probe, Unparsed, first_line

ASK = "CLUSTERKIT_NCCL_TESTS"
"""Variable of the job or the site that asks for it."""

_PREFIX = re.compile(
    r"^(?:\[pod/[\w./-]{1,200}\] )?"
    r"(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)? )?"
    r"(?:\[\d{1,9},\d{1,9}\]<std(?:out|err)>:| {0,8}\d{1,9}:)?"
)
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
_HEAD = re.compile(r"size +count +type\b(?: +(redop))?(?: +(root))? +(?:cpu)?time\b(.*)")
_PROGRAM = re.compile(r"Collective test (?:starting|concluded): (?:\S*/)?(\w{1,40})")
_CALLED = re.compile(r"(?<![\w`])(?:[\w.~$/-]{0,80}/)?([a-z_]{4,20}_perf(?:_mpi)?) +[-\\]")
"""In a command line that is echoed before the table."""
_STARTS = (_HEAD, _RANK, _CALLED, re.compile("Collective test starting:"))
_UNCHECKED = re.compile(r"nThread .* validation: 0\b.*")
_TYPES = re.compile(r"u?int(?:8|32|64)?|half|float|double|bfloat16|(?:f8|fp8_)e[45]m[23]|char")
_SIDE = 4
"""Cells of each side: time, algbw, busbw, and wrong values (before 2.13 the largest error)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """The columns of a table: since 2.13 all programs print redop and root, before some did."""

    redop: bool
    root: bool
    counts_wrong: bool
    """The last cell of a side is a number of wrong values, and no error."""
    more: int = 0
    """Cells behind those of each side, with -I."""

    @classmethod
    def seen(cls, columns: Sequence[str]) -> _Layout:
        """Return the layout of a row whose head is missing."""
        named = columns[3].isalpha() if len(columns) > 3 else False
        return cls(redop=named, root=len(columns) - named > 3 + 2 * _SIDE, counts_wrong=True)

    @classmethod
    def of(cls, head: re.Match[str]) -> _Layout:
        sides = head[3].split()
        return cls(
            redop=head[1] is not None,
            root=head[2] is not None,
            counts_wrong="error" not in sides,
            more=sum(word.startswith("i_") for word in sides) // 2,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One message size."""

    size: int
    """Bytes."""
    count: int
    """Elements: of all ranks together, or of one where each has a part of the result."""
    type: str
    """Of the elements, such as `float`."""
    operation: str | None
    """The reduction, such as `sum`; `none`, or before 2.13 a blank, where nothing is reduced; None
    without that column."""
    root: int | None
    """The rank from which, or to which, all goes; None where all ranks are alike."""
    time_us: float
    """Of the faster of out of place and in place, as the two figures that follow."""
    alg_gb_s: float
    bus_gb_s: float
    wrong: int | None
    """Values that were wrong; None where they were not counted."""
    checked: bool
    """Whether somebody looked at the values: there is no `N/A` on both sides."""
    in_place_checked: bool


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
    """Its name, where the text says it, such as `all_gather_perf`."""
    called: str | None = None
    """The program of the last command line before the table."""

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

    A program that failed before it printed a row is a run without rows.

    Raises:
        Unparsed: there is neither a table nor a failed test, or a row is damaged.
    """
    runs: list[list[str]] = [[]]
    has_rows = False
    for line in _lines(text):
        if has_rows and any(start.search(line) for start in _STARTS):
            runs.append([])
            has_rows = False
        runs[-1].append(line)
        has_rows = has_rows or _is_row(line.split())
    return tuple(_parse(lines, may_fail=True) for lines in runs)


def _lines(text: str) -> list[str]:
    return [_PREFIX.sub("", line).strip().lstrip("# ") for line in text.splitlines()]


def _parse(lines: Sequence[str], *, may_fail: bool = False) -> NcclTest:
    rows: list[Row] = []
    layout: _Layout | None = None
    for line in lines:
        if head := _HEAD.fullmatch(line):
            layout = _Layout.of(head)
        elif _is_row(fields := line.split()):
            rows.append(_row(line, fields, layout or _Layout.seen(fields)))
    failed = tuple(dict.fromkeys(one[1] for line in lines if (one := _FAILURE.search(line))))
    error = next((f"{one[1]}: {one[2]}" for line in lines if (one := _ERROR.fullmatch(line))), None)
    if not rows and not (may_fail and (failed or error)):
        shown = first_line("\n".join(lines))
        raise Unparsed(f"no table of nccl-tests: {shown[:60]!r}")
    ranks = [rank for line in lines if (rank := _RANK.fullmatch(line)) is not None]
    average = next((found for line in lines if (found := _AVERAGE.fullmatch(line))), None)
    correct = _correct(lines, rows)
    called = [one[1] for line in lines if (one := _CALLED.search(line))]
    untold = f"{failed[0]}: a test failed" if failed and correct is None else None
    return NcclTest(
        rows=tuple(rows),
        ranks=max((int(rank[1]) for rank in ranks), default=-1) + 1 or None,
        listed=len(ranks),
        hosts=tuple(dict.fromkeys(rank[2] for rank in ranks)),
        device=ranks[0][3] if ranks else None,
        average_gb_s=float(average[1]) if average else None,
        correct=correct,
        failed=failed,
        error=error or untold,
        program=next((one[1] for line in lines if (one := _PROGRAM.search(line))), None),
        called=called[-1] if called else None,
    )


def _is_row(fields: Sequence[str]) -> bool:
    """Tell a row from titles, ranks, prose, and lines of NCCL's own."""
    numbers = len(fields) > 2 and all(_NUMBER.fullmatch(field) for field in fields[:2])
    return numbers and _TYPES.fullmatch(fields[2]) is not None


def _row(line: str, fields: Sequence[str], layout: _Layout) -> Row:
    width = _SIDE + layout.more
    in_place_at = 3 + layout.redop + layout.root
    # Before 2.13 some programs had a column for a reduction, and left it blank. With -S a date
    # and a time stand behind the row.
    blank = layout.redop and not "".join(fields[3:4]).isalpha()
    in_place_at -= blank
    left, right = (
        fields[in_place_at : in_place_at + width],
        fields[in_place_at + width : in_place_at + 2 * width],
    )
    if len(right) < width or len(fields) - in_place_at - 2 * width not in {0, 2}:
        raise Unparsed(f"a row of {len(fields)} cells: {line[:60]!r}")
    sides = [left[:_SIDE], right[:_SIDE]]
    if not all(_FIGURE.fullmatch(cell) for side in sides for cell in side[:3]):
        raise Unparsed(f"no figures: {line[:60]!r}")
    seen = [side[3] for side in sides if _FIGURE.fullmatch(side[3])]
    better = max(sides, key=lambda side: float(side[2]))
    root = fields[in_place_at - 1] if layout.root else "-1"
    return Row(
        size=int(fields[0]),
        count=int(fields[1]),
        type=fields[2],
        operation="" if blank else fields[3] if layout.redop else None,
        root=int(root) if _NUMBER.fullmatch(root) else None,
        time_us=float(better[0]),
        alg_gb_s=float(better[1]),
        bus_gb_s=float(better[2]),
        wrong=sum(int(float(cell)) for cell in seen) if seen and layout.counts_wrong else None,
        checked=bool(seen),
        in_place_checked=_FIGURE.fullmatch(right[3]) is not None,
    )


def _correct(lines: Sequence[str], rows: Sequence[Row]) -> bool | None:
    summed = next((found for line in lines if (found := _SUMMED.fullmatch(line))), None)
    if any(row.wrong for row in rows) or (summed and summed[2] == "FAILED"):
        return False
    if summed is None or any("Test failure" in line for line in lines):
        return None
    # With -c 0 nobody looks, and it ends with 0 OK all the same.
    unseen = any(_UNCHECKED.fullmatch(line) for line in lines)
    return None if unseen or not all(row.checked for row in rows if row.size) else True


def _command(job: PreflightJob) -> str | None:
    exports = "".join(f"export {name}={quote(value)}\n" for name, value in job.env.items())
    return exports + nvidia(read_snippet("nccl_tests"))(job) if job.requests(ASK) else None


PROBE = Probe(name="nccl-tests", command=_command, parse=parse, timeout_s=120.0, lane=LANE)


MIN_BYTES = 1 << 30
"""Smaller messages are slower on the same links, and say nothing beside these figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One system, and what it reaches."""

    gpu: re.Pattern[str]
    """Found in what NVIDIA's or AMD's driver calls the GPU."""
    nodes: int
    per_node: int
    network: str | None = None
    """What joins the nodes, as `estimate` calls it; None where it does not matter."""
    gbs: float
    """GB/s of bus bandwidth, an all-reduce."""
    system: str
    source: str
    warn: float | None = None
    """GB/s below which `limits_of` looks at the network; None where nobody says it."""
    replace: float | None = None
    """GB/s below which `limits_of` takes a node out."""
    limits_of: str = ""


_BUSBW_ROWS = tuple(read_table(__file__, "expected_busbw.tsv"))
_PUBLISHED = tuple(row_of(Published, row) for row in _BUSBW_ROWS)
_USUAL_ONES = tuple(
    one for one, row in zip(_PUBLISHED, _BUSBW_ROWS, strict=True) if row["usual"] == "yes"
)
ONE_NODE = tuple(one for one in _USUAL_ONES if one.nodes == 1)
"""NVIDIA's own systems."""
TWO_NODES = tuple(one for one in _USUAL_ONES if one.nodes == 2)
"""With a network adapter for each GPU, as NVIDIA sells them."""


def published_for(
    device: str, *, nodes: int, per_node: int, network: str | None
) -> Published | None:
    """Return what is published for as many nodes of these GPUs; None where nothing is."""
    size = (nodes, per_node)
    known = (
        one for one in _PUBLISHED if (one.nodes, one.per_node) == size and one.gpu.search(device)
    )
    return next((one for one in known if one.network in {None, network}), None)
