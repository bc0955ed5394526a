"""The page of `preflight --html`: whole, self-contained, safe, and small enough to send."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import random
import re
import zlib
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser

import pytest

from clusterkit.core.findings import Finding, Verdict
from clusterkit.preflight.bundle import Bundle
from clusterkit.preflight.checks import AREAS, all_checks
from clusterkit.preflight.checks.base import NodeFacts
from clusterkit.preflight.evaluate import evaluate
from clusterkit.preflight.html.facts import fact_table
from clusterkit.preflight.html.page import PairMatrix, packed, page, verdict_rows
from clusterkit.preflight.html.types import node_types, places
from clusterkit.preflight.report import Report
from clusterkit.preflight.topology.matrix import parse_topology
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import Output, PreflightJob, Reach, ReachProblem
from tests.helpers.recordings import recording

VOID = {"meta", "input", "br", "link", "img", "hr"}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&"

TOPOLOGIES = (
    "topo_dgxa100_12mlx5_tabs.txt",
    "topo_v100x8_mesh_4mlx5.txt",
    "topo_rtx6000ada_x4_4nic.txt",
    "topo_h100x8_nonic.txt",
    "topo_2gpu_nv2.txt",
    "topo_6gpu_ansi.txt",
    "topo_8gpu_1nic_dualport.txt",
)


class Page(HTMLParser):
    """Reads a page; an element that is not closed, or closed twice, is an error."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), (tag, attrs)
        self.tags.append((tag, dict(attrs)))
        if tag == "details":
            assert "p" not in self.open, "a browser would end the paragraph here"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def inside(self, tag: str) -> list[str]:
        return [text for of, text in self.texts if of == tag]

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for of, attributes in self.tags if of == tag]

    @property
    def shown(self) -> str:
        hidden = {"script", "style"}
        text = " ".join(text for of, text in self.texts if of not in hidden)
        return " ".join(text.split())


def system(kernel: str = "6.1.0") -> str:
    return (
        f"kernel={kernel}\narch=x86_64\nos=Debian GNU/Linux 12\ncpus=64\ngovernors=\n"
        "cpufreq_driver=\nMemTotal=527433728\nMemAvailable=520000000\nthp=madvise\n"
        "rdma=mlx5_0 mlx5_1\nnvidia=0\nend\n"
    )


def bundle(nodes: Mapping[str, Mapping[str, str | Output] | ReachProblem], **job: object) -> Bundle:
    def reply(name: str, said: Mapping[str, str | Output] | ReachProblem) -> Reply:
        if isinstance(said, ReachProblem):
            return Reply(node=name, reach=Reach(problem=said, detail="no", via="ssh"))
        outputs = {
            probe: text if isinstance(text, Output) else Output(stdout=text)
            for probe, text in said.items()
        }
        return Reply(node=name, reach=Reach(via="ssh", latency_s=0.0021), outputs=outputs)

    return Bundle(
        job=PreflightJob(hosts=tuple(nodes), **job),
        replies=tuple(reply(name, said) for name, said in nodes.items()),
        collected_at=1_760_000_000.0,
        seconds=2.5,
    )


def report(nodes: Sequence[str], *findings: Finding) -> Report:
    return Report(nodes=tuple(nodes), findings=findings, seconds=2.5)


def finding(id_: str, verdict: Verdict, *nodes: str, summary: str = "s", **more: str) -> Finding:
    name = f"{id_.lower()}-name"
    return Finding(id=id_, check=name, verdict=verdict, nodes=nodes, summary=summary, **more)


def facts_of(of: Bundle) -> tuple[NodeFacts, ...]:
    return tuple(NodeFacts(name=r.node, outputs=r.outputs, reach=r.reach) for r in of.replies)


def maps_of(document: Page) -> list[dict[str, object]]:
    (data,) = [text for of, text in document.texts if of == "script" and text.startswith("[")]
    maps: list[dict[str, object]] = json.loads(data)
    return maps


