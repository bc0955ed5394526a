"""Layers, origins, values: what `load_settings` makes of files, variables and flags."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clusterkit.config import sources
from clusterkit.config.load import load_settings
from clusterkit.config.schema import ClusterModel, ConfigModel
from clusterkit.config.settings import Layer, Settings
from clusterkit.config.units import parse_memory, parse_port_range, parse_time_limit, time_hint
from clusterkit.core.errors import UserError
from clusterkit.core.model import ClusterKind, ClusterSpec, GpuRequest
from clusterkit.core.notification import parse_way
from clusterkit.launch.jobfile import JobFile, load_job_file
from clusterkit.launch.options import JobSpec
from clusterkit.launch.plan import make_plan
from tests.helpers.paths import ROOT

PROJECT = """\
default_cluster: a100
clusters:
  a100:
    partition: project
    env: {ONE: project, TWO: project}
"""

USER = """\
default_cluster: local
clusters:
  a100:
    kind: slurm
    partition: user
    qos: user
    time: 1:30:00
    env: {TWO: user, THREE: user}
  rack: {kind: ssh, hosts: "n[1-2]"}
"""


def _load(tmp_path: Path, project: str = "", user: str = "", **more: str) -> Settings:
    return load_settings(cwd=_folder(tmp_path, project, user), environ=_environ(tmp_path, **more))


def _folder(tmp_path: Path, project: str, user: str = "") -> Path:
    for path, text in (
        (tmp_path / "work" / "clusterkit.yaml", project),
        (tmp_path / "home" / "clusterkit" / "config.yaml", user),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        if text:
            path.write_text(text, encoding="utf-8")
    return tmp_path / "work"


def _environ(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "home"), **more}


def test_a_relative_folder_for_configurations_is_passed_over() -> None:
    environ = {"HOME": "/home/u", "XDG_CONFIG_HOME": "own"}
    assert sources.user_file(environ) == Path("/home/u/.config/clusterkit/config.yaml")


def test_local_is_there_without_a_file(tmp_path: Path) -> None:
    loaded = load_settings(cwd=tmp_path, environ={})
    assert loaded.cluster() == ClusterSpec(name="local", kind=ClusterKind.LOCAL)
    assert loaded.files == ()
    assert loaded.origin("default_cluster").layer is Layer.DEFAULT


@pytest.mark.parametrize("text", ["# nothing\n", "clusters:\n", "---\n", "x-mine: {a: 1}\n", "{}"])
def test_files_that_say_nothing(tmp_path: Path, text: str) -> None:
    assert set(_load(tmp_path, text).clusters) == {"local"}


@pytest.mark.parametrize(
    ("environ", "project", "layer"),
    [
        ({"CLUSTERKIT_PARTITION": "environment"}, PROJECT, Layer.ENVIRONMENT),
        ({"CLUSTERKIT_PARTITION": ""}, PROJECT, Layer.PROJECT),
        ({"CLUSTERKIT_CLUSTER": "a100"}, "", Layer.USER),
        (
            {"CLUSTERKIT_CLUSTER": "a100", "CLUSTERKIT_DEFAULT_CLUSTER": "local"},
            "",
            Layer.USER,
        ),
    ],
)
def test_precedence(tmp_path: Path, environ: dict[str, str], project: str, layer: Layer) -> None:
    folder, variables = _folder(tmp_path, project, USER), _environ(tmp_path, **environ)
    loaded = load_settings(cwd=folder, environ=variables)
    assert loaded.cluster().partition == layer.value
    assert loaded.origin("clusters.a100.partition").layer is layer


def test_a_flag_chooses_the_cluster(tmp_path: Path) -> None:
    environ = _environ(tmp_path, CLUSTERKIT_CLUSTER="local")
    loaded = load_settings(cwd=_folder(tmp_path, "", USER), environ=environ, cluster="a100")
    assert loaded.cluster().name == "a100"
    assert loaded.origin("default_cluster").layer is Layer.FLAG


def test_clusters_merge_key_by_key(tmp_path: Path) -> None:
    loaded = _load(tmp_path, PROJECT, USER)
    spec = loaded.cluster()
    assert (spec.name, spec.kind, spec.qos) == ("a100", ClusterKind.SLURM, "user")
    assert spec.env == {"ONE": "project", "TWO": "project", "THREE": "user"}
    two, three = (loaded.origin(f"clusters.a100.env.{name}") for name in ("TWO", "THREE"))
    assert (str(two), two.line) == ("clusterkit.yaml:5", 5)
    assert (three.layer, three.line) == (Layer.USER, 8)
    assert [host.name for host in loaded.cluster("rack").hosts] == ["n1", "n2"]
    assert [file.name for file in loaded.files] == ["clusterkit.yaml", "config.yaml"]


def test_the_nearest_file_upward(tmp_path: Path) -> None:
    folder = _folder(tmp_path, PROJECT, USER) / "deep" / "er"
    folder.mkdir(parents=True)
    loaded = load_settings(cwd=folder, environ=_environ(tmp_path))
    assert loaded.default_cluster == "a100"


def test_a_key_without_a_value_goes_back_to_its_default(tmp_path: Path) -> None:
    text = "clusters: {a100: {qos: , time: null, env: }}\n"
    spec = _load(tmp_path, text, USER).cluster("a100")
    assert (spec.qos, spec.time, spec.env) == (None, None, {})


def test_hosts_of_a_stronger_layer_replace_a_hostfile(tmp_path: Path) -> None:
    user = "clusters: {rack: {kind: ssh, hostfile: no-such-file}}\n"
    spec = _load(tmp_path, "clusters: {rack: {hosts: [b1, a1]}}\n", user).cluster("rack")
    assert [host.name for host in spec.hosts] == ["b1", "a1"]


def test_a_hostfile_of_a_stronger_layer_replaces_hosts(tmp_path: Path) -> None:
    (_folder(tmp_path, "") / "nodes").write_text("b1\na1\n", encoding="utf-8")
    user = "clusters: {rack: {kind: ssh, hosts: no-such-host}}\n"
    spec = _load(tmp_path, "clusters: {rack: {hostfile: nodes}}\n", user).cluster("rack")
    assert [host.name for host in spec.hosts] == ["b1", "a1"]


def test_paths_count_from_the_file(tmp_path: Path) -> None:
    folder = _folder(tmp_path, "")
    (folder / "racks").mkdir()
    (folder / "racks" / "one").write_text("n2 slots=4\nn1 slots=8\n", encoding="utf-8")
    (folder / "clusterkit.yaml").write_text(
        "clusters: {r: {kind: ssh, hostfile: racks/one, templates: mine, run_dir: ~/runs}}\n",
        encoding="utf-8",
    )
    deeper = folder / "racks"
    spec = load_settings(cwd=deeper, environ={}).cluster("r")
    assert [(host.name, host.slots) for host in spec.hosts] == [("n2", 4), ("n1", 8)]
    assert (spec.templates, spec.run_dir) == (str(folder / "mine"), "~/runs")


def test_a_variable_reaches_only_the_kinds_that_know_it(tmp_path: Path) -> None:
    loaded = _load(tmp_path, "", USER, CLUSTERKIT_PARTITION="p", CLUSTERKIT_GPUS_PER_NODE="4")
    assert loaded.cluster("local").partition is None
    assert {spec.gpus_per_node for spec in loaded.clusters.values()} == {4}


def test_texts_stay_what_the_user_wrote(tmp_path: Path) -> None:
    text = """\
