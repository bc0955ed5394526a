"""The how-to of diagnose tells every key of a rule."""

from __future__ import annotations

import re
from dataclasses import fields

import yaml

from clusterkit.observe.diagnose.rules import Rule
from tests.helpers.paths import ROOT

PAGE = ROOT / "docs" / "how-to" / "diagnose.md"


def test_the_rule_of_the_page_is_one_and_every_key_is_told() -> None:
    page = PAGE.read_text(encoding="utf-8")
    (text,) = re.findall(r"```yml\n(.*?)```", page, re.DOTALL)
    Rule(id="rule", **yaml.safe_load(text))
    for key in {one.name for one in fields(Rule)} - {"id", "advice"}:
        assert f"{key}:" in text or f"`{key}" in page, key
