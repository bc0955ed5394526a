"""Sweeps: what `--array` means, what it refuses and where, and how values get into a job."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterkit.core.errors import UserError
from clusterkit.launch.array.expand import fill, jobs_of
from clusterkit.launch.array.file import read_sweep
from clusterkit.launch.array.spec import MOST, choose, fold_numbers, numbered, parse_spec
from clusterkit.launch.options import JobSpec

KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,8}", fullmatch=True)
WORDS = st.text(st.characters(exclude_characters=",;%=", exclude_categories=["C", "Z"]), min_size=1)
VALUES = WORDS.filter(lambda word: "-" not in word[1:])  # no range


def job(*args: str, **more: object) -> JobSpec:
    return JobSpec(framework="torchrun", script="src/train.py", args=args, **more)


@given(
    axes=st.dictionaries(
        KEYS, st.lists(VALUES, min_size=1, max_size=4, unique=True), min_size=1, max_size=3
    ),
    at_once=st.none() | st.integers(1, 99),
)
def test_a_spec_is_the_product_of_its_keys_in_order(
    axes: dict[str, list[str]], at_once: int | None
) -> None:
    text = ";".join(f"{key}={','.join(values)}" for key, values in axes.items())
    sweep = parse_spec(text + (f"%{at_once}" if at_once else ""))
    product = itertools.product(*axes.values())
    assert [tuple(element.values.values()) for element in sweep.elements] == list(product)
    assert [element.index for element in sweep.elements] == list(range(len(sweep.elements)))
    assert sweep.keys == tuple(axes)
    assert sweep.at_once == at_once


@given(st.integers(-50, 50), st.integers(0, 30), st.integers(1, 7))
def test_ranges_have_both_ends(first: int, more: int, step: int) -> None:
    sweep = parse_spec(f"seed={first}-{first + more}:{step}")
    wanted = [str(number) for number in range(first, first + more + 1, step)]
    assert [element.values["seed"] for element in sweep.elements] == wanted


def test_what_looks_like_a_range_and_is_none() -> None:
    sweep = parse_spec("lr = 1e-3, 1e-4 ; when=2026-11-21 ;n=008-010:2,-1")
    assert [tuple(element.values.values()) for element in sweep.elements] == [
        (lr, "2026-11-21", n) for lr in ("1e-3", "1e-4") for n in ("008", "010", "-1")
    ]


@pytest.mark.parametrize(
    ("text", "column", "said"),
    [
        ("", 1, "is not KEY=VALUES"),
        ("0-9", 1, "is not KEY=VALUES"),
        ("lr=1;0-9", 6, "is not KEY=VALUES"),
        ("a=1;", 5, "is not KEY=VALUES"),
        ("a b=1", 1, "is not KEY=VALUES"),
        ("lr=", 4, "empty value"),
        ("lr=1,,2", 6, "empty value"),
        ("a=1;a=2", 5, "a stands twice"),
        ("a=1,2,1", 7, "a has the value 1 twice"),
        ("a=0-3,2", 7, "a has the value 2 twice"),
        ("a=5-2", 3, "counts down"),
        ("a=1-5:0", 3, "has no step"),
        ("a=1,2%0", 6, "at least 1 job"),
        ("lr=1,2%", 7, "'%' does not say how many"),
        ("lr=1,2%x", 7, "'%x' does not say how many"),
    ],
)
def test_mistakes_in_a_spec_are_shown_at_their_place(text: str, column: int, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_spec(text)
    problem = caught.value.problems[0]
    assert said in problem.message
    assert problem.hint
    assert problem.position is not None
    assert (problem.position.source, problem.position.column) == ("--array", column)


def test_an_array_has_bounds_that_are_known_before_it_is_written_out() -> None:
    assert len(parse_spec(f"seed=1-{MOST}").elements) == MOST
    with pytest.raises(UserError, match=f"describes {10**13} jobs, and an array has at most 1000"):
        parse_spec(f"seed=1-{10**13}")
    with pytest.raises(UserError, match="describes 2000 jobs"):
        parse_spec("a=1-20;b=1-100")


def test_some_elements_can_be_chosen_and_keep_their_numbers() -> None:
    sweep = parse_spec("seed=10-19%3")
    chosen = choose(sweep, "7-8, 0,7")
    assert [(one.index, one.values["seed"]) for one in chosen.elements] == [
        (0, "10"), (7, "17"), (8, "18"),
    ]  # fmt: skip
    assert chosen.at_once == 3
    for wrong in ("10", "3-2", "x", "", "-1"):
        with pytest.raises(UserError, match="they count from 0 to 9"):
            choose(sweep, wrong)
    for spec, hint in (("a=1", "0"), ("a=1,2", "0-1"), ("a=0-3", "0,2-3")):
        with pytest.raises(UserError) as caught:
            choose(parse_spec(spec), "5")
        assert (caught.value.problems[0].hint or "").endswith(f"--elements {hint}")
        assert choose(parse_spec(spec), hint).elements


@given(st.sets(st.integers(0, 60), min_size=1))
def test_numbers_fold_as_they_can_be_chosen(numbers: set[int]) -> None:
    chosen = choose(parse_spec("seed=0-60"), fold_numbers(numbers))
    assert {one.index for one in chosen.elements} == numbers


# Placeholders ----------------------------------------------------------------------------------


def test_values_go_into_arguments_environment_and_name() -> None:
    plain = job("--lr", "{lr}", "--out=r/{lr}-{index}", "{{x}}", env={"S": "s{seed}"}, name="b{lr}")
    jobs = jobs_of(parse_spec("lr=1e-3,2;seed=0,1"), plain)
    assert jobs[1].args == ("--lr", "1e-3", "--out=r/1e-3-1", "{x}")
    assert [one.env["S"] for one in jobs] == ["s0", "s1", "s0", "s1"]
    # Names that would be alike get the number of their element.
    assert [one.name for one in jobs] == ["b1e-3-0", "b1e-3-1", "b2-2", "b2-3"]


def test_names_are_those_of_one_job_where_they_differ() -> None:
    jobs = jobs_of(parse_spec("lr=1,2"), job("{lr}", name="lr{lr}"))
    assert [one.name for one in jobs] == ["lr1", "lr2"]
    assert [one.name for one in jobs_of(parse_spec("lr=1,2"), job("{lr}"))] == [
        "train-0",
        "train-1",
    ]
    assert [one.name for one in jobs_of(parse_spec("lr=1"), job("{lr}"))] == ["train"]


@given(st.dictionaries(KEYS, WORDS, min_size=1), st.text())
def test_filling_is_literal(values: dict[str, str], around: str) -> None:
    escaped = around.replace("{", "{{").replace("}", "}}")
    for key, value in values.items():
        assert fill(f"{escaped}{{{key}}}{escaped}", values) == f"{around}{value}{around}"


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        (("--lr", "{lr}"), "--array gives seed, which the job", "train.py --seed {seed}"),
        ((), "--array gives lr, seed, which", "train.py --lr {lr} --seed {seed}"),
        (
            ("{lr}{sed}",),
            "'{sed}' is not a value of --array, which has lr, seed",
            "did you mean 'seed'",
        ),
        (('{"lr": 1}',), "is not a value of --array", "write it twice"),
        (("{lr", "{seed}"), "'{' is not a value", "write it twice"),
        (("}",), "'}' is not a value", "write it twice"),
    ],
)
def test_places_and_values_have_to_match(args: tuple[str, ...], message: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        jobs_of(parse_spec("lr=1;seed=0"), job(*args))
    problem = caught.value.problems[0]
    assert message in problem.message
    assert hint in (problem.hint or "")


def test_no_key_takes_over_the_number_of_the_job() -> None:
    with pytest.raises(UserError, match="has a key index, which is the number"):
        jobs_of(parse_spec("index=5,6"), job("{index}"))


def test_a_value_that_one_element_lacks_is_named() -> None:
    sweep = numbered([{"lr": "1", "bs": "8"}, {"lr": "2"}], source="runs.yaml")
    with pytest.raises(UserError, match=r"runs\.yaml: element 1 has no value for bs"):
        jobs_of(sweep, job("{lr}", "{bs}"))


# Files -----------------------------------------------------------------------------------------


def read(folder: Path, name: str, text: str) -> list[dict[str, str]]:
    (folder / name).write_text(text)
    return [dict(element.values) for element in read_sweep(name, cwd=folder).elements]


def test_yaml_json_and_csv_say_the_same(tmp_path: Path) -> None:
    rows = [{"lr": "1e-3", "text": "a, b; c"}, {"lr": "0.1", "text": "no"}]
    assert (
        read(tmp_path, "a.yaml", "- {lr: 1e-3, text: 'a, b; c'}\n- lr: 0.1\n  text: no\n") == rows
    )
    assert read(tmp_path, "a.json", json.dumps(rows, indent="\t")) == rows
    assert read(tmp_path, "a.csv", 'lr, text\n1e-3,"a, b; c"\n\n0.1,no\n') == rows
    # A file of that name is one, also where the name looks like a spec.
    assert read(tmp_path, "lr=1", "[{lr: 5}]") == [{"lr": "5"}]


@pytest.mark.parametrize(
    ("name", "text", "line", "said"),
    [
        ("a.yaml", "lr: [1, 2]", None, "is not a list of jobs"),
        ("a.yaml", "[]", None, "lists no jobs"),
        ("a.yaml", "- {lr: 1}\n- 5", 2, "a job is a mapping"),
        ("a.yaml", "- {lr: 1}\n- {}", 2, "a job is a mapping"),
        ("a.yaml", "- {lr: 1}\n- {lr: [1, 2]}", 2, "lr has no single value"),
        ("a.yaml", "- {lr: }", 1, "lr has no single value"),
        ("a.yaml", "- {a b: 1}", 1, "invalid key 'a b'"),
        ("a.yaml", "- {lr: 1, lr: 2}", 1, "lr"),
        ("a.json", "[{]", 1, "this is not valid JSON"),
        ("a.csv", "", None, "lists no jobs"),
        ("a.csv", "lr,bs\n", None, "lists no jobs"),
        ("a.csv", "lr,bs\n1,2\n3\n", 3, "1 values for 2 keys"),
        ("a.csv", "lr,lr\n1,2\n", 1, "lr stands twice"),
        ("a.csv", "lr,1\n1,2\n", 1, "invalid key '1'"),
        ("a.csv", 'lr,bs\n"1,2\n', 2, "invalid CSV"),
    ],
)
def test_mistakes_in_a_file_are_shown_at_their_line(
    tmp_path: Path, name: str, text: str, line: int | None, said: str
) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, name, text)
    problem = caught.value.problems[0]
    assert said in problem.message
    assert line is None or (problem.position is not None and problem.position.line == line)


def test_what_is_neither_a_file_nor_a_spec(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file, and no values of a key") as caught:
        read_sweep("0-9%2", cwd=tmp_path)
    assert "--array 'lr=" in (caught.value.problems[0].hint or "")
    with pytest.raises(UserError, match="a folder, not a file"):
        read_sweep(".", cwd=tmp_path)
    assert len(read_sweep("seed=" + ",".join(map(str, range(900))), cwd=tmp_path).elements) == 900
