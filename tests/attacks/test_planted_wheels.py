"""Packages that somebody put on an index, into a folder or on a node under the name of ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pip
import pytest

from clusterkit import __version__
from clusterkit.config.doctor import Condition, Machine, examine
from clusterkit.config.load import load_settings
from clusterkit.core.commands import Answer
from clusterkit.core.distribution import DISTRIBUTION
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import ClusterKind, ClusterSpec
from clusterkit.images.catalogue import IMAGES, Variant
from clusterkit.images.packages import remedies
from clusterkit.images.recipe import assemble
from clusterkit.launch.frameworks import framework_names, load_framework
from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.probes.host import job_python
from clusterkit.transport.probe import PreflightJob
from clusterkit.transport.sync import virtualenv
from clusterkit.transport.sync.ingredients import Ingredients, read_ingredients
from clusterkit.transport.sync.virtualenv import Prepared, Readiness
from clusterkit.transport.sync.wheel import WHEEL_NAME, pack_wheel
from tests.attacks.planted import VERSIONS, Index, plant, plant_source, serve
from tests.helpers.evidence import evidence
from tests.helpers.here import SessionHere
from tests.helpers.probe_run import named

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ClusterSpec(name="apart", kind=ClusterKind.SSH)
ASKS = re.compile(
    r"\b(?:pipx?|uv)\b[^\n]*(?<!un)install\b(?![^\n]*(?:--no-index|--editable))[^\n]*?[ '\"`,]"
    r"clusterkit(?:[-_.]launch)?(?:\[[^]\n]*\])?(?=[=<>~!@'\"`;,) ]|$)|clusterkit(?:-launch)?=="
)
"""A command or a hint that lets pip look for the name in an index."""


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """Give the path of a file that must not be there at the end."""
    path = tmp_path / "canary"
    yield path
    assert not path.exists(), "what was planted ran"


@pytest.fixture
def index(tmp_path: Path, canary: Path) -> Iterator[Index]:
    """Serve evil packages of both names, by wheel and by source, and two that require them."""
    folder = tmp_path / "planted"
    for name in ("clusterkit", DISTRIBUTION):
        for version in VERSIONS:
            plant(folder, name, version, canary)
        plant_source(folder, name, "100", canary)
    for name, requires in (("trojan", "clusterkit"), ("plugin", f"{DISTRIBUTION}>=0.1")):
        plant(folder, name, "1.0", folder / "harmless", [requires])
    with serve(folder) as found:
        yield found
    wanted = [path for path in found.asked if path.startswith("/files/clusterkit")]
    assert wanted == [], "fetched from the index"


@pytest.fixture
def node(tmp_path: Path, index: Index) -> Iterator[SessionHere]:
    """Give a node whose pip knows the attacker's index alone."""
    home = tmp_path / "home"
    index.config(home / ".config/pip/pip.conf")
    session = SessionHere(home)
    yield session
    session.leave()


@pytest.fixture
def python(tmp_path: Path) -> str:
    """Give a Python whose environments see what is installed here, as if it came from the lock."""
    double = tmp_path / "python"
    below = next(path for path in sys.path if path.endswith("site-packages"))
    double.write_text(
        f'#!/bin/sh\n[ "$1 $2" = "-m venv" ] || exec {sys.executable} "$@"\n'
        f'for last; do :; done\n{sys.executable} -m venv --without-pip "$last" || exit\n'
        'for here in "$last"/lib/python*/site-packages; do\n'
        f"""  echo 'import site; site.addsitedir("{below}")' >"$here/below.pth"\ndone\n"""
    )
    double.chmod(0o755)
    return str(double)


def made(session: SessionHere, ingredients: Ingredients) -> Prepared:
    try:
        return virtualenv._prepare(session, ingredients)
    finally:
        session.leave()


def asked(python: str, **more: object) -> Ingredients:
    given = {"wheels": (), "requirements": None, "index": False, **more}
    return read_ingredients(CLUSTER, python=python, **given)


def installed(session: SessionHere, what: str) -> str:
    python = session.home / ".clusterkit/venv/bin/python"
    argv = [python, "-I", "-c", what]
    return subprocess.run(argv, capture_output=True, text=True, check=True, cwd="/").stdout.strip()


OURS = f"""
import clusterkit, importlib.metadata as m
print(clusterkit.__file__, m.version({DISTRIBUTION!r}))
"""


def test_nodes_get_the_clusterkit_that_runs_here_and_ask_no_index_for_it(
    node: SessionHere, index: Index, python: str, canary: Path
) -> None:
    assert made(node, asked(python)).readiness is Readiness.READY
    assert [path for path in index.asked if "clusterkit" in path] == []
    where, version = installed(node, OURS).split()
    assert where.startswith(f"{node.home}/.clusterkit/venv/")
    assert version == __version__
    assert made(node, asked(python)).readiness is Readiness.UP_TO_DATE
    check_that_a_foreign_one_is_removed(node, python, canary)


