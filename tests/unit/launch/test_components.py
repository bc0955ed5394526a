"""Components of a heterogeneous job: what is read, refused, planned, and compared with Slurm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core.commands import Answer
from clusterkit.core.errors import UserError
from clusterkit.core.model import ContainerRuntime, GpuRequest, LaunchPlan
from clusterkit.executors.slurm import states
from clusterkit.executors.slurm.limits import Node, Partition, problems_of_parts
from clusterkit.jobs.submit.preflight import SubmitCallbacks, pass_gate
from clusterkit.jobs.submit.request import read_request
from clusterkit.launch.components import parse_components
from clusterkit.launch.jobfile import load_job_file
from clusterkit.launch.options import Component
from clusterkit.launch.plan import make_plan
from clusterkit.launch.render import render
from tests.helpers.render_cases import PLAIN, RACK, WORKDIR, cluster, job

TWO = (
    Component(nodes=1, gpus_per_node=2, cluster={"partition": "cpu", "memory": "5G"}),
    Component(nodes=2, cluster={"partition": "gpu"}),
)


def plan(framework: str = "env", base: Any = PLAIN, **values: Any) -> LaunchPlan:
    return make_plan(job(framework, **{"components": TWO, **values}), base, workdir=WORKDIR)


def test_flags_and_job_files_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "component:\n"
        "  - {nodes: 1, partition: 'a,b', gpus-per-node: 2, gpu_request: none, memory: 5GB}\n"
        "  - nodes=2,image=x.sif,sbatch.mail_type=END\n"
    )
    texts = (
        "nodes=1,partition=a,b,gpus-per-node=2,gpu_request=none,memory=5GB",
        "nodes=2,image=x.sif,sbatch.mail_type=END",
    )
    given = parse_components(load_job_file(path).values["component"])
    keys = {"partition": "a,b", "gpu_request": GpuRequest.NONE, "memory": "5G"}
    assert given == parse_components(texts)
    assert given == (
        Component(nodes=1, gpus_per_node=2, cluster=keys),
        Component(nodes=2, image="x.sif", sbatch_options={"mail-type": "END"}),
    )


def test_every_mistake_is_told_with_its_component() -> None:
    with pytest.raises(UserError) as caught:
        parse_components(("partition=gpu", "nodes=1,partiton=x", "nodes=0", "2", "nodes=1,abc=1"))
    told = [(problem.message, problem.hint) for problem in caught.value.problems]
    assert told[0] == ("--component 1: no nodes", "such as nodes=1")
    assert told[1] == ("--component 2: unknown key 'partiton'", "did you mean 'partition'?")
    assert told[2][0].startswith("--component 3: nodes must be")
    assert told[3][0] == "--component 4: '2' has no '='"
    assert "cpus_per_node, memory, sbatch.KEY" in (told[4][1] or "")


def test_nodes_and_an_array_are_not_given_beside_components(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = {"component": ["nodes=1", "nodes=2"], "script": "train.py", "framework": "env"}

    def request(**more: str) -> Any:
        return read_request({**flags, **more}, verb="submit", job=None, warn=print)

    with pytest.raises(UserError, match="the components say how many nodes"):
        request(nodes="3").plan()
    with pytest.raises(UserError, match="not in an array"):
        request(array="a=1,2").sweep()


def test_each_component_has_its_own_request_and_the_job_all_slots() -> None:
    planned = plan(sbatch_options={"nice": "5"})
    assert (planned.nodes, planned.slots, planned.processes) == (3, (2, 4, 4), 10)
    first, second = (part.directives for part in planned.parts)
    assert planned.directives == first
    assert (first["partition"], first["nodes"], first["mem"]) == ("cpu", "1", "5G")
    assert (second["partition"], second["gpus-per-node"]) == ("gpu", "4")
    assert "mem" not in second
    assert first["nice"] == second["nice"] == "5"


def test_ray_starts_on_components_with_slots_of_their_own() -> None:
    planned = plan("ray")
    assert (planned.slots, planned.processes) == ((2, 4, 4), 10)
    texts = {file.name: file.text for file in render(planned)}
    assert "CK_SLOTS='2 4 4'\n" in texts["job.sbatch"]
    assert "--min-nodes=3\n" in texts["node.sh"]


def test_torchrun_starts_on_components_with_equal_slots() -> None:
    planned = plan("torchrun", components=(TWO[0], Component(nodes=2, gpus_per_node=2)))
    assert (planned.slots, planned.processes) == ((2, 2, 2), 6)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("heterogeneous job is one of Slurm", "rack is ssh"), {"base": RACK}),
        (("spark does not start", "env, mpi, ray or torchrun"), {"framework": "spark"}),
        (("on every node, not 2,4,4", "framework env, mpi or ray"), {"framework": "torchrun"}),
        (("one component is a plain job",), {"components": TWO[:1]}),
        (("--spares 1: not with --component",), {"spares": 1, "requeue": 1}),
        (("--restarts 1: not with --component",), {"restarts": 1}),
        (("as each component has its own",), {"gpus_per_node": (1, 2, 3)}),
        (
            ("mpirun starts ranks on all components",),
            {"framework": "mpi", "launcher_options": {"launcher": "srun"}},
        ),
        (("pyxis enters",), {"image": "x", "container": ContainerRuntime.PYXIS}),
        (
            ("either all components run in an image, or none",),
            {
                "components": (Component(nodes=1, image="x"), Component(nodes=1)),
                "base": cluster(PLAIN, container_runtime=ContainerRuntime.APPTAINER),
            },
        ),
    ],
)
def test_what_cannot_be_is_refused(words: tuple[str, ...], values: dict[str, Any]) -> None:
    with pytest.raises(UserError) as caught:
        plan(**values)
    for word in words:
        assert word in str(caught.value)


def test_unhealthy_nodes_are_not_counted_over_all_components() -> None:
    silent = SubmitCallbacks(warn=print, note=print, on_reply=print)
    with pytest.raises(UserError) as caught:
        pass_gate({"exclude_unfit": True}, plan(), "on", silent)
    assert "--exclude-unfit: not with --component" in str(caught.value)


def test_the_image_and_the_gpus_of_a_container_are_those_of_its_component() -> None:
    base = cluster(PLAIN, container_runtime=ContainerRuntime.APPTAINER)
    none = Component(nodes=1, image="a.sif", cluster={"gpu_request": GpuRequest.NONE})
    of = plan(base=base, components=(none, Component(nodes=2, image="b.sif", gpus_per_node=8)))
    (node,) = (file.text for file in render(of) if file.name == "node.sh")
    for lines in (
        "ck_images=(\n  a.sif\n  b.sif\n  b.sif\n)\nck_image=${ck_images[CK_NODE_RANK]}\n",
        "ck_gpus_of_nodes=(\n  ''\n  1\n  1\n)\nck_gpus=${ck_gpus_of_nodes[CK_NODE_RANK]}\n",
    ):
        assert lines in node


def test_components_that_no_partition_holds_together_are_refused() -> None:
    def of(name: str, *nodes: str) -> list[Partition]:
        return [Partition(name=name, nodes=tuple(Node(name=one, gpus=4) for one in nodes))]

    cpu, gpu = of("cpu", "n1"), of("gpu", "n1", "n2", "n3")
    assert problems_of_parts(plan(), [cpu, gpu]) == []
    (alone,) = problems_of_parts(plan(), [cpu, of("gpu", "n2")])
    assert alone.message.startswith("component 2: 2 nodes asked for, but partition gpu has 1")
    (long,) = problems_of_parts(plan(time="2:00:00"), [[replace(cpu[0], max_time_s=60)], gpu])
    assert (long.message[:13], long.hint) == ("component 1: ", "--time 00:01:00")
    (together,) = problems_of_parts(plan(), [cpu, of("gpu", "n1", "n2")])
    words = "2 components ask for 3 nodes of partitions cpu, gpu, which have 2"
    assert together.message == words


def test_nodes_are_in_the_order_of_components(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = Answer(code=0, output="12|n1\n11|n[2-3]\n", errors="")
    monkeypatch.setattr(states, "run_command", lambda *_, **__: listed)
    assert states.components_of("11") == (("n2", "n3"), ("n1",))
    assert states.nodes_of("11") == ("n2", "n3", "n1")