clusters:
  a:
    kind: slurm
    account: 0123
    time: 1:30:00
    qos: 1.10
    env: {ON: yes, HEX: 0x10, DATE: 2026-01-02, EMPTY: "", NEWLINE: "a\\nb", UNI: "é漢 $x"}
    memory: 64GB
"""
    spec = _load(tmp_path, text).cluster("a")
    assert (spec.account, spec.time, spec.qos, spec.memory) == ("0123", "1:30:00", "1.10", "64G")
    assert spec.env == {
        "ON": "yes", "HEX": "0x10", "DATE": "2026-01-02", "EMPTY": "", "NEWLINE": "a\nb",
        "UNI": "é漢 $x",
    }  # fmt: skip


def test_forms_of_values(tmp_path: Path) -> None:
    text = """\
clusters:
  a: &a
    kind: slurm
    gpu_request: gres
    port_range: [21000, 22000]
    modules: cuda
    setup: |
      source /opt/x
    srun_args: --mpi=pmix --comment "two words"
    drain_command: sudo drain {node} "why={reason}"
    extra_directives: {exclusive: , --mail-type: FAIL}
    env: [A=1, B=x=y]
    mounts: /data:/data:ro
    exclude: [n7, "n[2-3,7]"]
  b: {<<: *a, gpu_request: none}
