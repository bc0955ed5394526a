"""The plug-in and the files that a job needs on a fast fabric: what nodes say, and this machine."""

from __future__ import annotations

import ctypes.util
import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from clusterkit.core.model import ClusterKind, ClusterSpec, ContainerRuntime
from clusterkit.preflight.checks.results import Result
from clusterkit.preflight.probes.host.fabric_files import (
    FILES,
    IMAGE,
    PLUGIN,
    files_of,
    parse_files,
    parse_image,
    parse_plugin,
    plugin_names,
)
from clusterkit.preflight.request import PreflightOptions
from clusterkit.preflight.targets import aim
from clusterkit.transport.probe import Output, PreflightJob
from tests.helpers.evidence import evidence
from tests.helpers.probe_run import SHELLS, named, run_compound, run_probe

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
    assert found.summary.startswith("NCCL's plug-in cannot be opened: NCCL continues without")
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
    assert found["n3"].summary == "NCCL_TOPO_FILE=/opt/topo.xml is missing"
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
    assert (job.rdma_gbps, job.instance_gpus) == (400, 8)
    assert job.files == {SCRIPT: "setup"}


FAKES = {
    "docker": """[ "$1 $2 $3" != 'image inspect img:1' ] || exit 0
[ "$1" = run ] || exit 1
shift""",
    "apptainer": """LD_LIBRARY_PATH=$APPTAINERENV_LD_LIBRARY_PATH; export LD_LIBRARY_PATH
[ "$1" = exec ] && shift || exit 1""",
    "enroot": """[ "$1" != list ] || { echo img:1; exit; }
[ "$1" = start ] && shift || exit 1""",
}
"""Doubles of runtimes, whose image is this machine with the library path that they are given."""
_ENTERED = """echo "$*" >>"$0.log"
while :; do case $1 in
--env=*) export "${1#--env=}"; shift ;;
-*) shift ;;
*) break ;;
esac; done
case $1 in *broken.sif) echo 'no image format' >&2; exit 255 ;; esac
echo 'Welcome to this image!'
shift; [ "$1" != sh ] || shift
exec sh "$@"
"""


def entered(
    runtime: str, image: str, tmp_path: Path, shell: Sequence[str] = ("sh",), **env: str
) -> tuple[Output, str]:
    """Return what the probe prints where doubles enter the image, and how they were called."""
    for name, body in FAKES.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n{_ENTERED}")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "topo").touch()
    job = PreflightJob(
        hosts=("n1",),
        nodes=2,
        container_runtime=runtime,
        image=image,
        mounts=(f"{tmp_path}/topo:/opt/topo:ro", "/no/such/folder:/x", "./data:/data"),
        net_plugin=GIB,
        env=env,
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    said = run_probe(IMAGE, job, shell=shell, env={"PATH": path})
    log = tmp_path / f"{'enroot' if runtime == 'pyxis' else runtime}.log"
    return said, log.read_text() if log.exists() else ""


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("runtime", "image"),
    [("docker", "img:1"), ("apptainer", "a.sif"), ("enroot", "img:1"), ("pyxis", "a.sqsh")],
)
def test_a_plugin_is_opened_in_the_image(
    runtime: str, image: str, shell: tuple[str, ...], tmp_path: Path
) -> None:
    """By the image's own library path: the folder of a platform is no part of it."""
    image = image if ":" in image else str(tmp_path / image)
    if "/" in image:
        Path(image).touch()
    said, log = entered(runtime, image, tmp_path, shell)
    found = parse_image(said.stdout)
    assert found.plugin is not None
    assert found.plugin.opened is None
    assert found.plugin.failures[0].startswith("libnccl-net.so: cannot open")
    assert f"{tmp_path}/topo:/opt/topo:ro" in log
    assert ("--rm --init " in log) == (runtime == "docker"), "SIGTERM ends what is in it"
    assert "/x" not in log.replace(f"{tmp_path}", "")
    library = ctypes.util.find_library("z") or ctypes.util.find_library("m")
    (folder := tmp_path / "lib dir").mkdir()
    stub = next(Path("/lib").glob(f"*/{library}"))
    (folder / "libnccl-net.so").symlink_to(stub)
    path = {"LD_LIBRARY_PATH": str(folder), "NCCL_TOPO_FILE": "/opt/no topo.xml"}
    found = parse_image(entered(runtime, image, tmp_path, shell, **path)[0].stdout)
    assert (found.plugin and found.plugin.opened) == "libnccl-net.so"
    assert found.lacks == ("/opt/no topo.xml",)


