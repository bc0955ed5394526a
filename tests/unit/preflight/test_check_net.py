"""What the NET checks conclude from what nodes print, and that their parsers never guess."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterkit.core.findings import Verdict
from clusterkit.preflight.bundle import Bundle
from clusterkit.preflight.checks.base import Check
from clusterkit.preflight.checks.net_evidence import locate
from clusterkit.preflight.evaluate import findings_of
from clusterkit.preflight.network import with_network
from clusterkit.preflight.probes.net import allreduce as allreduce_probe
from clusterkit.preflight.probes.net import links as net_links
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import Output, PreflightJob, Reach, ReachProblem, Unparsed
from tests.helpers.evidence import evidence
from tests.helpers.probe_run import named

NODES = ("a", "b", "c", "d", "e")
PASS, WARN, FAIL, UNKNOWN, SKIP = (
    Verdict.PASS,
    Verdict.WARN,
    Verdict.FAIL,
    Verdict.UNKNOWN,
    Verdict.SKIP,
)
Said = Mapping[str, str | Output]


def links(
    *,
    nodes: tuple[str, ...] = NODES,
    rate: Callable[[str, str], int] = lambda _src, _dst: 1_000_000_000,
    latency: Callable[[str, str], int] = lambda _a, _b: 50,
    reach: Callable[[str, str], str] = lambda _a, _b: "ok",
    port: int = 20000,
    bound: Mapping[str, int] | None = None,
    nic: str = "nic - -",
) -> dict[str, Said]:
    """Return what all nodes would print."""
    said: dict[str, Said] = {}
    for me in nodes:
        lines = [f"ck-net 1 {me} {len(nodes)} 5 1.00", f"port {port} {(bound or {}).get(me, port)}"]
        for k, peer in enumerate(p for p in nodes if p != me):
            us = latency(me, peer) if me < peer else "-"
            status = reach(min(me, peer), max(me, peer))
            figures = f" {us} {rate(peer, me)}" if status == "ok" else ""
            lines.append(f"pair {k} {peer} {status}{figures}")
        if me != nodes[0]:
            lines.append(f"head {reach(me, nodes[0])} 99")
        lines += [f"to {peer} {reach(me, peer)}" for peer in nodes if peer != me]
        said[me] = {"net-links": "\n".join([*lines, nic, "end"]) + "\n"}
    return said


def twice(said: Mapping[str, Said]) -> dict[str, Said]:
    """Return what nodes print that say the same in the second look."""
    return {node: {**texts, "net-links-again": texts["net-links"]} for node, texts in said.items()}


def allreduces(*rounds: tuple[tuple[str, str, str], ...]) -> dict[str, Said]:
    """Return what nodes print of one or two passes, each of (low, high, how it went)."""
    said: dict[str, dict[str, str | Output]] = {}
    for name, pairs in zip(("net-allreduce", "net-allreduce-again"), rounds, strict=False):
        lines: dict[str, list[str]] = {node: [] for node in NODES}
        for low, high, how in pairs:
            lines[low].append(f"pair 0 {high} {how}")
            lines[high].append(f"pair 0 {low} {how}")
        for node in NODES:
            text = "\n".join([f"ck-allreduce 1 {node} 5 gloo 1", *lines[node], "end"]) + "\n"
            said.setdefault(node, {})[name] = text
    return dict(said)


def rulings(
    check: Check, said: Mapping[str, Said], job: PreflightJob | None = None
) -> dict[str | None, tuple[Verdict, str]]:
    """Return the worst verdict and its summary by node; None is the job."""
    found = {}
    for finding in findings_of(check, evidence(said, job=job)):
        for node in finding.nodes or (None,):
            found[node] = (finding.verdict, finding.summary)
    return found


def verdicts(check: Check, said: Mapping[str, Said]) -> dict[str | None, Verdict]:
    return {node: verdict for node, (verdict, _) in rulings(check, said).items()}


def test_an_even_network_passes() -> None:
    for name in ("net-rendezvous", "net-reach", "net-bandwidth", "net-latency"):
        assert verdicts(named(name), links()) == dict.fromkeys(NODES, PASS)


def test_a_slow_node_is_named_with_its_direction() -> None:
    said = links(rate=lambda src, _: 300_000_000 if src == "c" else 1_000_000_000)
    found = rulings(named("net-bandwidth"), twice(said))
    assert found.pop("c") == (FAIL, "bandwidth from c is low with most other nodes")
    assert {verdict for verdict, _ in found.values()} == {PASS}


def test_a_slow_link_is_named() -> None:
    said = links(rate=lambda src, dst: 10**9 * 6 // 10 if {src, dst} == {"b", "d"} else 10**9)
    found = rulings(named("net-bandwidth"), said)
    assert found["b"] == found["d"]
    assert found["b"] == (WARN, "bandwidth between b and d is low, with others it is not")
    assert {found[node][0] for node in "ace"} == {PASS}


def again(node: str, *pairs: str) -> str:
    """Return what a node prints in the second look: words of peer, latency and rate each."""
    lines = [f"pair {k} {peer} ok {rest}" for k, (peer, _, rest) in enumerate(map(_split, pairs))]
    return "\n".join([f"ck-net 1 {node} 5 1 1.00", "port 1 1", *lines, "end"]) + "\n"


def _split(words: str) -> tuple[str, str, str]:
    return words.partition(" ")


def test_one_look_is_not_enough_to_fail() -> None:
    said = links(rate=lambda src, dst: 10**8 if (src, dst) == ("b", "d") else 10**9)
    summary = "bandwidth between b and d is low, with others it is not"
    assert rulings(named("net-bandwidth"), said)["d"] == (WARN, summary)
    for rates, verdict in (
        (("1000000000",), PASS),  # it was noise
        (("90000000",), FAIL),
        (("90000000", "600000000"), WARN),  # the best of some looks counts
        (("90000000", "950000000", "100000000"), PASS),
    ):
        second = again("d", *(f"b - {rate}" for rate in rates))
        found = verdicts(
            named("net-bandwidth"), {**said, "d": {**said["d"], "net-links-again": second}}
        )
        assert found == {**dict.fromkeys(NODES, PASS), "b": verdict, "d": verdict}


def test_a_slow_node_fails_by_the_links_that_were_looked_at_again() -> None:
    """Not all links of a slow node fit into the second look; those that did speak for it."""
    said = links(rate=lambda src, dst: 10**8 if "c" in (src, dst) else 10**9)
    assert rulings(named("net-bandwidth"), said)["c"][0] is WARN
    low = {"c": again("c", "a - 90000000", "b - 90000000"), "a": again("a", "c - 90000000")}
    sick = {
        n: {**texts, "net-links-again": low[n]} if n in low else texts for n, texts in said.items()
    }
    found = rulings(named("net-bandwidth"), sick)
    assert found.pop("c") == (FAIL, "bandwidth of c is low with most other nodes")
    assert {verdict for verdict, _ in found.values()} == {PASS}
    # It was busy in the first look, and is not any more.
    fine = {node: text.replace("90000000", "1000000000") for node, text in low.items()}
    well = {n: {**t, "net-links-again": fine[n]} if n in fine else t for n, t in said.items()}
    assert FAIL not in verdicts(named("net-bandwidth"), well).values()


def test_a_second_look_that_did_not_come_to_its_end_fails_nobody() -> None:
    said = links(rate=lambda src, dst: 10**8 if "c" in (src, dst) else 10**9)
    cut = Output(stdout="ck-net 1 c 5 1 1.00\nport 1 1\n", exit_code=137)
    said = {node: {**texts, "net-links-again": cut} for node, texts in said.items()}
    assert set(verdicts(named("net-bandwidth"), said).values()) == {PASS, WARN}


def test_links_far_below_the_interface_warn_about_the_job() -> None:
    said = links(nic="nic eth0 25000")
    assert rulings(named("net-bandwidth"), said)[None][0] is WARN
    assert None not in rulings(named("net-bandwidth"), links(nic="nic eth0 10000"))
    # One stream of Python does not fill it, so nothing is said.
    assert None not in rulings(named("net-bandwidth"), links(nic="nic ib0 400000"))


def test_a_far_node_warns() -> None:
    said = links(latency=lambda a, b: 5000 if "e" in (a, b) else 50)
    found = verdicts(named("net-latency"), said)
    assert found == {"e": WARN, **dict.fromkeys("abcd", PASS)}
    # Busy in the first look only.
    near = {me: again(me, "e 60 -") for me in "abcd"}
    said = {n: {**t, "net-links-again": near[n]} if n in near else t for n, t in said.items()}
    assert verdicts(named("net-latency"), said) == dict.fromkeys(NODES, PASS)


def test_a_node_that_nobody_reaches_is_named() -> None:
    said = links(reach=lambda a, b: "timeout" if "d" in (a, b) else "ok")
    found = rulings(named("net-reach"), said)
    assert found.pop("d") == (FAIL, "most other nodes and d do not connect")
    assert {verdict for verdict, _ in found.values()} == {PASS}


def test_a_closed_cluster_is_told_as_one() -> None:
    found = rulings(named("net-reach"), links(reach=lambda _a, _b: "timeout"))
    assert set(found.values()) == {(FAIL, "no two nodes of the job connect with each other")}


def test_a_node_that_went_away_is_named_and_one_without_python_is_unknown() -> None:
    said = links(reach=lambda a, b: "closed" if {"b", "d"} & {a, b} else "ok")
    said["b"] = {"net-links": Output(stdout="ck-net 1 b 5 5 1.00\nport 1 1\n", exit_code=137)}
    said["d"] = {"net-links": Output(stdout="no Python of 3.6 or newer\n", exit_code=127)}
    found = verdicts(named("net-reach"), said)
    assert found == {"b": FAIL, "d": UNKNOWN, **dict.fromkeys("ace", PASS)}


@pytest.mark.parametrize(
    ("status", "summary"),
    [
        ("timeout", "cannot reach the rendezvous port 20000 of a"),
        ("refused", "cannot reach the rendezvous port 20000 of a"),
        ("unreachable", "cannot reach the rendezvous port 20000 of a"),
        ("name", "a does not resolve"),
        ("wrong:c", "a resolves to c"),
    ],
)
def test_who_cannot_come_to_the_head(status: str, summary: str) -> None:
    said = links(reach=lambda me, _: status if me == "d" else "ok")
    found = rulings(named("net-rendezvous"), said)
    assert found.pop("d") == (FAIL, summary)
    assert {verdict for verdict, _ in found.values()} == {PASS}


def test_where_nobody_can_come_the_head_is_named() -> None:
    said = links(reach=lambda _me, peer: "timeout" if peer == "a" else "ok")
    found = verdicts(named("net-rendezvous"), said)
    assert found == {"a": FAIL, **dict.fromkeys("bcde", UNKNOWN)}


def test_of_two_nodes_either_may_be_to_blame() -> None:
    said = links(nodes=("a", "b"), reach=lambda _a, _b: "timeout")
    assert verdicts(named("net-rendezvous"), said) == {"a": FAIL, "b": FAIL}


def test_a_taken_port_is_told_and_the_next_one_counts() -> None:
    said = links(bound={"a": 20001})
    job = PreflightJob(hosts=NODES, port=20000)
    found = rulings(named("net-rendezvous"), said, job)
    assert found.pop("a") == (WARN, "port 20000, the first of `port_range`, is in use")
    assert set(found.values()) == {(PASS, "reaches the rendezvous port 20001 of a")}
    # Without a range of the job's own it matters to nobody.
    assert verdicts(named("net-rendezvous"), said) == dict.fromkeys(NODES, PASS)
    shut = links(bound={"a": 20001}, reach=lambda a, b: "refused" if "a" in (a, b) else "ok")
    assert verdicts(named("net-rendezvous"), shut) == {"a": FAIL, **dict.fromkeys("bcde", UNKNOWN)}


GOOD = "ok 16777216 0.020000 cpu"


def test_a_bad_node_is_told_from_its_partner() -> None:
    said = allreduces(
        (("a", "b", "failed RuntimeError: no route"), ("c", "d", GOOD)),
        (("a", "c", "hung"), ("b", "d", GOOD), ("c", "e", GOOD)),
    )
    found = verdicts(named("net-allreduce"), said)
    assert found == {"a": FAIL, **dict.fromkeys("bcde", PASS)}


def test_a_pair_that_fails_only_with_each_other_is_a_link() -> None:
    said = allreduces(
        (("a", "b", "hung"), ("c", "d", GOOD)),
        (("a", "c", GOOD), ("b", "d", GOOD), ("c", "e", GOOD)),
    )
    found = rulings(named("net-allreduce"), said)
    assert found["a"] == found["b"] == (FAIL, "an all-reduce between a and b fails")
    assert {found[node][0] for node in "cde"} == {PASS}


SLOW = "ok 16777216 0.090000 cpu"


@pytest.mark.parametrize(
    ("again", "expected"),
    [
        # It is slow with its old partner, and with a good node too.
        ((("a", "b", SLOW), ("a", "c", SLOW), ("b", "d", GOOD)), {"a": FAIL}),
        # Only with each other.
        ((("a", "b", SLOW), ("a", "c", GOOD), ("b", "d", GOOD)), {"a": FAIL, "b": FAIL}),
        # It was noise.
        ((("a", "b", GOOD), ("a", "c", GOOD), ("b", "d", GOOD)), {}),
        # They did not meet again, so that there is one look only.
        ((("a", "c", GOOD), ("b", "d", GOOD)), {"a": WARN, "b": WARN}),
        # Nor here, but one of them is slow with another node as well.
        ((("a", "c", SLOW), ("b", "d", GOOD)), {"a": FAIL}),
        # Each time someone else was busy.
        ((("a", "b", GOOD), ("a", "c", SLOW), ("b", "d", GOOD)), {"a": WARN, "c": WARN}),
        # Who had no partner in the first pass was looked at once.
        (
            (("a", "b", GOOD), ("a", "c", GOOD), ("b", "d", GOOD), ("d", "e", SLOW)),
            {"d": WARN, "e": WARN},
        ),
    ],
    ids=["node", "link", "noise", "one look", "not with each other", "two noises", "untried"],
)
def test_a_slow_all_reduce_is_named(
    again: tuple[tuple[str, str, str], ...], expected: dict[str, Verdict]
) -> None:
    first = (("a", "b", SLOW), ("c", "d", GOOD))
    found = verdicts(named("net-busbw"), allreduces(first, (*again, ("c", "e", GOOD))))
    assert found == {**dict.fromkeys(NODES, PASS), **expected}


def test_a_partner_that_a_node_made_up_gets_no_verdict() -> None:
    said = allreduces((("a", "b", GOOD), ("c", "d", GOOD)))
    lie = f"pair 0 zz {SLOW}\nend\n"
    said["a"] = {"net-allreduce": str(said["a"]["net-allreduce"]).replace("end\n", lie)}
    assert verdicts(named("net-busbw"), said) == dict.fromkeys("abcd", PASS)


def test_published_figures_only_warn() -> None:
    gpu = "ok 1073741824 0.010000 NVIDIA_H100_80GB_HBM3"
    said = {
        me: {"net-allreduce": f"ck-allreduce 1 {me} 2 nccl 8\npair 0 {peer} {gpu}\nend\n"}
        for me, peer in (("a", "b"), ("b", "a"))
    }
    found = rulings(named("net-busbw"), said)
    assert found[None] == (WARN, "all-reduces are slower than published for these GPUs")
    assert found["a"][0] is PASS


def test_without_torch_nothing_is_said() -> None:
    none = Output(stdout="torch cannot be imported: No module named 'torch'\n", exit_code=77)
    said = {node: {"net-allreduce": none} for node in NODES}
    for name in ("net-allreduce", "net-busbw"):
        assert verdicts(named(name), said) == dict.fromkeys(NODES, SKIP)


@given(st.integers(4, 12), st.data())
def test_blame_explains_every_bad_pair_and_spares_the_good(count: int, data: st.DataObject) -> None:
    nodes = [f"n{k:02}" for k in range(count)]
    measured = list(combinations(nodes, 2))
    culprits = set(data.draw(st.lists(st.sampled_from(nodes), unique=True, max_size=count // 3)))
    bad = [pair for pair in measured if culprits & set(pair)]
    found = locate(bad, measured)
    assert set(found.nodes) == culprits
    assert found.links == ()


class NobodyAsked:
    """A transport that must not be used."""

    def ask(self, *_: object, **__: object) -> tuple[Reply, ...]:
        raise AssertionError("asked")


@pytest.mark.parametrize("kind", ["local", "ssh"])
def test_without_two_nodes_of_their_own_there_is_no_network(kind: str) -> None:
    gone = Reach(problem=ReachProblem.TIMEOUT)
    second = Reach() if kind == "local" else gone
    bundle = Bundle(
        job=PreflightJob(hosts=("a", "b"), kind=kind),
        replies=(Reply(node="a", reach=Reach()), Reply(node="b", reach=second)),
        collected_at=0.0,
        seconds=1.0,
    )
    checks = (named("net-reach"), named("net-allreduce"))
    done = with_network(bundle, NobodyAsked(), checks)
    outputs = done.replies[0].outputs
    assert {name: output.exit_code for name, output in outputs.items()} == {
        "net-links": 77,
        "net-allreduce": 77,
    }
    assert done.replies[1].outputs == (outputs if kind == "local" else {})
    assert with_network(bundle, NobodyAsked(), ()).replies == bundle.replies


@pytest.mark.parametrize("name", ["net-reach", "net-bandwidth", "net-latency", "net-rendezvous"])
def test_no_more_nodes_are_measured_than_the_job_wants(name: str) -> None:
    """The others were asked before them, and nothing is held against them."""

    class Two:
        def ask(self, nodes: Sequence[str], *_: object, **__: object) -> tuple[Reply, ...]:
            texts = {n: str(said["net-links"]) for n, said in links(nodes=tuple(nodes)).items()}
            assert len(nodes) == 2
            return tuple(
                Reply(node=n, reach=Reach(), outputs={"net-links": Output(stdout=texts[n])})
                for n in nodes
            )

    bundle = Bundle(
        job=PreflightJob(hosts=NODES, kind="slurm"),
        replies=tuple(Reply(node=node, reach=Reach(via="srun")) for node in NODES),
        collected_at=0.0,
        seconds=1.0,
    )
    done = with_network(bundle, Two(), (named(name),), most=2)
    said = {reply.node: reply.outputs for reply in done.replies}
    found = verdicts(named(name), said)
    assert {node: found[node] for node in NODES[2:]} == dict.fromkeys(NODES[2:], SKIP)
    assert FAIL not in found.values()
    assert UNKNOWN not in found.values()


TEXTS = (
    str(links(reach=lambda a, b: "wrong:x" if "d" in (a, b) else "ok")["b"]["net-links"]),
    str(links(nic="nic eth0 10000")["a"]["net-links"]),
    str(
        allreduces((("a", "b", GOOD), ("a", "c", "failed x y"), ("a", "d", "hung")))["a"][
            "net-allreduce"
        ]
    ),
)


@pytest.mark.parametrize("text", TEXTS)
def test_cut_off_output_is_unparsed(text: str) -> None:
    for end in range(len(text) - 4):
        for parse in (net_links.parse, allreduce_probe.parse):
            with pytest.raises(Unparsed):
                parse(text[:end])
