"""The pages say what is true: links lead somewhere, configurations load, code runs."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterkit.config.load import load_settings
from clusterkit.launch.frameworks.base import Framework, LaunchInputs
from tests.helpers.doc_blocks import PAGES, ROOT, blocks


def is_made(path: Path) -> bool:
    """Tell whether a link leads to a page that is made from the code."""
    page = path.resolve().relative_to(ROOT)
    return page.is_relative_to("docs/reference") or page == Path("docs/how-to/index.md")


def all_blocks(language: str) -> Iterator[tuple[str, str]]:
    """Yield page and text of every fenced block in a language."""
    for page in PAGES:
        for text in blocks(page, language):
            yield str(page.relative_to(ROOT)), text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    local = [target for target in targets if "://" not in target]
    there = (page.parent / target for target in local)
    # Of pages that are made when the site is built, tests/unit/docs/test_docs_site.py knows.
    assert [path for path in there if not path.exists() and not is_made(path)] == []


@pytest.mark.parametrize(("page", "text"), list(all_blocks("yaml")))
def test_configurations_load(page: str, text: str, tmp_path: Path) -> None:
    if "\nabout:" in text:  # of a platform
        (tmp_path / "site.yaml").write_text(text)
        text = "clusters: {c: {kind: slurm, platform: ./site.yaml}}"
    (tmp_path / "clusterkit.yaml").write_text(text)
    assert load_settings(cwd=tmp_path, environ={}).files, page


def test_every_package_that_is_imported_has_its_reason() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text().lower()
    rows = {row.split()[1] for row in page.splitlines() if row.startswith("| ")}
    trees = (ast.parse(path.read_text()) for path in ROOT.glob("clusterkit/**/*.py"))
    found: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    others = {name.lower() for name in found - {*sys.stdlib_module_names, "clusterkit"}}
    called = {
        "ahocorasick_rs": "ahocorasick-rs",
        "yaml": "pyyaml",
        "pydantic_core": "pydantic",
        "prometheus_client": "prometheus-client",
    }
    assert {called.get(name, name) for name in others} <= rows


def test_the_framework_of_the_how_to_plans_a_command() -> None:
    text = dict(all_blocks("python"))["docs/how-to/framework.md"]
    module = types.ModuleType("how_to")
    exec(compile(text, "framework.md", "exec"), module.__dict__)
    framework = module.FRAMEWORK
    assert isinstance(framework, Framework)
    argv = framework.command(LaunchInputs(script="x.py", args=("--a",))).argv
    assert argv[-2:] == ("x.py", "--a")


def test_the_map_of_the_code_names_what_is_there() -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    table = text.partition("| to change | open |")[2].partition("\n\n")[0]
    named = re.findall(r"`(/?[\w.]+/[\w./]*)`", table)
    assert len(named) > 15
    homes = {name: ROOT / "clusterkit" / name for name in named if not name.startswith("/")}
    homes |= {name: ROOT / name[1:] for name in named if name.startswith("/")}
    assert [name for name, path in homes.items() if not path.exists()] == []


def test_a_notice_after_the_training_does_no_harm_as_the_page_handles_it() -> None:
    """Python is without its handlers while it shuts down: here, for as long as nobody is told."""
    page = (ROOT / "docs" / "how-to" / "requeue.md").read_text(encoding="utf-8")
    begins = page.index("    import signal\n")
    handling = textwrap.dedent(page[begins : page.index("    step = load_checkpoint()")])
    (advice,) = re.findall(r"`(atexit\..+)`", page)
    handling += f"import atexit; {advice}\n"
    slow = (
        "class Slow:\n"
        "    def __del__(self, write=os.write, read=os.read):\n"
        "        write(1, b'ending'), read(0, 1)\n"
        "slow = Slow()\n"
    )
    script = [sys.executable, "-c", f"import os\n{slow}{handling}"]
    with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as ending:
        assert ending.stdout is not None
        assert ending.stdout.read(6) == b"ending"
        ending.send_signal(signal.SIGUSR2)
        ending.communicate(b"!", timeout=60)
    assert ending.returncode == 0
