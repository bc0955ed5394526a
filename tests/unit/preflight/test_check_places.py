"""Whether nodes stand together: NVLink domains and IMEX, and what clouds say of each machine."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from clusterkit.core.metadata import CLOUDS
from clusterkit.core.model import ClusterKind, ClusterSpec
from clusterkit.preflight.bundle import Bundle
from clusterkit.preflight.checks.results import Result
from clusterkit.preflight.evaluate import evidence_of
from clusterkit.preflight.probes.gpu import nvidia_links
from clusterkit.preflight.probes.host import placement
from clusterkit.preflight.request import PreflightOptions
from clusterkit.preflight.targets import aim, job_of_plan, with_slurm
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import (
    NOT_APPLICABLE,
    Missing,
    Output,
    PreflightJob,
    Reach,
    read_output,
)
from tests.helpers.evidence import evidence
from tests.helpers.needs import require
from tests.helpers.plans import make_cluster, make_plan
from tests.helpers.probe_run import SHELLS, named, rulings, run_probe

RACK = "1a2b3c4d-0000-4000-8000-00000000000a"
OTHER = "5e6f7a8b-0000-4000-8000-00000000000b"
NO_RACK = "00000000-0000-0000-0000-000000000000"
NAMES = "name n1\nown 10.9.0.1 \nreverse 10.9.0.1 n1 \nlocal 10.9.0.1 127.0.0.1 \nend\n"
READY = "channel=open\nstate=READY\nnodes=10.9.0.1 10.9.0.2\nend\n"


def gpus(domain: str, clique: str = "7") -> str:
    head = "index, name, pci.bus_id, fabric.clusterUuid, fabric.cliqueId"
    return f"{head}\n0, NVIDIA GB200, 00000008:01:00.0, {domain}, {clique}\n"


def node(domain: str = RACK, said: str = READY, clique: str = "7") -> dict[str, str]:
    return {"nvidia-gpus": gpus(domain, clique), "imex": said, "host-names": NAMES}


def judged(
    check: str,
    nodes: Mapping[str, Mapping[str, str | Output]],
    job: PreflightJob,
    via: str = "srun",
) -> dict[str, list[Result]]:
    job = dataclasses.replace(job, hosts=tuple(nodes))
    found: dict[str, list[Result]] = {}
    seen = evidence(nodes, job=job, reach={name: Reach(via=via) for name in nodes})
    for name, result in named(check).judge(seen):
        found.setdefault(str(name), []).append(result)
    return found


JOB = PreflightJob(hosts=(), nodes=2, kind="slurm")


@pytest.mark.parametrize(
    ("said", "summary"),
    [
        (READY.replace("open", "absent"), "the IMEX channel is missing: NCCL ends at its start"),
        (READY.replace("open", "denied"), "the IMEX channel may not be opened"),
        (READY.replace("READY", "inactive"), "IMEX is inactive"),
        (READY.replace("10.9.0.1 10.9.0.2", ""), "IMEX has no list of nodes"),
        (READY.replace("10.9.0.1", "10.9.0.7"), "IMEX does not list the node itself"),
    ],
)
def test_what_nvlink_between_nodes_lacks(said: str, summary: str) -> None:
    """A node that checks itself at the start of a job of two sees no other, and is judged."""
    (found,) = judged("gpu-imex", {"n1": node(said=said)}, JOB)["n1"]
    assert (found.verdict, found.summary[: len(summary)]) == ("fail", summary)
    (early,) = judged("gpu-imex", {"n1": node(said=said)}, JOB, via="ssh")["n1"]
    assert early.verdict == "warn"  # Slurm's prolog has not run


@pytest.mark.parametrize("state", ["READY", "active", ""])
def test_nvlink_between_nodes_that_is_ready(state: str) -> None:
    (found,) = judged("gpu-imex", {"n1": node(said=READY.replace("READY", state))}, JOB)["n1"]
    assert (found.verdict, found.summary) == ("pass", "IMEX is ready")
    ipv6 = READY.replace("10.9.0.1", "fd00::1")
    (found,) = judged("gpu-imex", {"n1": node(said=ipv6)}, JOB)["n1"]
    assert found.verdict == "pass"  # its addresses of that kind are not known


@pytest.mark.parametrize(
    ("domain", "changes", "why"),
    [
        (NO_RACK, {}, "no NVLink between nodes"),
        ("[N/A]", {}, "no NVLink between nodes"),
        (RACK, {"nodes": None}, "one node"),
        (RACK, {"env": {"NCCL_MNNVL_ENABLE": "0"}}, "does without"),
        (RACK, {"uses_gpus": False}, "no GPU"),
    ],
)
@pytest.mark.parametrize("check", ["gpu-imex", "topo-clique"])
def test_jobs_that_need_no_imex(
    check: str, domain: str, changes: dict[str, object], why: str
) -> None:
    bad = READY.replace("open", "absent")
    ((found,),) = judged(
        check, {"n1": node(domain, bad)}, dataclasses.replace(JOB, **changes)
    ).values()
    assert found.verdict == "skip"
    assert why in found.summary


@pytest.mark.parametrize(
    "said",
    [
        "",
        "channel=wide\nstate=\nnodes=\nend\n",
        "channel=open\nend\n",
        READY.replace("10.9.0.1", "10.9.0.1 " * 600),
    ],
)
def test_an_answer_about_imex_that_makes_no_sense_is_unknown(said: str) -> None:
    assert judged("gpu-imex", {"n1": node(said=said)}, JOB)["n1"][0].verdict == "unknown"


def test_nodes_of_two_racks() -> None:
    nodes = {"n1": node(), "n2": node(), "n3": node(OTHER), "n4": node(clique="8")}
    found = judged("topo-clique", nodes, dataclasses.replace(JOB, kind="slurm"))
    assert [found[n][0].verdict for n in nodes] == ["pass", "pass", "warn", "warn"]
    rack = "NVLink domain 1a2b3c4d/7"
    assert found["n3"][0].summary == f"NVLink domain 5e6f7a8b/7: 2 of 4 nodes are in {rack}"
    assert "--set sbatch.segment=" in found["n3"][0].hint
    assert "NCCL_MNNVL_ENABLE=0" in found["n3"][0].hint


def test_lists_of_imex_that_differ_within_a_rack() -> None:
    """In a job of Slurm, its prolog lists the nodes that were asked together."""
    longer = READY.replace("\nend", " 10.9.0.3\nend")
    nodes = {"n1": node(), "n2": node(), "n3": node(said=longer), "n4": node(OTHER, longer)}
    found = judged("topo-clique", nodes, dataclasses.replace(JOB, kind="ssh"))
    assert [len(found[n]) for n in nodes] == [1, 1, 2, 1]
    assert found["n3"][1].summary == "IMEX lists other nodes than on most"
    assert all(len(one) == 1 for one in judged("topo-clique", nodes, JOB).values())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"nodes": 3}, ["pass", "pass", "pass"]),  # no rack has as many
        ({"nodes": None}, ["pass", "pass", "pass"]),  # all nodes of a partition, for no job
        ({"nodes": 2}, ["pass", "pass", "warn"]),
        ({"nodes": 2, "kept_together": True}, ["pass", "pass", "pass"]),  # as the hint has it
        ({"nodes": 3, "kind": "ssh"}, ["pass", "pass", "warn"]),  # who named them can name others
    ],
)
def test_what_slurm_cannot_keep_together(changes: dict[str, object], expected: list[str]) -> None:
    nodes = {"n1": node(), "n2": node(), "n3": node(OTHER)}
    found = judged("topo-clique", nodes, dataclasses.replace(JOB, **changes))
    assert [found[n][0].verdict for n in nodes] == expected


@pytest.mark.parametrize("key", ["switches", "segment"])
def test_a_job_says_how_many_nodes_it_gets_and_whether_together(key: str, tmp_path: Path) -> None:
    plan = make_plan(make_cluster(tmp_path), nodes=4, directives={key: "1"})
    job = job_of_plan(plan, ("n1",))
    assert (job.nodes, job.spans_nodes, job.kept_together) == (4, True, True)
    plan = dataclasses.replace(plan, directives={})
    assert not job_of_plan(plan, ()).kept_together


TOPOLOGY = """BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2
BlockName=b2 BlockIndex=1 Nodes=n3 BlockSize=2
"""


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        (TOPOLOGY, ["pass", "pass", "warn"]),
        (TOPOLOGY.replace("Nodes=n3", "Nodes=m3"), ["pass", "pass", "warn"]),
        (TOPOLOGY.replace("Nodes=n3", "Nodes=n[3"), ["unknown"] * 3),
        (TOPOLOGY.replace("Block", "Switch"), ["unknown"] * 3),
        ("slurm_load_topo error\n", ["unknown"] * 3),
    ],
)
def test_blocks_of_slurm_go_before_what_a_cloud_says(
    topology: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "topology").write_text(topology)
    records = "".join(f"NodeName=n{k} State=IDLE\n" for k in (1, 2, 3))
    (tmp_path / "nodes").write_text(records)
    tool = tmp_path / "scontrol"
    tool.write_text(
        f'#!/bin/sh\nfor w; do :; done\n[ "$w" = topology ] || w=nodes\ncat {tmp_path}/$w\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    hosts = ("n1", "n2", "n3")
    bundle = Bundle(
        job=dataclasses.replace(JOB, hosts=hosts),
        replies=tuple(Reply(node=host, reach=Reach()) for host in hosts),
        collected_at=0.0,
        seconds=0.0,
    )
    found = rulings(named("topo-placement"), evidence_of(with_slurm(bundle)))
    assert [found[host].verdict for host in hosts] == expected
    if "warn" in expected:
        assert found["n3"].summary.endswith(": 2 of 3 nodes are in block b1")
        assert "--set sbatch.segment=" in found["n3"].hint


@pytest.mark.parametrize("shell", SHELLS)
def test_imex_of_a_machine(shell: tuple[str, ...], tmp_path: Path) -> None:
    require(shell[0])
    text = nvidia_links.IMEX.snippet(JOB)
    assert text is not None
    for path in ("/dev/nvidia-caps-imex-channels", "/etc/nvidia-imex"):
        text = text.replace(path, str(tmp_path))

    def ask(path: Path) -> nvidia_links.Imex:
        argv = [*shell, "-c", f"PATH={path}:$PATH\n{text}"]
        return nvidia_links.parse_imex(
            subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        )

    assert (ask(tmp_path).channel, ask(tmp_path).nodes) == ("absent", ())
    (tmp_path / "channel0").touch()
    (tmp_path / "nodes_config.cfg").write_text("# rack 4\n10.9.0.1\n\n10.9.0.2 # spare\n")
    tool = tmp_path / "nvidia-imex-ctl"
    tool.write_text("#!/bin/sh\necho READY\n")
    tool.chmod(0o755)
    found = ask(tmp_path)
    assert (found.channel, found.state, found.nodes) == ("open", "READY", ("10.9.0.1", "10.9.0.2"))


AWS = "cloud=aws\nzone=zone-1a\nplacement group=train\nspot=\nevents=[]\nend\n"
GCP = "cloud=gcp\nblock=/b1/s1/h1\nspot=FALSE\nevents=NONE\nend\n"
AZURE = 'cloud=azure\nplacement group=0f1e\nname=vm1\nevents={"Events": []}\nend\n'
OCI = 'cloud=oci\nnetwork block={"customerNetworkBlock": "ocid1.block.oc1.iad.%s"}\nend\n'


@pytest.mark.parametrize(
    ("usual", "other", "where", "mends"),
    [
        (AWS, AWS.replace("1a", "1b"), "zone zone-1b, placement group train", "capacity block"),
        (AWS, AWS.replace("train", ""), "zone zone-1a", "cluster placement group"),
        (GCP, GCP.replace("b1", "b2"), "block b2", "--set sbatch.switches=1"),
        (GCP, GCP.replace("/b1/s1/h1", ""), "in none", "compact placement"),
        (
            OCI % "aaaaaaaaaaaaaaa1",
            OCI % "aaaaaaaaaaaaaaa2",
            "block aaaaaaaaaaa2",
            "cluster network",
        ),
        (
            AZURE,
            AZURE.replace("0f1e", "2d3c"),
            "placement group 2d3c",
            "singlePlacementGroup",
        ),
    ],
)
def test_a_node_in_another_place(usual: str, other: str, where: str, mends: str) -> None:
    nodes = {"a": {"placement": usual}, "b": {"placement": usual}, "c": {"placement": other}}
    found = judged("topo-placement", nodes, JOB)
    assert [one.verdict for (one,) in found.values()] == ["pass", "pass", "warn"]
    (odd,) = found["c"]
    assert where in odd.summary
    assert "2 of 3 nodes are in" in odd.summary
    assert mends in odd.hint
    kept = judged("topo-placement", nodes, dataclasses.replace(JOB, kept_together=True))
    assert kept["c"][0].verdict == ("warn" if where == "in none" else "pass")
    alike = judged("topo-placement", {name: {"placement": other} for name in "ab"}, JOB)
    assert all(one.verdict in {"pass", "skip"} for (one,) in alike.values())


@pytest.mark.parametrize(
    "said",
    [
        GCP.replace("/b1/s1/h1", "<html>Sign in</html>"),
        AWS.replace("[]", "<html>"),
        AZURE.replace("[]", "7"),
        "cloud=moon\nend\n",
        "cloud=aws\nzone=zone-1a\nend\n",
        GCP.replace("/b1", "/b" * 2000),
        f"cloud=oci\nnetwork block={'[' * 3000}\nend\n",
        GCP.removesuffix("end\n"),
    ],
)
def test_a_metadata_server_that_lies_is_unknown(said: str) -> None:
    found = judged("topo-placement", {"a": {"placement": said}, "b": {"placement": GCP}}, JOB)
    assert [one.verdict for (one,) in found.values()] == ["unknown", "pass"]
    number = {"placement": 'cloud=oci\nnetwork block={"customerNetworkBlock": 7}\nend\n'}
    assert judged("topo-placement", {"a": number}, JOB)["a"][0].verdict == "skip"


SPOT = '{"action": "terminate", "time": "2026-11-27T21:30:00Z"}'
REBOOT = '[{"Code": "system-reboot", "State": "%s", "NotBefore": "9 Dec 2026 13:56:07 GMT"}]'
PREEMPT = '[{"EventType": "%s", "Resources": ["%s"], "NotBefore": "Fri, 27 Nov 2026 21:30:00 GMT"}]'


@pytest.mark.parametrize(
    ("said", "verdict", "summary"),
    [
        (AWS, "pass", "the cloud announces nothing"),
        (AWS.replace("spot=", f"spot={SPOT}"), "fail", "AWS takes back the Spot instance at 2026"),
        (AWS.replace("[]", REBOOT % "active"), "warn", "AWS plans system-reboot at 9 Dec 2026"),
        (AWS.replace("[]", REBOOT % "completed"), "pass", "the cloud announces nothing"),
        (AWS.replace("[]", ""), "skip", "the cloud does not say"),
        (AWS.replace("spot=\nevents=[]", f"spot={SPOT}\nevents="), "fail", "AWS takes back"),
        (GCP.replace("FALSE", "TRUE").replace("NONE", ""), "fail", "GCP takes back the Spot VM"),
        (GCP.replace("NONE", ""), "skip", "the cloud does not say"),
        (AZURE.replace('{"Events": []}', ""), "skip", "the cloud does not say"),
        (AZURE.replace("[]", PREEMPT % ("Preempt", "vm1")), "fail", "Azure announces Preempt at"),
        (AZURE.replace("[]", PREEMPT % ("Redeploy", "vm1")), "warn", "Azure announces Redeploy"),
        (AZURE.replace("[]", PREEMPT % ("Freeze", "vm1")), "pass", "the cloud announces nothing"),
        (AZURE.replace("[]", PREEMPT % ("Preempt", "vm2")), "pass", "the cloud announces nothing"),
        (GCP.replace("FALSE", "TRUE"), "fail", "GCP takes back the Spot VM"),
        (GCP.replace("NONE", "TERMINATE_ON_HOST_MAINTENANCE"), "fail", "GCP announces TERMINATE"),
        (GCP.replace("NONE", "<html>no</html>"), "unknown", "placement: unparsed"),
        (AWS.replace("spot=", "spot=<html>"), "unknown", "placement: unparsed"),
        (AZURE.replace("[]", '["x"]'), "unknown", "placement: unparsed"),
        (OCI % "b1", "skip", "the cloud does not say"),
    ],
)
def test_what_a_cloud_announces(said: str, verdict: str, summary: str) -> None:
    """A node alone is told of, too: it checks itself when a job starts there."""
    ((found,),) = judged("host-notice", {"a": {"placement": said}}, JOB).values()
    assert found.verdict == verdict
    assert found.summary.startswith(summary)


def test_platform_off_asks_no_cloud() -> None:
    cluster = ClusterSpec(name="c", kind=ClusterKind.SSH, platform="off")
    job = aim(PreflightOptions(hosts="n[1-2]"), cluster).job
    assert placement.PROBE.snippet(job) is None
    ((found,),) = judged("topo-placement", {"a": {}, "b": {}}, job).values()
    assert (found.verdict, found.summary) == ("skip", "platform: off asks no cloud")
    assert placement.PROBE.snippet(dataclasses.replace(job, asks_cloud=True)) is not None


def machine(folder: Path, cloud: str | None) -> str:
    """Return the root of a machine whose firmware says that it is of a cloud."""
    dmi = folder / "machine/sys/class/dmi/id"
    dmi.mkdir(parents=True)
    if cloud is not None:
        (dmi / CLOUDS[cloud][0]).write_text(f"{CLOUDS[cloud][1]}\n")
    return str(folder / "machine")


class Service(BaseHTTPRequestHandler):
    """A metadata server of Google Cloud that says or does what `answers` has for a path's end."""

    answers: ClassVar[dict[str, str]] = {}

    def do_GET(self) -> None:
        answer = self.answers.get(self.path.rsplit("/", 1)[1], "")
        if answer == "hang":
            time.sleep(300)
        there = answer and self.headers["Metadata-Flavor"] == "Google"
        self.send_response(302 if answer.startswith("http") else 200 if there else 404)
        self.send_header("Location", answer)
        self.end_headers()
        self.wfile.write(answer.encode() or b"<html>not found</html>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("answer", "places"),
    [
        ("/b1/s1/h1", {"block": "b1"}),
        ("", {}),
        ("hang", {}),
        ("http://127.0.0.1:9/b1/s1/h1", {}),
        ("<html>Sign in</html>", None),
        ("b" * 100_000, None),
    ],
)
def test_a_metadata_server_that_is_really_asked(
    answer: str, places: dict[str, str] | None, tmp_path: Path
) -> None:
    """One that hangs has its time, one that sends elsewhere is not followed, a page is no word."""
    require("curl")
    answers = {"physical_host": answer, "preempted": "FALSE", "maintenance-event": "NONE"}
    served = type("Served", (Service,), {"answers": answers})
    with ThreadingHTTPServer(("127.0.0.1", 0), served) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        text = placement.PROBE.snippet(JOB)
        assert text is not None
        text = text.replace("169.254.169.254", f"127.0.0.1:{server.server_port}")
        within_s = 0.5 if answer == "hang" else 60
        text = text.replace("-m 1", f"-m {within_s}")
        probe = dataclasses.replace(placement.PROBE, command=text, timeout_s=300)
        proxy = {"http_proxy": "http://127.0.0.1:9", "PATH": os.environ["PATH"]}
        env = {**proxy, "CLUSTERKIT_MACHINE_ROOT": machine(tmp_path, "gcp")}
        said = read_output(probe, run_probe(probe, JOB, env=env))
        server.shutdown()
    assert (None if isinstance(said, Missing) else said.places) == places
    assert isinstance(said, Missing) or said.notices == ()


