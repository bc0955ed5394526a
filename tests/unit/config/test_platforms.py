"""Platforms: their files, how a machine is recognised, and what they give to clusters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clusterkit.config.load import builtin_settings, load_settings
from clusterkit.config.platforms import (
    fabric_of,
    instance_of,
    load_platform,
    net_plugin_of,
    platform_names,
    recognise,
)
from clusterkit.config.settings import Layer, Settings
from clusterkit.core.data import data_dir, read_table
from clusterkit.core.errors import UserError
from clusterkit.core.metadata import CLOUDS, read_dmi
from clusterkit.core.model import ClusterSpec
from clusterkit.estimate.machines.interconnects import NETWORKS
from clusterkit.launch.options import JobSpec
from clusterkit.launch.plan import make_plan
from clusterkit.launch.render import render
from clusterkit.preflight.env_lint.lint import lint
from clusterkit.preflight.env_lint.sources import from_environment
from tests.helpers.command_line import typed_in

SIGNS = tuple(
    {**row, **dict(zip(("dmi", "says"), CLOUDS[row["cloud"]], strict=True))}
    for row in read_table(data_dir("templates/platforms") / "signs.tsv")
)
EVERY = [
    (name, instance)
    for name in platform_names()
    for instance in (None, *load_platform(name).instances)
]
GIB = "clusters:\n  c:\n    kind: slurm\n    platform: gcp-gib\n"
"""A cluster of which tests go on to say more."""


def write_machine(root: Path, sign: dict[str, str]) -> Path:
    """Write what a row of `signs.tsv` looks for."""
    dmi = root / "sys/class/dmi/id" / sign["dmi"]
    dmi.parent.mkdir(parents=True, exist_ok=True)
    dmi.write_text(sign["says"] + "\n", encoding="utf-8")
    if sign["path"] != "-":
        path = root / sign["path"].lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def _load(tmp_path: Path, text: str, **environ: str) -> Settings:
    (tmp_path / "clusterkit.yaml").write_text(text, encoding="utf-8")
    return load_settings(cwd=tmp_path, environ=environ)


def _problem(tmp_path: Path, text: str) -> str:
    with pytest.raises(UserError) as caught:
        _load(tmp_path, text)
    return str(caught.value)


@pytest.mark.parametrize(("name", "instance"), EVERY)
def test_what_a_platform_sets_is_no_fault_there(
    tmp_path: Path, name: str, instance: str | None
) -> None:
    more = f", instance_type: {instance}" if instance else ""
    text = f"clusters: {{c: {{kind: slurm, platform: {name}{more}}}}}"
    spec = _load(tmp_path, text).clusters["c"]
    findings = lint((from_environment(spec.env),), allowed=spec.allowed_env)
    assert [str(finding) for finding in findings if finding.verdict in {"warn", "fail"}] == []
    assert load_platform(name).model.about
    assert load_platform(name).model.source


@pytest.mark.parametrize("sign", SIGNS, ids=lambda sign: f"{sign['platform']}-{sign['path']}")
def test_a_machine_is_recognised(tmp_path: Path, sign: dict[str, str]) -> None:
    found = recognise(write_machine(tmp_path, sign))
    assert found is not None
    assert found.name == sign["platform"]
    assert found.name in platform_names()
    assert sign["says"] in found.sign


@pytest.mark.parametrize(
    ("network", "instance"), [("efa-p4d", "p4d.24xlarge"), ("efa-p5", "p5.48xlarge")]
)
def test_the_estimator_knows_the_same_fabric(network: str, instance: str) -> None:
    known, there = NETWORKS[network], load_platform("aws-efa").instances[instance]
    assert known.node_gbs(there.gpus) == pytest.approx(
        there.devices * there.gbit / 8 * known.of_line_rate
    )


def test_what_is_known_of_an_instance_type(tmp_path: Path) -> None:
    assert instance_of("aws-efa", "p5.48xlarge").devices == 32
    tcp = instance_of("gcp-tcpxo", "a3-megagpu-8g")
    assert (tcp.devices, fabric_of(tcp)) == (None, "8 network cards of 200 Gbit/s")
    for platform, name in [("auto", "p5.48xlarge"), ("aws-efa", None), ("./gone.yaml", "p5")]:
        assert fabric_of(instance_of(platform, name)) == ""
    clusters = _load(tmp_path, GIB).clusters
    assert net_plugin_of(clusters["c"]) == "/usr/local/gib/lib64/libnccl-net.so"
    assert net_plugin_of(clusters["local"]) is None


def test_a_platform_has_what_the_one_has_that_it_is_like(tmp_path: Path) -> None:
    hyperpod, efa = load_platform("aws-hyperpod"), load_platform("aws-efa")
    assert (hyperpod.instances, hyperpod.model.net_plugin) == (efa.instances, "libnccl-net.so")
    given = hyperpod.values("p5.48xlarge")
    assert (given["srun_args",], given["gpus_per_node",]) == (("--auto-resume=1",), 8)
    site = tmp_path / "site.yaml"
    for like, wrong in (
        ("aws-efaa", "there is no platform 'aws-efaa'"),
        (str(site), "no platform"),
    ):
        site.write_text(f"like: {like}\n")
        with pytest.raises(UserError, match=wrong):
            load_platform(str(site))


def test_other_machines_are_not(tmp_path: Path) -> None:
    assert recognise(tmp_path) is None
    assert (
        recognise(write_machine(tmp_path, {"dmi": "sys_vendor", "says": "Iron", "path": "-"}))
        is None
    )
    # A virtual machine of the same cloud that has nothing of the fabric.
    write_machine(tmp_path, {"dmi": "sys_vendor", "says": "Amazon EC2", "path": "-"})
    assert recognise(tmp_path) is None


def test_what_dmi_says_is_bounded(tmp_path: Path) -> None:
    write_machine(tmp_path, {"dmi": "sys_vendor", "says": "x" * 10_000, "path": "-"})
    assert len(read_dmi(tmp_path, "sys_vendor")) == 256
    (tmp_path / "sys/class/dmi/id/product_name").mkdir()
    (tmp_path / "sys/class/dmi/id/board_name").write_bytes(b"\xff\xfe")
    assert read_dmi(tmp_path, "product_name") == ""
    assert read_dmi(tmp_path, "board_name")


@pytest.fixture
def gib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make this a machine of Google's with gIB."""
    (sign,) = (sign for sign in SIGNS if sign["platform"] == "gcp-gib")
    monkeypatch.setenv("CLUSTERKIT_MACHINE_ROOT", str(write_machine(tmp_path / "machine", sign)))
    return tmp_path


