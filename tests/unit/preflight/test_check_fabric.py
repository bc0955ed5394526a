"""The plug-in and the files that a job needs on a fast fabric: what nodes say, and this machine."""

from __future__ import annotations

import ctypes.util
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from clusterkit.core.model import ClusterKind, ClusterSpec
from clusterkit.preflight.checks.results import Result
from clusterkit.preflight.probes.host.fabric_files import (
    FILES,
    PLUGIN,
    files_of,
    parse_files,
    parse_plugin,
    plugin_names,
)
from clusterkit.preflight.request import PreflightOptions
from clusterkit.preflight.targets import aim
from clusterkit.transport.probe import Output, PreflightJob
from tests.helpers.evidence import evidence
from tests.helpers.probe_run import named, run_compound

SCRIPT = "/usr/local/gib/scripts/set_nccl_env.sh"
GIB = "/usr/local/gib/lib64/libnccl-net.so"
PORT = "device|rdmap1s0|0.0|efa|EFA\nport|rdmap1s0|1|4: ACTIVE|5: LinkUp|9|Unspecified|0|0\n"
NO_RDMA = Output(stdout="no RDMA device\n", exit_code=77)
OPENED = "opened=libnccl-net.so\nwhole=1\nend\n"
LOST = "failed libnccl-net.so=libfabric.so.1: cannot open shared object file\nwhole=1\nend\n"


def judged(name: str, job: PreflightJob, **nodes: Mapping[str, str | Output]) -> dict[str, Result]:
    """Return the last result of each node, or of the job."""
    job = dataclasses.replace(job, hosts=tuple(nodes))
    return {str(node): one for node, one in named(name).judge(evidence(nodes, job=job))}


def plugin(said: str, job: PreflightJob, *, rdma: str | Output = PORT) -> Result:
    node = {"nccl-plugin": said, "rdma-ports": rdma}
    return judged("nccl-plugin", job, n1=node, n2=node)["n1"]


EFA = PreflightJob(hosts=("n1",), net_plugin="libnccl-net.so")


def test_a_plugin_that_cannot_be_opened() -> None:
    assert plugin(OPENED, EFA).summary == "libnccl-net.so can be opened"
    found = plugin(LOST, EFA)
    assert (found.verdict, found.evidence) == (
        "fail",
        "libfabric.so.1: cannot open shared object file",
    )
    assert found.summary.startswith("NCCL's plug-in cannot be opened: NCCL goes on without")
    alone = {"nccl-plugin": LOST, "rdma-ports": PORT}
    assert judged("nccl-plugin", EFA, n1=alone)["n1"].verdict == "warn"


@pytest.mark.parametrize(
    ("changes", "rdma", "verdict", "words"),
    [
        ({"python_is_set_up": True}, PORT, "warn", "cannot be opened in a plain shell"),
        ({"python_is_set_up": True, "net_plugin": GIB}, PORT, "fail", "cannot be opened: "),
        ({}, NO_RDMA, "skip", "no fast fabric is known of"),
        ({"has_fabric": True}, NO_RDMA, "fail", "cannot be opened"),
        ({"env": {"NCCL_NET_PLUGIN": "ofi"}}, NO_RDMA, "warn", "NCCL_NET_PLUGIN=ofi: "),
    ],
)
def test_what_is_certain_of_it(
    changes: dict[str, object], rdma: str | Output, verdict: str, words: str
) -> None:
    found = plugin(LOST, dataclasses.replace(EFA, **changes), rdma=rdma)
    assert found.verdict == verdict
    assert words in found.summary


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"net_plugin": None}, "names a plug-in"),
        ({"env": {"NCCL_NET_PLUGIN": "none"}}, "names a plug-in"),
        ({"container_runtime": "docker"}, "in the image"),
        ({"uses_gpus": False}, "no GPU"),
    ],
)
def test_where_there_is_none_to_open(changes: dict[str, object], why: str) -> None:
    job = dataclasses.replace(EFA, **changes)
    (found,) = judged("nccl-plugin", job, n1={}).values()
    assert found.verdict == "skip"
    assert why in found.summary


def test_a_plugin_without_an_interpreter_is_unknown() -> None:
    assert parse_plugin("absent=1\nend\n") is None
    assert plugin("absent=1\nend\n", EFA).verdict == "unknown"
    assert plugin("Segmentation fault\n", EFA).verdict == "unknown"


def test_names_of_plugins_are_those_that_nccl_tries() -> None:
    def names(value: str) -> tuple[str, ...]:
        return plugin_names(dataclasses.replace(EFA, env={"NCCL_NET_PLUGIN": value}))

    assert names("ofi") == ("libnccl-net-ofi.so", "ofi")
    assert names("/opt/x/libnccl-net.so") == ("/opt/x/libnccl-net.so",)
    assert names("") == names("none") == ()
    assert plugin_names(EFA) == ("libnccl-net.so",)


