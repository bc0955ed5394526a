"""The how-to of diagnose lists every rule; `make golden` writes the list anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

import yaml

from clusterkit.observe.diagnose.rules import RuleFile, own_rules

PAGE = Path(__file__).resolve().parent.parent / "docs" / "how-to" / "diagnose.md"
HEAD = "| rule | role | what it finds |\n| --- | --- | --- |\n"


def test_the_page_lists_every_rule() -> None:
    rows = "".join(f"| {r.id} | {r.role} | {r.general_title} |\n" for r in own_rules())
    page = PAGE.read_text(encoding="utf-8")
    if os.environ.get("CLUSTERKIT_GOLDEN") == "write":
        page = re.sub(f"{re.escape(HEAD)}(\\|.*\n)*", lambda _: HEAD + rows, page)
        PAGE.write_text(page, encoding="utf-8")
    found = re.search(f"{re.escape(HEAD)}((?:\\|.*\n)*)", page)
    assert found is not None
    assert found[1] == rows, "a rule was added or changed: make golden"


def test_the_rule_of_the_page_is_one_and_every_key_is_told() -> None:
    page = PAGE.read_text(encoding="utf-8")
    (text,) = re.findall(r"```yml\n(.*?)```", page, re.DOTALL)
    RuleFile.model_validate(yaml.safe_load(text))
    for key in set(RuleFile.model_fields) - {"advice"}:
        assert f"{key}:" in text or f"`{key}" in page, key
