"""Each promise of the security page has the test that it names."""

from __future__ import annotations

import ast
import re

from tests.helpers.paths import ROOT

PAGE = ROOT / "docs" / "explanation" / "security.md"
_NAMED = re.compile(r"\| `(test_\w+\.py)(?:::(test_\w+))?` \|")


def test_every_promise_names_a_test_that_is_there() -> None:
    named = _NAMED.findall(PAGE.read_text())
    assert len(named) > 20
    for file, test in named:
        path = ROOT / "tests" / "attacks" / file
        assert path.is_file(), file
        there = {
            node.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        }
        assert there if not test else test in there, f"{file}::{test}"
