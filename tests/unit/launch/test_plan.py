"""What `make_plan` decides, and what it refuses."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from typing import Any

import pytest

from clusterkit.core.errors import UserError
from clusterkit.core.model import (
    ClusterSpec,
    ContainerRuntime,
    GpuRequest,
    HorovodController,
    Host,
    NodeCommand,
    RequeueOn,
)
from clusterkit.launch import frameworks
from clusterkit.launch.frameworks.base import Framework, LaunchInputs
from clusterkit.launch.plan import make_plan
from clusterkit.launch.sbatch_options import OURS
from tests.helpers.render_cases import LOCAL, PLAIN, RACK, SLURM, WORKDIR, cluster, job


def plan(framework: str = "torchrun", base: Any = PLAIN, **values: Any) -> Any:
    return make_plan(job(framework, **values), base, workdir=WORKDIR)


def refused(*words: str, **values: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        plan(**values)
    for word in words:
        assert word in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"nodes": 0}, ("--nodes 0", "at least 1")),
        ({"nodes": 4, "max_nodes": 2}, ("--nodes 4:2", "--nodes 2:4")),
        ({"framework": "deepspeed", "max_nodes": 3}, ("deepspeed cannot change",)),
        ({"gpus_per_node": (0,)}, ("at least 1 slot",)),
        ({"gpus_per_node": (4, 4, 4)}, ("3 nodes", "has 2")),
        ({"gpus_per_node": (8, 4)}, ("torchrun needs the same", "8,4", "horovod")),
        ({"processes": 9}, ("9 processes", "are 8 (4,4)")),
        ({"processes": 7}, ("torchrun fills every slot",)),
        ({"processes": 4}, ("torchrun fills every slot",)),
        ({"env": {"CK_NODE_RANK": "5"}}, ("CK_NODE_RANK cannot be set",)),
        ({"env": {"UID": "5"}}, ("UID cannot be set",)),
        ({"sbatch_options": {"array": "0-3"}}, ("sbatch.array is decided by the plan",)),
        ({"sbatch_options": {"nodes": "4"}}, ("--nodes N",)),
        ({"env": {"1A": "x"}}, ("'1A'",)),
        ({"env": {"A": "\0"}}, ("NUL",)),
        ({"env": {"TOKEN": "x"}, "secrets": ("TOKEN",)}, ("both a secret and a plain",)),
        ({"image": "x"}, ("needs a container runtime", "--container")),
        ({"container": ContainerRuntime.DOCKER}, ("needs an image",)),
        ({"requeue": -1}, ("--requeue -1",)),
        ({"time": "soon"}, ("--time", "soon")),
        ({"notice": 0}, ("--notice 0", "at least 1")),
        ({"notice": 120, "time": "2"}, ("--notice 120", "less than the time limit of 2")),
        ({"notice": 70000, "time": "2-0"}, ("--notice 70000", "less than 65536 seconds")),
        ({"deepspeed_preset": "zero2"}, ("--ds-preset zero2 is for deepspeed",)),
        ({"framework": "deepspeed", "deepspeed_preset": "zero4"}, ("'zero4'", "did you mean")),
        ({"sbatch_options": {"Mail_User": "x"}}, ("not an sbatch option",)),
        ({"sbatch_options": {"comment": "a\nb"}}, ("line break",)),
        ({"sbatch_options": {"time": "soon"}}, ("sbatch.time: invalid time limit 'soon'",)),
        ({"framework": "torchrum"}, ("did you mean 'torchrun'",)),
        (
            {"framework": "deepspeed", "launcher_options": {"hostfile": "x"}},
            ("deepspeed.hostfile",),
        ),
        ({"framework": "horovod", "launcher_options": {"x": "1"}}, ("HOROVOD_",)),
        (
            {"framework": "horovod", "gpus_per_node": (4, 2)},
            ("same number of GPUs", "--processes 6"),
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(
    values: dict[str, Any], words: tuple[str, ...]
) -> None:
    refused(*words, **values)


def test_all_problems_come_at_once() -> None:
    error = refused(nodes=0, requeue=-1, env={"1A": ""}, time="soon")
    assert len(error.problems) == 4


def test_two_deepspeed_configurations_are_refused() -> None:
    refused(
        "two DeepSpeed configurations",
        framework="deepspeed",
        deepspeed_preset="zero2",
        args=("--deepspeed_config=x.json",),
    )


def test_pyxis_needs_slurm() -> None:
    refused("plugin of Slurm", base=RACK, image="x", container=ContainerRuntime.PYXIS)


def test_under_srun_there_is_no_image_and_no_spare() -> None:
    mpi = {"horovod_controller": HorovodController.MPI}
    inside = {"image": "x", "container_runtime": ContainerRuntime.DOCKER}
    refused(
        "outside any image",
        "--set horovod.launcher=mpirun",
        framework="horovod",
        base=cluster(PLAIN, **inside, **mpi),
    )
    srun = {"launcher": "srun"}
    refused(
        "takes all nodes",
        "--set mpi.launcher=mpirun",
        framework="mpi",
        base=PLAIN,
        launcher_options=srun,
        spares=1,
        requeue=1,
    )
    refused("only a Slurm cluster", framework="mpi", base=RACK, launcher_options=srun)


@pytest.mark.parametrize(
    ("base", "options", "once"),
    [(PLAIN, {}, True), (PLAIN, {"launcher": "mpirun"}, False), (RACK, {}, False)],
)
def test_an_mpi_built_horovod_has_srun_where_slurm_is(
    base: ClusterSpec, options: dict[str, str], once: bool
) -> None:
    wanted = cluster(base, horovod_controller=HorovodController.MPI)
    plan = make_plan(job("horovod", launcher_options=options), wanted, workdir="/tmp")
    assert plan.command.once is once
    assert (f"--launcher={'srun' if once else 'mpirun'}") in plan.command.argv


def test_more_nodes_than_hosts() -> None:
    refused("4 nodes asked for", "has 3", base=RACK, nodes=4)
    refused("has 2 without n1", "--nodes 2", base=RACK, nodes=3, exclude=("n1",))
    gone = ("n1", "n2", "n3")
    refused("1 node asked", "without n[1-3]\nhint: exclude fewer", base=RACK, nodes=1, exclude=gone)
    refused("hint: --nodes 2:3", base=RACK, max_nodes=9)
    refused("cluster rack has no host n1x", "did you mean 'n1'?", base=RACK, exclude=("n1x",))
    refused("its hosts: n[1-3]", base=RACK, exclude=("elsewhere",))


def test_more_spares_than_hosts() -> None:
    more = {"base": RACK, "requeue": 1}
    refused("2 nodes and 99 spares asked for", "has 3\nhint: --spares 1", spares=99, **more)
    refused("has 2 without n2\nhint: --spares 0", spares=1, exclude=("n2",), **more)
    refused("4 nodes and 1 spare asked", "--nodes 3 --spares 0", nodes=4, spares=1, **more)


def test_after_which_failures_a_job_may_start_again() -> None:
    again = {"requeue": 1, "requeue_on": "failure"}
    assert plan().requeue_on is RequeueOn.HARDWARE
    assert plan(**again).requeue_on is RequeueOn.FAILURE
    refused("such choice", "failure (any failure), or hardware", requeue_on="any", requeue=1)
    refused("how often", "--requeue 1", requeue_on="failure")
    refused("an elastic job", max_nodes=4, **again)


def test_restarts_are_for_clusters_with_nodes_of_their_own() -> None:
    assert plan(base=RACK, restarts=2, spares=1, requeue_on="failure").restarts == 2
    refused("this one machine", "--requeue 2", base=LOCAL, nodes=1, restarts=2)


def test_no_node_of_this_machine_can_be_left_out() -> None:
    refused("--exclude: all nodes", "leave it out", base=LOCAL, nodes=2, exclude=("n1",))
    refused("an elastic job", "--requeue 2", base=RACK, max_nodes=3, restarts=2)
    refused("--restarts -1", base=RACK, restarts=-1)
    srun = {"launcher": "srun"}
    refused("takes all nodes", framework="mpi", base=PLAIN, launcher_options=srun, restarts=1)
    hyperpod = cluster(PLAIN, srun_args=("--auto-resume=1",))
    refused("runs the step again by itself", base=hyperpod, restarts=1)
    assert "no-kill" in plan(base=PLAIN, restarts=1).directives


def test_hosts_keep_their_order() -> None:
    assert plan(base=RACK, nodes=3).node_names == ("n3", "n1", "n2")
    assert plan(base=RACK, exclude=("n1",)).node_names == ("n3", "n2")


def test_no_job_gets_a_node_that_its_cluster_excludes() -> None:
    rack, slurm = (cluster(base, exclude=("n1", "n2")) for base in (RACK, PLAIN))
    assert plan(base=rack, nodes=1).node_names == ("n3",)
    assert plan(base=rack, nodes=1, gpus_per_node=(2,)).slots == (2,)
    assert plan(base=slurm, exclude=("n2", "n9")).directives["exclude"] == "n[1-2,9]"
    assert plan(base=slurm).directives["exclude"] == "n[1-2]"
    refused("has no host n9", base=cluster(RACK, exclude=("n9",)))


def test_slots_come_from_the_job_the_host_or_the_cluster() -> None:
    assert plan(gpus_per_node=(3,)).slots == (3, 3)
    assert plan().slots == (4, 4)
    assert plan(base=RACK).slots == (4, 4)
    assert plan(base=LOCAL).slots == (1, 1)
    assert plan("horovod", base=RACK, gpus_per_node=(4, 2)).processes == 6


def test_no_host_is_asked_for_more_slots_than_it_has() -> None:
    message = "8 slots per node asked for, and n3 has 4, n1 has 4 (gpus_per_node)\nhint: "
    refused(f"{message}--gpus-per-node 4, or ", base=RACK, gpus_per_node=(8,))
    hosts = tuple(Host(name=f"n{count}", slots=count) for count in (2, 1))
    base = dataclasses.replace(RACK, hosts=hosts)
    refused("2 slots per node asked for, and n1 has 1 ", base=base, nodes=1, spares=1, requeue=1)
    unknown = dataclasses.replace(base, hosts=(Host(name="n9"),), gpus_per_node=None)
    assert plan(base=unknown, nodes=1, gpus_per_node=(9,)).slots == (9,)


def test_an_excluded_host_lends_its_slots_to_nobody() -> None:
    hosts = tuple(Host(name=f"n{count}", slots=count) for count in (8, 2, 4))
    base = dataclasses.replace(RACK, hosts=hosts)
    made = plan("horovod", base=base, nodes=2, exclude=("n8",))
    assert (made.node_names, made.slots, made.processes) == (("n2", "n4"), (2, 4), 6)


def test_variables_of_the_job_beat_those_of_the_cluster() -> None:
    made = plan(base=SLURM, env={"NCCL_DEBUG": "INFO", "B": "2"})
    assert made.env == {"NCCL_DEBUG": "INFO", "B": "2"}


def test_site_directives_and_the_last_word_of_the_user() -> None:
    site = cluster(
        SLURM, extra_directives={"comment": "x", "exclusive": ""}, skip_directives=("mem", "signal")
    )
    made = plan(base=site, sbatch_options={"partition": "debug", "mem": "1G"}).directives
    assert made["partition"] == "debug"
    assert made["exclusive"] is None
    assert made["mem"] == "1G"
    assert "signal" not in made


@pytest.mark.parametrize(
    ("given", "signal"),
    [
        ({}, "USR2@90"),
        ({"time": "2"}, "USR2@30"),
        ({"notice": 300}, "USR2@300"),
        ({"notice": 100, "time": "2"}, "USR2@100"),
        ({"sbatch_options": {"time": "2"}, "time": "10"}, "USR2@30"),
    ],
)
def test_the_notice_of_the_time_limit(given: dict[str, Any], signal: str) -> None:
    made = plan(base=PLAIN, **given)
    assert made.directives["signal"] == signal
    assert made.notice_s == int(signal.partition("@")[2])
    for letters in ("B", "R", "BR"):
        asked = plan(base=PLAIN, sbatch_options={"signal": f"{letters}:USR2@300"})
        assert asked.notice_s == 300


@pytest.mark.parametrize(
    ("request_style", "expected"),
    [
        (GpuRequest.GPUS_PER_NODE, {"gpus-per-node": "h100:4"}),
        (GpuRequest.GRES, {"gres": "gpu:h100:4"}),
        (GpuRequest.GPUS_PER_TASK, {"gpus-per-task": "h100:4"}),
        (GpuRequest.NONE, {}),
    ],
)
def test_each_site_asks_for_gpus_its_own_way(
    request_style: GpuRequest, expected: dict[str, str]
) -> None:
    made = plan(base=cluster(PLAIN, gpu_request=request_style, gpu_type="h100")).directives
    asking = {"gpus-per-node", "gres", "gpus-per-task"}
    assert {key: value for key, value in made.items() if key in asking} == expected


def test_every_option_that_is_written_unasked_is_known_as_ours() -> None:
    everything = {
        "time": "60", "memory": "1G", "cpus_per_node": 8, "account": "a", "qos": "q",
        "constraint": "x", "extra_directives": {},
    }  # fmt: skip
    for style in GpuRequest:
        base = cluster(SLURM, gpu_request=style, **everything)
        for requeue in (0, 1):
            made = plan(base=base, requeue=requeue, exclude=("n1",)).directives
            assert made.keys() <= OURS


def test_a_job_that_names_no_gpus_asks_for_none() -> None:
    made = plan(base=cluster(PLAIN, gpus_per_node=None)).directives
    assert "gpus-per-node" not in made


def test_names_fit_slurm_and_folders() -> None:
    assert plan(script="/x/my train!.py").name == "my-train"
    assert plan(name="..").name == "job"


def test_the_users_word_on_time_name_and_requeue_holds_everywhere() -> None:
    made = plan(
        time="10", requeue=2, sbatch_options={"time": "5", "job-name": "x", "no-requeue": ""}
    )
    assert (made.time_limit_s, made.name) == (300, "x")
    assert "requeue" not in made.directives


class Ours:
    """An entry point, as `importlib.metadata` gives them."""

    name = "ours"
    value = "ours:FRAMEWORK"

    def __init__(self, loads: object) -> None:
        self.loads = loads

    def load(self) -> object:
        if isinstance(self.loads, Exception):
            raise self.loads
        return self.loads


def test_frameworks_of_others_come_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(inputs: LaunchInputs) -> NodeCommand:
        return NodeCommand(argv=("ours", inputs.script))

    framework = Framework(name="ours", summary="", package="x", image="x", command=command)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [Ours(framework)])
    assert "ours" in frameworks.framework_names()
    assert plan("ours").command.argv == ("ours", "train.py")


@pytest.mark.parametrize("loads", [ImportError("no such module"), object()])
def test_a_broken_framework_of_others_is_named(
    monkeypatch: pytest.MonkeyPatch, loads: object
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [Ours(loads)])
    refused("'ours'", "ours:FRAMEWORK", framework="ours")
