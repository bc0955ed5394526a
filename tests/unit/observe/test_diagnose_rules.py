"""Every rule of diagnose holds its examples: each fires it alone, and healthy lines none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clusterkit.core.errors import UserError
from clusterkit.observe.diagnose.events import Source
from clusterkit.observe.diagnose.lines import read_line
from clusterkit.observe.diagnose.rules import (
    FOLDER,
    Compare,
    Rule,
    load_rules,
    own_rules,
    read_rule,
    read_rules,
)
from clusterkit.observe.diagnose.verdict import diagnose
from clusterkit.preflight.checks import all_checks, select_checks
from tests.helpers.paths import ROOT

PAGE = ROOT / "docs" / "how-to" / "diagnose.md"
EXAMPLE = FOLDER / "cuda-out-of-memory.yaml"


def firing(folder: Path, *logs: str) -> set[str]:
    """Return the names of everything that is found in these logs, each of a node."""
    sources = [Source(path=folder / f"{n}.log", node=f"n{n}") for n in range(len(logs))]
    for source, log in zip(sources, logs, strict=True):
        source.path.write_text(log + "\n")
    if len(sources) == 1:  # it may be the output of many
        sources = [Source(path=sources[0].path)]
    found = diagnose(own_rules(), sources)
    return {one.rule for one in (found.cause, *found.others) if one is not None}


CLOSING = {rule.id for rule in own_rules() if rule.closing}
"""Rules of errors that no rule knows: what is harmless elsewhere may be one at the end of a log."""
REPORT = "srun: error: n1: task 0: Exited with exit code 1"


@pytest.mark.parametrize("rule", own_rules(), ids=lambda rule: rule.id)
def test_examples_fire_their_rule_alone(rule: Rule, tmp_path: Path) -> None:
    other = ("step 1",) if rule.compare is Compare.SOME_NODES else ()
    for example in rule.examples:
        if rule.compare is Compare.DIFFERS:
            other = (re.sub(r"\d", "7", example),)
        if rule.closing:
            assert rule.id in firing(tmp_path, f"{example}\n{REPORT}"), example
            continue
        assert firing(tmp_path, example, *other) - CLOSING == {rule.id}, example
    for line in rule.healthy:
        if rule.closing:
            assert rule.id not in firing(tmp_path, f"{line}\n{REPORT}"), line
            continue
        # The other line of a rule that compares may be a failure itself.
        others = firing(tmp_path, *other) if rule.compare is Compare.DIFFERS else set()
        assert firing(tmp_path, line, *other) - CLOSING == others - CLOSING, line


def test_a_loss_that_is_nan_counts_once_it_stays_so(tmp_path: Path) -> None:
    fine = "".join(f"step {n} loss 2.{n}\n" for n in range(300))
    assert firing(tmp_path, f"step 1 loss nan\n{fine}step 2 loss nan\n{fine}") == set()
    stays = "".join(f"step {n} loss nan\n" for n in range(300, 303))
    assert firing(tmp_path, fine + stays) == {"nan-loss"}
    assert "A NaN loss counts once it stays NaN:" in PAGE.read_text(encoding="utf-8")


def test_a_frame_is_where_the_exception_was_raised(tmp_path: Path) -> None:
    text = EXAMPLE.read_text().replace("before: 3", "frame: ['\\bours/(?P<part>\\w+)']")
    (tmp_path / "mine.yaml").write_text(text)
    log = tmp_path / "x.log"
    ours = '  File "/opt/ours/engine.py", line 7, in step\n    run(\n        ^^^\n'
    theirs = '  File "/opt/theirs/engine.py", line 7, in step\n    run()\n'
    for traceback, fires in ((theirs + ours, True), (ours + theirs, False), (ours + "x\n", False)):
        log.write_text(f"{traceback}RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
        assert (diagnose(read_rules(tmp_path), [Source(path=log)]).cause is not None) is fires


def test_every_pattern_and_need_has_an_example() -> None:
    for rule in own_rules():
        lines = [read_line(raw.encode()).text for e in rule.examples for raw in e.splitlines()]
        for pattern in rule.patterns:
            assert any(pattern.search(line) for line in lines), (rule.id, pattern.text)


def test_what_is_compiled_only_where_it_is_searched_can_be() -> None:
    for rule in own_rules():
        around = (*rule.near, *rule.frame, *rule.trace, *rule.ends)
        for pattern in (*rule.patterns, *rule.unless, *rule.unless_next, *rule.resets, *around):
            assert pattern.groups == tuple(pattern.compiled.groupindex), (rule.id, pattern.text)


def test_texts_are_whole() -> None:
    for rule in own_rules():
        for text in (rule.says, rule.do):
            assert text.endswith((".", "`")), (rule.id, text)
            assert "{" not in rule.fill(text, {}).replace("{}", ""), (rule.id, text)


def test_the_checks_that_rules_name_are_there() -> None:
    for rule in own_rules():
        for words in re.findall(r"--select ([\w,-]+)", rule.do):
            assert select_checks(all_checks(), select=words.split(",")), (rule.id, words)


def test_groups_are_filled_and_missing_ones_leave_no_gap() -> None:
    rule = read_rule(EXAMPLE)
    assert rule.fill("got {wanted} on {node}.", {"wanted": "2 GiB"}) == "got 2 GiB on."
    assert rule.fill(rule.says, {}) == "A process asked for memory that the GPU did not have free."


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (("role: cause", "role: culprit"), "role"),
        (("priority: 60", "priorty: 60"), "unknown key 'priorty'"),
        (("needs: [CUDA out of memory", "needs: [CUDA"), "needs.0"),
        (("{wanted}", "{wnted}"), "no pattern has a group {wnted}"),
        (("OutOfMemoryError: (?:", "OutOfMemoryError: ("), "no regular expression"),
        (("title: a GPU ran out of memory", "title: a GPU ran out of memory."), "full stop"),
        (("advice: estimate", "advice: estimate\ncompare: differs"), "value"),
        (("title: ", "title: ["), "cannot be read"),
    ],
)
def test_a_file_that_is_no_rule_says_why(
    tmp_path: Path, edit: tuple[str, str], problem: str
) -> None:
    text = EXAMPLE.read_text()
    assert edit[0] in text
    changed = text.replace(*edit)
    if edit[0].startswith("OutOf"):
        changed = text.replace("OutOfMemoryError: (?:CUDA|HIP)", "OutOfMemoryError: (CUDA")
    (tmp_path / "mine.yaml").write_text(changed)
    with pytest.raises(UserError) as raised:
        read_rules(tmp_path)
    assert problem in str(raised.value)
    assert str(tmp_path / "mine.yaml") in str(raised.value)


def test_a_rule_of_a_site_takes_the_place_of_ours(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no rules"):
        load_rules([tmp_path])
    (tmp_path / EXAMPLE.name).write_text(EXAMPLE.read_text().replace("a GPU ran", "a card ran"))
    rules = {rule.id: rule for rule in load_rules([tmp_path])}
    assert rules["cuda-out-of-memory"].title == "a card ran out of memory"
    assert len(rules) == len(own_rules())