def test_what_requires_a_clusterkit_gets_ours_or_nothing(
    node: SessionHere, index: Index, python: str, tmp_path: Path
) -> None:
    listed = tmp_path / "requirements.txt"
    listed.write_text("trojan\ncluster\\\nkit==99\n")  # of two lines, pip makes one name
    with pytest.raises(RemoteError) as caught:
        made(node, asked(python, requirements=listed))
    assert "somebody else's project" in str(caught.value.hint)
    listed.write_text("plugin\n")
    (index.folder / "plugin_evil").mkdir()
    assert made(node, asked(python, requirements=listed)).readiness is Readiness.READY
    assert installed(node, OURS).split()[1] == __version__


def check_that_a_foreign_one_is_removed(node: SessionHere, python: str, canary: Path) -> None:
    """Somebody's project was installed over ours: it goes before anything imports it."""
    folder = Path(installed(node, "import clusterkit; print(clusterkit.__path__[0])")).parent
    (folder / "clusterkit-99.dist-info").mkdir()
    for name, text in {
        "METADATA": "Metadata-Version: 2.1\nName: clusterkit\nVersion: 99\n",
        "RECORD": "clusterkit/__init__.py,,\nclusterkit-99.dist-info/METADATA,,\n"
        "clusterkit-99.dist-info/RECORD,,\n",
    }.items():
        (folder / "clusterkit-99.dist-info" / name).write_text(text)
    (folder / "clusterkit/__init__.py").write_text(f"open({str(canary)!r}, 'w')\n")
    assert made(node, asked(python)).readiness is Readiness.READY
    assert not list(folder.glob("clusterkit-99*"))
    assert installed(node, OURS).split()[1] == __version__


@pytest.mark.parametrize(
    "line",
    [
        "clusterkit", "Clusterkit==0.1.0", "  clusterkit>=0", "clusterkit_launch",
        "clusterkit.launch[torch]", "CLUSTERKIT ; python_version > '3'",
        "clusterkit-launch @ https://example.org/x.whl",
    ],
)  # fmt: skip
def test_requirements_never_name_clusterkit(tmp_path: Path, line: str) -> None:
    listed = tmp_path / "requirements.txt"
    listed.write_text(f"numpy\n{line}\n")
    with pytest.raises(UserError, match="asks for clusterkit, which no index has"):
        asked("python3", requirements=listed)


def test_wheels_of_others_are_not_taken_for_ours(tmp_path: Path, canary: Path) -> None:
    wheels = tmp_path / "wheels"
    plant(wheels, DISTRIBUTION, __version__, canary)
    sent = asked("python3", wheels=(wheels,)).files
    (own,) = (entry for entry in sent.entries if entry.path.startswith("clusterkit"))
    assert own.path == WHEEL_NAME
    with sent.open(own) as stream:
        assert stream.read() == pack_wheel()
    plant(wheels, "clusterkit", "99", canary)
    with pytest.raises(UserError, match="that name is somebody else's"):
        asked("python3", wheels=(wheels,))


def test_our_wheel_is_left_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    assert WHEEL_NAME in {entry.path for entry in asked("python3").files.entries}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.needs("root")
@pytest.mark.parametrize("which", ["venv", "venv.inputs"])
def test_an_environment_that_somebody_prepared_is_not_run(
    node: SessionHere, canary: Path, which: str
) -> None:
    """In a folder where everybody may write: a venv with a stamp, or a place for our wheel."""
    public = node.home / "public"
    public.mkdir(mode=0o777)
    public.chmod(0o1777)
    there = public / which
    (there / "bin").mkdir(parents=True)
    program = there / "bin/python"
    program.write_text(f"#!/bin/sh\ntouch {canary}\necho {__version__}\n")
    program.chmod(0o755)
    wanted = asked(sys.executable)
    (there / "pyvenv.cfg").touch()
    (there / "clusterkit-stamp.json").write_text(
        f'{{"stamp": "{wanted.stamp(sys.version_info[:3])}"}}'
    )
    for path in (there, *there.rglob("*")):
        os.chown(path, 12345, 12345)
    evil = Ingredients(venv=f"{public}/venv", python=wanted.python, files=wanted.files)
    with pytest.raises(RemoteError, match="belongs to user 12345"):
        made(node, evil)


