"""Templates: shadowing, filters, and errors with their line."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterkit.core import shell
from clusterkit.core.data import data_dir
from clusterkit.core.errors import UserError
from clusterkit.core.model import Ref
from clusterkit.launch.plan import make_plan
from clusterkit.launch.render import FILTERS, render, render_template, template_path
from tests.helpers.render_cases import PLAIN, WORKDIR, cluster, job

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))


def template(folder: Path, text: str) -> Path:
    path = folder / "x.j2"
    path.write_text(text)
    return path


def test_a_site_shadows_one_template_and_keeps_the_others(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "node.sh.j2").write_text("#!/bin/bash\n# {{ plan.name | comment }}\n")
    site = cluster(PLAIN, templates=str(tmp_path))
    texts = {f.name: f.text for f in render(make_plan(job(), site, workdir=WORKDIR))}
    assert texts["node.sh"] == "#!/bin/bash\n# train\n"
    assert "#SBATCH --job-name=train" in texts["job.sbatch"]
    assert template_path("sbatch/job.sbatch.j2", str(tmp_path)).parent.parent.name == "scripts"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a\n{{ value }}\n", 2, "no filter"),
        ("a\nb\n{{ valeu | sh }}\n", 3, "'valeu' is undefined"),
        ("{% if %}\n", 1, "template"),
        ("{{ 1 | sh }}\n", 1, "template"),
        ("{% include 'x' %}\n", 1, "template"),
        ("{{ value.nosuch.deeper | sh }}\n", 1, "no attribute"),
        ("a\n{{ value | nosuch }}\n", 2, "nosuch"),
        ("a\n{{ 'two words' | name }}\n", 2, "not a name"),
        ("<<EOF\n{{ 'EOF' | heredoc('EOF') }}\nEOF\n", 2, "here-document"),
    ],
)
def test_a_wrong_template_is_named_with_its_line(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    path = template(tmp_path, text)
    with pytest.raises(UserError) as caught:
        render_template(path, value="x")
    assert f"{path}:{line}" in str(caught.value)
    assert words in str(caught.value)


@settings(max_examples=60)
@given(TEXT)
def test_bash_reads_back_every_word(value: str) -> None:
    script = f"printf %s {shell.quote(value)}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    assert done.stdout == value.encode()


@settings(max_examples=30)
@given(TEXT, TEXT)
def test_references_are_expanded_and_the_rest_is_not(before: str, after: str) -> None:
    word = (before, Ref("CK_PORT"), after)
    script = f"CK_PORT=7; printf %s {shell.quote(word)}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    assert done.stdout.decode() == shell.resolve(word, {"CK_PORT": "7"}) == f"{before}7{after}"


@given(TEXT)
def test_compose_reads_back_every_value(value: str) -> None:
    text = str(FILTERS["yaml"](value))
    # Compose takes two dollars for one, after YAML has been read.
    assert yaml.safe_load(text) == value.replace("$", "$$")


@given(TEXT)
def test_a_comment_stays_on_its_line(value: str) -> None:
    assert len(str(FILTERS["comment"](value)).splitlines()) <= 1


def test_a_secret_does_not_print() -> None:
    secret = shell.Secret("hush")
    assert "hush" not in f"{secret} {secret!r}"
    assert secret.reveal() == "hush"


def test_mypy_reads_every_program() -> None:
    folder = data_dir("templates")
    settings = tomllib.loads((folder.parent / "pyproject.toml").read_text())["tool"]["mypy"]
    programs = list(folder.rglob("*.py"))
    assert settings["modules"] == sorted(path.stem for path in programs)
    folders = {str(path.parent.relative_to(folder.parent)) for path in programs}
    assert settings["mypy_path"] == ["typings", *sorted(folders)]
    assert settings["modules"] in [override["module"] for override in settings["overrides"]]