def test_auto_is_for_slurm_and_says_by_what(gib: Path) -> None:
    text = "clusters: {c: {kind: slurm}, s: {kind: ssh, hosts: n1}}"
    settings = _load(gib, text)
    spec = settings.clusters["c"]
    assert (spec.platform, spec.env["NCCL_NET"], spec.memory) == ("gcp-gib", "gIB", "0")
    origin = settings.origin("clusters.c.platform")
    assert origin.layer is Layer.PLATFORM
    assert "product_name Google Compute Engine" in str(origin)
    assert str(settings.origin("clusters.c.env.NCCL_NET")) == "platform gcp-gib"
    for other in ("s", "local"):
        assert (settings.clusters[other].platform, settings.clusters[other].env) == ("auto", {})
    assert builtin_settings().cluster().platform == "auto"


def test_what_a_platform_sets_is_shown_with_its_origin_on_80_columns(gib: Path) -> None:
    (gib / "clusterkit.yaml").write_text("clusters: {c: {kind: slurm}}", encoding="utf-8")
    shown = typed_in(gib, "config", "show", "--cluster", "c", "--origin").stdout
    assert re.search(r"^  env\.NCCL_NET +gIB +platform gcp-gib$", shown, re.MULTILINE)
    wide = [line.split() for line in shown.splitlines() if len(line) > 80]
    assert [len(words) for words in wide] == [1]  # a long word of the script


@pytest.mark.parametrize("way", ["key", "variable"])
def test_one_word_switches_it_off(gib: Path, way: str) -> None:
    key, environ = (", platform: off", {}) if way == "key" else ("", {"CLUSTERKIT_PLATFORM": "off"})
    spec = _load(gib, f"clusters: {{c: {{kind: slurm{key}}}}}", **environ).clusters["c"]
    assert (spec.platform, spec.env, spec.setup) == ("off", {}, ())


def test_ones_own_values_win_and_lists_are_joined(tmp_path: Path) -> None:
    settings = _load(
        tmp_path,
        GIB
        + "    memory: 512G\n    env: {NCCL_NET: IB}\n    setup: source /opt/venv/bin/activate\n"
        + "    mounts: []\n    instance_type: a4-highgpu-8g\n",
    )
    spec = settings.clusters["c"]
    assert (spec.memory, spec.env, spec.mounts) == ("512G", {"NCCL_NET": "IB"}, ())
    assert (spec.gpus_per_node, spec.network_interface) == (8, "enp0s19,enp192s20")
    assert spec.setup[0] == "source /usr/local/gib/scripts/set_nccl_env.sh"
    assert spec.setup[-1] == "source /opt/venv/bin/activate"
    assert str(settings.origin("clusters.c.setup")) == "platform gcp-gib, clusterkit.yaml:7"
    assert str(settings.origin("clusters.c.memory")) == "clusterkit.yaml:5"
    named = settings.origin("clusters.c.platform")
    assert (named.layer, named.line) == (Layer.PROJECT, 4)


def test_a_job_gets_it(tmp_path: Path) -> None:
    spec = _load(tmp_path, GIB + "    instance_type: a4-highgpu-8g\n").clusters["c"]
    job = JobSpec(framework="torchrun", nodes=2, script="train.py")
    (sbatch,) = render(make_plan(job, spec, workdir="/work"), only=["sbatch"])
    for line in ("#SBATCH --mem=0", "#SBATCH --gpus-per-node=8"):
        assert line in sbatch.text
    # The head has one address, whatever the number of interfaces.
    assert "addr show dev enp0s19 |" in sbatch.text
    assert "export NCCL_SOCKET_IFNAME=enp0s19,enp192s20" in sbatch.text
    # What is given by name wins over the script.
    script, given = (sbatch.text.index(text) for text in ("set_nccl_env.sh", "export NCCL_NET=gIB"))
    assert script < given


