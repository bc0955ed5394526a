"""`clusterkit init`: what it makes of recorded answers, and that its file loads."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clusterkit.cli.frame.main import app
from clusterkit.cli.setup.init import _report
from clusterkit.config.init import (
    NVIDIA_SMI,
    PARTITIONS,
    SINFO,
    Run,
    discover,
    parse_gres,
    parse_sinfo,
    run_command,
    starter_text,
)
from clusterkit.config.load import load_settings
from clusterkit.config.settings import Settings
from clusterkit.core import files
from clusterkit.core.commands import Answer
from clusterkit.core.errors import UserError
from clusterkit.core.model import GpuRequest
from clusterkit.transport.login import LoginNode
from clusterkit.transport.slurm_nodes import SCONTROL_CONFIG

MIXED = """\
cpu*|40|1-00:00:00|(null)|64|256000|n/a
gpu|12|infinite|gpu:a100:8(S:0-1)|128|1000000|n/a
gpu|2|infinite|gpu:h100:4(S:0),nvme:1|96|2000000+|n/a
debug|1|30:00|gpu:2|16|64000|10:00
"""

CONFIG = """\
Configuration data as of 2026-11-20T12:00:00
ClusterName             = bear lab!
SelectType              = select/cons_tres
"""


def recorded(answers: Mapping[tuple[str, ...], str]) -> Run:
    def run(argv: Sequence[str]) -> Answer:
        text = answers.get(tuple(argv))
        return Answer(code=127, ran=False) if text is None else Answer(code=0, output=text)

    return run


def _started(tmp_path: Path, answers: Mapping[tuple[str, ...], str]) -> tuple[str, Settings]:
    found = discover(recorded(answers), cwd=tmp_path, system=())
    text = starter_text(found, folder=tmp_path)
    (tmp_path / "clusterkit.yaml").write_text(text, encoding="utf-8")
    return text, load_settings(cwd=tmp_path, environ={})


def test_slurm_with_gpus(tmp_path: Path) -> None:
    text, settings = _started(
        tmp_path, {SINFO: MIXED, SCONTROL_CONFIG: CONFIG, NVIDIA_SMI: "NVIDIA L4\nNVIDIA L4\n"}
    )
    spec = settings.cluster()
    assert (spec.name, spec.partition, spec.gpus_per_node) == ("bearlab", "gpu", 8)
    assert spec.gpu_request is GpuRequest.GPUS_PER_NODE
    assert settings.cluster("local").gpus_per_node == 2
    assert "# There is also cpu with 40 nodes, no GPUs, 64 CPUs." in text
    assert "there are a100, h100" in text
    assert "2 x NVIDIA L4" in text


PRIVATE = """\
PartitionName=cpu AllowGroups=ALL Default=YES MaxTime=1-00:00:00 Nodes=c[1-40] State=UP \
TotalCPUs=2560 TotalNodes=40 TRES=cpu=2560,mem=10T,node=40,billing=2560
PartitionName=gpu AllowGroups=ALL Default=NO MaxTime=UNLIMITED Nodes=g[1-4] State=UP \
TotalCPUs=512 TotalNodes=4 TRES=cpu=512,mem=4T,node=4,billing=512,gres/gpu=32,gres/gpu:h100=32
"""


@pytest.mark.parametrize("counted", [True, False])
def test_a_slurm_that_hides_its_nodes(tmp_path: Path, counted: bool) -> None:
    partitions = PRIVATE if counted else re.sub(r",gres/gpu\S*", "", PRIVATE)
    known = recorded({PARTITIONS: partitions, SCONTROL_CONFIG: CONFIG})

    def run(argv: Sequence[str]) -> Answer:
        refused = "slurm_load_node: Access/permission denied\n"
        return Answer(code=1, errors=refused) if argv == SINFO else known(argv)

    found = discover(run, cwd=tmp_path, system=())
    assert found.no_sinfo == "slurm_load_node: Access/permission denied"
    (tmp_path / "clusterkit.yaml").write_text(starter_text(found, folder=tmp_path))
    spec = load_settings(cwd=tmp_path, environ={}).cluster()
    if counted:
        assert (spec.name, spec.partition, spec.gpus_per_node) == ("bearlab", "gpu", 8)
    else:
        assert (spec.partition, spec.gpus_per_node) == ("cpu", None)
        assert spec.gpu_request is GpuRequest.GPUS_PER_NODE
    told = [*_report(found)]
    assert told[0] == "found Slurm cluster 'bearlab' with partitions: cpu, gpu"
    assert "Access/permission denied" in told[1]
    assert not any("missing" in line for line in told[:2])


def test_slurm_without_gpus_or_configuration(tmp_path: Path) -> None:
    _, settings = _started(tmp_path, {SINFO: "all*|3|infinite|(null)|8|20000|n/a\n"})
    spec = settings.cluster()
    assert (spec.name, spec.partition, spec.gpus_per_node) == ("cluster", "all", 1)
    assert spec.gpu_request is GpuRequest.NONE


@pytest.mark.parametrize(
    ("most", "default", "told"),
    [
        ("2-00:00:00", "1:00:00", "the partition's: 1:00:00, at most 2-00:00:00"),
        ("2-00:00:00", None, "the partition's: 2-00:00:00"),
        ("30:00", "30:00", "the partition's: 30:00"),
        ("infinite", "1:00:00", "the partition's: 1:00:00, more by --time"),
        ("infinite", None, "no limit"),
        ("infinite", "infinite", "no limit"),
    ],
)
def test_a_job_without_a_limit_gets_the_default_of_the_partition(
    tmp_path: Path, most: str, default: str | None, told: str
) -> None:
    by_sinfo = f"gpu*|3|{most}|gpu:8|8|20000|{default or 'n/a'}\n"
    by_scontrol = PRIVATE.splitlines()[1].replace("MaxTime=UNLIMITED", f"MaxTime={most}")
    by_scontrol = f"{by_scontrol} DefaultTime={default or 'NONE'}".replace("infinite", "UNLIMITED")
    for answers in ({SINFO: by_sinfo}, {PARTITIONS: by_scontrol}):
        refusing = {SINFO: "", **answers}
        text, _ = _started(tmp_path, refusing)
        assert f"# limit of a job that sets none; {told}\n" in text


def test_hostfiles(tmp_path: Path) -> None:
    folder = tmp_path / "hostfiles"
    folder.mkdir()
    (folder / "rack").write_text("n1 slots=8\nn2 slots=8\n", encoding="utf-8")
    (folder / "rack.old").write_text("m1 slots=4\n", encoding="utf-8")
    (folder / "broken").write_text("n1 slots=0\n", encoding="utf-8")
    _, settings = _started(tmp_path, {})
    assert set(settings.clusters) == {"local", "rack", "rack-2"}
    assert settings.cluster().name == "rack"
    assert [host.name for host in settings.cluster("rack").hosts] == ["n1", "n2"]


def test_hosts_that_are_named_are_the_cluster_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostfile").write_text("n1 slots=8\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["init", "--hosts", "n[1-2],gpu.example.org", "--yes"])
    assert done.exit_code == 0, done.output
    assert "then clusterkit preflight --cluster machines\n" in done.stdout
    settings = load_settings(cwd=tmp_path, environ={})
    spec = settings.cluster()
    assert (spec.name, spec.kind.value) == ("machines", "ssh")
    assert [host.name for host in spec.hosts] == ["n1", "n2", "gpu.example.org"]
    assert {"machines", "rack", "local"} <= {*settings.clusters}


def test_a_cluster_is_not_called_after_a_file_that_is_called_hostfile(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("n1 slots=8\n", encoding="utf-8")
    _, settings = _started(tmp_path, {})
    assert set(settings.clusters) == {"local", "rack"}


def test_nothing_found(tmp_path: Path) -> None:
    text, settings = _started(tmp_path, {})
    assert settings.cluster().name == "local"
    assert "no GPU found" in text


@pytest.mark.parametrize(
    "name", ["yes", "123", "a b", "x: y", "#", "~", "été", 'q"q', "\x1b[31m", "null", "- a", "*a"]
)
def test_odd_partition_names_still_load(tmp_path: Path, name: str) -> None:
    text, _ = _started(
        tmp_path, {SINFO: f"{name}|1|infinite|gpu:{name}:1|1|1|1\nb|1|x|(null)|1|1|1\n"}
    )
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(null)", ((), 0)),
        ("gpu:8", ((), 8)),
        ("gpu:a100:8(S:0-1),nvme:1", (("a100",), 8)),
        ("gpu:a100:4(IDX:0-3),gpu:v100:2", (("a100", "v100"), 6)),
        ("nvme:2,craynetwork:1", ((), 0)),
        ("gpu", ((), 0)),
        ("", ((), 0)),
    ],
)
def test_gres(text: str, expected: object) -> None:
    assert parse_gres(text) == expected


def test_sinfo_of_another_world() -> None:
    assert parse_sinfo("sinfo: error\n|||||\na|b|c|d|e|f|g\n") == ()


def test_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    runner = CliRunner()
    first = runner.invoke(app, ["init", "--json"])
    assert first.exit_code == 0, first.output
    document = json.loads(first.stdout)
    assert (document["schema"], document["path"]) == (1, "clusterkit.yaml")
    assert document["next"] == "clusterkit config show"
    again = runner.invoke(app, ["init", "--yes"])
    assert isinstance(again.exception, UserError)
    assert "--force" in str(again.exception)
    assert runner.invoke(app, ["init", "--force"]).exit_code == 0
    assert load_settings(cwd=tmp_path, environ={}).files == (tmp_path / "clusterkit.yaml",)


def test_a_login_node_without_slurm_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def answer(node: LoginNode, words: Sequence[str], *, timeout_s: float) -> Answer:
        return Answer(code=127, errors=f"bash: line 1: exec: {words[0]}: not found\n")

    monkeypatch.setattr(LoginNode, "answer", answer)
    refused = CliRunner().invoke(app, ["init", "--login", "me@login:22"]).exception
    assert isinstance(refused, UserError)
    assert str(refused).startswith("no Slurm answers on me@login:22")
    assert str(refused).endswith("hint: log in and try `sinfo`: ssh me@login")
    assert not [*tmp_path.iterdir()]


def test_a_question_ends_by_ctrl_c_as_any_work_does(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    own = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
    code = f"{own}; from clusterkit.cli.frame.main import main; main()"
    client = subprocess.Popen(
        [sys.executable, "-c", code, "init"],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while b"Write clusterkit.yaml?" not in shown:
        shown += os.read(ours, 4096)
    # One that comes just before Python's input() waits is noticed with the next key (readline.c).
    for _ in range(3):
        os.write(ours, b"\x03")
        with suppress(subprocess.TimeoutExpired):
            client.wait(timeout=30)
            break
    assert client.returncode == 130
    os.close(ours)
    assert not [*tmp_path.iterdir()]


def test_where_it_may_not_write_the_way_out_is_its_own_flag(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught, files.explained(tmp_path / "clusterkit.yaml"):
        raise PermissionError(errno.EACCES, "Permission denied")
    assert "--output" in (caught.value.problems[0].hint or "")


def test_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    answer = run_command(("sh", "-c", "echo $LC_ALL; echo 'sh: error: no' >&2; exit 3"))
    assert (answer.output, answer.code, answer.complaint) == ("C\n", 3, "no")
    assert not run_command(("no-such-tool",)).found
    monkeypatch.setattr("clusterkit.config.init.TIMEOUT_S", 0.1)
    assert run_command(("sleep", "600")).complaint == "sleep: no answer in 0 s"
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    assert run_command((str(broken),)).code == 126