def test_a_library_is_opened_here(tmp_path: Path) -> None:
    """What is no library is passed over, with the words of the loader."""
    library = ctypes.util.find_library("z") or ctypes.util.find_library("m")
    assert library is not None
    job = dataclasses.replace(EFA, python=sys.executable, env={"NCCL_NET_PLUGIN": f"./{library}"})
    found = parse_plugin(run_compound((PLUGIN,), job)["nccl-plugin"].stdout)
    assert found is not None
    assert found.opened is None
    (tmp_path / "libnccl-net-broken.so").write_text("no library\n")
    env = {"LD_LIBRARY_PATH": str(tmp_path), "NCCL_NET_PLUGIN": f"broken,{library}"}
    job = dataclasses.replace(EFA, python=sys.executable, env=env)
    found = parse_plugin(run_compound((PLUGIN,), job)["nccl-plugin"].stdout)
    assert found is not None
    assert found.opened == library
    assert "broken" in found.failures[0]


def test_files_that_a_job_needs() -> None:
    setup = (
        f"source {SCRIPT}",
        "NCCL_LIB_DIR=/opt/x . '/opt/x/profile.sh'; true",
        "source ~/site.sh quietly",
        "[ -f /opt/maybe.sh ] && source /opt/maybe.sh",
        "source /opt/other.sh || true",
        'source "$SITE/env.sh"',
        "echo source /no/file",
    )
    assert list(files_of(setup, {}, None)) == [SCRIPT, "/opt/x/profile.sh", "~/site.sh"]
    env = {"NCCL_TOPO_FILE": "/opt/topo.xml", "NCCL_CONF_FILE": "nccl.conf"}
    assert files_of((), env, None) == {"/opt/topo.xml": "NCCL_TOPO_FILE"}
    mounts = ("/opt/microsoft/topo.xml:/opt/topo.xml:ro", "./data:/data", "/run/$X:/run")
    assert files_of((), env, mounts) == {"/opt/microsoft/topo.xml": "mounts"}


JOB = PreflightJob(hosts=("n1",), files={"/opt/topo.xml": "NCCL_TOPO_FILE", SCRIPT: "setup"})


def there(topo: str = "file 7-75", script: str = "file 8-90") -> dict[str, str]:
    return {"job-files": f"{topo} /opt/topo.xml\n{script} {SCRIPT}\nend\n"}


def test_files_are_there_and_the_same_on_all_nodes() -> None:
    found = judged(
        "nccl-files", JOB,
        n1=there(), n2=there(), n3=there(topo="absent -"), n4=there(script="unreadable -"),
        n5=there(topo="file 9-75"), n6=there(), n7=there(topo="folder -"), n8={"job-files": "cut"},
        n9=there(),
    )  # fmt: skip
    assert {node: one.verdict.value for node, one in found.items()} == {
        "n1": "pass", "n2": "pass", "n3": "fail", "n4": "fail", "n5": "warn", "n6": "pass",
        "n7": "fail", "n8": "unknown", "n9": "pass",
    }  # fmt: skip
    assert found["n3"].summary == "NCCL_TOPO_FILE=/opt/topo.xml is not there"
    assert found["n4"].summary == f"setup: {SCRIPT} cannot be read"
    assert found["n5"].summary == "NCCL_TOPO_FILE=/opt/topo.xml differs from that of most nodes"
    assert found["n7"].summary == "NCCL_TOPO_FILE=/opt/topo.xml is a folder"
    two = judged("nccl-files", JOB, n1=there(), n2=there(script="file 1-90"))
    assert {one.summary for one in two.values()} == {f"setup: {SCRIPT} differs between nodes"}
    (none,) = judged("nccl-files", PreflightJob(hosts=("n1",)), n1={}).values()
    assert none.verdict == "skip"


def test_files_are_looked_at_here(tmp_path: Path) -> None:
    (tmp_path / "a b.sh").write_text("export A=1\n")
    paths = [f"{tmp_path}/a b.sh", f"{tmp_path}/gone", str(tmp_path)]
    job = dataclasses.replace(JOB, files=dict.fromkeys(paths, "setup"))
    found = parse_files(run_compound((FILES,), job)["job-files"].stdout)
    assert [(one.path, one.state) for one in found] == [
        (paths[0], "file"), (paths[1], "absent"), (paths[2], "folder"),
    ]  # fmt: skip
    assert found[0].text.endswith("-11")


def test_a_platform_tells_what_to_look_for() -> None:
    cluster = ClusterSpec(
        name="c", kind=ClusterKind.LOCAL, platform="gcp-gib", instance_type="a4-highgpu-8g",
        setup=(f"source {SCRIPT}",),
    )  # fmt: skip
    job = aim(PreflightOptions(), cluster).job
    assert (job.net_plugin, job.has_fabric, job.rdma_devices) == (GIB, True, 8)
    assert job.files == {SCRIPT: "setup"}