"""
    loaded = _load(tmp_path, text)
    spec = loaded.cluster("a")
    assert spec.port_range == (21000, 22000)
    assert (spec.modules, spec.setup) == (("cuda",), ("source /opt/x\n",))
    assert spec.srun_args == ("--mpi=pmix", "--comment", "two words")
    assert spec.drain_command == ("sudo", "drain", "{node}", "why={reason}")
    assert spec.extra_directives == {"exclusive": "", "mail-type": "FAIL"}
    assert spec.env == {"A": "1", "B": "x=y"}
    assert spec.exclude == ("n7", "n2", "n3")
    assert loaded.cluster("b") == dataclasses.replace(spec, name="b", gpu_request=GpuRequest.NONE)


def test_unknown_cluster(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'a100'"):
        _load(tmp_path, PROJECT, USER).cluster("a10")


def test_misspelt_variable_is_a_warning(tmp_path: Path) -> None:
    loaded = _load(tmp_path, CLUSTERKIT_PARTITON="x", CLUSTERKIT_LAB="1", CLUSTERKIT_CLUSTERS="y")
    assert [problem.message.split()[-1] for problem in loaded.warnings] == [
        "CLUSTERKIT_CLUSTERS",
        "CLUSTERKIT_PARTITON",
    ]
    assert loaded.warnings[1].hint == "did you mean 'CLUSTERKIT_PARTITION'?"


def test_schema_and_model_have_the_same_keys() -> None:
    fields = {field.name for field in dataclasses.fields(ClusterSpec)} - {"name"}
    assert set(ClusterModel.model_fields) == fields | {"hostfile"}


def test_every_key_is_documented() -> None:
    for model in (ClusterModel, ConfigModel, JobFile):
        for name, field in model.model_fields.items():
            assert field.description, name
            assert field.examples, name


def test_every_example_loads(tmp_path: Path) -> None:
    for name, field in ClusterModel.model_fields.items():
        if name in {"kind", "hostfile"}:
            continue
        extra = field.json_schema_extra
        assert isinstance(extra, dict)
        kind = extra["kinds"][0]
        hosts = "    hosts: n9\n" if kind == "ssh" and name != "hosts" else ""
        example = (field.examples or [])[0]
        _load(tmp_path, f"clusters:\n  a:\n    kind: {kind}\n{hosts}    {name}: {example}\n")
    for name, field in JobFile.model_fields.items():
        path = tmp_path / "job.yaml"
        path.write_text(f"{name}: {(field.examples or [])[0]}\n", encoding="utf-8")
        assert list(load_job_file(path).values) == [name]


def test_job_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "framework: torchrun\nnodes: 1:4\ngpus-per-node: [8, 4]\nscript: a b.py\n"
        "args: --name 'x y' $HOME\nenv: {A: yes}\nset: {sbatch.nice: 100}\nrequeue: 2\n",
        encoding="utf-8",
    )
    assert load_job_file(path).values == {
        "framework": "torchrun",
        "nodes": "1:4",
        "gpus_per_node": "8,4",
        "script": "a b.py",
        "args": ("--name", "x y", "$HOME"),
        "env": {"A": "yes"},
        "set": {"sbatch.nice": "100"},
        "requeue": 2,
    }


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("slak SLACK_URL", "begins with mail, slack, webhook or run, not 'slak'"),
        ("slack https://hooks.example.org/T0/secret", "what stands after `slack` is no name"),
        ("webhook https://me:secret@example.org/", "what stands after `webhook` is no address"),
        ("webhook file:///etc/passwd", "what stands after `webhook` is no address"),
        ("mail -bp", "what stands after `mail` is no address"),
        ("mail a@b.org, c@d.org", "what stands after `mail` is no address"),
        ("run", "no command stands after `run`"),
        ("run echo 'x", "has an open quote"),
        ("run echo {state} >> ended", "no shell, which `>>` needs: run sh -c '...'"),
        ("run touch a;touch b", "no shell, which `;` needs: run sh -c '...'"),
        ("run touch a 2>&1", "no shell, which `2>&1` needs"),
        ("run touch a&", "no shell, which `&` needs"),
    ],
)
def test_a_notification_that_goes_no_way_is_refused_without_its_secret(
    tmp_path: Path, text: str, wrong: str
) -> None:
    with pytest.raises(UserError, match=re.escape(wrong)) as caught:
        _load(tmp_path, f'clusters: {{a: {{kind: slurm, on_failure: "{text}"}}}}\n')
    assert "secret" not in caught.value.problems[0].message


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("run find /x -name core -exec rm {} ';'", ";"),
        (r"run find /x -exec rm {} \;", ";"),
        ('run echo "a \\" >> b"', 'a " >> b'),
        ("run curl http://host/?a=1&b=2", "http://host/?a=1&b=2"),
    ],
)
def test_what_a_shell_would_take_is_a_word_in_quotes(text: str, last: str) -> None:
    assert parse_way(text).to[-1] == last


def test_a_job_tells_whom_it_names_and_else_whom_its_cluster_does(tmp_path: Path) -> None:
    text = "clusters: {a: {kind: slurm, on_end: mail me, on_failure: [mail you, slack URL]}}\n"
    spec = _load(tmp_path, text).cluster("a")
    assert (spec.on_end, spec.on_failure) == (("mail me",), ("mail you", "slack URL"))
    job = JobSpec(framework="env", script="x.sh", on_failure=("run true",))
    plan = make_plan(job, spec, workdir="/tmp")
    assert (plan.on_end, plan.on_failure) == (("mail me",), ("run true",))
    with pytest.raises(UserError, match="--on-end: a notification begins with"):
        make_plan(dataclasses.replace(job, on_end=("me",)), spec, workdir="/tmp")


def test_a_hang_has_an_action_and_whom_to_tell_each_from_the_job_or_else_its_cluster(
    tmp_path: Path,
) -> None:
    text = "clusters: {a: {kind: slurm, on_hang: [cancel, mail me, slack ~/.url]}}\n"
    spec = _load(tmp_path, text).cluster("a")
    other = _load(tmp_path, "clusters: {a: {kind: slurm, on_hang: slack URL}}\n").cluster("a")

    def planned(spec: ClusterSpec, *on_hang: str) -> tuple[str, tuple[str, ...]]:
        job = JobSpec(framework="env", script="x.sh", on_hang=on_hang, requeue=1)
        plan = make_plan(job, spec, workdir="/tmp")
        return plan.on_hang, plan.on_hang_tell

    assert planned(spec) == ("cancel", ("mail me", "slack ~/.url"))
    assert planned(spec, "restart") == ("restart", ("mail me", "slack ~/.url"))
    assert planned(spec, "run true") == ("cancel", ("run true",))
    assert planned(other) == ("report", ("slack URL",))
    assert planned(other, "mail me", "cancel", "restart") == ("restart", ("mail me",))
    with pytest.raises(UserError, match=r"--on-hang: .*did you mean 'restart'"):
        planned(spec, "restrat")
    for wrong, why in (("restrat", "did you mean 'restart'"), ("cancel", "one action is enough")):
        with pytest.raises(UserError, match=why):
            _load(tmp_path, f"clusters: {{a: {{kind: slurm, on_hang: [restart, {wrong}]}}}}\n")


def test_a_command_that_drains_a_node_names_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not name \{node\}"):
        _load(tmp_path, "clusters: {a: {kind: slurm, drain_command: sudo drain}}\n")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400), ("1:30", 90), ("1:30:00", 5400), ("2-0", 172800), ("1-2:03", 93780),
        ("1-2:03:04", 93784), ("UNLIMITED", None), ("infinite", None),
    ],
)  # fmt: skip
def test_time_limit(text: str, seconds: int | None) -> None:
    assert parse_time_limit(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "1:2:3:4", "-1", "1-", "1d", "٣", "0:00:00"])
def test_no_time_limit(text: str) -> None:
    with pytest.raises(ValueError, match="time"):
        parse_time_limit(text)


@pytest.mark.parametrize(
    ("text", "hint", "seconds"),
    [
        ("30s", "did you mean 0:30 (MM:SS)?", 30),
        ("90 s", "did you mean 1:30 (MM:SS)?", 90),
        ("2m", "did you mean 2 (minutes)?", 120),
        ("2H", "did you mean 2:00:00 (HH:MM:SS)?", 7200),
        ("2d", "did you mean 2-00 (D-HH)?", 172800),
    ],
)
def test_a_time_limit_with_a_unit_is_said_in_a_form_that_counts(
    text: str, hint: str, seconds: int
) -> None:
    assert time_hint(text) == hint
    assert parse_time_limit(hint.split()[3]) == seconds


def test_other_time_limits_are_answered_with_the_forms() -> None:
    assert time_hint("0m") == time_hint("tomorrow") == time_hint("2²d")
    assert time_hint("0m").startswith("write minutes, ")


def test_memory_and_ports() -> None:
    assert parse_memory("2G") == 2 * 2**30
    assert parse_memory("512") == 512 * 2**20
    assert parse_memory("64mb", default_unit="") == 64 * 2**20
    assert parse_port_range("20000 - 29999") == (20000, 29999)
    assert parse_port_range("20000-20009") == (20000, 20009)
    for text in ("80-90", "30000-20000", "1", "20000-99999", "20000-20008"):
        with pytest.raises(ValueError, match=text):
            parse_port_range(text)


def test_units_come_without_pydantic() -> None:
    code = "import sys, clusterkit.config.units; sys.exit('pydantic' in sys.modules)"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", code], env=environ, check=False).returncode == 0