def test_keys_of_slurm_stay_there(tmp_path: Path) -> None:
    spec = _load(tmp_path, "clusters: {s: {kind: ssh, hosts: n1, platform: gcp-gib}}").clusters["s"]
    assert (spec.env["NCCL_NET"], spec.memory) == ("gIB", None)


def test_unknown_names_have_near_ones(tmp_path: Path) -> None:
    assert "did you mean 'gcp-gib'?" in _problem(tmp_path, GIB.replace("gib", "gip"))
    wrong = _problem(tmp_path, GIB + "    instance_type: a4-highgpu-8\n")
    assert "platform gcp-gib knows no instance type 'a4-highgpu-8'" in wrong
    assert "did you mean 'a4-highgpu-8g'?" in wrong
    assert "clusterkit.yaml:5" in wrong
    none = GIB.replace("gcp-gib", "plain") + "    instance_type: big\n"
    assert "it lists none" in _problem(tmp_path, none)


def test_an_instance_type_without_a_platform_is_told(tmp_path: Path) -> None:
    text = "clusters: {s: {kind: ssh, hosts: n1, instance_type: p5.48xlarge}}"
    (warning,) = _load(tmp_path, text).warnings_of("s")
    assert "no platform is recognised here" in str(warning)
    assert "clusterkit.yaml:1" in str(warning)
    off = text.replace("kind: ssh", "kind: ssh, platform: off")
    assert _load(tmp_path, off).warnings_of("s") == ()


def test_a_variable_names_another_platform_for_once(tmp_path: Path) -> None:
    text = GIB + "    instance_type: a4-highgpu-8g\n"
    spec = _load(tmp_path, text, CLUSTERKIT_PLATFORM="azure-gb").clusters["c"]
    assert (spec.platform, spec.gpus_per_node) == ("azure-gb", None)
    assert spec.env["NCCL_SHM_DISABLE"] == "1"
    with pytest.raises(UserError, match="knows no instance type 'x'"):
        _load(tmp_path, text, CLUSTERKIT_PLATFORM="azure-gb", CLUSTERKIT_INSTANCE_TYPE="x")


OWN = """\
about: InfiniBand of a site of its own.
source: [measured by us]
cluster: {env: {NCCL_IB_SL: 3}, extra_directives: {exclusive: }, setup: , memory: }
instances: {fat: {gpus: 4, cluster: {env: {NCCL_IB_SL: 4}}}, thin: }
"""


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(OWN, encoding="utf-8")
    for name in ("site.yaml", "./site.yaml", str(tmp_path / "site.yaml")):
        text = f"clusters: {{c: {{kind: slurm, platform: {name}, instance_type: fat}}}}"
        settings = _load(tmp_path, text)
        assert settings.clusters["c"] == ClusterSpec(
            name="c",
            kind=settings.clusters["c"].kind,
            platform=str(tmp_path / "site.yaml"),
            instance_type="fat",
            gpus_per_node=4,
            env={"NCCL_IB_SL": "4"},
            extra_directives={"exclusive": ""},
        )


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (OWN.replace("env: {NCCL_IB_SL: 3}", "environ: {}"), "unknown key 'environ'"),
        (OWN.replace("gpus: 4", "gpu_count: 4"), "unknown key 'gpu_count'"),
        (OWN.replace("gpus: 4", "gpus: -4"), "gpus must be at least 1, not -4"),
        (OWN.replace("about", "abuot"), "did you mean 'about'?"),
        (OWN.replace("NCCL_IB_SL: 4", "NCCL-SL: 4"), "is not a name for an environment variable"),
        (OWN.replace("cluster: {", "cluster: {run_dir: /tmp, "), "unknown key 'run_dir'"),
        ("- a list", "must be a mapping"),
        ("<html>: [", "this is not valid YAML"),
    ],
)
def test_a_file_is_read_strictly(tmp_path: Path, text: str, wrong: str) -> None:
    (tmp_path / "site.yaml").write_text(text, encoding="utf-8")
    said = _problem(tmp_path, "clusters: {c: {kind: slurm, platform: site.yaml}}")
    assert wrong in said
    assert "site.yaml" in said


def test_a_file_that_is_not_there_or_not_ones_own(tmp_path: Path) -> None:
    cluster = "clusters: {c: {kind: slurm, platform: ./site.yaml}}"
    assert "clusterkit.yaml:1" in _problem(tmp_path, cluster)
    (tmp_path / "site.yaml").write_text(OWN, encoding="utf-8")
    (tmp_path / "site.yaml").chmod(0o666)
    assert "can be written by everybody" in _problem(tmp_path, cluster)
