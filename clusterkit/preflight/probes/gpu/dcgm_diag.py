"""Read `dcgmi diag`, as a table (DCGM 3) or as JSON (`-j`, DCGM 3 and 4).

A diagnosis stresses the GPUs and takes from seconds (level 1) to hours (level 4), so it is run
only where the site or the job sets `CLUSTERKIT_DCGM_DIAG=1`, and only at level 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from clusterkit.core.data import read_snippet
from clusterkit.core.text import harmless
from clusterkit.core.untrusted import NONSENSE, first_json
from clusterkit.preflight.probes.gpu.nvidia import LANE, nvidia
from clusterkit.transport.probe import PreflightJob, Probe, Unparsed, first_line

ASK = "CLUSTERKIT_DCGM_DIAG"
"""Variable of the job or the site that asks for a diagnosis."""

_CONFIGURATION_SEVERITY = 5
"""DCGM_ERROR_CONFIG of dcgm_errors.h: a setting of the node, not a broken GPU."""
_RESULTS = frozenset({"Pass", "Fail", "Warn", "Skip", "NOT_RUN"})
_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
_ROW = re.compile(r"\|([^|]+)\|([^|]*)\|")
_SECTION = re.compile(r"[|+]-+\s+(\S|\S.*\S)\s+-+\+-*[|+]")
_WIDTH = 45
"""Characters of a cell; longer texts go on below (DATA_INFO_TAG_LEN of dcgmi's Diag.cpp)."""
_LONGEST = 400
_REMARK = re.compile(r"(?:Warning|Info|Error)\b")
_OF_ONE = re.compile(r"([A-Za-z]+ ?\d+): (Pass|Fail|Warn|Skip)")
_GPU = re.compile(r"GPU ?\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagTest:
    """One test of a diagnosis."""

    name: str
    result: str
    """`Pass`, `Fail`, `Warn`, `Skip` or `NOT_RUN`; skipped is not passed."""
    entity: str = ""
    """Such as `GPU 0`; empty for the test as a whole."""
    warnings: tuple[str, ...] = ()
    configuration: bool = False
    """Whether all that is wrong is a setting of the node, not its hardware."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diag:
    """A diagnosis."""

    tests: tuple[DiagTest, ...]


def parse(text: str) -> Diag:
    """Read either form; raises `Unparsed` on anything else."""
    start = text.find("{")
    if start >= 0 and '"DCGM' in text:
        return _read_json(text[start:])
    return _read_table(text)


def _read_json(text: str) -> Diag:
    try:
        document, _ = first_json(text)
        root = next(document[name] for name in _ROOTS if name in document)
        tests = tuple(_json_tests(root))
    except (*NONSENSE, StopIteration) as bad:
        raise Unparsed(f"no JSON of dcgmi diag: {type(bad).__name__}") from None
    if not tests:
        raise Unparsed("no test in the JSON of dcgmi diag")
    return Diag(tests=tests)


def _json_tests(root: Mapping[str, Any]) -> Iterator[DiagTest]:
    for category in root["test_categories"]:
        for test in category["tests"]:
            for result in test["results"]:
                # DCGM 3 has one flat result a GPU, DCGM 4 an entity each.
                group = result.get("entity_group", "GPU")
                number = result.get("entity_id", result.get("gpu_id", ""))
                warnings = result.get("warnings", ())
                details = [w if isinstance(w, dict) else {"warning": w} for w in warnings]
                yield DiagTest(
                    name=str(test["name"]),
                    result=_result(str(result["status"])),
                    entity=f"{group} {number}".strip(),
                    warnings=tuple(first_line(str(d.get("warning", ""))) for d in details),
                    configuration=bool(details)
                    and all(d.get("error_severity") == _CONFIGURATION_SEVERITY for d in details),
                )


def _result(text: str) -> str:
    for known in _RESULTS:
        if text.lower() == known.lower():
            return known
    raise Unparsed(f"no result of a test: {text[:40]!r}")


def _read_table(text: str) -> Diag:
    if "| Diagnostic" not in text:
        raise Unparsed(f"no answer of dcgmi diag: {first_line(text)[:60]!r}")
    category = ""
    tests: list[DiagTest] = []
    rows = text[text.index("| Diagnostic") :].splitlines()[1:]
    for name, value in _joined(rows):
        if not value:
            category = name
        elif category == "Metadata":
            continue
        elif _REMARK.match(name) or not name:
            tests[-1:] = [_with_message(test, name, value) for test in tests[-1:]]
        else:
            result, _, entity = value.partition(" - ")  # of "All", or of "GPUs: 0, 3"
            entity = "" if entity == "All" else entity
            result = _result(result)
            tests.append(DiagTest(name=name, result=result, entity=entity))
    if not tests:
        raise Unparsed("no test in the table of dcgmi diag")
    return Diag(tests=tuple(tests))


def _joined(rows: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield name and text of each row; a section has no text, a result of one GPU no name."""
    name, text = "", ""
    for row in rows:
        cells = _ROW.match(row.strip())
        section = _SECTION.match(row.strip())
        if cells and not cells[1].strip() and not _OF_ONE.fullmatch(cells[2].strip()):
            text += cells[2][1 : 1 + _WIDTH]  # cut wherever the cell was full
            continue
        if text.strip():
            yield name, " ".join(text.split())
        name, text = "", ""
        if section:
            yield section[1], ""
        elif cells:
            name, text = cells[1].strip(), cells[2][1 : 1 + _WIDTH].ljust(_WIDTH)
    if text.strip():
        yield name, " ".join(text.split())


def _with_message(test: DiagTest, name: str, value: str) -> DiagTest:
    """Return `test` with what a row below it adds: a reason, or the result of one GPU (DCGM 4)."""
    if not name:
        single = _OF_ONE.fullmatch(value)
        if single is not None and single[2] == "Fail" != test.result:  # whatever stands above it
            return replace(test, result="Fail", entity=single[1])
        if single is None or single[2] != test.result or test.result == "Pass":
            return test
        return replace(test, entity=f"{test.entity} {single[1]}".strip())
    gpu = "" if value.startswith("GPU") else name.partition(":")[2]
    reason = harmless(f"{gpu} {value}".strip())[:_LONGEST]
    # What differs by the number of the GPU only is said once.
    if _GPU.sub("", reason) in {_GPU.sub("", warning) for warning in test.warnings}:
        return test
    warnings = (*test.warnings, reason)
    return replace(
        test, warnings=warnings, configuration=all("ersistence mode" in w for w in warnings)
    )


def _command(job: PreflightJob) -> str | None:
    return nvidia(read_snippet("dcgm_diag"))(job) if job.requests(ASK) else None


PROBE = Probe(name="dcgm-diag", command=_command, parse=parse, timeout_s=120.0, lane=LANE)
