"""The pages say what is true: links lead somewhere, configurations load, code runs."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterkit.config import load_settings
from clusterkit.frameworks.base import Framework, LaunchInputs

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")]


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """Yield page and text of every fenced block in a language."""
    for page in PAGES:
        for text in re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL):
            yield str(page.relative_to(ROOT)), text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize(("page", "text"), list(blocks("yaml")))
def test_configurations_load(page: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "clusterkit.yaml").write_text(text)
    assert load_settings(cwd=tmp_path, environ={}).files, page


def test_the_framework_of_the_how_to_plans_a_command() -> None:
    text = dict(blocks("python"))["docs/how-to/framework.md"]
    module = types.ModuleType("how_to")
    exec(compile(text, "framework.md", "exec"), module.__dict__)
    framework = module.FRAMEWORK
    assert isinstance(framework, Framework)
    argv = framework.command(LaunchInputs(script="x.py", args=("--a",))).argv
    assert argv[-2:] == ("x.py", "--a")