CURL = """#!/bin/sh
echo "$*" >>"$LOG"
case $* in
*api/token*) echo TOKEN ;;
*"token: TOKEN"*availability-zone) echo zone-1a ;;
*"token: TOKEN"*group-name | *"token: TOKEN"*spot/instance-action) exit 22 ;;
*"token: TOKEN"*events/maintenance/scheduled) printf '[\\n]' ;;
*"Metadata-Flavor: Google"*preempted) echo FALSE ;;
*"Metadata-Flavor: Google"*maintenance-event) echo NONE ;;
*"Metadata: true"*compute/name*) echo vm1 ;;
*"Metadata: true"*scheduledevents*)
printf %s '{"Events": [{"EventType": "Freeze", "Description": "one\\nend"}]}' ;;
*"Metadata-Flavor: Google"*physical_host) printf '/b1/s1/h1\\r\\n' ;;
*"Metadata: true"*placementGroupId*) echo 0f1e ;;
*"Bearer Oracle"*rdmaTopologyData) printf '{\\n"customerNetworkBlock": "ocid1.x.77"\\n}\\n' ;;
*) exit 7 ;;
esac
"""


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("cloud", "places"),
    [
        ("aws", {"zone": "zone-1a"}),
        ("gcp", {"block": "b1"}),
        ("azure", {"placement group": "0f1e"}),
        ("oci", {"network block": "77"}),
        (None, {}),
    ],
)
def test_each_cloud_is_asked_for_its_own(
    shell: tuple[str, ...], cloud: str | None, places: dict[str, str], tmp_path: Path
) -> None:
    """By the machine's firmware; AWS wants a token first."""
    require(shell[0])
    curl, log = tmp_path / "curl", tmp_path / "log"
    curl.write_text(CURL)
    curl.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    env = {"LOG": str(log), "PATH": path, "CLUSTERKIT_MACHINE_ROOT": machine(tmp_path, cloud)}
    done = run_probe(placement.PROBE, JOB, shell=shell, env=env)
    assert done.stderr == ""
    if cloud is None:
        assert (done.exit_code, log.exists()) == (NOT_APPLICABLE, False)
        return
    found = placement.parse(done.stdout)
    assert (found.cloud, found.places) == (cloud, places)
    assert found.notices == (None if cloud == "oci" else ())
    for line in log.read_text().splitlines():
        assert "169.254.169.254" in line
        assert "-m 1" in line
