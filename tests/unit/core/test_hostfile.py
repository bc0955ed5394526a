"""Hostfiles: what is read, warned about, refused, written; against the tools' own parsers."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterkit.core.errors import UserError
from clusterkit.core.hosts.hostfile import Format, HostFile
from clusterkit.core.hosts.hostfile_reader import parse
from clusterkit.core.hosts.hostfile_writer import write
from clusterkit.core.hosts.slots import filter_hosts, filter_slots, hosts_of_allocation
from clusterkit.core.model import Host
from tests.helpers.needs import module
from tests.helpers.paths import ROOT

ORACLES = json.loads((ROOT / "tests" / "oracles" / "hostfiles.json").read_text("utf-8"))
FILTER = ORACLES["deepspeed_filter"]


def host(name: str, slots: int | None = None, **rest: Any) -> Host:
    return Host(name=name, slots=slots, **rest)


def shown(hosts: tuple[Host, ...]) -> str:
    """Hosts as the oracle tables have them: `user@name:slots<max_slots#port`."""
    return " ".join(
        (f"{h.user}@" if h.user else "")
        + h.name
        + (f":{h.slots}" if h.slots is not None else "")
        + (f"<{h.max_slots}" if h.max_slots is not None else "")
        + (f"#{h.port}" if h.port is not None else "")
        for h in hosts
    )


@pytest.fixture(scope="module")
def deepspeed_runner() -> Any:
    return module("deepspeed.launcher.runner")


@pytest.fixture(scope="module")
def horovod_hosts() -> Any:
    return module("horovod.runner.common.util.hosts")


# Reading


@pytest.mark.parametrize(("text", "format_", "hosts", "warnings"), ORACLES["detected"]["cases"])
def test_the_format_is_detected(text: str, format_: str, hosts: str, warnings: int) -> None:
    found = parse(text)
    assert (found.format, shown(found.hosts), len(found.warnings)) == (format_, hosts, warnings)


@pytest.mark.parametrize(("text", "format_", "hosts", "warnings"), ORACLES["told"]["cases"])
def test_the_format_may_be_told(text: str, format_: str, hosts: str, warnings: int) -> None:
    found = parse(text, format=format_)
    assert (found.format, shown(found.hosts), len(found.warnings)) == (format_, hosts, warnings)


@pytest.mark.parametrize(("text", "places"), ORACLES["refused"]["cases"])
def test_every_problem_is_reported_with_its_place(text: str, places: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        parse(text, source="f")
    positions = [problem.position for problem in caught.value.problems]
    assert all(position is not None and position.source == "f" for position in positions)
    assert [f"{p.line}:{p.column}" if p and p.line else "" for p in positions] == places


@pytest.mark.parametrize(("text", "hosts"), ORACLES["deepspeed_hostfile"]["accepted"])
def test_deepspeeds_good_hostfiles(text: str, hosts: dict[str, int]) -> None:
    found = parse(text)
    assert found == HostFile(
        hosts=tuple(host(name, slots) for name, slots in hosts.items()), format=Format.DEEPSPEED
    )


@pytest.mark.parametrize("text", ORACLES["deepspeed_hostfile"]["refused"])
def test_deepspeeds_bad_hostfiles(text: str) -> None:
    with pytest.raises(UserError):
        parse(text, format="deepspeed")


def test_horovods_hostfile() -> None:
    oracle = ORACLES["horovod_hostfile"]
    assert parse(oracle["text"], format="horovod").hosts == parse(oracle["hosts"]).hosts


def test_an_error_shows_line_caret_and_hint() -> None:
    with pytest.raises(UserError) as caught:
        parse("h1 slots=4\nh1 slots=2\n", source="rack")
    assert str(caught.value) == (
        "host 'h1' stands twice, first on line 1\n"
        "  --> rack:2:1\n"
        "2 | h1 slots=2\n"
        "  | ^\n"
        "hint: name it once, with all its slots: 'h1 slots=N'"
    )


def test_a_warning_says_what_the_tool_does_and_counts_its_places() -> None:
    (warning,) = parse("h1:4\nh2:4\nh3:4\n", source="rack", format="openmpi").warnings
    assert str(warning) == (
        "Open MPI takes 'host:N' in -host; in a hostfile it is a host of that name, silently "
        "(and on 2 more lines)\n"
        "  --> rack:1:3\n"
        "1 | h1:4\n"
        "  |   ^\n"
        "hint: write 'host slots=N'"
    )


def test_an_unknown_format_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match="did you mean 'deepspeed'"):
        parse("h1", format="deepsped")
    with pytest.raises(UserError, match="did you mean 'hydra'"):
        write([host("h1", 1)], "hidra")


# Writing


@pytest.mark.parametrize(
    ("format_", "text"),
    [
        ("deepspeed", "n1 slots=8\nn2 slots=4\n"),
        ("horovod", "n1 slots=8\nn2 slots=4\n"),
        ("openmpi", "n1 slots=8\nn2 slots=4\n"),
        ("hydra", "n1:8\nn2:4\n"),
    ],
)
def test_formats_with_slots(format_: str, text: str) -> None:
    assert write([host("n1", 8), host("n2", 4)], format_) == text
    assert write([host("n1", 8), host("n2")], format_, default_slots=4) == text


def test_formats_without_slots() -> None:
    hosts = [host(f"n{i}") for i in (9, 10, 2)]
    assert write(hosts, "hostlist") == "n[9-10,2]\n"
    assert write(hosts, "names", default_slots=8) == "n9\nn10\nn2\n"


def test_open_mpi_says_everything() -> None:
    everything = host("n1", 4, max_slots=8, user="bob", port=2222)
    assert write([everything, host("n2")], "openmpi") == (
        "n1 slots=4 max_slots=8 username=bob port=2222\nn2\n"
    )


@pytest.mark.parametrize(
    ("hosts", "format_", "message"),
    [
        ([], "names", "no hosts"),
        ([host("n1", 1), host("n1", 1)], "openmpi", "'n1' stands twice"),
        ([host("n1", 0)], "deepspeed", "n1 has 0 slots"),
        ([host("n 1", 1)], "deepspeed", "'n 1' is not a host name"),
        ([host("-n", 1)], "names", "'-n' is not a host name"),
        ([host("n1"), host("n2")], "deepspeed", r"slots, and they are unknown: n\[1-2\]"),
        ([host("n1")], "horovod", "--slots N"),
        ([host("n1")], "hydra", "unknown"),
        ([host("n1", 8), host("n2", 8)], "hostlist", r"slots: n\[1-2\]\nhint: say --slots 8"),
        ([host("n1", 8), host("n2", 4)], "names", "cannot say slots"),
        ([host("n1", 4, max_slots=8)], "deepspeed", "DeepSpeed cannot say max_slots: n1"),
        ([host("n1", 4, max_slots=8)], "hydra", "cannot say max_slots"),
        ([host("n1", 4, max_slots=2)], "openmpi", "max_slots is less than slots: n1"),
        ([host("n1", max_slots=2)], "openmpi", "takes max_slots for slots"),
        ([host("n1", 4, user="bob")], "horovod", "Horovod cannot say user: n1"),
        ([host("n1", 4, user="b.c")], "openmpi", "cannot take this user name: n1"),
        ([host("n1", 4, user="port")], "openmpi", "cannot take this user name: n1"),
        ([host("n1", 4, port=22)], "deepspeed", "DeepSpeed cannot say port: n1"),
        ([host("n1", 4, port=22)], "hydra", "cannot say port"),
        ([host("fe80::1", 4)], "horovod", "cannot name a host 'fe80::1'"),
        ([host("fe80::1", 4)], "hydra", "cannot name a host 'fe80::1'"),
        ([host("fe80::1")], "hostlist", "cannot name a host 'fe80::1'"),
        ([host("slots", 4)], "openmpi", "cannot name a host 'slots'"),
        ([host("n1.a", 4), host("n1.b", 4)], "openmpi", r"takes for one machine: n1.a,n1.b"),
        ([host("007", 4)], "openmpi", "cannot name a host '007'"),
    ],
)
def test_what_a_format_cannot_say_is_named(hosts: list[Host], format_: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        write(hosts, format_)


def test_addresses_are_no_names_with_domains() -> None:
    text = "10.0.0.1 slots=1\n10.0.0.2 slots=1\n"
    assert write([host("10.0.0.1", 1), host("10.0.0.2", 1)], "openmpi") == text


def test_all_that_cannot_be_said_is_named_at_once() -> None:
    with pytest.raises(UserError) as caught:
        write([host("n1", 4, max_slots=8, user="bob", port=1), host("n2")], "deepspeed")
    assert len(caught.value.problems) == 4


def test_equal_slots_may_be_left_to_the_reader() -> None:
    assert write([host("n1", 8), host("n2", 8)], "hostlist", default_slots=8) == "n[1-2]\n"
    with pytest.raises(UserError, match="cannot say slots: n2"):
        write([host("n1", 8), host("n2", 4)], "hostlist", default_slots=8)


@pytest.mark.parametrize("slots", [0, -1, 65_537])
def test_default_slots_are_checked(slots: int) -> None:
    with pytest.raises(UserError, match="1 to 65536"):
        write([host("n1")], "deepspeed", default_slots=slots)


# Round trips

host_names = st.from_regex(r"[a-z0-9]{1,3}[0-9]{0,3}(-ib)?(\.[a-z]{2})?", fullmatch=True).filter(
    lambda name: name != "cpu"  # a key to Open MPI, and refused by its writer
)
user_names = st.sampled_from(["bob", "train_1", "a.b", "port"])
slot_counts = st.none() | st.integers(1, 16)
any_hosts = st.lists(
    st.builds(
        lambda name, slots, more, user, port: Host(
            name=name,
            slots=slots,
            max_slots=None if slots is None or more is None else slots + more,
            user=user,
            port=port,
        ),
        host_names | st.sampled_from(["fe80::1", "10.0.0.1", "slots"]),
        slot_counts,
        st.none() | st.integers(0, 8),
        st.none() | user_names,
        st.none() | st.integers(1, 65_535),
    ),
    min_size=1,
    max_size=5,
)
plain_hosts = st.lists(
    st.builds(Host, name=host_names, slots=st.integers(1, 16)), min_size=1, max_size=6
)
bare_hosts = st.lists(st.builds(Host, name=host_names), min_size=1, max_size=6)


@given(any_hosts | plain_hosts | bare_hosts, st.sampled_from(Format))
def test_writing_is_lossless_or_refused(hosts: list[Host], target: Format) -> None:
    try:
        text = write(hosts, target)
    except UserError:
        return
    told = parse(text, format=target)
    assert (told.hosts, told.warnings) == (tuple(hosts), ())
    detected = parse(text)
    assert (detected.hosts, detected.warnings) == (tuple(hosts), ())


PAIRS = list(itertools.permutations(Format, 2))


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])
@settings(max_examples=30)
@given(hosts=any_hosts | plain_hosts | bare_hosts)
def test_converting_there_and_back_is_lossless_or_refused(
    one: Format, other: Format, hosts: list[Host]
) -> None:
    try:
        first = write(hosts, one)
        second = write(parse(first).hosts, other)
        back = write(parse(second).hosts, one)
    except UserError:
        return
    assert back == first


@given(plain_hosts)
def test_slots_survive_every_format_that_has_them(hosts: list[Host]) -> None:
    # Open MPI strips domains and leading zeros.
    shorts = {item.name.partition(".")[0]: item for item in hosts if not item.name.isdigit()}
    hosts = list(shorts.values())
    if not hosts:
        return
    for target in Format:
        if target.says("slots"):
            assert parse(write(hosts, target)).hosts == tuple(hosts)


scraps = st.sampled_from("\n\r\t\ufeff ,:=#@[]^0h") | st.sampled_from(
    ["n1", "n[1-3]", "//", "/*", "*/", "slots=4", "max_slots=9", "user=bob", "port=22", "cpu="]
)


@given(
    st.text() | st.lists(scraps, max_size=12).map("".join),
    st.none() | st.sampled_from(Format),
)
def test_parse_raises_nothing_but_user_errors(text: str, told: Format | None) -> None:
    try:
        found = parse(text, format=told)
    except UserError:
        return
    assert found.hosts
    assert len({item.name for item in found.hosts}) == len(found.hosts)


@given(st.text(max_size=30), st.text(max_size=30) | st.none())
def test_filters_raise_nothing_but_user_errors(include: str, exclude: str | None) -> None:
    try:
        left = filter_slots({"w0": (0, 1), "fe80::1": (0,)}, include, exclude)
    except UserError:
        return
    assert left.keys() <= {"w0", "fe80::1"}


# The tools' own parsers


@given(hosts=plain_hosts)
def test_deepspeed_reads_what_we_write(deepspeed_runner: Any, hosts: list[Host]) -> None:
    hosts = list({item.name: item for item in hosts}.values())
    text = write(hosts, "deepspeed")
    assert deepspeed_runner._parse_hostfile(text.splitlines(keepends=True)) == {
        item.name: item.slots for item in hosts
    }


@given(hosts=plain_hosts)
def test_horovod_reads_what_we_write(
    horovod_hosts: Any, hosts: list[Host], tmp_path_factory: pytest.TempPathFactory
) -> None:
    hosts = list({item.name: item for item in hosts}.values())
    path = tmp_path_factory.getbasetemp() / "hostfile"
    path.write_text(write(hosts, "horovod"))
    names, slots = horovod_hosts.parse_hosts_and_slots(horovod_hosts.parse_host_files(str(path)))
    assert names == [item.name for item in hosts]
    assert slots == {item.name: item.slots for item in hosts}


filters = st.lists(
    st.builds(
        lambda name, slots: f"{name}:{','.join(map(str, slots))}" if slots else name,
        st.sampled_from(["w0", "w1", "w2", "jeff"]),
        st.lists(st.integers(0, 4), max_size=3),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda spec: spec.partition(":")[0],
).map("@".join)


@given(text=filters, included=st.booleans())
def test_deepspeed_filters_alike(deepspeed_runner: Any, text: str, included: bool) -> None:
    pool = {"w0": (0, 1, 2, 3), "w1": (0, 1), "w2": (0,)}
    flags = {"include": text} if included else {"exclude": text}
    theirs = {f"{flag}_str": value for flag, value in flags.items()}
    try:
        expected = deepspeed_runner.parse_resource_filter(
            {name: list(slots) for name, slots in pool.items()}, **theirs
        )
    except ValueError:
        with pytest.raises(UserError):
            filter_slots(pool, **flags)
        return
    left = filter_slots(pool, **flags)
    assert list(left.items()) == [(name, tuple(slots)) for name, slots in expected.items()]


# Filters, allocations


def pool_named(name: str) -> dict[str, tuple[int, ...]]:
    return {key: tuple(slots) for key, slots in FILTER[name].items()}


@pytest.mark.parametrize(("pool", "include", "exclude", "expected"), FILTER["accepted"])
def test_filter_slots(
    pool: str, include: str | None, exclude: str | None, expected: dict[str, list[int]]
) -> None:
    left = filter_slots(pool_named(pool), include, exclude)
    assert list(left.items()) == [(name, tuple(slots)) for name, slots in expected.items()]


@pytest.mark.parametrize(("pool", "include", "exclude"), FILTER["refused"])
def test_bad_filters(pool: str, include: str | None, exclude: str | None) -> None:
    with pytest.raises(UserError):
        filter_slots(pool_named(pool), include, exclude)


def test_a_host_named_alone_means_all_its_slots() -> None:
    """DeepSpeed's issue 6671: there `--include w1` left nothing."""
    pool = {"w0": (0, 1), "w1": (0, 1, 2)}
    assert filter_slots(pool, include="w1") == {"w1": (0, 1, 2)}
    assert filter_slots(pool, include="w1@w1:0") == {"w1": (0, 1, 2)}