def test_images_that_nobody_enters(tmp_path: Path) -> None:
    """Nothing is fetched, and what a runtime says of a damaged image is told."""
    for runtime, image in (("docker", "img:2"), ("enroot", "img:2"), ("apptainer", "no.sif")):
        said, log = entered(runtime, image, tmp_path)
        assert (said.exit_code, log) == (77, "")
    (tmp_path / "broken.sif").touch()
    said, log = entered("apptainer", str(tmp_path / "broken.sif"), tmp_path)
    assert (said.stdout, said.stderr, said.exit_code) == ("", "no image format\n", 255)
    job = PreflightJob(hosts=("n1",), container_runtime="pyxis", image="reg#img", net_plugin=GIB)
    assert IMAGE.snippet(job) is None
    assert judged("nccl-image", job, n1={})["None"].verdict == "skip"
    assert (
        IMAGE.snippet(dataclasses.replace(EFA, container_runtime="docker", image="i")) is not None
    )
    assert IMAGE.snippet(EFA) is None


INSIDE = PreflightJob(
    hosts=("n1",),
    nodes=2,
    container_runtime="docker",
    image="img:1",
    net_plugin=GIB,
    env={"NCCL_TOPO_FILE": "/opt/topo.xml"},
)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (OPENED, {"pass": "libnccl-net.so can be opened in the image"}),
        (LOST, {"fail": "NCCL's plug-in cannot be opened in the image: NCCL continues without"}),
        (
            "lacks /opt/topo.xml=\n" + OPENED,
            {"fail": "NCCL_TOPO_FILE=/opt/topo.xml cannot be read in the image"},
        ),
        ("absent=1\nend\n", {"unknown": "the image has no python3"}),
        ("opened=libnccl-net.so\nend\n", {"unknown": "nccl-image: unparsed"}),
        ("lacks /etc/passwd=\n" + OPENED, {"pass": "can be opened"}),
        (Output(stdout="the image is not on the node\n", exit_code=77), {"skip": "is not on the"}),
        (
            Output(stdout="", stderr="docker: no space left\n", exit_code=125),
            {"unknown": "nccl-image exits 125: docker: no space left"},
        ),
    ],
)
def test_what_an_image_has(said: str | Output, expected: dict[str, str]) -> None:
    node = {"nccl-image": said, "rdma-ports": PORT}
    found = judged("nccl-image", INSIDE, n1=node)["n1"]
    ((verdict, words),) = expected.items()
    assert found.verdict == verdict
    assert words in found.summary


def test_an_image_on_nodes_without_a_fast_fabric() -> None:
    node = {"nccl-image": "lacks /opt/topo.xml=\n" + LOST, "rdma-ports": NO_RDMA}
    assert "NCCL_TOPO_FILE" in judged("nccl-image", INSIDE, n1=node)["n1"].summary
    node["nccl-image"] = LOST
    assert judged("nccl-image", INSIDE, n1=node)["n1"].verdict == "pass"


def test_mounts_of_a_job_are_those_of_its_container() -> None:
    spec = ClusterSpec(
        name="c",
        kind=ClusterKind.SSH,
        container_runtime=ContainerRuntime.DOCKER,
        image="img:1",
        mounts=("/usr/local/gib:/usr/local/gib:ro",),
    )
    job = aim(PreflightOptions(hosts="n1"), spec).job
    assert job.mounts == ("/usr/local/gib:/usr/local/gib:ro",)