def test_the_page_says_who_is_usable_and_what_to_type_next() -> None:
    asked = bundle({name: {"host-system": system()} for name in ("n1", "n2", "n3")})
    text = page(
        asked,
        report(
            ("n1", "n2", "n3"),
            finding("SSH001", Verdict.PASS, "n1", "n2", "n3"),
            finding("GPU004", Verdict.FAIL, "n2", summary="a row remap is pending",
                    evidence="Pending : Yes", hint="reset it", command="nvidia-smi -r -i 3"),
        ),
    )  # fmt: skip
    document = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert document.inside("h1") == ["2 of 3 nodes usable"]
    assert {"--exclude n2", "nvidia-smi -r -i 3"} <= set(document.inside("code"))
    assert document.inside("pre") == ["Pending : Yes"]
    assert "a row remap is pending GPU004 gpu004-name n2 reset it" in document.shown
    assert "2025-10-09 08:53 UTC" in document.shown


def test_a_healthy_cluster_needs_no_command() -> None:
    names = ("n1", "n2")
    document = Page(page(bundle({name: {} for name in names}), report(names)))
    assert document.inside("h1") == ["All 2 nodes are usable"]
    assert "--exclude" not in document.shown


def test_a_job_that_cannot_run_is_not_called_usable() -> None:
    bad = report(("n1",), finding("NCCL001", Verdict.FAIL, summary="no such interface"))
    document = Page(page(bundle({"n1": {}}), bad))
    assert document.inside("h1") == ["The job cannot run as it is"]
    assert "the whole job" in document.shown


def test_nothing_is_loaded_and_only_our_script_runs() -> None:
    names = ("n1", "n2")
    text = page(bundle({name: {} for name in names}), report(names))
    document = Page(text)
    assert not re.search(r"(?i)https?:|//[a-z]|@import|url\(", text.replace("// ", ""))
    assert all(a["href"] is not None and a["href"].startswith("#") for a in document.all("a"))
    assert not [a for _, a in document.tags if {"src", "style"} & set(a) or "onclick" in a]
    (policy,) = [m["content"] for m in document.all("meta") if "http-equiv" in m]
    assert policy is not None
    for part in (document.inside("script")[-1], document.inside("style")[0]):
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")


def test_what_nodes_say_stays_text() -> None:
    nasty = HOSTILE + "\u202e\x07\ud800"
    asked = bundle(
        {
            HOSTILE: {
                "host-system": system(kernel=HOSTILE),
                "nvidia-topo": Output(stdout="", stderr=nasty, exit_code=3),
            }
        },
        python=HOSTILE, framework=HOSTILE, paths=(nasty,),
    )  # fmt: skip
    found = finding(
        "HOST001", Verdict.FAIL, HOSTILE, summary=nasty, evidence=nasty, hint=nasty, command=nasty
    )
    quiet = finding("HOST002", Verdict.PASS, HOSTILE, summary=nasty)
    text = page(asked, report((HOSTILE,), found, quiet))
    document = Page(text)
    assert text.encode()
    assert not re.search("[\u202e\x07\ud800]", text)
    assert document.all("script") == [
        {"type": "application/json", "id": "data"}, {}
    ]  # fmt: skip
    assert not document.all("img")
    assert document.shown.count("alert(1)") >= 8


def test_json_in_the_page_cannot_end_its_element() -> None:
    names = ("</script><b>", "n2")
    said = {name: {"net-links": links(name, {other: (50, 10**9)})} for name, other in
            zip(names, reversed(names), strict=True)}  # fmt: skip
    asked = bundle(said)
    text = page(asked, report(names))
    Page(text)
    assert "</script><b>" not in text


def links(me: str, peers: Mapping[str, tuple[int, int] | str]) -> str:
    lines = [f"ck-net 1 {me} {len(peers) + 1} {len(peers)} 0.45", "port 29500 29500"]
    for number, (peer, met) in enumerate(peers.items()):
        figures = met if isinstance(met, str) else f"ok {met[0]} {met[1]}"
        lines.append(f"pair {number} {peer} {figures}")
    return "\n".join([*lines, "end", ""])


