"""What a user reads when a file is wrong: one golden text for each file of tests/golden/config.

`make golden` rewrites the texts; read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterkit.config.load import load_settings
from clusterkit.core.errors import UserError
from clusterkit.launch.jobfile import load_job_file
from tests.helpers.paths import TESTS

GOLDEN = TESTS / "golden" / "config"
FILES = sorted(path.name for path in GOLDEN.glob("*.yaml"))


def _load(name: str) -> None:
    if name.startswith("job_"):
        load_job_file(GOLDEN / name, cwd=GOLDEN)
    else:
        load_settings(cwd=GOLDEN, environ={"CLUSTERKIT_CONFIG_FILE": name})


def _message(name: str) -> str:
    with pytest.raises(UserError) as caught:
        _load(name)
    return "\n\n".join(str(problem) for problem in caught.value.problems) + "\n"


@pytest.mark.parametrize("name", FILES)
def test_message(name: str) -> None:
    message = _message(name)
    golden = (GOLDEN / name).with_suffix(".txt")
    if os.environ.get("CLUSTERKIT_GOLDEN") == "write":
        golden.write_text(message, encoding="utf-8")
    assert message == golden.read_text(encoding="utf-8")
    # Lines that quote the file are as long as the user made them.
    ours = [line for line in message.splitlines() if " | " not in line and "-->" not in line]
    assert not [line for line in ours if len(line) > 80]


def test_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "clusterkit.yaml").mkdir()
    environ = {"CLUSTERKIT_CONFIG_FILE": str(tmp_path / "clusterkit.yaml")}
    with pytest.raises(UserError, match="Is a directory"):
        load_settings(cwd=tmp_path, environ=environ)


def test_named_file_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no configuration file other"):
        load_settings(cwd=tmp_path, environ={"CLUSTERKIT_CONFIG_FILE": "other.yaml"})


def test_problems_of_both_files_at_once(tmp_path: Path) -> None:
    (tmp_path / "clusterkit.yaml").write_text("clustrs: {}\n", encoding="utf-8")
    user = tmp_path / "home" / "clusterkit" / "config.yaml"
    user.parent.mkdir(parents=True)
    user.write_text("default: a\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_settings(cwd=tmp_path, environ={"XDG_CONFIG_HOME": str(tmp_path / "home")})
    assert [problem.key for problem in caught.value.problems] == ["clustrs", "default"]


def test_a_hostfile_is_blamed_at_its_own_line(tmp_path: Path) -> None:
    (tmp_path / "rack").write_text("n1 slots=8\nn1 slots=0\n", encoding="utf-8")
    (tmp_path / "clusterkit.yaml").write_text(
        "clusters: {rack: {kind: ssh, hostfile: rack}}\n", encoding="utf-8"
    )
    with pytest.raises(UserError) as caught:
        load_settings(cwd=tmp_path, environ={})
    positions = [problem.position for problem in caught.value.problems]
    assert {position.source for position in positions if position} == {"rack"}


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"CLUSTERKIT_GPUS_PER_NODE": "many"}, "CLUSTERKIT_GPUS_PER_NODE must be a whole number"),
        ({"CLUSTERKIT_TIME": "soon"}, "CLUSTERKIT_TIME: invalid time limit 'soon'"),
        ({"CLUSTERKIT_DEFAULT_CLUSTER": "locl"}, "did you mean 'local'"),
    ],
)
def test_bad_variable(tmp_path: Path, environ: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        load_settings(cwd=tmp_path, environ=environ)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("{kind: ssh, host: n1}", ["clusters.c.host"]),
        ("{kind: ssh, hostfil: n1}", ["clusters.c.hostfil"]),
        ("{kidn: ssh, hosts: n1}", ["clusters.c.kidn"]),
        ("{kind: ssh, usr: me}", ["clusters.c", "clusters.c.usr"]),
    ],
)
def test_no_consequence_of_a_mistyped_key_is_told(
    tmp_path: Path, text: str, keys: list[str]
) -> None:
    (tmp_path / "clusterkit.yaml").write_text(f"clusters: {{c: {text}}}\n")
    with pytest.raises(UserError) as caught:
        load_settings(cwd=tmp_path, environ={})
    assert [problem.key for problem in caught.value.problems] == keys


def test_how_others_name_a_login_node_leads_to_login(tmp_path: Path) -> None:
    def hints(kind: str) -> list[str | None]:
        keys = f"kind: {kind}, hosts: n1, host: h, user: me"
        (tmp_path / "clusterkit.yaml").write_text(f"clusters: {{a: {{{keys}}}}}\n")
        with pytest.raises(UserError) as caught:
            load_settings(cwd=tmp_path, environ={})
        return [problem.hint for problem in caught.value.problems]

    to_login = "the login node of Slurm: `login: USER@HOST`; the rest: ~/.ssh/config"
    assert hints("slurm") == ["remove it, or write `kind: ssh`", to_login, to_login]
    assert hints("ssh") == ["did you mean 'hosts'?"]
    # Most words of others lead to a key by the table; none to one that there is not.
    (tmp_path / "clusterkit.yaml").write_text("clusters: {a: {type: slurm, gpus: 8}}\n")
    with pytest.raises(UserError) as caught:
        load_settings(cwd=tmp_path, environ={})
    told = [str(problem.hint).partition(":")[0] for problem in caught.value.problems]
    assert told == ["`kind", "`gpus_per_node"], "and not that it has no kind"
    (tmp_path / "job.yaml").write_text("gpus: 8\n")
    with pytest.raises(UserError, match=r"hint: `gpus-per-node: N`, the slots of each node"):
        load_job_file(tmp_path / "job.yaml", cwd=tmp_path)