def test_filtered_hosts_keep_what_they_are() -> None:
    hosts = [host("a", 4, user="bob"), host("b", 4), host("c")]
    assert filter_hosts(hosts) == (tuple(hosts), ())
    left, warnings = filter_hosts(hosts, exclude="b:3@c")
    assert (shown(left), warnings) == ("bob@a:4 b:3", ())
    left, (warning,) = filter_hosts(hosts, include="b:0,2@c")
    assert shown(left) == "b:2 c"
    assert "CUDA_VISIBLE_DEVICES=0,2 on b" in str(warning)


def test_a_filter_needs_known_slots_only_where_it_names_them() -> None:
    with pytest.raises(UserError, match="slots of host 'c' are unknown"):
        filter_hosts([host("c")], include="c:0")
    with pytest.raises(UserError, match="leaves no host"):
        filter_hosts([host("c")], exclude="c")


def test_a_filter_reports_every_mistake_with_its_column() -> None:
    with pytest.raises(UserError) as caught:
        filter_slots({"w0": (0, 1)}, include="w00@w0:2,x@w0:0")
    columns = [problem.position and problem.position.column for problem in caught.value.problems]
    assert columns == [1, 5, 5]
    assert "did you mean 'w0'?" in str(caught.value)
    assert "it has 0,1" in str(caught.value)


