"""The one script of a node, run by real shells, and the frames that come back."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterkit.core.findings import Verdict
from clusterkit.transport.probe import Missing, Output, PreflightJob, Probe, Unparsed, read_output
from clusterkit.transport.script import Answer, Compound, compose
from tests.helpers.answers import read_answer
from tests.helpers.needs import require

JOB = PreflightJob(hosts=("n1",))


def strict(text: str) -> str:
    if text != "fine\n":
        raise Unparsed(f"not fine: {text!r}")
    return text.strip()


def probe(name: str, command: str, **more: object) -> Probe[str]:
    return Probe(name=name, command=command, parse=str, **more)


def run(*probes: Probe[str], shell: str = "sh", before: str = "") -> Answer:
    compound = compose(probes, JOB, token="ckt0ken")
    done = subprocess.run(
        shell.split(),
        input=before + compound.script,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stderr == ""
    answer = read_answer("Welcome!\nno end" + done.stdout, compound)
    assert answer is not None
    return answer


@pytest.mark.parametrize("shell", ["sh", "dash", "bash", "busybox sh"])
def test_each_probe_comes_back_with_its_streams_and_code(shell: str) -> None:
    require(shell.split(maxsplit=1)[0])
    answer = run(
        probe("both", "echo out; echo err >&2; exit 3"),
        probe("skipped", "echo no such part; exit 77"),
        probe("unended", "printf 'no line end'"),
        probe("quoted", "echo \"it's\" '$HOME' `echo x` \\\\"),
        probe("greedy", "cat"),  # must not eat the script
        shell=shell,
    )
    assert answer.complete
    assert answer.clock is not None
    outputs = answer.outputs
    assert (outputs["both"].stdout, outputs["both"].stderr) == ("out\n", "err\n")
    assert outputs["both"].exit_code == 3
    assert outputs["skipped"].exit_code == 77
    assert outputs["unended"].stdout == "no line end\n"
    assert outputs["quoted"].stdout == "it's $HOME x \\\n"
    assert outputs["greedy"].stdout == ""


def test_a_probe_that_hangs_costs_its_own_time_only() -> None:
    answer = run(probe("slow", "sleep 300", timeout_s=1), probe("quick", "echo hello"))
    assert answer.outputs["slow"].exit_code == 124
    assert answer.outputs["quick"].stdout == "hello\n"
    assert answer.complete


def test_a_probe_that_ignores_its_end_is_killed() -> None:
    answer = run(probe("deaf", "trap '' TERM; sleep 300", timeout_s=1))
    assert answer.outputs["deaf"].exit_code in {124, 137}


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox sh"])
@pytest.mark.parametrize("how", ["client-gone", "interrupt"])
def test_a_script_that_nobody_waits_for_ends_its_probes(
    shell: str, how: str, tmp_path: Path
) -> None:
    """Those that left its process group, too, and those of its lane do not begin."""
    require(shell.split(maxsplit=1)[0])
    sleeper = f"echo $$ >{tmp_path}/pid; exec /usr/bin/setsid --wait sleep 98"
    probes = (probe("slow", sleeper, lane="x"), probe("next", f"touch {tmp_path}/next", lane="x"))
    # Its own: a script ends all probes of its run on this machine, and tests run side by side.
    token = f"ckgone{shell.split(maxsplit=1)[0]}{how.replace('-', '')}"
    compound = compose(probes, JOB, token=token)
    process = subprocess.Popen(
        shell.split(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin:
        process.stdin.write(compound.script.encode())
    while not (tmp_path / "pid").exists():
        time.sleep(0.02)
    if how == "client-gone":
        process.stdout.close()
    else:
        os.kill(process.pid, signal.SIGINT)
        process.stdout.read()  # ends: nobody holds it any more
    assert process.wait(timeout=60) == 130
    assert not _lives((tmp_path / "pid").read_text().strip())
    assert not (tmp_path / "next").exists()


def _lives(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


def test_probes_of_one_lane_take_turns_and_others_run_beside_them(tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    compound = compose(
        [
            probe(
                "one",
                f"date +%s.%N; until [ -e {beside} ]; do sleep 0.1; done; date +%s.%N",
                lane="gpu",
            ),
            probe("two", "date +%s.%N", lane="gpu"),
            probe("free", f"date +%s.%N; touch {beside}"),
        ],
        JOB,
        token="ckt0ken",
    )
    done = subprocess.run(
        ["sh"], input=compound.script, capture_output=True, text=True, timeout=30, check=True
    )
    found = read_answer(done.stdout, compound)
    assert found is not None
    outputs = found.outputs
    times = {name: [float(t) for t in output.stdout.split()] for name, output in outputs.items()}
    assert times["two"][0] >= times["one"][1]
    assert times["free"][0] < times["one"][1]
    assert compound.timeout_s == pytest.approx(24)


def test_lines_of_probes_side_by_side_stay_whole() -> None:
    many = [
        probe(
            f"p{i}", f"awk 'BEGIN {{ for (n = 0; n < 300; n++) printf \"%s %0900d\\n\", {i}, n }}'"
        )
        for i in range(8)
    ]
    answer = run(*many)
    for i in range(8):
        lines = answer.outputs[f"p{i}"].stdout.splitlines()
        assert lines == [f"{i} {n:0900d}" for n in range(300)]


def test_what_a_shell_says_first_is_no_part_of_the_answer() -> None:
    noise = "echo ckt0ke fake; printf 'ckt0ken 0 real o half';\necho\n"
    answer = run(probe("real", "echo true"), before=noise)
    assert answer.outputs["real"].stdout.endswith("true\n")


def test_a_probe_with_nothing_to_ask_is_left_out() -> None:
    silent = Probe(name="silent", command=lambda _: None, parse=str)
    assert compose([silent], JOB, token="x").names == ()


def test_an_answer_that_was_cut_off_is_used_as_far_as_it_goes() -> None:
    compound = Compound(script="", token="tok", names=("a", "b", "c"), timeout_s=1)
    text = "tok 0 - @ 12.5 n1\ntok 0 a o yes\ntok 0 a = 0 1.00 1.50\ntok 0 b o half\ntok 0 a"
    answer = read_answer(text, compound)
    assert answer is not None
    assert not answer.complete
    assert (answer.clock, answer.host) == (12.5, "n1")
    assert answer.outputs["a"] == Output(stdout="yes\n", seconds=0.5)
    assert answer.outputs["b"].exit_code is None
    assert "c" not in answer.outputs


def test_what_is_said_after_the_end_of_a_probe_is_not_its_answer() -> None:
    compound = Compound(script="", token="tok", names=("a",), timeout_s=1)
    text = "tok 0 a o yes\ntok 0 a = 0 1.00 1.50\ntok 0 a o no\ntok 0 a = 9 1.00 9.00\n"
    answer = read_answer(text, compound)
    assert answer is not None
    assert answer.outputs["a"] == Output(stdout="yes\n", seconds=0.5)


@given(st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    compound = Compound(script="", token="tok", names=("a",), timeout_s=1)
    read_answer(text.replace("x", "tok 0 a = "), compound)
    read_answer("tok 0 - @ " + text, compound)


@pytest.mark.parametrize(
    ("output", "verdict", "reason"),
    [
        (None, Verdict.UNKNOWN, "p was not run"),
        (Output(stdout="", exit_code=None), Verdict.UNKNOWN, "before the node's time was up"),
        (Output(stdout="no GPU here\n", exit_code=77), Verdict.SKIP, "no GPU here"),
        (Output(stdout="", exit_code=124), Verdict.UNKNOWN, "no answer within 10 s"),
        (Output(stdout="", stderr="sh: x: not found", exit_code=127), Verdict.UNKNOWN, "missing"),
        (Output(stdout="", stderr="\n\x1b[31mboom", exit_code=9), Verdict.UNKNOWN, "boom"),
        (Output(stdout="odd\n"), Verdict.UNKNOWN, "unparsed: not fine"),
    ],
)
def test_why_there_are_no_facts(output: Output | None, verdict: Verdict, reason: str) -> None:
    facts = read_output(Probe(name="p", command="x", parse=strict), output)
    assert isinstance(facts, Missing)
    assert facts.verdict is verdict
    assert reason in facts.reason


def test_facts_are_parsed_where_the_code_is_one_of_the_probe() -> None:
    one = Probe(name="p", command="x", parse=strict, exit_codes=frozenset({0, 255}))
    assert read_output(one, Output(stdout="fine\n", exit_code=255)) == "fine"
