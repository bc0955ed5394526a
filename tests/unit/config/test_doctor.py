"""`clusterkit doctor`: what it finds with recorded answers, and with nothing at all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clusterkit.cli.frame.main import app
from clusterkit.config import doctor
from clusterkit.config.doctor import Condition, Item, Machine, examine
from clusterkit.config.load import load_settings
from clusterkit.core.commands import Answer
from clusterkit.core.data import read_template
from clusterkit.core.errors import RemoteError
from clusterkit.core.version import __version__
from tests.helpers.needs import require


def _items(
    tmp_path: Path, text: str = "", answers: Mapping[str, Answer] | None = None, ports: str = ""
) -> dict[str, Item]:
    (tmp_path / "clusterkit.yaml").write_text(text, encoding="utf-8")
    local_ports = tmp_path / "local_ports"
    local_ports.write_text(ports or "32768\t60999\n", encoding="ascii")
    known = answers or {}
    machine = Machine(
        settings=load_settings(cwd=tmp_path, environ={"CLUSTERKIT_PARTITON": "x"}),
        run=lambda argv: known.get(
            " ".join(argv[:2]), known.get(argv[0], Answer(code=127, ran=False))
        ),
        local_ports=local_ports,
    )
    return {item.name: item for item in examine(machine)}


def _ok(output: str) -> Answer:
    return Answer(code=0, output=output)


def test_a_torch_without_libuv_is_told(tmp_path: Path) -> None:
    config = "clusters: {a: {kind: slurm, python: /usr/bin/python3}}\n"
    said = "use_libuv was requested but PyTorch was built without libuv support"
    found = _items(tmp_path, config, {"/usr/bin/python3": _ok(said)})["torch"]
    assert found.condition is Condition.WARN
    assert found.summary.startswith("/usr/bin/python3: its torch was built without libuv")
    assert found.fix is not None
    assert "USE_LIBUV=0" in found.fix
    assert not found.finding


def test_how_a_torch_without_libuv_is_found() -> None:
    require("torch")

    def said(before: str) -> str:
        argv = [sys.executable, "-c", before + read_template("programs/machine/torch_store.py")]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    refuse = "import torch.distributed as d\ndef f(*_, **k): raise RuntimeError('no libuv')\n"
    assert said("") == ""  # the wheels have it
    assert said(f"{refuse}d.TCPStore = f\n") == "no libuv\n"


SLURM = "clusters: {a: {kind: slurm}}\n"


def test_a_laptop_without_tools_is_healthy(tmp_path: Path) -> None:
    items = _items(tmp_path)
    assert items["slurm"].condition is Condition.MISSING
    assert items["ssh"].condition is Condition.MISSING
    assert not [item for item in items.values() if item.finding]
    assert items["variable"].fix == "did you mean 'CLUSTERKIT_PARTITION'?"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (SLURM, "slurm"),
        ("clusters: {a: {kind: ssh, hosts: n1}}\n", "ssh"),
        ("clusters: {local: {container_runtime: apptainer}}\n", "apptainer"),
    ],
)
def test_what_a_cluster_needs_is_a_finding(tmp_path: Path, text: str, name: str) -> None:
    item = _items(tmp_path, text)[name]
    assert item.finding
    assert item.fix


def test_slurm_that_answers(tmp_path: Path) -> None:
    tool = _ok("slurm-wlm 22.05.8\n")
    denied = Answer(code=1, errors="sacct: error: Slurm accounting storage is disabled\n")
    answers = {
        "sbatch": tool, "srun": tool, "squeue": tool, "sacct": denied,
        "scontrol ping": _ok("Slurmctld(primary) at head is UP\n"),
    }  # fmt: skip
    items = _items(tmp_path, SLURM, answers)
    assert items["slurm"].summary == "slurm-wlm 22.05.8 (tested)"
    newer = _items(tmp_path, SLURM, answers | {"sbatch": _ok("slurm 26.11.1\n")})["slurm"]
    assert newer.summary == "slurm 26.11.1 (clusterkit's tests run on 22.05, 24.11, 26.05)"
    assert items["slurmctld"].condition is Condition.OK
    assert items["sacct"].condition is Condition.WARN
    assert items["sacct"].summary.startswith("Slurm accounting storage is disabled; ")
    known = answers | {"sinfo --all": _ok("gpu\ndebug\n")}
    wrong = _items(tmp_path, "clusters: {a: {kind: slurm, partition: 'gpu,gpus'}}\n", known)
    assert wrong["partition"].summary == "cluster a: Slurm lists no partition 'gpus'"
    assert wrong["partition"].fix == "did you mean 'gpu'?"
    assert "partition" not in _items(
        tmp_path, SLURM.replace("slurm", "slurm, partition: gpu"), known
    )
    down = {**answers, "scontrol ping": _ok("Slurmctld(primary) at head is DOWN\n")}
    assert _items(tmp_path, SLURM, down)["slurmctld"].finding


def test_slurm_of_this_machine_does_not_matter_where_a_login_node_has_it(tmp_path: Path) -> None:
    broken = Answer(code=1, errors="resolve_ctls_from_dns_srv: res_nsearch error\n")
    answers = {"sbatch": broken, "srun": broken, "squeue": broken}
    assert "slurm" not in _items(tmp_path, LOGIN, answers)
    assert _items(tmp_path, SLURM, answers)["slurm"].finding


LOGIN = "clusters: {a: {kind: slurm, login: me@head}}\n"


def _asked_there(folder: Path, answers: Mapping[str, Answer] | RemoteError) -> list[Item]:
    (folder / "clusterkit.yaml").write_text(LOGIN, encoding="utf-8")

    def run(argv: Sequence[str]) -> Answer:
        if isinstance(answers, RemoteError):
            raise answers
        missing = Answer(code=127, errors=f"bash: {argv[0]}: not found\n", ran=False)
        return answers.get(argv[0], missing)

    settings = load_settings(cwd=folder, environ={})
    machine = Machine(settings=settings, run=lambda _: Answer(code=127), login=lambda _: run)
    return [*doctor.login_nodes(machine)]


def test_a_login_node_is_asked_for_python_clusterkit_and_slurm(tmp_path: Path) -> None:
    tool = _ok("slurm-wlm 24.11.5\n")
    answers = {
        "python3": _ok("Python 3.12.1\n"), "sh": _ok(f"clusterkit {__version__}\n"),
        "sbatch": tool, "srun": tool, "squeue": tool, "sacct": _ok(""),
        "scontrol": _ok("Slurmctld(primary) at ctl is UP\n"),
    }  # fmt: skip
    items = _asked_there(tmp_path, answers)
    assert [(item.name, item.condition) for item in items] == [
        (name, Condition.OK)
        for name in ("login", "python", "clusterkit", "slurm", "slurmctld", "sacct")
    ]
    assert {item.node for item in items} == {"me@head"}
    bare = {item.name: item for item in _asked_there(tmp_path, {"python3": _ok("Python 3.6.8\n")})}
    assert bare["python"].condition is Condition.WARN
    assert bare["slurm"].condition is Condition.MISSING
    assert bare["slurm"].fix is not None
    assert bare["slurm"].fix.startswith("ssh me@head command -v sbatch")
    assert bare["clusterkit"].fix == "clusterkit nodes prepare --cluster a"
    slow = Answer(code=124, errors="ssh: no answer in 10 s")
    (item,) = _asked_there(tmp_path, {"python3": slow})
    assert (item.finding, item.summary, item.fix) == (
        True, "ssh: no answer in 10 s", "ssh me@head",
    )  # fmt: skip
    refused = RemoteError("Permission denied", node="me@head", hint="try it by hand: ssh me@head")
    (item,) = _asked_there(tmp_path, refused)
    assert item.finding
    assert (item.node, item.summary) == ("me@head", "cluster a: Permission denied")
    assert item.fix == "try it by hand: ssh me@head"


def test_a_platform_that_wants_an_instance_type(tmp_path: Path) -> None:
    azure = "clusters: {a: {kind: slurm, platform: azure-nd}}\n"
    item = _items(tmp_path, azure)["platform"]
    assert item.condition is Condition.WARN
    assert item.summary.startswith("cluster a: azure-nd, no instance_type, and Standard_ND96asr_v4")
    named = azure.replace("azure-nd", "azure-nd, instance_type: Standard_ND96isr_H100_v5")
    assert _items(tmp_path, named)["platform"].condition is Condition.OK
    assert _items(tmp_path, azure.replace("azure-nd", "aws-efa"))["platform"].fix is None


def test_gpus_and_agents_and_daemons(tmp_path: Path) -> None:
    answers = {
        "nvidia-smi": _ok("NVIDIA H200\nNVIDIA H200\n"),
        "ssh": Answer(code=0, errors="OpenSSH_9.2p1\n"),
        "ssh-add": _ok("256 SHA256:abc me (ED25519)\n"),
        "docker": Answer(code=1, errors="Cannot connect\n"),
    }
    items = _items(tmp_path, "", answers)
    assert items["nvidia-smi"].summary == "2 x NVIDIA H200"
    assert (items["ssh"].summary, items["ssh-agent"].summary) == ("OpenSSH_9.2p1", "1 key")
    assert (items["docker"].condition, items["docker"].summary) == (
        Condition.WARN,
        "Cannot connect",
    )


@pytest.mark.parametrize(
    ("said", "systemd", "fix"),
    [
        ("Cannot connect to the Docker daemon", True, "sudo systemctl start docker"),
        ("failed to connect to the docker API", False, "sudo service docker start"),
        (
            "permission denied while trying to connect to the Docker daemon socket",
            True,
            "sudo usermod -aG docker $USER && newgrp docker",
        ),
        ("client version 1.52 is too new", True, "docker info"),
    ],
)
def test_the_fix_of_docker_is_what_mends_it(
    tmp_path: Path, said: str, systemd: bool, fix: str
) -> None:
    answers = {"docker": Answer(code=1, errors=said), "test -d": Answer(code=int(not systemd))}
    assert _items(tmp_path, "", answers)["docker"].fix == fix


def test_horovod_comes_as_the_wheel_that_we_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `pip install horovod` would compile fails against today's torch."""
    monkeypatch.setattr(doctor, "_version", lambda _: None)
    fix = _items(tmp_path)["horovod"].fix or ""
    before, _, built = fix.partition('"$(')
    assert before == f"{sys.executable} -m pip install "
    build = built.removesuffix(')"')
    shown = subprocess.run(
        ["bash", "-c", f"{build} --help"], capture_output=True, text=True, check=True
    ).stdout
    assert "Build a Horovod wheel against the PyTorch of one Python" in shown


