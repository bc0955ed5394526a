"""`clusterkit estimate` as its users meet it: tables, documents, messages, exit codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.accuracy.truth_table import COLUMNS
from clusterkit.estimate.machines.gpus import gpu_named
from clusterkit.estimate.models.named import model_named
from tests.helpers.command_line import outcome
from tests.helpers.launch_reader import setup_from_launch
from tests.helpers.needs import require
from tests.helpers.paths import ROOT

Run = Callable[[str], tuple[int, str, str]]

GOLDEN = ROOT / "tests" / "golden" / "estimate"
CASES = {
    "small": "--model gpt2 --gpu t4 --gpus 1",
    "one-node": "--params 7B --gpu h100 --gpus 8",
    "several-nodes": "--model llama-3.1-70b --gpu h100 --gpus 32 --micro-batch 2",
    "nothing-fits": "--model llama-3.1-405b --gpu a100-40 --gpus 8 --offload none",
    "pipeline": "--params 13B --gpu a100-80 --gpus 16 --tp 2 --pp 2 --global-batch 64",
    "explained": "--model llama-3.1-8b --gpu h100 --gpus 8 --strategy fsdp+ac --explain",
    "scaled": "--model mixtral-8x7b --gpu h200 --gpus 16 --strategy zero3 --scale --tokens 1T "
    "--price 2.5",
    "two-kinds": "--model llama-3.1-8b --gpu 8xa100-40+8xh100 --global-batch 512",
    "adapters": "--params 13B --gpu rtx4090 --gpus 1 --qlora",
    "how-many": "--model llama-3.1-8b --gpu h100",
    "how-many-whole-nodes": "--params 13B --gpu rtx4090 -g 6 --offload none",
    "how-many-no-number": "--params 1000B --gpu a100-40 --tp 2 --pp 8",
}  # fmt: skip


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the verb in an empty folder of a user who has measured nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "CLUSTERKIT_DEBUG", "CLUSTERKIT_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)

    def run(line: str) -> tuple[int, str, str]:
        return outcome("estimate", *shlex.split(line))

    return run


@pytest.fixture
def ask(run: Run) -> Callable[[str], dict[str, Any]]:
    """Return the document that an estimate prints."""

    def ask(line: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(run(f"{line} --json")[1])
        return document

    return ask


# --- what is shown ---


@pytest.mark.parametrize("case", CASES)
def test_tables_are_as_reviewed(run: Run, case: str) -> None:
    code, out, err = run(CASES[case])
    assert err == ""
    shown = f"$ clusterkit estimate {CASES[case]}\n{out}(exit code {code})\n"
    path = GOLDEN / f"{case}.txt"
    if os.environ.get("CLUSTERKIT_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")


def test_the_pages_show_what_is_printed() -> None:
    printed = (GOLDEN / "several-nodes.txt").read_text(encoding="utf-8")
    printed = printed.partition("\n(exit code")[0].rpartition("\n\nAssumed")[0]
    rows = {
        line[8:].split()[0]: line for line in printed.splitlines() if line[2:6] in {"fits", "no  "}
    }
    how_to, readme = ROOT / "docs" / "how-to" / "estimate.md", ROOT / "README.md"
    texts = {page: page.read_text(encoding="utf-8") for page in (how_to, readme)}
    shown = texts[how_to]
    how_many = (GOLDEN / "how-many.txt").read_text(encoding="utf-8").partition("\n(exit code")[0]
    for start, text in (("llama-3.1-70b --gpu", printed), ("llama-3.1-8b --gpu h100\n", how_many)):
        shown = re.sub(
            rf"(```console\n)\$ clusterkit estimate --model {re.escape(start)}.*?(\n```)",
            lambda block, text=text: block[1] + text + block[2],
            shown, count=1, flags=re.DOTALL,
        )  # fmt: skip
    table = re.sub(
        r"^[> ] (?:fits|no)  +(\S+)  .*$",
        lambda line: rows.get(line[1], line[0]),
        texts[readme], flags=re.MULTILINE,
    )  # fmt: skip
    if os.environ.get("CLUSTERKIT_GOLDEN") == "write":
        how_to.write_text(shown, encoding="utf-8")
        readme.write_text(table, encoding="utf-8")
        return
    assert shown == texts[how_to]
    assert table == texts[readme]


def test_the_python_of_the_how_to_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "how-to" / "estimate.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(code, "estimate.md", "exec"), {})
    assert "GB" in capsys.readouterr().out


@pytest.mark.parametrize("case", CASES)
def test_fits_a_terminal(run: Run, case: str) -> None:
    _, out, _ = run(CASES[case])
    assert [line for line in out.splitlines() if len(line) > 80] == []


def test_exit_codes(run: Run) -> None:
    assert run("--params 1B --gpu h100 --gpus 8")[0] == 0
    assert run("--params 70B --gpu t4 --gpus 1 --offload none")[0] == 1
    assert run("--params 7B --gpu h100 --gpus 8 --strategy ddp")[0] == 1
    assert run("--params 7B --gpu h100")[0] == 0  # on so many GPUs as are enough
    assert run("--params 1000B --gpu t4 --tp 1 --offload none")[0] == 1
    assert run("--params 7B --gpus 8")[0] == 2


def test_the_document(ask: Callable[[str], dict[str, Any]]) -> None:
    document = ask("--model llama-3.1-8b --gpu h100 --gpus 16 --seq 4096")
    assert document["schema"] == 1
    names = [one["strategy"] for one in document["strategies"]]
    assert len(names) == len(set(names))
    assert document["recommended"] in names
    assert document["why"]
    for one in document["strategies"]:
        memory = one["memory_gb"]
        assert set(memory) == {
            "parameters", "gradients", "optimizer", "activations", "temporary", "total"
        }  # fmt: skip
        parts = sum(amount for key, amount in memory.items() if key != "total")
        assert parts == pytest.approx(memory["total"], abs=0.01)
        assert one["fits"] == (memory["total"] <= one["limit_gb"])
        assert 0 < one["mfu"] < 1
        low, high = one["tokens_per_s_per_gpu_range"]
        assert low <= one["tokens_per_s_per_gpu"] <= high
        assert one["step_s"] > 0
        assert one["comm_gb_per_step"] > 0
        assert one["fits"] or "smallest_change" in one


@pytest.mark.parametrize(
    ("strategy", "states"),
    [("ddp", 120.0), ("zero1", 31.4), ("zero2", 16.6), ("zero3", 1.9), ("fsdp", 1.9)],
)
def test_states_are_those_of_the_zero_paper(
    ask: Callable[[str], dict[str, Any]], strategy: str, states: float
) -> None:
    # arXiv:1910.02054, figure 1: 7.5B parameters on 64 GPUs
    document = ask(f"--params 7.5B --gpu a100-80 --gpus 64 --strategy {strategy}")
    memory = document["strategies"][0]["memory_gb"]
    total = memory["parameters"] + memory["gradients"] + memory["optimizer"]
    assert round(total, 1) == states


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero3", "fsdp"])
def test_checkpointing_is_seen_in_the_activations(
    ask: Callable[[str], dict[str, Any]], strategy: str
) -> None:
    line = f"--params 7B --gpu h100 --gpus 8 --strategy {strategy} --checkpointing"
    whole, again = (ask(f"{line} {level}")["strategies"][0] for level in ("none", "full"))
    assert again["memory_gb"]["activations"] < whole["memory_gb"]["activations"] / 2


def test_one_strategy_that_is_asked_for(ask: Callable[[str], dict[str, Any]]) -> None:
    document = ask("--params 7B --gpu h100 --gpus 8 --strategy ZeRO-3")
    assert [one["strategy"] for one in document["strategies"]] == ["zero3"]
    assert document["recommended"] == "zero3"
    offloaded = ask("--params 7B --gpu h100 --gpus 8 --strategy zero2 --offload cpu")
    assert [one["strategy"] for one in offloaded["strategies"]] == ["zero2-offload"]
    assert offloaded["strategies"][0]["host_gb"] > 0


def test_details_in_the_document(ask: Callable[[str], dict[str, Any]]) -> None:
    document = ask("--params 7B --gpu h100 --gpus 8 --explain --scale --tokens 2T --price 2")
    terms = [term for phase in document["explain"]["phases"] for term in phase["terms"]]
    assert all(term["formula"] and term["source"] for term in terms)
    assert [point["gpus"] for point in document["scale"]["points"]][:2] == [8, 16]
    bill = document["bill"]["bill"]
    assert bill["price"]["likely"] == pytest.approx(2 * bill["gpu_hours"]["likely"])


def test_names_that_are_asked_for_are_given_back(ask: Callable[[str], dict[str, Any]]) -> None:
    for name in ("fsdp+ac", "megatron-tp2-pp2", "zero1-tp2", "qlora"):
        document = ask(f"--params 7B --gpu h100 --gpus 8 --strategy {name}")
        assert [one["strategy"] for one in document["strategies"]] == [name]


def test_the_batch_is_solved(ask: Callable[[str], dict[str, Any]]) -> None:
    line = "--params 1B --gpu h100 --gpus 8 --strategy ddp --micro-batch 2 --global-batch 64"
    assert ask(line)["strategies"][0]["accumulation"] == 4
    stages = ask("--params 7B --gpu h100 --gpus 16 --strategy megatron --tp 2 --pp 4")
    assert stages["strategies"][0]["accumulation"] == 16


def test_without_a_number_the_smallest_that_is_enough_is_answered(
    ask: Callable[[str], dict[str, Any]], run: Run
) -> None:
    line = "--params 7B --gpu h100 --tokens 1T"
    found = ask(line)
    tried = found.pop("tried")
    assert found == ask(f"{line} --gpus {found['gpus']}")
    assert [one["gpus"] for one in tried] == [1 << n for n in range(len(tried))]
    assert tried[-1]["gpus"] == found["gpus"]
    assert tried[-1]["recommended"] == found["recommended"]
    for one in tried[:-1]:  # on fewer, whatever fits offloads
        fewer = ask(f"{line} --gpus {one['gpus']}")
        assert fewer["recommended"] == one["recommended"]
        names = [each["strategy"] for each in fewer["strategies"] if each["fits"]]
        assert [name for name in names if not name.endswith(("-offload", "-nvme"))] == []
    command = f"  clusterkit estimate {line} --gpus {found['gpus']}"
    assert run(line)[1].splitlines()[-2:] == ["For the whole answer:", command]
    asked = ask("--params 7B --gpu h100 --offload cpu")
    assert asked["gpus"] < found["gpus"]
    assert asked["recommended"].endswith("-offload")


def test_numbers_that_cannot_be_are_told_with_their_reason(
    ask: Callable[[str], dict[str, Any]],
) -> None:
    found = ask("--model llama-3.1-8b --gpu h100 --strategy tp4-pp2")
    assert [one["total_gb"] is None for one in found["tried"]] == [True, True, True, False]
    assert "4 GPUs do not divide" in found["tried"][2]["reason"]
    assert found["gpus"] == 8


def test_where_only_offloading_fits_the_first_number_is_answered(
    ask: Callable[[str], dict[str, Any]],
) -> None:
    found = ask("--model llama-3.1-405b --gpu t4 --tp 1 --seq 512")
    assert [one["recommended"] for one in found["tried"]].count(None) < len(found["tried"])
    first = next(one for one in found["tried"] if one["recommended"])
    assert (found["gpus"], found["recommended"]) == (first["gpus"], first["recommended"])
    assert found["tried"][-1]["gpus"] == 1024


def test_a_cluster_says_how_many_gpus_a_node_has(ask: Callable[[str], dict[str, Any]]) -> None:
    Path("clusterkit.yaml").write_text(
        "clusters:\n  rack: {kind: ssh, hosts: 'n[1-4]', gpus_per_node: 4}\n"
    )
    assert ask("--params 7B --gpu h100 --gpus 8 --cluster rack")["gpus_per_node"] == 4
    line = "--params 7B --gpu h100 --gpus 8 --cluster rack --gpus-per-node 8"
    assert ask(line)["gpus_per_node"] == 8
    Path("clusterkit.yaml").write_text(
        "clusters:\n  big: {kind: slurm, gpu_type: h100, gpus_per_node: 8}\n"
    )
    assert ask("--params 7B --gpus 8 --cluster big")["gpu"] == "H100-SXM5-80GB"
    assert ask("--params 7B --cluster big")["tried"][-1]["recommended"]


def test_adapters_are_named_where_nothing_else_fits(run: Run) -> None:
    code, out, _ = run("--params 7B --gpu rtx4090 --gpus 1 --offload none")
    assert code == 1
    assert "To train adapters only would take" in out
    name = out.partition("--strategy ")[2].split(".")[0]
    assert run(f"--params 7B --gpu rtx4090 --gpus 1 --strategy {name}")[0] == 0


# --- bad input ---


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", ["which model?", "which GPU?", "how many GPUs?"]),
        ("--params 7B --model gpt2 --gpu h100 --gpus 8", ["both given"]),
        ("--params many --gpu h100 --gpus 8", ["many"]),
        ("--params 7B --gpu abacus --gpus 8", ["no GPU is called 'abacus'", "memory=48"]),
        ("--model lama-3.1-8b --gpu h100 --gpus 8", ["did you mean 'llama-3.1-8b'?"]),
        ("--model missing.json --gpu h100 --gpus 8", ["missing.json"]),
        ("--params 7B --gpu h100 --gpus 0", ["--gpus is 0"]),
        ("--params 7B --gpu h100 --gpus 1-16", ["'1-16' is not a", "one number; leave it out"]),
        ("--params 7B --gpu abacus --seq -1", ["no GPU is called 'abacus'", "--seq is -1"]),
        ("--params 7B --gpu h100 --strategy dp3", ["is for 3 GPUs, not for 1024"]),
        ("--params 7B --gpu h100 --launch plan", ["how many GPUs?"]),
        ("--params 7B --gpu h100 --gpus 12", ["do not fill nodes of 8", "--gpus 8 or 16"]),
        ("--params 7B --gpu h100 --gpus 8 --seq -1 --tp 0", ["--seq is -1", "--tp is 0"]),
        ("--model gpt2 --gpu h100 --gpus 8 --seq 4096", ["positions for 1024", "--seq 1024"]),
        ("--params 7B --gpu v100-32 --gpus 8 --precision bf16", ["no bf16", "--precision fp16"]),
        ("--params 7B --gpu h100 --gpus 16 --strategy zero3 --pp 2", ["exclude each other"]),
        ("--params 7B --gpu h100 --gpus 8 --tp 3", ["tp 3 does not divide"]),
        ("--params 7B --gpu h100 --gpus 8 --strategy fdsp", ["did you mean 'fsdp'?"]),
        ("--params 7B --gpu h100 --gpus 8 --strategy single", ["for one GPU, not for 8"]),
        ("--params 7B --gpu h100 --gpus 8 --strategy tp2 --tp 4", ["contradict each other"]),
        ("--params 7B --gpu h100 --gpus 8 --strategy ddp --offload cpu", ["ddp offloads nothing"]),
        ("--params 7B --gpu h100 --gpus 8 --offload disk", ["known: cpu, none, nvme"]),
        ("--params 7B --gpu h100 --gpus 8 --checkpointing ful", ["did you mean 'full'?"]),
        ("--params 7B --gpu h100 --gpus 8 --global-batch 100", ["--global-batch 96 or 104"]),
        ("--params 7B --gpu h100 --gpus 8 --margin 2", ["--margin 2 is not a part of a GPU"]),
        ("--params 7B --gpu h100 --gpus 8 --tokens 2X", ["--tokens 2X"]),
        ("--params 7B --gpu h100 --gpus 8 --price 2", ["--tokens 2T"]),
        ("--params 7B --gpu h100 --gpus 8 --interconnect smoke", ["smoke"]),
        ("--params 7B --gpu h100 --gpus 8 out", ["stands behind --launch"]),
        ("--params 7B --gpu h100 --gpus 8 --cluster moon", ["moon"]),
        ("--params 7B --gpu h100 --gpus 8 --batch-size 4", ["--micro-batch 4"]),
        ("--params 7B --gpu h100 --gpus 8 --zero-stage=3", ["--strategy zero3"]),
        ("--params 7B --gpu h100 --nodes 2", ["--gpus N, which are those of all nodes"]),
        ("--params 7B --gpu h100 -N 2 -g 8", ["--gpus 16, which are those of all nodes"]),
        ("--params 7B --gpu h100 --nodes=4 --gpus-per-node=8", ["--gpus 32, which are"]),
        ("--params 7B --gpu h100 --gpus 8 --gradient-checkpointing", ["--checkpointing full"]),
        ("--score missing.tsv", ["missing.tsv"]),
        ("--calibrate missing.json", ["missing.json"]),
    ],
)
def test_bad_input(run: Run, line: str, said: list[str]) -> None:
    code, out, err = run(line)
    assert (code, out) == (2, "")
    assert [part for part in said if part not in err] == []
    assert "hint:" in err or "missing" in line
    document = json.loads(run(f"{line} --json")[1])
    assert document["error"]["problems"]


def test_a_config_without_what_nothing_can_stand_in_for(run: Run) -> None:
    Path("config.json").write_text('{"hidden_size": 1024}')
    code, _, err = run("--model config.json --gpu h100 --gpus 1")
    assert code == 2
    assert "num_hidden_layers" in err
    sizes = {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8}
    Path("config.json").write_text(json.dumps(sizes))
    code, out, _ = run("--model . --gpu h100 --gpus 1")
    assert code == 0
    assert "vocab_size is not given: 32000" in " ".join(out.split())


# --- what is written ---


def test_a_launch_of_what_does_not_fit_writes_nothing_and_says_so(run: Run) -> None:
    code, _, err = run(f"{CASES['nothing-fits']} --launch plan")
    assert (code, Path("plan").exists()) == (1, False)
    assert "--launch wrote nothing, as nothing fits" in err


def test_more_gpus_than_the_hosts_of_a_cluster_have_are_warned_of(run: Run) -> None:
    text = "clusters: {rack: {kind: ssh, hosts: 'n[1-2]', gpus_per_node: 8}}\n"
    Path("clusterkit.yaml").write_text(text)
    words = "--model gpt2 --gpu h100 --cluster rack --gpus"
    code, _, err = run(f"{words} 32")
    assert code == 0
    assert "warning: cluster rack has 16 GPUs on 2 hosts: --gpus 16\n" in err
    assert "warning: cluster" not in run(f"{words} 16")[2]


def test_files_of_another_launch_in_the_same_folder_are_named(run: Run) -> None:
    words = "--model llama-3.1-8b --gpu h100 --gpus 8 --launch plan --strategy"
    assert "another launch" not in run(f"{words} fsdp")[2]
    assert "also has fsdp.json, of another launch" in run(f"{words} zero3")[2]


def test_launch_writes_what_reads_back(run: Run) -> None:
    code, out, err = run("--model llama-3.1-8b --gpu h100 --gpus 8 --strategy zero3 --launch plan")
    assert code == 0
    assert out.splitlines()[-1] == (
        "clusterkit submit --framework deepspeed --nodes 1 --gpus-per-node 8 train.py "
        "--deepspeed_config plan/ds_config.json"
    )
    assert "wrote plan/: accelerate.yaml, ds_config.json, submit.sh, training.json" in err
    assert "train.py has to do what training.json says" in err
    files = {path.name: path.read_text() for path in Path("plan").iterdir()}
    gpu = gpu_named("h100")
    setup = setup_from_launch(files, model=model_named("llama-3.1-8b"), gpu=gpu)
    assert (setup.gpus, setup.sharding, setup.seq) == (8, "full", 4096)
    assert os.access("plan/submit.sh", os.X_OK)
    assert run("--params 1B --gpu h100 --gpus 8 --launch")[0] == 0
    assert Path("launch-ddp/training.json").exists()


def test_submit_accepts_the_line(run: Run) -> None:
    _, out, _ = run("--params 1B --gpu h100 --gpus 2 --strategy zero1 --launch plan")
    Path("train.py").write_text("")
    program, verb, *words = shlex.split(out.splitlines()[-1])
    line = [sys.executable, "-m", program, verb, "--dry-run", *words]
    tried = subprocess.run(line, capture_output=True, text=True, check=False)
    assert tried.returncode == 0, tried.stderr
    assert "plan/ds_config.json" in tried.stdout


def test_plot(run: Run) -> None:
    require("matplotlib")
    code, _, err = run("--params 7B --gpu h100 --gpus 8 --plot memory.png")
    assert (code, err) == (0, "drew memory.png\n")
    assert Path("memory.png").read_bytes().startswith(b"\x89PNG")
    assert run("--params 7B --gpu h100 --gpus 8 --plot memory.doc")[0] == 2


def test_a_model_without_its_flag_is_shown_with_it(run: Run) -> None:
    code, _, err = run("llama-3.1-8b")
    assert code == 2
    assert "hint: --model llama-3.1-8b" in err


def test_plot_without_matplotlib(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterkit.core.html.find_spec", lambda name: None)
    code, _, err = run("--params 7B --gpu h100 --gpus 8 --plot memory.png")
    assert code == 2
    assert "--plot needs matplotlib" in err
    assert "pip install matplotlib" in err


def test_a_measured_step_sharpens_what_follows(
    run: Run, ask: Callable[[str], dict[str, Any]]
) -> None:
    asked = "--model llama-3.1-8b --gpu h100 --gpus 8 --strategy fsdp+ac"
    before = ask(asked)["strategies"][0]
    setup = {
        "model": "llama-3.1-8b", "gpu": "NVIDIA H100 80GB HBM3", "gpus": 8, "strategy": "fsdp",
        "seq": 4096, "micro_batch": 1, "checkpointing": "full",
    }  # fmt: skip
    measured = {"schema": 1, "setup": setup, "step_s": 1.5 * before["step_s"],
                "allocated_bytes": 1.2e9 * before["allocated_gb"]}  # fmt: skip
    Path("measured.json").write_text(json.dumps(measured))
    code, out, _ = run("--calibrate measured.json")
    assert code == 0
    assert "Measured: llama-3.1-8b, fsdp, 8 x H100-SXM5-80GB" in out
    document = ask(asked)
    after = document["strategies"][0]
    assert "llama-3.1-8b" in document["measured"]
    assert after["step_s"] == pytest.approx(1.5 * before["step_s"], rel=0.05)
    assert after["allocated_gb"] == pytest.approx(1.2 * before["allocated_gb"], rel=0.05)
    other = ask(asked.replace("h100", "a100-80"))
    assert other["measured"] is None


def test_score(run: Run, ask: Callable[[str], dict[str, Any]]) -> None:
    shape = "L=32;h=4096;a=32;kv=8;ffn=14336;V=128256;tied=0;glu=1"
    start = ["Llama-3.1-8B", "8030261248", shape, "H100-SXM5-80GB", "8", "FSDP2 FULL_SHARD",
             "dp=8", "bf16", "4096", "1", "full"]  # fmt: skip
    memory = ["mem_per_gpu", "30", "GiB", "max_memory_allocated", "measured", "somebody", ""]
    rate = ["tokens_per_s_per_gpu", "6000", "tok/s/GPU", "steady", "measured", "somebody", ""]
    odd = ["mem_per_gpu", "30", "GiB", "max_memory_allocated", "measured", "somebody", "x"]
    rows = [COLUMNS, ["a-1", *start, *memory], ["a-2", *start, *rate],
            ["a-3", "?", "", "", "abacus", *start[4:], *odd]]  # fmt: skip
    Path("truth.tsv").write_text("\n".join("\t".join(row) for row in rows) + "\n")
    document = ask("--score truth.tsv")
    assert (document["rows"], document["used"]) == (3, 2)
    assert document["memory"]["allocated"]["rows"] == 1
    assert document["memory"]["reserved"] == {
        "rows": 0, "median_abs_error": None, "p90_abs_error": None
    }  # fmt: skip
    assert document["throughput"]["rows"] == 1
    assert document["throughput"]["median_abs_error"] < 1
    assert (document["false_fits"], document["false_misfits"]) == (0, 0)
    assert "a-3" in document["unused"]
    code, out, _ = run("--score truth.tsv")
    assert code == 0
    assert "3 published figures, 2 of them can be compared" in out
    assert [line for line in out.splitlines() if len(line) > 80] == []


# --- speed ---


def test_heavy_packages_stay_out() -> None:
    code = (
        "import sys; sys.argv = ['clusterkit', 'estimate', '--params', '7B', '--gpu', 'h100', "
        "'--gpus', '16']\n"
        "from clusterkit.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'pydantic', 'matplotlib', 'torch', 'numpy', 'yaml', 'jinja2', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