def test_heat_maps_come_from_what_nodes_measured() -> None:
    gbyte = 10**9
    said = {
        "n1": {"n2": (40, 2 * gbyte), "n3": (50, gbyte * 8 // 5)},
        "n2": {"n1": (40, 2 * gbyte), "n3": "timeout"},
        "n3": {"n1": (50, gbyte * 8 // 5), "n2": "uncalled"},
    }
    asked = bundle({name: {"net-links": links(name, peers)} for name, peers in said.items()})
    document = Page(page(asked, report(tuple(said))))
    assert document.inside("h3")[-2:] == ["Bandwidth", "Latency"]
    bandwidth, latency = maps_of(document)
    cells = zlib.decompress(base64.b64decode(str(bandwidth["cells"])))
    assert list(cells) == [0, 23, 1, 23, 0, 255, 1, 255, 0]
    assert bandwidth["low"] == pytest.approx(12.8)
    assert bandwidth["nodes"] == ["n1", "n2", "n3"]
    assert latency["unit"] == "\u00b5s"


def test_a_run_without_the_network_has_no_maps() -> None:
    document = Page(page(bundle({"n1": {}}), report(("n1",))))
    assert maps_of(document) == []
    assert "#network" not in [a["href"] for a in document.all("a")]


def matrix(size: int, seed: int = 1) -> PairMatrix:
    chance = random.Random(seed)
    pairs = [a * size + b for a in range(size) for b in range(size) if a != b]
    return PairMatrix(
        title="Bandwidth",
        unit="Gbit/s",
        more_is_better=True,
        nodes=tuple(f"gpu-{n:04d}" for n in range(size)),
        pairs=array("Q", pairs),
        values=array("d", (23.0 * chance.lognormvariate(0, 0.05) for _ in pairs)),
    )


def test_a_value_on_the_page_is_the_one_that_was_measured() -> None:
    measured = matrix(20)
    data = packed(measured)
    cells = zlib.decompress(base64.b64decode(data["cells"]))
    for pair, value in zip(measured.pairs, measured.values, strict=True):
        assert 1 <= cells[pair] <= 254
        shown = data["low"] * math.exp(data["step"] * (cells[pair] - 1))
        assert shown == pytest.approx(value, rel=0.01)
    assert all(cells[n * 21] == 0 for n in range(20))


def test_one_value_makes_a_map() -> None:
    one = PairMatrix(title="", unit="x", more_is_better=False, nodes=("a", "b"),
                     pairs=array("Q", [1]), values=array("d", [5.0]))  # fmt: skip
    assert list(zlib.decompress(base64.b64decode(packed(one)["cells"]))) == [0, 1, 0, 0]


def test_verdicts_are_grouped_worst_first() -> None:
    nodes = ("n1", "n2", "n3", "n4")
    grouped = verdict_rows(
        report(
            nodes,
            finding("HOST001", Verdict.PASS, *nodes),
            finding("HOST002", Verdict.SKIP, *nodes),
            finding("GPU001", Verdict.SKIP, "n1", "n3", "n4"),
            finding("GPU001", Verdict.FAIL, "n2"),
            finding("GPU002", Verdict.FAIL, "n2"),
            finding("NCCL001", Verdict.WARN),
        )
    )
    assert [row.nodes for row in grouped] == [(), ("n2",), ("n1", "n3", "n4")]
    job, bad, good = (dict(zip(AREAS, row.cells, strict=True)) for row in grouped)
    assert job["NCCL"].verdict is Verdict.WARN
    assert (bad["GPU"].verdict, bad["GPU"].ids) == (Verdict.FAIL, ("GPU001", "GPU002"))
    assert (good["HOST"].verdict, good["GPU"].verdict) == (Verdict.PASS, Verdict.SKIP)
    assert good["IB"].verdict is None


def test_facts_that_all_share_are_said_once_and_the_odd_one_is_marked() -> None:
    asked = bundle(
        {
            "n1": {"host-system": system()},
            "n2": {"host-system": system("5.4.0")},
            "n3": {"host-system": system()},
            "n4": ReachProblem.TIMEOUT,
        }
    )
    table = fact_table(facts_of(asked))
    assert ("memory", "503 GiB") in table.common
    assert "driver" not in table.labels
    column = [row[table.labels.index("kernel")] for row in table.rows]
    assert [(value.text, value.odd) for value in column] == [
        ("6.1.0", False), ("5.4.0", True), ("6.1.0", False), ("\u2013", False),
    ]  # fmt: skip


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_device_has_one_place_in_the_picture(name: str) -> None:
    topology = parse_topology(recording(name))
    found = places(topology)
    gpus = [gpu for place in found for gpu in place.gpus]
    nics = [device for place in found for device, _, _ in place.nics]
    assert sorted(gpus) == sorted(topology.gpus)
    assert sorted(nics) == sorted(nic.device or nic.name for nic in topology.nics)
    (kind,) = node_types(facts_of(bundle({"n1": {"nvidia-topo": recording(name)}})))
    shown = Page(page(bundle({"n1": {"nvidia-topo": recording(name)}}), report(("n1",)))).shown
    assert kind.places == found
    assert all(device in shown for device in (*gpus, *nics))


def test_links_that_matter_are_told() -> None:
    dgx, mesh = (
        node_types(facts_of(bundle({"n1": {"nvidia-topo": recording(name)}})))[0]
        for name in TOPOLOGIES[:2]
    )
    # 8 GPUs, two at a time with two NICs over several switches; the rest is near no GPU.
    near = Counter(gpus for place in dgx.places for _, link, gpus in place.nics if link == "PXB")
    assert near == {f"GPU[{n}-{n + 1}]": 2 for n in (0, 2, 4, 6)}
    assert dgx.joined == (("nvlink", "NVLink NV12: every pair of GPU[0-7]"),)
    assert mesh.joined == (("nvlink", "NVLink NV2/NV1: some pairs of GPU[0-7]"),)


def test_nodes_with_the_same_links_are_one_type() -> None:
    dgx, mesh = (recording(name) for name in TOPOLOGIES[:2])
    asked = bundle(
        {
            "n1": {"nvidia-topo": mesh},
            "n2": {"nvidia-topo": dgx},
            "n3": {"nvidia-topo": dgx},
            "n4": {"nvidia-topo": Output(stdout="no NVIDIA driver\n", exit_code=77)},
        }
    )
    assert [kind.nodes for kind in node_types(facts_of(asked))] == [("n2", "n3"), ("n1",)]
    document = Page(page(asked, report(("n1", "n2", "n3", "n4"))))
    assert "2 types of nodes" in document.shown


def test_machines_without_gpus_have_no_section_about_them() -> None:
    absent = {"nvidia-topo": Output(stdout="no NVIDIA driver\n", exit_code=77)}
    document = Page(page(bundle({"n1": absent, "n2": absent}), report(("n1", "n2"))))
    assert "no NVIDIA driver" not in document.shown
    assert "#topology" not in [a["href"] for a in document.all("a")]


def test_one_node_is_a_list_of_facts() -> None:
    table = fact_table(facts_of(bundle({"n1": {"host-system": system()}})))
    assert ("kernel", "6.1.0") in table.common
    assert table.labels == ()
    assert table.rows == ((),)


def test_a_page_of_1600_nodes_with_all_pairs_can_be_sent() -> None:
    names = tuple(f"gpu-{n:04d}" for n in range(1600))
    asked = bundle({name: {"host-system": system()} for name in names})
    judged = evaluate(asked, all_checks())
    text = page(asked, judged)
    assert len(Page(text).all("tr")) > 1600
    without_maps = len(text.encode())
    # The weight of a pair is that of a smaller map; drawing lots for all takes ten seconds.
    per_pair = len(packed(matrix(200))["cells"]) / 200**2
    assert without_maps + 2 * per_pair * 1600**2 < 6_000_000