def test_horovod_of_this_python_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_version", lambda _: "0.28.1")
    build = _ok(json.dumps({"frameworks": ["torch"], "parts": ["gloo"], "error": None}))
    for answer, told in (
        (build, "0.28.1: for torch, built with Gloo, without MPI, NCCL"),
        (_ok(""), "0.28.1"),
    ):
        machine = Machine(
            settings=load_settings(cwd=tmp_path, environ={}),
            run=lambda argv, answer=answer: answer if argv[0] == sys.executable else _ok(""),
        )
        found = [item.summary for item in examine(machine) if item.name == "horovod"]
        assert found == [told]


def test_what_horovod_was_built_with(tmp_path: Path) -> None:
    config = "clusters: {a: {kind: slurm, python: /usr/bin/python3}}\n"

    def told(config: str, **build: object) -> Item:
        answer = _ok(json.dumps({"frameworks": ["torch"], "parts": None, "error": None, **build}))
        return _items(tmp_path, config, {"/usr/bin/python3": answer})["horovod"]

    found = told(config, parts=["gloo", "nccl"])
    assert found.condition is Condition.OK
    built = "/usr/bin/python3: for torch, built with Gloo, NCCL, without MPI"
    assert found.summary == built
    mpi = config.replace("python:", "horovod_controller: mpi, python:")
    assert told(mpi, parts=["gloo"]).condition is Condition.WARN
    assert "controller: gloo" in (told(mpi, parts=["gloo"]).fix or "")
    assert told(mpi, parts=["mpi"]).condition is Condition.OK
    broken = told(config, error="libtorch_cpu.so: undefined symbol")
    assert broken.condition is Condition.WARN
    assert broken.summary.endswith("cannot be loaded: libtorch_cpu.so: undefined symbol")
    assert "built for neither" in told(config, frameworks=[]).summary


