"""A traceback that is cut off is told with doubt, and an exception by any name is one."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import pytest

from clusterkit.observe.diagnose.verdict import Diagnosis

Say = Callable[..., Diagnosis]

HEAD = "Traceback (most recent call last):\n"
OWN = '  File "/home/u/fit.py", line 7, in fit\n    for batch in batches:\n'
LIBRARY = (
    '  File "/env/site-packages/shelf/reader.py", line 41, in __next__\n    return self.pull()\n'
)
CHAINED = (
    f"{HEAD}{OWN}KeyError: 'lr'\n\n"
    "During handling of the above exception, another exception occurred:\n\n"
)
STEPS = "".join(f"step {n} loss 2.{n}\n" for n in range(9))


def told(found: Diagnosis) -> tuple[str, int, int | None] | None:
    cause = found.cause
    return None if cause is None else (cause.rule, cause.evidence.line, cause.rank)


def test_a_log_that_ends_in_a_traceback_says_where_the_code_was(say: Say) -> None:
    log = STEPS + HEAD + OWN + LIBRARY
    for text in (log, log[:-9], gzip.compress(log.encode())):
        found = say(text)
        assert told(found) == ("traceback-cut", 10, None)
        assert found.cause is not None
        assert found.cause.title.endswith(
            "the last frame is /env/site-packages/shelf/reader.py:41, called at /home/u/fit.py:7"
        )
        assert "the line that names it is missing" in found.cause.says
    assert told(say(STEPS + HEAD)) == ("traceback-cut", 10, None)


@pytest.mark.parametrize("end", ["srun: error: n1: task 0: Exited with exit code 1\n", "\n\n"])
def test_the_report_of_a_launcher_tells_less(say: Say, end: str) -> None:
    assert told(say(STEPS + HEAD + OWN, end)) == ("traceback-cut", 10, None)


def test_each_rank_has_a_traceback_of_its_own(say: Say) -> None:
    cut = "".join(f"[rank3]: {line}\n" for line in (HEAD + OWN).splitlines())
    assert told(say(f"{cut}[rank0]: saving the table\n")) == ("traceback-cut", 1, 3)
    whole = f"{cut}[rank3]: KeyError: 'lr'\n"
    assert told(say(whole)) == ("python-exception", 4, 3)
    assert told(say(whole + cut.replace("rank3", "rank1"))) == ("python-exception", 4, 3)


@pytest.mark.parametrize(
    "log",
    [
        f"{HEAD}{OWN}{STEPS}",  # who printed it did so without the exception
        f"Exception ignored in: <function Shelf.__del__>\n{HEAD}{OWN}",
        f"--- Logging error ---\n{HEAD}{OWN}shelf.Torn: page 7\n{STEPS}",
        f"{HEAD}{OWN}shelf.Torn: page 7\n{STEPS}",
        f"{HEAD}{OWN}RuntimeError: retrying the pull\n{STEPS}",
    ],
)
def test_a_program_that_goes_on_has_not_failed(say: Say, log: str) -> None:
    assert say(log).cause is None


@pytest.mark.parametrize("name", ["shelf.Torn", "NoSeat", "no_seat"])
@pytest.mark.parametrize("before", ["", CHAINED])
def test_an_exception_of_a_name_that_no_rule_knows_is_told(
    say: Say, name: str, before: str
) -> None:
    found = say(f"{STEPS}{before}{HEAD}{OWN}{LIBRARY}{name}: page 7 is torn\n")
    assert found.cause is not None
    assert ("that led to" in found.cause.says) == (before != "")
    assert f"{name}: page 7 is torn" in found.cause.says
    if not before:
        assert "fit.py:7, in shelf/reader.py:41" in found.cause.says
        assert found.cause.title == f"the script raised {name}"
        assert found.cause.evidence.line == 15


@pytest.mark.parametrize(
    ("first", "second", "told_line"),
    [
        ("IndexError: list index out of range", "ValueError: no run stands in out/base", 11),
        ("KeyError: 'lr'", "shelf.errors.ShelfError: the shelf has no such entry", 11),
        ("IndexError: list index out of range", "KeyError: 'no run of base'", 4),
        ("IndexError: list index out of range", "ValueError: base", 4),
        ("ValueError: the table is not whole", "RuntimeError: no run stands in out/base", 4),
    ],
)
def test_what_code_says_of_a_look_up_that_failed_is_told(
    say: Say, first: str, second: str, told_line: int
) -> None:
    ours = '  File "/home/u/fit.py", line 7, in fit\n    '
    log = (
        f"{HEAD}{ours}run = runs[-1]\n{first}\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        f"{HEAD}{ours}raise made(place)\n{second}\n"
    )
    found = say(log).cause
    assert found is not None
    assert found.evidence.line == told_line
    by_from = log.replace("During handling of", "The above exception was the direct cause").replace(
        "the above exception, another exception occurred:", "of the following exception:"
    )
    found = say(by_from).cause
    assert found is not None
    assert found.evidence.line == 4
    by_chance = say(log.replace("raise made(place)", "return made(place)")).cause
    assert by_chance is not None
    assert by_chance.evidence.line == 4


@pytest.mark.parametrize(
    ("importer", "rule"), [("lossy/wide.py", "package-mixed"), ("shelf/a.py", "version-differs")]
)
def test_a_name_that_a_package_misses_of_itself_is_a_mixed_installation(
    say: Say, importer: str, rule: str
) -> None:
    found = say(
        f'{HEAD}  File "/env/lib/python3.11/site-packages/{importer}", line 7, in <module>\n'
        "    from lossy.common import grid\nImportError: cannot import name 'grid' from "
        "'lossy.common' (/env/lib/python3.11/site-packages/lossy/common.py)\n"
    ).cause
    assert found is not None
    assert found.rule == rule


def test_an_index_beyond_a_list_is_told_by_where_it_is(say: Say) -> None:
    fetch = (
        '  File "/env/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", line 52, '
        "in fetch\n    data = [self.dataset[idx] for idx in possibly_batched_index]\n"
    )
    said = f"{OWN}IndexError: list index out of range\n"
    assert told(say(HEAD + said)) == ("python-exception", 4, None)
    assert told(say(HEAD + fetch + said)) == ("data-set-code", 6, None)


def test_memory_that_a_script_says_was_short_counts_where_the_job_failed(say: Say) -> None:
    short = "rank 3: CUDA out of memory. Tried to allocate 3.25 GiB. GPU 1 has a total capacity of"
    end = "srun: error: n1: task 3: Exited with exit code 1\n"
    found = say(STEPS + f"{short} 79 GiB\n", end).cause
    assert found is not None
    assert found.rule == "cuda-out-of-memory-told"
    assert say(f"{short} 79 GiB\n{STEPS}").cause is None


def test_a_start_that_was_refused_and_the_last_one_that_was_interrupted_are_both_told(
    say: Say,
) -> None:
    refused = "usage: fit.py [-h] [--n N]\nfit.py: error: argument --n: expected one argument\n"
    stopped = f'{HEAD}  File "/home/u/tell.py", line 3, in <module>\n    {{}}\nKeyboardInterrupt\n'
    found = say(refused + stopped.format("from lossy import grid"))
    assert found.cause is not None
    assert found.cause.rule == "interrupted"
    assert "an earlier run in it had ended with: fit.py: error: argument --n" in found.notes[0]
    parent = say(refused + stopped.format("child.wait()"))  # it may have started the other
    assert parent.cause is not None
    assert parent.cause.rule == "wrong-arguments"
