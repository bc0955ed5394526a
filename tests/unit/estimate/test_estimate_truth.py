"""Reading tables of published figures: files that are broken, and how sources write their runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.accuracy.habits import steps_of
from bench.accuracy.notation import precision_of, strategy_of
from bench.accuracy.score import score
from bench.accuracy.score_memory import published_bytes, score_memory
from bench.accuracy.score_speed import score_speed
from bench.accuracy.truth import Row, Unused, read_rows, setup_of
from bench.accuracy.truth_table import COLUMNS, parse_rows
from bench.accuracy.units import factor_of
from clusterkit.core.errors import UserError
from clusterkit.estimate.memory.phases import memory_of
from clusterkit.estimate.setup import (
    Adapter,
    Checkpointing,
    Library,
    Loss,
    Offload,
    Optimizer,
    Precision,
    Setup,
    Sharding,
)

LLAMA = "L=32;h=4096;a=32;kv=8;ffn=14336;V=128256;tied=0;glu=1"
GIVEN = {
    "id": "lab-001", "model": "Llama-3.1-8B", "params": "8030261248", "config": LLAMA,
    "gpu": "H100-SXM5-80GB", "n_gpus": "8", "strategy": "FSDP2 FULL_SHARD", "layout": "dp=8",
    "precision": "bf16", "seq": "8192", "micro_batch": "2", "act_ckpt": "full",
    "quantity": "mem_per_gpu", "value": "60.5", "unit": "GiB", "basis": "max_reserved",
    "kind": "measured", "source": "a laboratory", "note": "",
}  # fmt: skip


def table(*rows: dict[str, str], columns: tuple[str, ...] = COLUMNS) -> str:
    lines = ["\t".join(columns)]
    lines += ["\t".join((GIVEN | row).get(column, "") for column in columns) for row in rows]
    return "\n".join(lines) + "\n"


def row(**changes: str) -> Row:
    return parse_rows(table(changes), source="t.tsv")[0]


def read(**changes: str) -> Setup:
    found = setup_of(row(**changes))
    assert isinstance(found, Setup), found
    return found


def reason(**changes: str) -> str:
    found = setup_of(row(**changes))
    assert isinstance(found, Unused), found
    return found.reason


def test_a_table_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text(table({}, {"id": "lab-002", "value": "1e1", "micro_batch": ""}), "utf-8")
    one, other = read_rows(path)
    assert (one.id, one.value, one.seq, one.family) == ("lab-001", 60.5, 8192, "lab")
    assert (other.value, other.micro_batch) == (10.0, None)


def test_further_columns_windows_lines_and_comments_are_fine() -> None:
    text = table({"split": "open"}, columns=(*COLUMNS, "split")).replace("\n", "\r\n")
    assert len(parse_rows("\ufeff" + text + "# the end\r\n\r\n", source="t")) == 1


def test_columns_may_stand_in_another_order() -> None:
    assert parse_rows(table({}, columns=COLUMNS[::-1]), source="t")[0] == row()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the table is empty"),
        ("id\tmodel\n", "lacks columns: params, config"),
        (table(), "holds no figures"),
        (table() + "lab-002\tx\n", "t.tsv:2"),
        (table() + "lab-002\tx\n", "2 cells where the header has 19"),
        (table({"value": "much"}), "value is not a number: 'much'"),
        (table({"value": ""}), "value is not a number"),
        (table({"value": "nan"}), "value is not a number: 'nan'"),
        (table({"params": "7B"}), "params is not a number: '7B'"),
        (table({"n_gpus": "-8"}), "n_gpus cannot be -8"),
        (table({"micro_batch": "1.5"}), "micro_batch cannot be 1.5"),
        (table({"id": " "}), "no id"),
    ],
)
def test_a_broken_table_says_where_and_what(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        parse_rows(text, source="t.tsv")


def test_all_broken_lines_are_told_at_once() -> None:
    with pytest.raises(UserError) as caught:
        parse_rows(table({"value": "x"}, {"seq": "long"}), source="t.tsv")
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"value": "nan"}, "line 3: value is not a number: 'nan'"),
        ({"value": "-5"}, "line 3: value cannot be -5"),
        ({"n_gpus": "8 GPUs"}, "line 3: n_gpus is not a number: '8 GPUs'"),
        (
            {"seq": "2k", "value": ""},
            "line 3: seq is not a number: '2k'; value is not a number: ''",
        ),
        ({"note": "a\ttab"}, "line 3: 20 cells where the header has 19"),
    ],
)
def test_a_broken_line_among_others_is_left_out_and_says_why(
    changes: dict[str, str], why: str
) -> None:
    rows = parse_rows(table({}, {"id": "lab-002", **changes}, {"id": "lab-003"}), source="t.tsv")
    assert [one.id for one in rows] == ["lab-001", "lab-002", "lab-003"]
    assert setup_of(rows[1]) == Unused(reason=why)
    scores = score(rows)
    assert dict(scores.unused) == {"lab-002": why}
    assert scores.used == 2


def test_a_line_without_an_id_is_called_by_its_number() -> None:
    rows = parse_rows(table({}, {"id": ""}), source="t.tsv")
    assert score(rows).unused == {"line 3": "line 3: no id"}


@pytest.mark.parametrize(
    ("quantity", "unit", "factor"),
    [
        ("mem_per_gpu", "GB", 1e9),
        ("mem_per_gpu", "GB(1e9)", 1e9),
        ("mem_per_gpu", "GiB", 2**30),
        ("mem_per_gpu", "GiB / GPU", 2**30),
        ("mem_per_gpu", "MiB", 2**20),
        ("mem_per_gpu", "TiB", 2**40),
        ("act_mem_per_gpu", "bytes", 1),
        ("step_time", "s", 1),
        ("step_time", "ms", 1e-3),
        ("step_time", "ms/it", 1e-3),
        ("step_time", "seconds", 1),
        ("step_time", "min", 60),
        ("tokens_per_s_per_gpu", "tok/s/GPU", 1),
        ("tokens_per_s_per_gpu", "k tok/s", 1e3),
        ("tokens_per_s_per_gpu", "tokens/GPU/s", 1),
        ("tokens_per_s_total", "Mtokens/sec", 1e6),
        ("samples_per_s", "img/s", 1),
        ("tflops_per_gpu", "TFLOP/s", 1),
        ("tflops_per_gpu", "TFLOPS/GPU", 1),
        ("tflops_per_gpu", "GFLOP/s", 1e-3),
        ("tflops_per_gpu", "PFLOPs", 1e3),
        ("mfu_pct", "%", 1),
        ("mfu_pct", "fraction", 100),
        ("mfu_pct", "", 1),
    ],
)
def test_units_are_converted(quantity: str, unit: str, factor: float) -> None:
    assert factor_of(quantity, unit) == factor


@pytest.mark.parametrize(
    ("quantity", "unit"),
    [
        ("mem_per_gpu", ""),
        ("mem_per_gpu", "pages"),
        ("mem_per_gpu", "Gb"),
        ("step_time", ""),
        ("step_time", "fortnights"),
        ("tokens_per_s_per_gpu", "tok/day"),
        ("tokens_per_s_per_gpu", "tok/s/node"),
        ("tokens_per_s_total", "tok/s/GPU"),
        ("tflops_per_gpu", "TOPS"),
        ("mfu_pct", "%o"),
    ],
)
def test_a_unit_that_nobody_knows_leaves_the_row_out(quantity: str, unit: str) -> None:
    [why] = score((row(quantity=quantity, unit=unit),)).unused.values()
    assert why == (f"no known unit of {quantity}: {unit!r}" if unit else "no unit")


def test_the_same_memory_scores_the_same_in_every_unit() -> None:
    figures = [("60", "GiB"), ("61440", "MiB"), (str(60 * 2**30), "bytes"), ("64.42450944", "GB")]
    rows = [row(value=value, unit=unit) for value, unit in figures]
    scores, unused = score_memory(rows)
    assert not unused
    assert {round(one.error, 9) for one in scores} == {round(scores[0].error, 9)}
    slow, fast = score_speed(
        [row(quantity="step_time", value=value, unit=unit) for value, unit in
         (("8", "s"), ("8000", "ms"))]
    )[0]  # fmt: skip
    assert slow.published == fast.published


def test_nvidia_smi_counts_in_powers_of_two_whatever_it_says() -> None:
    said = [row(value="60", unit=unit, basis="nvidia-smi") for unit in ("GB", "GiB")]
    assert [published_bytes(one) for one in said] == [60 * 2**30] * 2
    assert published_bytes(row(value="60000", unit="MB", basis="nvidia-smi")) == 60000 * 2**20


def test_what_is_known_of_no_program_is_scored_beside() -> None:
    rows = [row(source="x KempnerForge", basis="max_memory_allocated", act_ckpt="none")]
    scores = score(rows)
    assert len(scores.without_habits) == len(scores.memory) == 1
    assert scores.without_habits[0].predicted > scores.memory[0].predicted
    unknown = score([row()])
    assert unknown.without_habits == unknown.memory


def test_a_file_that_is_no_text_and_one_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x01")
    for name in ("binary", "absent"):
        with pytest.raises(UserError, match=name):
            read_rows(tmp_path / name)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"library": Library.FSDP2, "sharding": Sharding.FULL, "dp": 8}),
        ({"strategy": "FSDP1 SHARD_GRAD_OP"}, {"sharding": Sharding.GRADIENTS}),
        (
            {"strategy": "FSDP1 HYBRID_SHARD", "n_gpus": "128", "layout": "dp=128"},
            {"sharding": Sharding.HYBRID, "shard_group": 8},
        ),
        (
            {"strategy": "FSDP2+TP+PP+CP", "layout": "dp=4;tp=8;pp=8;cp=2", "n_gpus": "512"},
            {"tp": 8, "pp": 8, "cp": 2, "dp": 4},
        ),
        ({"strategy": "FSDP ZeRO-3"}, {"library": Library.FSDP1, "sharding": Sharding.FULL}),
        ({"strategy": "Horovod DDP"}, {"library": Library.DDP, "sharding": Sharding.NONE}),
        (
            {"strategy": "ZeRO-1 intra-node(8)", "layout": "tp=1;zero1=8;gas=4", "n_gpus": "64"},
            {"library": Library.DEEPSPEED, "shard_group": 8, "accumulation": 4},
        ),
        (
            {"strategy": "TP2+ZeRO-1 over all DP", "layout": "tp=2;zero1=all;gas=4"},
            {"sharding": Sharding.OPTIMIZER, "shard_group": None, "tp": 2},
        ),
        (
            {"strategy": "DeepSpeed ZeRO-3 + CPU optimizer offload"},
            {"offload_optimizer": Offload.CPU, "offload_params": Offload.NONE},
        ),
        (
            {"strategy": "DeepSpeed ZeRO-3 offload param+optim"},
            {"offload_optimizer": Offload.CPU, "offload_params": Offload.CPU},
        ),
        (
            {"strategy": "DeepSpeed ZeRO-2 no offload"},
            {"offload_optimizer": Offload.NONE, "sharding": Sharding.GRADIENTS},
        ),
        (
            {"strategy": "FSDP2 full + CPU offload"},
            {"offload_optimizer": Offload.CPU, "offload_params": Offload.CPU},
        ),
        (
            {"strategy": "Megatron 3D (dist-opt)", "layout": "tp=2;pp=2;vp=4;gbs=64"},
            {"library": Library.MEGATRON, "sharding": Sharding.OPTIMIZER, "vpp": 4,
             "accumulation": 16},
        ),
        (
            {"strategy": "Megatron-DeepSpeed ZeRO-1", "layout": "tp=8;pp=1;dp=1",
             "precision": "fp16"},
            {"library": Library.DEEPSPEED, "sequence_parallel": False, "flash_attention": False},
        ),
        (
            {"strategy": "nanotron TP+PP+DP ZeRO-0", "precision": "bf16(fp32 grad accum)",
             "layout": "dp=4;tp=2;pp=1;gas=2"},
            {"library": Library.MEGATRON, "sharding": Sharding.NONE, "fp32_gradients": True},
        ),
        ({"strategy": "TP", "layout": "tp=8;sp=0"}, {"sequence_parallel": False}),
        ({"strategy": "TP", "precision": "bf16-true"}, {"library": Library.FSDP2}),
        ({"precision": "bf16(PURE)"}, {"precision": Precision.PURE_BF16}),
        ({"precision": "amp_bf16"}, {"precision": Precision.AMP_BF16}),
        ({"precision": "fp8-tensorwise+compile"}, {"compiled": True, "precision": Precision.FP8}),
        ({"act_ckpt": "selective(op)"}, {"checkpointing": Checkpointing.SELECTIVE}),
        ({"act_ckpt": "selective(layer)"}, {"checkpointing": Checkpointing.ALTERNATE}),
        ({"act_ckpt": "not set"}, {"checkpointing": Checkpointing.NONE}),
        ({"act_ckpt": "none/selective"}, {"checkpointing": Checkpointing.SELECTIVE}),
        ({"act_ckpt": "selective only"}, {"checkpointing": Checkpointing.SELECTIVE}),
        ({"act_ckpt": "SP only"}, {"checkpointing": Checkpointing.NONE}),
        ({"act_ckpt": "yes"}, {"checkpointing": Checkpointing.FULL}),
        ({"act_ckpt": "True"}, {"checkpointing": Checkpointing.FULL}),
        ({"act_ckpt": "gradient checkpointing"}, {"checkpointing": Checkpointing.FULL}),
        ({"act_ckpt": "False"}, {"checkpointing": Checkpointing.NONE}),
        ({"act_ckpt": "no recompute"}, {"checkpointing": Checkpointing.NONE}),
        ({"act_ckpt": "unknown"}, {"checkpointing": Checkpointing.NONE}),
        ({"strategy": "DeepSpeed Stage 3"},
         {"library": Library.DEEPSPEED, "sharding": Sharding.FULL}),
        ({"strategy": "zero stage 2"},
         {"library": Library.DEEPSPEED, "sharding": Sharding.GRADIENTS}),
        ({"strategy": "ZeRO_1"}, {"sharding": Sharding.OPTIMIZER}),
        ({"strategy": "deepspeed-z3"}, {"sharding": Sharding.FULL}),
        ({"strategy": "ZeRO++"}, {"sharding": Sharding.FULL}),
        (
            {"strategy": "deepspeed_stage_2_offload"},
            {"sharding": Sharding.GRADIENTS, "offload_optimizer": Offload.CPU,
             "offload_params": Offload.NONE},
        ),
        (
            {"strategy": "deepspeed_stage_3_offload"},
            {"offload_optimizer": Offload.CPU, "offload_params": Offload.CPU},
        ),
        (
            {"strategy": "ZeRO-Infinity"},
            {"sharding": Sharding.FULL, "offload_params": Offload.NVME},
        ),
        (
            {"strategy": "HSDP", "n_gpus": "64", "layout": ""},
            {"library": Library.FSDP2, "sharding": Sharding.HYBRID, "shard_group": 8},
        ),
        (
            {"strategy": "FSDP2", "n_gpus": "64", "layout": "dp_replicate=4;dp_shard=16"},
            {"sharding": Sharding.HYBRID, "shard_group": 16, "dp": 64},
        ),
        (
            {"strategy": "FSDP2", "n_gpus": "", "layout": "dp_replicate=2,dp_shard=4,cp=2"},
            {"sharding": Sharding.HYBRID, "shard_group": 8, "gpus": 16},
        ),
        (
            {"strategy": "FSDP2", "layout": "dp_replicate=1 dp_shard=-1"},
            {"sharding": Sharding.FULL, "shard_group": None, "dp": 8},
        ),
        ({"layout": "data_parallel_size: 4; tensor_parallel_size: 2"}, {"dp": 4, "tp": 2}),
        ({"strategy": "fully_shard"}, {"library": Library.FSDP2, "sharding": Sharding.FULL}),
        (
            {"strategy": "Fully Sharded Data Parallel"},
            {"library": Library.FSDP1, "sharding": Sharding.FULL},
        ),
        ({"strategy": "QLoRA"}, {"library": Library.DDP, "adapter": Adapter(quantized=True)}),
        ({"strategy": "Unsloth LoRA"}, {"library": Library.DDP, "adapter": Adapter()}),
        ({"note": "Liger kernels (fused CE, no logits)"}, {"loss": Loss.FUSED}),
        ({"strategy": "DeepSpeed ZeRO-2 (no Liger)"}, {"loss": Loss.EAGER}),
        ({"note": "8-bit AdamW"}, {"optimizer": Optimizer.ADAMW_8BIT}),
        ({"micro_batch": "", "layout": "dp=8;gas=2;gbs=64"}, {"micro_batch": 4}),
        ({"n_gpus": "", "layout": "dp=4;tp=2"}, {"gpus": 8, "dp": 4}),
        ({"layout": "dp=8;nodes=2"}, {"gpus_per_node": 4}),
        ({"layout": "dp=8;gas=4", "note": "no_sync grad accumulation"}, {"no_sync": True}),
    ],
)  # fmt: skip
def test_what_sources_write(changes: dict[str, str], expected: dict[str, Any]) -> None:
    found = read(**changes)
    assert {name: getattr(found, name) for name in expected} == expected


def test_the_shape_of_the_model_is_read() -> None:
    config = "L=8;h=14400;ffn=4h;V=250000;tied=1;glu=0;learned_pos=2048"
    shape = read(config=config, params="20000000000").model
    assert (shape.ffn, shape.heads, shape.gated, shape.tied) == (57600, 112, False, True)
    assert shape.exact_params is None, "20e9 is a name, no count"
    assert shape.assumed == ("heads of 128",)


def test_a_count_of_parameters_is_taken_as_it_is() -> None:
    assert read().model.params == 8_030_261_248


def test_layers_follow_from_the_parameters_where_they_are_not_given() -> None:
    shape = read(config="h=13824;V=250000", params="187000000000").model
    assert shape.layers == 80
    assert any("80 layers" in what for what in shape.assumed)


def test_a_known_model_needs_no_configuration() -> None:
    assert read(model="Llama_3.1 8B", config="").model.layers == 32


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"strategy": ""}, "no strategy"),
        ({"strategy": "nccl all_reduce"}, "no strategy: 'nccl all_reduce'"),
        ({"strategy": "DeepSpeed"}, "no strategy: 'DeepSpeed'"),
        ({"strategy": "ZeRO-9"}, "no strategy: 'ZeRO-9'"),
        ({"act_ckpt": "sometimes"}, "computed again: 'sometimes'"),
        (
            {"strategy": "HSDP", "layout": "dp_replicate=3;dp_shard=2"},
            "dp_shard * dp_replicate = 6",
        ),
        ({"gpu": "a big one"}, "no known GPU: a big one"),
        ({"config": "moe", "model": "mystery"}, "no configuration of the model"),
        ({"seq": ""}, "no sequence length"),
        ({"micro_batch": ""}, "no micro batch"),
        ({"n_gpus": "", "layout": ""}, "no number of GPUs"),
        ({"layout": "tp=3"}, "8 GPUs are not a multiple of tp"),
        ({"note": "micro batch 1 per default"}, "its micro batch is a guess"),
        ({"strategy": "single full, cumulative: baseline"}, "sequences of unknown lengths"),
        ({"strategy": "Megatron TP+PP+DP", "layout": "tp=8;gbs=64"}, "no number of pipeline"),
    ],
)
def test_a_row_that_says_too_little_says_what_it_lacks(changes: dict[str, str], why: str) -> None:
    assert why in reason(**changes)


def test_steps_of_a_cumulative_table_are_cumulative() -> None:
    assert steps_of("single full, cumulative: +compile") == ("baseline", "packed", "compile")
    assert "ckpt" in steps_of("single full, cumulative: +opt-in-bwd")
    assert not steps_of("single full finetune")
    found = read(strategy="single full, cumulative: +act offload", n_gpus="1", layout="")
    assert found.optimizer_in_backward
    assert found.offload_activations
    assert found.compiled
    assert found.loss is Loss.CHUNKED


def test_a_pipeline_of_torchtitan_splits_the_batch_that_is_given() -> None:
    changes = {"strategy": "FSDP2+TP+PP(1F1B)", "layout": "dp=8;tp=8;pp=8", "n_gpus": "512"}
    titan = read(micro_batch="32", source="torchtitan", **changes)
    assert (titan.micro_batch, titan.accumulation) == (4, 8)
    other = read(micro_batch="32", **changes)
    assert (other.micro_batch, other.accumulation) == (32, 64)


@pytest.mark.parametrize(
    ("source", "changes", "expected"),
    [
        ("x KempnerForge", {}, {"loss_parallel": False, "fp32_logits": False}),
        ("x litgpt", {"strategy": "single full finetune", "n_gpus": "1", "layout": ""},
         {"accumulation": 8, "fp32_logits": False}),
        ("x InternEvo", {"strategy": "FSDP"}, {"precision": Precision.BF16, "step_copies": 2}),
        ("x llm-foundry", {}, {"loss": Loss.COMPILED}),
        ("x QwenLM/Qwen", {"strategy": "single full finetune", "n_gpus": "1", "layout": ""},
         {"library": Library.DEEPSPEED}),
        ("x torchtune", {"strategy": "single full finetune", "n_gpus": "1", "layout": ""},
         {"optimizer": Optimizer.PAGED_ADAMW_8BIT, "optimizer_in_backward": True}),
        ("torchtitan benchmarks/llama3_h100_202412_torchtitan.md", {"precision": "bf16+compile"},
         {"loss": Loss.EAGER}),
        ("torchtitan benchmarks/llama3-8b_h200_202506.md", {"precision": "fp8+compile"},
         {"loss": Loss.COMPILED}),
    ],
)  # fmt: skip
def test_what_rows_leave_to_their_program(
    source: str, changes: dict[str, str], expected: dict[str, Any]
) -> None:
    found = read(source=source, **changes)
    assert {name: getattr(found, name) for name in expected} == expected


WORDS = st.sampled_from(
    ["FSDP2", "ZeRO-3", "ZeRO-9", "Megatron", "TP", "PP8", "LoRA", "offload", "nvme", "full",
     "intra-node(0)", "tp=2", "pp=0", "dp=-1", "gbs=1e400", "gas=nan", "cp=4", "vpp=0", "fp8",
     "bf16-true", "a=0", "h=7", "h=0", "L=0", "ffn=xh", "ffn=0.5h", "V=1", "kv=9", "moe", "=", ";",
     "cumulative:"]
)  # fmt: skip
TEXTS = st.lists(st.one_of(WORDS, st.text(max_size=8)), max_size=6).map(" ".join)
NUMBERS = st.sampled_from(["", "0", "1", "3", "8", "512", "1000000"])


@given(
    texts=st.fixed_dictionaries(
        dict.fromkeys(("config", "strategy", "layout", "precision", "act_ckpt", "note"), TEXTS)
    ),
    numbers=st.fixed_dictionaries(dict.fromkeys(("n_gpus", "seq", "micro_batch"), NUMBERS)),
    known=st.booleans(),
)
def test_no_row_crashes(texts: dict[str, str], numbers: dict[str, str], known: bool) -> None:
    clean = {
        name: " ".join("".join(c for c in text if c.isprintable()).split())
        for name, text in texts.items()
    }
    changes = clean | numbers | ({"config": LLAMA} if known else {})
    found = setup_of(row(**changes))
    if isinstance(found, Unused):
        assert found.reason
    else:
        assert memory_of(found).allocated >= 0


def test_words_that_nobody_has_written_yet() -> None:
    assert strategy_of("the usual") is None
    assert precision_of("posit16") is Precision.BF16