def test_how_that_is_asked() -> None:
    """Horovod's own answer is that of `horovodrun --check-build`, which imports torch."""
    require("horovod")
    argv = [sys.executable, "-c", read_template("programs/machine/horovod_build.py")]
    said = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
    import horovod.torch as hvd  # noqa: PLC0415 - takes seconds

    known = {"mpi": hvd.mpi_built(), "gloo": hvd.gloo_built(), "nccl": hvd.nccl_built()}
    assert {part: part in said["parts"] for part in known} == {
        part: bool(built) for part, built in known.items()
    }
    assert said["frameworks"] == ["torch"]


def test_job_python(tmp_path: Path) -> None:
    text = f"clusters: {{local: {{python: {sys.executable}}}}}\n"
    versions = json.dumps({"torch": "2.13.0", "horovod": None})
    item = _items(tmp_path, text, {sys.executable: _ok(versions)})["job python"]
    assert item.summary == f"{sys.executable}: torch 2.13.0"
    for answer in (Answer(code=127, ran=False), Answer(code=1), _ok("no json")):
        item = _items(tmp_path, text, {sys.executable: answer})["job python"]
        assert item.condition is Condition.WARN


@pytest.mark.parametrize(
    ("ports", "condition", "fix"),
    [
        ("32768 60999", Condition.OK, None),
        ("25000 60999", Condition.WARN, "port_range: 15000-24999"),
        ("1024 60999", Condition.WARN, "port_range: 61000-65535"),
        ("1024 65535", Condition.WARN, "sysctl -w net.ipv4.ip_local_port_range='32768 60999'"),
    ],
)
def test_ports(tmp_path: Path, ports: str, condition: Condition, fix: str | None) -> None:
    item = _items(tmp_path, ports=ports)["ports"]
    assert (item.condition, item.fix) == (condition, fix)


