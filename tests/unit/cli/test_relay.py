"""What of a command line goes to the login node of a cluster, and how it arrives there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterkit.cli.frame import main, relay
from clusterkit.cli.frame.receive import receive
from clusterkit.cli.frame.relay import Relay, Screen
from clusterkit.config.load import load_settings
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.records import record_of
from clusterkit.core.shell import quote_path
from clusterkit.core.text import harmless
from clusterkit.transport.login import LoginNode

CONFIG = """
default_cluster: {default}
clusters:
  hpc:
    kind: slurm
    login: me@login.example.org
    partition: gpu
    port_range: 21000-21999
    run_dir: runs
    env: {{NAME: "it's $HOME"}}
  rack: {{kind: ssh, hosts: n1}}
"""
SHOWS = """#!{python}
import json, os, sys
names = ("CLUSTERKIT_CONFIG_FILE", "CLUSTERKIT_RELAYED", "CLUSTERKIT_NAME")
print(json.dumps([sys.argv[1:], os.getcwd(), {{name: os.environ.get(name) for name in names}}]))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a cluster that has a login node; it is the home, too."""
    (tmp_path / "clusterkit.yaml").write_text(CONFIG.format(default="hpc"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def way_for(*words: str) -> Relay | None:
    """Return where a command line would go, instead of going there."""
    found: list[Relay] = []

    def noted(way: Relay, *_: Any) -> int:
        found.append(way)
        return 7

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relay, "_run", noted)
        patch.setattr(relay, "_bring", lambda *_: None)
        patch.setattr(relay, "_send", lambda *given: ("~/", "", given[2]))
        patch.setattr(LoginNode, "open", lambda _: None)
        code = main._relayed(words)
    assert code == (7 if found else None)
    return found[0] if found else None


@pytest.mark.parametrize(
    "line",
    [
        "status", "status --json", "logs latest -f", "submit train.py --cluster rack", "wait 12",
        "cancel --cluster=hpc 12", "submit --cluster hpc x", "nodes run -- ls --help-me",
        "bench scaling --steps 5 x.py", "--debug top", "preflight --html a.html",
        "exec 12 -- x -h0", "exec 12 -- x --help", "submit train.py --help",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("here")
def test_verbs_about_the_cluster_go_there(line: str) -> None:
    for _ in "and once more, when it is remembered":
        way = way_for(*line.split())
        assert way is not None
        assert (way.login, way.run_dir) == ("me@login.example.org", "~/runs")


@pytest.mark.parametrize(
    "line",
    [
        "status --cluster local", "status -c rack", "status --help", "submit --help x.py",
        "estimate --params 7B", "render x",
        "logs local-0123ab", "diagnose job.log", "preflight --replay bundle", "nodes prepare", "",
        "--version", "status --cluster=local", "submit --job job.yaml",
    ],
)  # fmt: skip
def test_all_else_stays(here: Path, line: str) -> None:
    (here / "job.log").write_text("")
    (here / "job.yaml").write_text("cluster: local\nscript: x.py\n")
    assert way_for(*line.split()) is None


def test_a_job_that_is_not_known_here_is_asked_for_there(here: Path) -> None:
    (here / "clusterkit.yaml").write_text(CONFIG.format(default="local"))
    assert way_for("logs", "12") is not None
    assert way_for("status") is None
    (here / "clusterkit.yaml").write_text("clusters: {hpc: {kind: slurm}}  # login")
    assert way_for("logs", "12") is None


def test_a_changed_configuration_is_read_again(here: Path) -> None:
    before = way_for("status")
    text = (here / "clusterkit.yaml").read_text()
    (here / "clusterkit.yaml").write_text(text.replace("partition: gpu", "partition: other"))
    after = way_for("status")
    assert before is not None
    assert after is not None
    assert ("gpu" in before.configuration, "other" in after.configuration) == (True, True)


def there(way: Relay, words: list[str], **more: Any) -> Any:
    """Run the script of a relay as sshd would, with a clusterkit that tells what it gets."""
    program = Path(way.venv, "bin/clusterkit")
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(SHOWS.format(python=sys.executable))
    program.chmod(0o755)
    node = LoginNode("host")
    node._shared = ()
    command = node.argv(way.script(words, **more))[-1]
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, check=True, text=True, cwd=Path.home()
    )
    return json.loads(done.stdout)


@pytest.fixture
def way(here: Path) -> Relay:
    settings = load_settings()
    found = Relay.of(settings, settings.cluster("hpc"))
    own = {"venv": str(here / "a venv"), "program": quote_path(f"{here}/a venv/bin/clusterkit")}
    return Relay(**{**dict(_fields(found)), **own})


def _fields(way: Relay) -> list[tuple[str, Any]]:
    return [(name, getattr(way, name)) for name in Relay.__dataclass_fields__]


ODD = [
    "it's",
    "$HOME `id` $(id)",
    "two\nlines",
    "",
    "-x",
    "--",
    "*",
    "\u00fc\\",
    "\udcff",
    "!h",
    "'",
]


def test_words_arrive_as_they_were_typed(way: Relay, here: Path) -> None:
    (here / "o'ne dir").mkdir()
    got, folder, variables = there(
        way,
        ["submit", *ODD],
        folder=quote_path("~/o'ne dir"),
        variables={"CLUSTERKIT_NAME": "a\n'b"},
    )
    assert got == ["submit", *ODD]
    assert folder == str(here / "o'ne dir")
    assert variables["CLUSTERKIT_NAME"] == "a\n'b"
    assert variables["CLUSTERKIT_RELAYED"].endswith(" hpc")


def test_the_cluster_arrives_as_it_is_configured(
    way: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, variables = there(way, ["status"])
    path = variables["CLUSTERKIT_CONFIG_FILE"]
    assert Path(path).stat().st_mode & 0o777 == 0o600
    here = load_settings().cluster("hpc")
    monkeypatch.setenv("CLUSTERKIT_CONFIG_FILE", path)
    settings = load_settings()
    assert settings.default_cluster == "hpc"
    assert "rack" not in settings.clusters
    arrived = settings.cluster("hpc")
    assert arrived.login is None
    for key in ("partition", "port_range", "run_dir", "env", "time"):
        assert getattr(arrived, key) == getattr(here, key)


def test_the_other_end_wants_the_same_version(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"and 0\.0 here") as caught:
        relay.begin_relayed("0.0 hpc")
    assert caught.value.problems[0].hint == "clusterkit nodes prepare --cluster hpc"


def test_the_code_is_sent_without_the_flag_that_names_it() -> None:
    words = ["submit", "--sync", "..", "--nodes", "2", "--sync-limit=9", "x.py", "--sync", "mine"]
    kept = relay.without(words, {"--sync", "--sync-limit"})
    assert [*kept] == ["submit", "--nodes", "2", "x.py", "--sync", "mine"]


@given(st.lists(st.binary(max_size=12)), st.binary(max_size=60))
def test_a_terminal_gets_nothing_but_colours_and_moves(pieces: list[bytes], rest: bytes) -> None:
    screen = Screen()
    shown = "".join(screen.shown(piece) for piece in [*pieces, rest])
    kept = Screen._OURS.sub("", shown)
    assert harmless(kept) == kept


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_sequence_may_come_in_pieces(size: int) -> None:
    data = "\x1b[31mr\u00e9d\x1b[0m\r\x1b[K\x1b]0;owned\x07\x1bP+q\x1b\\".encode()
    screen = Screen()
    pieces = [screen.shown(data[at : at + size]) for at in range(0, len(data), size)]
    assert "".join(pieces) == "\x1b[31mr\u00e9d\x1b[0m\r\x1b[K?]0;owned??P+q?\\"


class _Node:
    """The other end of `receive`, which answers what it is told to."""

    node = "login"

    def __init__(self, *answers: tuple[dict[str, Any], bytes]) -> None:
        self._answers = [*answers, ({"done": True}, b"")]
        self._data = b""

    def tell(self, do: str, **request: Any) -> None:
        self.asked = (do, request)

    def answer(self) -> dict[str, Any]:
        document, self._data = self._answers.pop(0)
        return document

    def take(self, count: int) -> bytes:
        return self._data[:count]

    def record(self, kind: Any, document: Any) -> Any:
        found = record_of(kind, document)
        assert found is not None
        return found

    def nonsense(self, what: str) -> RemoteError:
        return RemoteError(what, node=self.node)


def piece(name: str, data: bytes, **more: Any) -> tuple[dict[str, Any], bytes]:
    head = {"file": name, "offset": 0, "bytes": len(data), "last": True, "mode": 0o644}
    return {**head, "sign": [len(data), 10**18], **more}, data


def test_what_comes_back_is_kept_with_its_time(tmp_path: Path) -> None:
    parts = (piece("out/a b", b"one", last=False), piece("out/a b", b"two", offset=3))
    node = _Node(*parts)
    assert receive(node, "/there", ["out"], tmp_path / "new") == 1
    path = tmp_path / "new/out/a b"
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (b"onetwo", 10**18)
    again = _Node()
    assert receive(again, "/there", ["out"], tmp_path / "new") == 0
    assert again.asked[1]["have"] == {"out/a b": (6, 10**18)}


@pytest.mark.parametrize(
    "answer",
    [
        piece("../evil", b"x"),
        piece("/etc/evil", b"x"),
        piece("other", b"x"),
        piece("out/link/evil", b"x"),
        piece("out/x", b"x", offset=5),
        piece("out/\x1b[2J", b"x"),
    ],
)
def test_a_login_node_writes_nothing_beside(tmp_path: Path, answer: Any) -> None:
    target, beside = tmp_path / "target", tmp_path / "beside"
    (target / "out").mkdir(parents=True)
    beside.mkdir()
    (target / "out/link").symlink_to(beside)
    with pytest.raises(RemoteError):
        receive(_Node(answer), "/there", ["out"], target)
    assert list(beside.iterdir()) == []
    assert sorted(path.name for path in target.rglob("*") if path.is_file()) == []


def test_what_ssh_says_is_told_with_what_to_type(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = here / "tools"
    tools.mkdir()
    (tools / "ssh").write_text(
        '#!/bin/sh\ncase "$*" in -G*) exit 0;; esac\necho no way >&2; exit 255\n'
    )
    (tools / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    node = LoginNode("me@host:2222")
    for _ in range(2):  # one that failed is tried again
        with pytest.raises(RemoteError, match="no way") as caught:
            node.open()
    assert caught.value.hint == "try it by hand: ssh -p 2222 -- me@host true"
    (tools / "ssh").unlink()
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(RemoteError, match="there is no ssh here"):
        LoginNode("host").open()
