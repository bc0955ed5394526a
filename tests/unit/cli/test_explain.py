"""`clusterkit explain` and `clusterkit config`: everything that has a name is explained."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clusterkit.cli.explain import frameworks, topics
from clusterkit.cli.explain.topic import texts
from clusterkit.cli.explain.topics import all_topics, find_topic
from clusterkit.cli.explain.words import _plain_title, _text
from clusterkit.cli.frame.main import app
from clusterkit.config.platforms import platform_names
from clusterkit.config.schema import ClusterModel, ConfigModel
from clusterkit.core.data import read_table, read_template
from clusterkit.core.errors import UserError
from clusterkit.core.findings import Verdict
from clusterkit.core.model import JobState, NodeCommand, Ref, Runtime
from clusterkit.estimate.strategies import STRATEGIES
from clusterkit.jobs.submit.preflight import MODES
from clusterkit.launch.frameworks import Framework, framework_names, load_framework
from clusterkit.observe.diagnose.rules import own_rules
from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.env_lint.variables import all_variables
from tests.helpers.desk import ROOT


def test_everything_is_explained() -> None:
    topics = all_topics()
    wanted = {
        *ClusterModel.model_fields,
        *ConfigModel.model_fields,
        *(state.value for state in JobState),
        *framework_names(),
        *platform_names(),
        *(ref.name for ref in vars(Runtime).values() if isinstance(ref, Ref)),
        *(name for check in all_checks() for name in (check.id, check.name)),
        "exit-codes", "states", "frameworks", "config", "job-file", "runtime",
        "preflight", "checks", "verdicts", "links", "lint-rules", "variables", "diagnose",
        *(check.area for check in all_checks()),
        *Verdict,
    }  # fmt: skip
    assert wanted <= set(topics)
    for topic in topics.values():
        assert topic.summary
        assert topic.group is None or topic.group in topics
        # Settings and sources of platforms stand there as they are, to be copied.
        as_they_are = "  " if topic.group == "platforms" else "\n"
        lines = [n for n in topic.text.splitlines() if not n.startswith(as_they_are)]
        assert not [line for line in lines if len(line) > 80], topic.name
        assert topic.text != "A runtime variable.", topic.name


@pytest.mark.parametrize(
    ("word", "topic"),
    [
        *(("reasons", "reasons"), ("pending reason", "reasons"), ("settings", "config")),
        *(("environment", "variables"), ("signals", "exit-codes"), ("errors", "diagnose")),
        *(("NDR", "interconnects"), ("login node", "login-node"), ("MPS", "cuda-mps")),
        *(("ulimit", "nofile"), ("slots", "slot"), ("PMIX_RANK", "PMIX_RANK")),
    ],
)
def test_words_near_a_topic_lead_to_it(word: str, topic: str) -> None:
    assert find_topic(word).name == topic


def test_how_many_processes_of_a_plain_command_start_is_explained() -> None:
    assert "--set env.per-node=1" in find_topic("env").text


def test_words_that_are_no_topics_lead_on() -> None:
    for row in read_table(topics.__file__, "near.tsv"):
        if row["topic"]:
            assert find_topic(row["topic"]).text
        for word in row["words"].split() if row["hint"] else ():
            with pytest.raises(UserError) as caught:
                find_topic(word)
            assert caught.value.problems[0].hint == row["hint"]


def test_what_a_job_sets_for_trackers_and_ranks_is_explained() -> None:
    tracked = re.findall(r"ck_track ([A-Z_]+)", read_template("scripts/node/node.sh.j2"))
    assert len(tracked) > 5
    assert set(tracked) == set(texts("trackers"))
    assert "\n  WANDB_RUN_ID " in find_topic("runtime").text
    assert "under accelerate, deepspeed, env, mpi, torchrun." in find_topic("RANK").text
    assert set(texts("ranks")) <= set(load_framework("torchrun").provides)


def test_preflight_is_explained_as_a_whole_and_as_a_key() -> None:
    text = find_topic("preflight").text
    for word in ("--exclude-unfit", "--force", "preflight: full", "`verdicts`"):
        assert word in text
    for mode in MODES:
        assert f"\n  {mode}  " in text
    assert "preflight" in {topic.name for topic in all_topics().values() if topic.group is None}


def test_why_slurm_lets_a_job_wait_is_explained_by_its_own_word() -> None:
    runner = CliRunner()
    said = " ".join(runner.invoke(app, ["explain", "Resources"]).stdout.split())
    assert "waits for nodes or GPUs to become free" in said
    assert "clusterkit status JOB" in said
    assert "scontrol release JOB" in runner.invoke(app, ["explain", "JobHeldUser"]).stdout


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("None", "has not looked at it yet"),
        ("launch_failed_requeued_held", "could not start it on its nodes"),
        ("NODE_FAIL", "clusterkit calls it failed"),
        ("node_fail", "one of its nodes failed"),
        ("CG", "is being cleaned up"),
        ("PD", "clusterkit calls it pending"),
        ("F", "clusterkit calls it failed"),
        ("DEADLINE", "could not end before its deadline"),
        ("TimeLimit", "Reached its time limit"),
        ("OutOfMemory", "oom-killer"),
        ("drained", "`sinfo -R` says why"),
        ("sinfo", "`*` the node does not answer"),
    ],
)
def test_words_of_slurm_are_explained(word: str, said: str) -> None:
    assert said in " ".join(find_topic(word).text.split())


def test_a_flag_and_a_negative_exit_code_are_topics() -> None:
    runner = CliRunner()
    assert "A flag of `clusterkit submit`" in runner.invoke(app, ["explain", "--spares"]).stdout
    for words in (["-9"], ["exitcode", "-9"], ["exitcode", ":", "-9"]):
        assert "SIGKILL" in runner.invoke(app, ["explain", *words]).stdout


def test_a_platform_is_explained_with_all_that_it_sets(tmp_path: Path) -> None:
    runner = CliRunner()
    said = runner.invoke(app, ["explain", "platform", "azure-nd"]).stdout
    assert "  env.NCCL_TOPO_FILE: /opt/microsoft/ndv5-topo.xml\n" in said
    assert "With Standard_ND96isr_H100_v5 or Standard_ND96isr_H200_v5, also:" in said
    assert "8 RDMA devices of 400 Gbit/s" in said
    said = runner.invoke(app, ["explain", "platform", "gcp-gib"]).stdout
    assert "NCCL's plug-in (checked by NCCL007): /usr/local/gib/lib64/libnccl-net.so\n" in said
    own = tmp_path / "site.yaml"
    own.write_text("about: Ours.\ncluster: {setup: [module load ib]}\n", encoding="utf-8")
    assert "  setup: module load ib\n" in runner.invoke(
        app, ["explain", "platform", str(own)]
    ).stdout  # fmt: skip
    for words in (["platform", "azure-dn"], ["config", "env"], ["platform", "./no.yaml"]):
        assert isinstance(runner.invoke(app, ["explain", *words]).exception, UserError)


def test_words_need_no_quotes() -> None:
    said = CliRunner().invoke(app, ["explain", "out", "of", "memory"]).stdout
    assert "slurm-memory-limit" in said
    assert find_topic("zero 3").name == "zero3"


@pytest.mark.parametrize("word", ["gpu_request", "gpu-request", "GPU_REQUEST", " gpu_request "])
def test_spelling_is_free(word: str) -> None:
    assert find_topic(word).name == "gpu_request"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("GPU", "GPU014"),
        ("gpu", "GPU014"),
        ("ssh", "SSH001"),
        ("ENV", "ENV003"),
        ("env", "Environment variables"),
        ("env", "one process per slot"),
        ("skip", "Never counted as fail"),
        ("unknown", "`clusterkit explain verdicts`"),
        ("NCCL_IB_HCA", "NAME:PORT"),
        ("nccl_ib_hca", "NAME:PORT"),
        ("NCCL_LL_THRESHOLD", "not read any more"),
        ("NCCL_CHECK_DISABLE", "NCCL_CHECKS_DISABLE"),
        ("GLOO_SOCKET_IFNAME", "Gloo"),
    ],
)
def test_what_people_ask_for(word: str, said: str) -> None:
    assert said in find_topic(word).text


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("submit", "clusterkit submit --help"),
        ("lint_env", "Lint NCCL"),
        ("restarts", "A flag of `clusterkit submit`"),
        ("power-limit", "A flag of `clusterkit estimate`"),
        ("exit codes", "130 interrupted"),
        ("137", "SIGKILL: mostly out of memory"),
        ("SIGTERM", "cancelled, out of time"),
        ("sighup", "SIGHUP: a process was ended by signal 1"),
        ("2", "Of clusterkit itself: could not do it"),
        ("127", "the command was not found"),
        ("h100", "clusterkit estimate --gpu H100-SXM5-80GB"),
        ("zero3", "A strategy: "),
        ("tp8-pp4", "estimate --strategy tp8-pp4"),
        ("cuda-out-of-memory", "a GPU ran out of memory"),
        ("out of memory", "slurm-memory-limit"),
        ("oom", "oom-killer"),
        ("ncclsystemerror", "nccl"),
        ("NCCL_DEBUG=INFO", "How much NCCL prints"),
        ("Xid 79", "restart the node"),
        ("tensor parallel", "clusterkit submit --nodes 4"),
    ],
)
def test_what_no_list_has_is_explained_too(word: str, said: str) -> None:
    text = find_topic(word).text
    assert said in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_every_rule_of_diagnose_is_explained_by_its_name() -> None:
    for rule in own_rules():
        said = _text(rule).partition("\n\nSuch as: ")
        assert "{" not in said[0]
        assert said[2]


def test_what_to_choose_is_that_of_the_page() -> None:
    page = (ROOT / "docs/explanation/which-framework.md").read_text(encoding="utf-8")
    divided = page.partition("## What is sharded")[2]
    commands = re.findall(r"^ {8}(clusterkit submit .*)$", divided, re.MULTILINE)
    assert list(texts("choice")) == commands
    shown = find_topic("frameworks").text.replace("\\\n       ", "")
    assert all(f"     {command}\n" in f"{shown}\n" for command in commands)


def test_frameworks_are_one_table() -> None:
    lines = find_topic("frameworks").text.splitlines()
    assert lines[0].split() == ["FRAMEWORK", "PACKAGE", "NODES", "SLOTS"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:] if line[:1].isalnum()}
    assert list(framework_names()) == [name for name in rows if name in framework_names()]
    assert rows["torchrun"] == ["torch", "MIN:MAX", "equal"]
    assert rows["env"] == ["-", "a", "number", "any"]
    whole = " ".join(" ".join(lines).split())
    for framework in map(load_framework, framework_names()):
        assert framework.summary in whole
        assert f"sets {' '.join(framework.provides)}" in whole or not framework.provides
    assert "image clusterkit/deepspeed:cuda" in whole


def test_a_framework_of_others_is_in_the_table_whatever_becomes_of_it() -> None:
    ours = Framework(
        name="ours",
        summary="starts things " * 8,
        package="a-package-with-quite-a-long-name[extra]",
        image="registry.example/team/image-with-a-long-name:tag",
        command=lambda _: NodeCommand(argv=()),
        provides=("A_VARIABLE",) * 12,
    )
    rows = frameworks._rows({"ours": ours, "broken": UserError("no module")})
    lines = "\n".join(rows).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-2:] == [f"broken     {'-':<39}  -         -", "           cannot be loaded"]


def test_no_topic_says_its_name_twice() -> None:
    for name, topic in all_topics().items():
        assert not re.match(rf"{re.escape(name)}\b", topic.text), name
    assert find_topic("GPU004").text.startswith("gpu-driver-version: ")
    assert find_topic("gpu-driver-version").text.startswith("GPU004: ")


def test_unknown_topic() -> None:
    with pytest.raises(UserError, match="did you mean 'preempted'"):
        find_topic("prempted")
    # mxnet and foo stand in logs among the examples of `diagnose`, as a module and as an option.
    wilds = ("zzzz", "h1000", "256", "a", "", "nonsense words", "x:y", "*", "mxnet", "Foo")
    for wild in wilds:
        with pytest.raises(UserError, match="lists the topics"):
            find_topic(wild)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("gpu_reqest", "gpu_request"),
        ("gpus_per_nod", "gpus_per_node"),
        ("run_di", "run_dir"),
        ("HANG-AFTR", "hang_after"),
        ("NCCL_IB_HCAA", "NCCL_IB_HCA"),
        ("submt", "submit"),
    ],
)
def test_a_typing_error_goes_before_the_page_that_it_names_and_hints_are_as_users_type(
    word: str, meant: str
) -> None:
    with pytest.raises(UserError, match=rf"did you mean '{meant}'\?"):
        find_topic(word)


def test_exit_code_of_a_job_that_hung() -> None:
    assert "--on-hang cancel" in find_topic("124").text


def test_verb() -> None:
    runner = CliRunner()
    assert "exit-codes" in runner.invoke(app, ["explain"]).stdout
    fsdp = runner.invoke(app, ["explain", "fsdp"]).stdout
    assert "Fully Sharded Data Parallel" in fsdp
    assert "\n  clusterkit submit --framework torchrun" in fsdp
    assert set(texts("strategies")) <= {one.name for one in STRATEGIES}
    zero = runner.invoke(app, ["explain", "zero"]).stdout
    assert all(f"  {name} " in zero for name in ("zero1", "zero2", "zero3", "zeropp"))
    for words, said in (("exit-code", "128+N"), ("exit code 137", "SIGKILL")):
        assert said in runner.invoke(app, ["explain", words]).stdout
    with pytest.raises(UserError, match="hint: clusterkit explain frameworks"):
        find_topic("another framework")
    for words in ("which framework", "which-framework", "what is framework"):
        assert find_topic(words).name == "frameworks"
    assert "nccl-first-timeout" in find_topic("nccl timeout").text
    assert find_topic("nccl_timeout").name == "NCCL_TIMEOUT"
    assert "zero3-nvme" in runner.invoke(app, ["explain", "strategies"]).stdout
    assert "H100-SXM5-80GB" in runner.invoke(app, ["explain", "gpus"]).stdout
    assert "infiniband-ndr" in runner.invoke(app, ["explain", "interconnects"]).stdout
    assert "llama-3.1-8b" in runner.invoke(app, ["explain", "models"]).stdout
    assert "--gres=gpu:N" in runner.invoke(app, ["explain", "gpu_request"]).stdout
    listed = json.loads(runner.invoke(app, ["explain", "--json"]).stdout)
    assert {"name", "summary", "text", "group"} == set(listed["topics"][0])
    one = json.loads(runner.invoke(app, ["explain", "timeout", "--json"]).stdout)
    assert one["topic"]["group"] == "states"


def test_config_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    for name in ("CLUSTERKIT_CONFIG_FILE", "CLUSTERKIT_CLUSTER", "CLUSTERKIT_QOS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLUSTERKIT_ACCOUNT", "mine")
    (tmp_path / "clusterkit.yaml").write_text(
        "default_cluster: a\nclusters:\n  a:\n    kind: slurm\n    env: {LONG: "
        + "x" * 90
        + ", SHORT: y}\n  r: {kind: ssh, hosts: 'n[1-3]'}\n",
        encoding="utf-8",
    )
    runner = CliRunner()
    text = runner.invoke(app, ["config", "show", "--cluster", "a", "--origin"]).stdout
    lines = {line.split()[0]: line for line in text.splitlines() if line.split()}
    assert lines["kind"].split() == ["kind", "slurm", "clusterkit.yaml:4"]
    assert lines["account"].split() == ["account", "mine", "CLUSTERKIT_ACCOUNT"]
    assert lines["gpu_request"].split()[-1] == "default"
    assert [line for line in text.splitlines() if len(line) > 80] == [lines["env.LONG"]]
    every = runner.invoke(app, ["config", "show"]).stdout
    assert "n[1-3]" in every
    document = json.loads(runner.invoke(app, ["config", "show", "--json"]).stdout)
    assert document["clusters"]["a"]["account"] == "mine"
    assert document["origins"]["clusters.a.account"]["layer"] == "environment"
    paths = runner.invoke(app, ["config", "path"]).stdout
    assert paths == f"{tmp_path / 'clusterkit.yaml'}\n"
    assert isinstance(runner.invoke(app, ["config", "show", "--cluster", "b"]).exception, UserError)


@pytest.mark.parametrize("word", ["nccl timeout", "oom", "out of memory"])
def test_rules_that_words_find_are_told_plainly_with_advice_and_what_to_type(word: str) -> None:
    text = find_topic(word).text
    assert not re.search(r"\b(?:OP|WHY|WHAT|NAME|PATH|MESSAGE)\b", text)
    last = " ".join(text.split("\n\n")[-1].split())
    assert "`clusterkit diagnose FILE`" in last
    assert last.endswith("`clusterkit explain ID`.")
    first = next(rule for rule in own_rules() if rule.id == text.split("\n\n")[1].split()[0])
    assert first.do.split(".")[0] in " ".join(text.split())


def test_titles_without_a_log_are_plain() -> None:
    for rule in own_rules():
        title = _plain_title(rule)
        assert not re.search(r"[{}]|\.\.\. \.\.\.|[ :(]$", title), rule.id


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("hang", "diagnose --stacks JOB"),
        ("torchrun.tee", "`--tee` of its launcher"),
        ("sbatch.nice", "`--nice` of sbatch"),
        ("torchrun.tee=3", "`--set torchrun.tee=VALUE`"),
        ("spare", "--spares 1"),
        ("elastic", "--nodes MIN:MAX"),
        ("sbatch", "render --only sbatch"),
        ("exit 1", "`clusterkit diagnose JOB`"),
        ("node", "clusterkit preflight"),
        ("all-reduce", "clusterkit bench collectives"),
        ("RoCE", "clusterkit preflight --select IB"),
        ("gradient checkpointing", "estimate --checkpointing full"),
        ("bf16", "estimate --precision NAME"),
        ("dependency", "--after JOB:ok"),
        ("deadlock", "diagnose --stacks JOB"),
        ("expandable_segments", "--env PYTORCH_ALLOC_CONF"),
        ("docker", "A flag of `clusterkit submit`"),
        ("strategy", "clusterkit explain strategies"),
    ],
)
def test_words_of_newcomers_say_what_to_type_next(word: str, said: str) -> None:
    text = find_topic(word).text
    assert said in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_a_variable_says_what_it_does_or_where_that_stands() -> None:
    told = [variable for variable in all_variables() if variable.does]
    assert len(told) >= 60
    topics = all_topics()
    for variable in told:
        assert variable.does.endswith(".")
        assert " ".join(topics[variable.name].text.split()).startswith(variable.does)
    assert "Which InfiniBand or RoCE devices" in topics["NCCL_IB_HCA"].text
    untold = " ".join(topics["FI_EFA_TX_SIZE"].text.split())
    assert "Documented in `fi_info -e`" in untold