def test_run_dir_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    item = _items(tmp_path, "clusters: {local: {run_dir: file/runs}}\n")["run_dir"]
    assert item.condition is Condition.FAIL


def _without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the verb the import of torch, which takes it seconds."""
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "torch" else real(name))


def test_verb_with_an_empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.delenv("CLUSTERKIT_CONFIG_FILE", raising=False)
    imported_before = "torch" in sys.modules
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["findings"] == 0
    _without_torch(monkeypatch)
    text = CliRunner().invoke(app, ["doctor"]).stdout
    assert "missing  slurm" in text
    assert ("torch" in sys.modules) is imported_before


def test_verb_with_a_broken_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    (tmp_path / "clusterkit.yaml").write_text("clustrs: {}\n", encoding="utf-8")
    monkeypatch.delenv("CLUSTERKIT_CONFIG_FILE", raising=False)
    _without_torch(monkeypatch)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "unknown key 'clustrs' (1 in all)" in result.stdout


def test_one_cause_in_slurm_is_told_once(tmp_path: Path) -> None:
    tool = _ok("slurm-wlm 22.05.8\n")
    tools = {"sbatch": tool, "srun": tool, "squeue": tool}
    lost = Answer(code=1, errors="scontrol: error: no slurm.conf\n")
    items = _items(tmp_path, SLURM, dict.fromkeys((*tools, "sacct", "scontrol"), lost))
    assert items["slurm"].finding
    assert not {"slurmctld", "sacct"} & items.keys()
    assert not _items(tmp_path, "", dict.fromkeys(tools, lost))["slurm"].finding
    items = _items(tmp_path, SLURM, {**tools, "sacct": lost, "scontrol ping": lost})
    assert items["slurmctld"].finding
    assert "sacct" not in items


def test_tools_of_slurm_without_a_cluster_are_no_error(tmp_path: Path) -> None:
    nowhere = Answer(
        code=1,
        errors="sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
        "sbatch: error: fetch_config: DNS SRV lookup failed\n"
        "sbatch: fatal: Could not establish a configuration source\n",
    )
    answers = dict.fromkeys(("sbatch", "srun", "squeue", "sacct", "scontrol"), nowhere)
    item = _items(tmp_path, "", answers)["slurm"]
    assert (item.condition, item.summary) == (Condition.MISSING, "no Slurm configured here")
    assert item.fix is None
    needed = _items(tmp_path, SLURM, answers)["slurm"]
    assert needed.finding
    assert needed.fix == "export SLURM_CONF=/path/to/slurm.conf"
    broken = Answer(code=1, errors="sbatch: error while loading libslurm.so\n")
    odd = _items(tmp_path, "", dict.fromkeys(answers, broken))["slurm"]
    assert odd.summary.startswith("sbatch: error while loading")


def test_a_hostfile_that_its_tool_would_misread(tmp_path: Path) -> None:
    (tmp_path / "rack").write_text("n[1-2] slots=8\n", encoding="utf-8")
    items = _items(tmp_path, "clusters: {rack: {kind: ssh, hostfile: rack}}\n")
    assert items["hostfile"].condition is Condition.WARN
    assert items["hostfile"].summary.startswith("cluster rack: ")