def test_ipv6_hosts_can_be_filtered() -> None:
    pool = {"fe80::1": (0, 1)}
    assert filter_slots(pool, include="fe80::1") == pool
    assert filter_slots(pool, include="fe80::1:1") == {"fe80::1": (1,)}


@pytest.mark.parametrize(
    ("environment", "slots", "expected"),
    [
        ({}, None, None),
        ({"SLURM_JOB_NODELIST": " "}, None, None),
        ({"SLURM_JOB_NODELIST": "n[7,66,8]"}, None, "n7 n66 n8"),
        ({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "8(x2)"}, None, "n1:8 n2:8"),
        ({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "8,4"}, None, "n1:8 n2:4"),
        ({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "8"}, 4, "n1:4 n2:4"),
        (
            {
                "SLURM_JOB_NODELIST": "n[1-2]",
                "SLURM_TASKS_PER_NODE": "1(x2)",
                "SLURM_GPUS_ON_NODE": "8",
            },
            None,
            "n1:8 n2:8",
        ),
        ({"SLURM_JOB_NODELIST": "n1", "SLURM_GPUS_PER_NODE": "a100:4"}, None, "n1:4"),
        ({"SLURM_NODELIST": "n1", "SLURM_TASKS_PER_NODE": "2"}, None, "n1:2"),
    ],
)
def test_the_hosts_of_an_allocation(
    environment: dict[str, str], slots: int | None, expected: str | None
) -> None:
    hosts = hosts_of_allocation(environment, slots)
    assert (None if hosts is None else shown(hosts)) == expected


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"SLURM_JOB_NODELIST": "n[2-1]"}, "runs backwards"),
        ({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "8"}, "about 1 nodes"),
        ({"SLURM_JOB_NODELIST": "n1", "SLURM_GPUS_ON_NODE": "many"}, "not a number of GPUs"),
        (
            {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_GPUS_ON_NODE": "8", "SLURM_GPUS": "12"},
            "not evenly spread",
        ),
    ],
)
def test_an_allocation_that_makes_no_sense(environment: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        hosts_of_allocation(environment)


@pytest.mark.parametrize("format_", list(Format))
def test_the_samples_read_as_what_they_are_called(format_: Format) -> None:
    text = (ROOT / "hostfiles" / format_).read_text("utf-8")
    found = parse(text, format=format_)
    assert found.warnings == ()
    assert parse(text).hosts == found.hosts
    assert {item.slots for item in found.hosts} <= {8, 4, None}