def test_make_installs_nothing_whose_hash_is_not_locked(
    tmp_path: Path, index: Index, canary: Path
) -> None:
    """The attacker's index has every package of the lock, under the very version."""
    for name, version in re.findall(
        r"(?m)^([\w.-]+)==(\S+)", (ROOT / "locks/build.txt").read_text()
    ):
        plant(index.folder, name, version, canary)
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (tmp_path / "only").mkdir()
    (tmp_path / "only/pip").symlink_to(Path(pip.__file__).parent)
    environment = {**os.environ, "PIP_CONFIG_FILE": str(index.config(tmp_path / "pip.conf"))}
    environment |= {"PIP_FIND_LINKS": str(index.folder), "PYTHONPATH": str(tmp_path / "only")}
    argv = ["make", f"VENV={venv}", f"{venv}/core.done"]
    done = subprocess.run(
        argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "DO NOT MATCH THE HASHES" in done.stderr


def test_a_release_under_a_name_of_somebody_else_is_refused(tmp_path: Path, index: Index) -> None:
    plant(index.folder, "pip", "1", tmp_path / "canary")
    config = {"PIP_CONFIG_FILE": str(index.config(tmp_path / "pip.conf")), "PIP_FIND_LINKS": ""}
    argv = [sys.executable, "-m", "release.check_name"]

    def check() -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **config}
        return subprocess.run(
            argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )

    done = check()
    assert done.returncode == 1
    assert f"{DISTRIBUTION} 0.0.1, 0.1.0" in done.stderr
    for path in index.folder.glob("clusterkit?launch-*"):
        path.unlink()
    assert (check().returncode, check().stderr) == (0, "")
    config["PIP_CONFIG_FILE"] = os.devnull
    config |= {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_TIMEOUT": "1"}
    done = check()
    assert done.returncode == 0
    assert "no package index can be reached" in done.stderr


def test_images_install_our_wheel_from_a_file_and_all_else_by_hash() -> None:
    context = assemble(IMAGES["base"], Variant.CPU)
    assert [name for name in context.files if name.endswith(".whl")] == [WHEEL_NAME]
    assert context.files[WHEEL_NAME] == pack_wheel()
    for path in (*ROOT.glob("images/*/Dockerfile"), ROOT / "compose/Dockerfile"):
        text = path.read_text().replace("\\\n", " ")
        for command in re.findall(r"\bpip (?:-\S+ )*\s*(?:install|wheel|download)\b[^;&\n]*", text):
            assert "--no-index" in command or "--require-hashes" in command, f"{path}: {command}"
    program = (ROOT / "images/base/bin/install-python").read_text()
    assert "--no-deps --no-build-isolation --require-hashes" in program


def test_nothing_in_the_repository_tells_anybody_to_fetch_the_name() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    texts = {}
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file() and not name.startswith("tests/attacks/"):
            texts[name] = path.read_text(encoding="utf-8", errors="replace")
    assert "docs/how-to/air-gapped.md" in texts
    said = {
        f"{name}: {line.strip()}"
        for name, text in texts.items()
        for line in text.splitlines()
        if ASKS.search(line)
    }
    assert said == set()


@pytest.mark.parametrize(
    "command",
    [
        "pip install clusterkit", "pip install -U 'clusterkit[torch]'",
        "uv pip install clusterkit==1",
        "python -m pip install clusterkit-launch", "`pip install clusterkit`",
        "pipx install clusterkit, then",
    ],
)  # fmt: skip
def test_the_search_would_find_it(command: str) -> None:
    assert ASKS.search(command)


def test_no_hint_tells_anybody_to_fetch_the_name(tmp_path: Path) -> None:
    hints = [f"{check.about}" for check in all_checks()]
    for framework in map(load_framework, framework_names()):
        if framework.package_name:
            hints += remedies(framework, "python3")
    python = "executable=/p\nversion=3.11.2\nnoexec=0\npackage {}\nwhole=1\nend\n"
    for kind in ("ssh", "slurm", "local"):
        job = PreflightJob(hosts=("a", "b"), kind=kind, asked_by="0.2.0")
        said = {
            "a": {"job-python": python.format(f"{DISTRIBUTION}=0.1.0")},
            "b": {"job-python": python.format("clusterkit=99")},
        }
        for _, ruling in named("host-clusterkit").judge(evidence(said, job=job)):
            hints += [ruling.summary, ruling.hint or "", ruling.command or ""]
            assert ruling.command
    machine = Machine(
        settings=load_settings(cwd=tmp_path, environ={}), run=lambda _: Answer(code=127, ran=False)
    )
    hints += [f"{item.summary} {item.fix}" for item in examine(machine)]
    assert [hint for hint in hints if ASKS.search(hint)] == []
    assert job_python.PROBE.name == "job-python"


def test_doctor_names_a_foreign_project_over_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "clusterkit-99.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: clusterkit\nVersion: 99\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "clusterkit.yaml").write_text("clusters: {a: {kind: local, python: /opt/p}}\n")
    machine = Machine(
        settings=load_settings(cwd=tmp_path, environ={}),
        run=lambda argv: Answer(
            code=0 if argv[0] == "/opt/p" else 127,
            ran=argv[0] == "/opt/p",
            output='{"clusterkit": "7"}',
        ),
    )
    named = [item for item in examine(machine) if item.name == "clusterkit"]
    assert [item.condition for item in named] == [Condition.OK, Condition.FAIL, Condition.FAIL]
    assert "this Python has clusterkit 99, another project" in named[1].summary
    assert "/opt/p has clusterkit 7" in named[2].summary
    assert all("pip uninstall clusterkit" in str(item.fix) for item in named[1:])
