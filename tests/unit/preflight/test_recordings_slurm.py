"""Tables of sinfo and records of scontrol from machines that nobody here has seen."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from clusterkit.preflight.probes import sinfo
from clusterkit.transport import slurm_nodes
from clusterkit.transport.probe import Output, PreflightJob, Unparsed
from tests.helpers.evidence import evidence
from tests.helpers.probe_run import named, rulings
from tests.helpers.recordings import recording

FOLDER = "fresh-2026-11/"


def states(name: str) -> dict[str, str]:
    return sinfo.parse(recording(f"{FOLDER}sinfo_{name}.txt"))


def judged(text: str) -> dict[str, tuple[str, str]]:
    """Return what SLURM001 says of each node of a table: verdict and summary."""
    output = sinfo.as_records(Output(stdout=text))
    records = slurm_nodes.split_records(output.stdout)
    seen = evidence(
        {name: {"slurm-node": record} for name, record in records.items()},
        job=PreflightJob(hosts=tuple(records), kind="slurm"),
    )
    found = rulings(named("slurm-state"), seen)
    return {str(name): (str(ruling.verdict), ruling.summary) for name, ruling in found.items()}


def test_thirty_of_a_hybrid_partition_are_powered_down() -> None:
    found = judged(recording(f"{FOLDER}sinfo_hybrid_gcp.txt"))
    said = Counter(found.values())
    assert said == {
        ("pass", "Slurm would start a job there"): 4,
        ("skip", "powered down: checked when it starts"): 30,
    }
    assert found["hybridconf-debug-ghpc-9"][0] == "skip"


def test_names_with_a_comma_in_their_brackets() -> None:
    found = judged(recording(f"{FOLDER}sinfo_azure_comma.txt"))
    assert {name: verdict for name, (verdict, _) in found.items()} == {
        "compute000000": "pass",
        "compute000003": "pass",
    }


def test_one_of_sixteen_fails() -> None:
    found = judged(recording(f"{FOLDER}sinfo_hyperpod_fail.txt"))
    assert len(found) == 16
    assert [name for name, (verdict, _) in found.items() if verdict == "fail"] == ["ip-10-1-16-50"]
    assert {"ip-10-1-65-134", "ip-10-1-65-171"} <= found.keys()


def test_one_of_fifty_two_is_drained() -> None:
    found = judged(recording(f"{FOLDER}sinfo_jeanzay.txt"))
    assert [name for name, (verdict, _) in found.items() if verdict != "pass"] == ["jean-zay-iam27"]
    assert Counter(states("jeanzay").values()) == {"drain": 1, "alloc": 48, "idle": 3}


def test_a_table_that_does_not_add_up_is_refused() -> None:
    """Mended, its nodes that power up or down are neither fit nor unfit."""
    text = recording(f"{FOLDER}sinfo_azure_autoscale.txt")
    with pytest.raises(Unparsed, match="2 nodes announced, 3 named"):
        sinfo.parse(text)
    for wrong, right in (("2 alloc#", "3 alloc#"), ("28  idle~ d", "25  idle~ d")):
        text = text.replace(wrong, right)
    text = re.sub(r"30( +(?:mix|idle%))", r"1\1", text).replace("30  idle~ hb", "28  idle~ hb")
    found = judged(text)
    assert found["d64dv4-0003"] == ("skip", "powering up: checked when it starts")
    assert found["hb60rs-0002"] == ("skip", "powering down: checked when it starts")
    assert found["hb60rs-0030"] == ("skip", "powered down: checked when it starts")
    assert found["hb60rs-0001"][0] == found["d64dv4-0001"][0] == "pass"


def test_a_cloud_node_that_is_up_takes_jobs() -> None:
    """Words of a page around the record do not belong to it."""
    text = recording(f"{FOLDER}scontrol_azure_19.05.txt")
    (record,) = slurm_nodes.split_records(text).values()
    node = slurm_nodes.parse(record)
    assert (node.name, node.states, node.gres) == ("hb60rs-0001", ("MIXED", "CLOUD"), {})
    seen = evidence(
        {node.name: {"slurm-node": record}}, job=PreflightJob(hosts=(node.name,), kind="slurm")
    )
    assert rulings(named("slurm-state"), seen)[node.name].verdict == "pass"
