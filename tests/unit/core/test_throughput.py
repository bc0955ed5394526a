"""Throughput lines of our examples, of trainers and of well-known scripts."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterkit.core import throughput
from clusterkit.core.throughput import Throughput, Unit

DEEPSPEED = (
    "[2024-05-02 11:02:11,123] [INFO] [timer.py:258:stop] epoch=0/micro_step=40/global_step=20, "
    "RunningAvgSamplesPerSec=31.5, CurrSamplesPerSec=33.25, MemAllocated=2.1GB"
)
MEGATRON = (
    " [2024-05-02 11:02:11] iteration       10/     100 | consumed samples:         1280 | "
    "elapsed time per iteration (ms): 2000.0 | throughput per GPU (TFLOP/s/GPU): 180.2 | "
    "learning rate: 1.5E-04 | global batch size:   128 | lm loss: 9.1E+00 |"
)
MANY = settings(max_examples=100, suppress_health_check=list(HealthCheck))
TITAN = "step: 10  loss:  4.1  memory: 1.2GiB(3%)  tps: 1,234  mfu: 1.3%"
LIGHTNING = "Epoch 0:  50%|█████     | 50/100 [00:05<00:05, 12.30it/s, v_num=0, loss=1.2]"


@pytest.mark.parametrize(
    ("line", "rate", "unit", "step"),
    [
        (throughput.LINE, 431.2, "samples", 60),
        ("step 60 loss 1.3823 samples/s 431.2", 431.2, "samples", 60),
        ('{"step": 60, "samples/s": 3}', 3, "samples", 60),
        ('{"loss": 0.1, "global_step": "60", "tokens/s": 3}', 3, "tokens", 60),
        ("{'iteration' : 60, 'samples_per_second': 3}", 3, "samples", 60),
        ("[node-0] step 60 loss 1.3823 samples/s 431.2", 431.2, "samples", 60),
        ("[rank0]:step 7 tokens/s 1,234,567.5", 1234567.5, "tokens", 7),
        ("samples/s: 12", 12, "samples", None),
        ("\x1b[32mstep=3 samples_per_second=1e3\x1b[0m", 1000, "samples", 3),
        ("steps: 10 loss: 7.2 iter time (s): 0.5 samples/sec: 31.9", 31.9, "samples", 10),
        ("step   10 | loss: 4.1 | dt: 123.4ms | tok/sec: 12345.6", 12345.6, "tokens", 10),
        ("step 10/100 | loss 4.1 | 123.4 ms | 45.6% MFU | 98765 tok/s", 98765, "tokens", 10),
        ("98765 tok/s 45.6% MFU", 98765, "tokens", None),
        ("step 120 tokens/s: 12.3K", 12300, "tokens", 120),
        ("step 120 tokens/s: 12.3k 45% MFU", 12300, "tokens", 120),
        ("step 4 loss 1.0 tokens/s: 1,234.5K, mfu 3%", 1234500, "tokens", 4),
        ("step 4 | 1.5M tokens/s | 3 ms", 1.5e6, "tokens", 4),
        ("step 4 | 1.5 M tokens/s", 1.5e6, "tokens", 4),
        ("step 4 tokens/s: 1.2 M mfu=3%", 1.2e6, "tokens", 4),
        ("step 4 samples/s 12 T 5", 12, "samples", 4),
        ("step 4 samples/s 12 T=5", 12, "samples", 4),
        ("step 4 samples/s 12 GiB", 12, "samples", 4),
        ("Step: 5 | Loss: 5.1 | Tokens/s/GPU: 1.5K, Tokens/s: 12.3K", 12300, "tokens", 5),
        ("step 3 valid tokens/s: 500", 500, "tokens", 3),
        ("speed 51.5 images/sec on 4 GPUs", 51.5, "samples", None),
        (DEEPSPEED, 33.25, "samples", 20),
        ("0/20, SamplesPerSec=31.5", 31.5, "samples", None),
        (MEGATRON, 64.0, "samples", 10),
        (MEGATRON.replace("global batch size", "batch"), 0.5, "steps", 10),
        (MEGATRON.replace("  128", "9" * 400), 0.5, "steps", 10),
        ("iter 40: loss 2.5012, time 250.00ms, mfu 3.21%", 4.0, "steps", 40),
        ("iter 40 loss 2.5 200 ms/iter", 5.0, "steps", 40),
        ("iter 40: loss 2.50, 200 ms/iter", 5.0, "steps", 40),
        (LIGHTNING, 12.3, "steps", 50),
        (LIGHTNING.replace("loss", "val_loss"), 12.3, "steps", 50),
        ("\r".join(("", LIGHTNING, LIGHTNING.replace("50/", "51/"))), 12.3, "steps", 51),
        (" 10%|█         | 50/500 [00:10<01:30,  2.50s/it]", 0.4, "steps", 50),
        ("Epoch 0/4 ━━━━━ 50/100 0:00:05 • 0:00:05 9.52it/s loss: 0.3", 9.52, "steps", 50),
    ],
)
def test_a_line_tells_rate_unit_and_step(
    line: str, rate: float, unit: Unit, step: int | None
) -> None:
    found = throughput.read(line)
    assert found is not None
    assert found.rate == pytest.approx(rate)
    assert (found.unit, found.step) == (unit, step)
    assert not found.average
    assert not found.per_slot


def test_averages_since_the_start_are_marked() -> None:
    trainer = (
        "{'train_runtime': 12.5, 'train_samples_per_second': 51.2, "
        "'train_steps_per_second': 3.2, 'train_loss': 2.1, 'epoch': 1.0}"
    )
    expected = Throughput(rate=51.2, unit="samples", average=True)
    assert throughput.read(trainer) == expected
    assert throughput.read(trainer.replace("51.2", "'51.2'")) == expected
    average = throughput.read("global_step=20, RunningAvgSamplesPerSec=31.5")
    assert average == Throughput(rate=31.5, unit="samples", step=20, average=True)


def test_torchtitan_tells_the_rate_of_one_slot() -> None:
    expected = Throughput(rate=1234, unit="tokens", step=10, per_slot=True)
    assert throughput.read(f"[titan] INFO - {TITAN}") == expected


@pytest.mark.parametrize(
    "told",
    [
        "tokens/s/gpu: 1234",
        "tokens/sec/GPU 1234",
        "tokens per second per gpu: 1,234",
        "tokens_per_sec_per_gpu=1.234K",
        "tokens_per_gpu_per_sec: 1234",
        "Tokens/s/device: 1234, total_weights: 12",
        "tokens/s: 1.2Q, tokens/s/gpu: 1234",
        "| 1,234 tokens/s/gpu",
        "| 1,234 tokens/s per GPU",
        "| 1,234 tokens/s per-GPU",
        "| 1.234K tokens/s (per GPU)",
    ],
)
def test_a_rate_of_each_gpu_is_that_of_a_slot(told: str) -> None:
    expected = Throughput(rate=1234, unit="tokens", step=3, per_slot=True)
    assert throughput.read(f"step 3 {told}") == expected


@pytest.mark.parametrize(
    "line",
    [
        "step 120 tokens/s: 12.3Q",
        "step 120, tokens/s: 12.3Q",
        "step 4 loss 1.0 tokens/s: 12.3Q",
        "step 4 loss 1.0 tokens/s 12.3Q",
        "step 4 loss 1.0 tokens/s = ?",
        "step 4 samples/s unknown",
        "step 4/100 samples/s unknown",
        "step 4 loss=-1.0 samples/s",
        "step=60 samples/s=inf",
        "step=60 samples/s nan",
        "12 samples/s inf",
        "step 3 tokens/s: 1,234abc",
        "step 3 tokens/s/node: 12",
        "12,345 tokens/s/node",
        "12,345 tokens/s per node",
    ],
)
def test_no_other_number_is_taken_for_a_rate(line: str) -> None:
    assert throughput.read(line) is None


EVALUATION = (
    f"validate {TITAN}",
    "eval step 10 samples/s 2000",
    "Validation: step 5 samples/s 2000",
    "Evaluated 512 samples, 431 samples/s",
    "eval: 431 samples/s",
    "*** eval *** loss 2.0 samples/s 431",
    "[valid] loss 2.0 samples/s 431",
    "Test: loss 2.0 samples/s 431",
    "sanity check: 3 samples/s",
    "epoch 3 eval step 10 samples/s 5",
    "eval_step=10 samples/s=5",
    "step 10 eval samples/s 2000",
    "step 10 | validation | 2000 samples/s",
    "step 10 eval throughput: 2000 samples/s",
    "eval iter 40: loss 2.5, time 250ms",
    "iter 40 eval time 250ms",
    "epoch 3: evaluated 512 samples, 431 samples/s",
    "Epoch 3/10, validation: loss 2.5, 431 samples/s",
)
TRAINING = (
    TITAN,
    "step 10 val_loss 0.3 samples/s 2000",
    "step 10 val loss 0.3 samples/s 2000",
    "step: 10 | val loss 0.3 | samples/s 2000",
    "[step 10] val loss 0.3 samples/s 2000",
    "val_loss 0.3 step 10 samples/s 2000",
    "eval/loss=0.3 step=10 samples/s=2000",
    "step 10 eval_steps=500 samples/s 2000",
    "step 10 samples/s 2000 next eval step 20",
    "step 10 samples/s 2000 eval samples/s 800",
    "epoch 3: samples/s 2000, evaluated 512 samples",
    "{'eval_loss': 2.1, 'train_samples_per_second': 51.2}",
    LIGHTNING.replace("loss=1.2", "val_loss=1.2, tokens/s=12"),
)
PREFIXES = (
    *(
        "",
        "[node-0] ",
        "[rank0]:",
        "[rank0]: ",
        "0: ",
        "n1: ",
        "gpu-test: ",
        "[test-0] ",
        "\x1b[32m",
    ),
    *("2024-05-02 11:02:11,123 INFO ", "[2024-05-02 11:02:11] ", "11:02:11 ", "INFO:root:"),
    "[rank0]:\x1b[1m[titan] 2024-05-02 11:02:11,123 - root - INFO - \x1b[31m",
    "2024-05-02 11:02:11.123 | INFO     | __main__:<module>:12 - ",
    "2024-05-02T11:02:11Z test.example.org: ",
    "I0502 11:02:11.123456 140 train.py:55] ",
)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_rates_of_evaluation_are_passed_over(prefix: str) -> None:
    assert [line for line in EVALUATION if throughput.read(prefix + line)] == []


@pytest.mark.parametrize("prefix", PREFIXES)
def test_training_lines_may_speak_of_evaluation(prefix: str) -> None:
    assert [line for line in TRAINING if not throughput.read(prefix + line)] == []


@pytest.mark.parametrize(
    "line",
    [
        "",
        "start: framework ddp, world size 2, device cpu",
        "samples/s nan",
        "samples/s 0.0",
        "step 1 loss inf samples/s inf",
        "samples/s: unknown",
        "{'eval_runtime': 1.2, 'eval_samples_per_second': 800.1}",
        "Validation DataLoader 0: 100%|████| 10/10 [00:00<00:00, 99.01it/s]",
        "Sanity Checking DataLoader 0: 100%|████| 2/2 [00:00<00:00, 99.01it/s]",
        "Loading checkpoint shards: 100%|████| 4/4 [00:10<00:00,  2.50s/it]",
        "Map: 100%|████| 1000/1000 [00:00<00:00, 5000.00 examples/s]",
        "Generating train split: 1000 examples [00:00, 12000.00 examples/s]",
        "  0%|          | 0/25 [00:00<?, ?it/s]",
        "model.safetensors: 100%|████| 1.2G/1.2G [00:10<00:00, 120MB/s]",
        "took 123.4ms",
        "NCCL INFO 12 coll channels, time 3ms",
        "elapsed time per iteration (ms): 0.0 | global batch size: 8",
        " 10%|█         | 10/100 [00:01<00:02, 2.32.31it/s]",
        f" 10%|█         | 10/100 [00:01<00:02, {'9' * 400}it/s]",
        "step 5: time 1.2.3ms",
        "step 5: 1.2.3 ms/iter",
    ],
)
def test_other_lines_tell_nothing(line: str) -> None:
    assert throughput.read(line) is None


@pytest.mark.parametrize(
    "piece", ["1,", "step 1 ", "9", "1/1 ", "[0,", "\r", "samples/s ", "a- ", "eval "]
)
def test_a_line_without_end_is_read_at_once(piece: str) -> None:
    assert throughput.read(piece * (1 << 18)) is None


PIECES = (
    *("samples/s ", "tokens/s: ", "step 5", "step: 5 ", "iter 40: ", "time ", "dt: ", "tps: "),
    *("ms", " ms/iter", "it/s", "s/it", "10/100 [", "00:01<00:02, ", "SamplesPerSec=", "\r"),
    *("elapsed time per iteration (ms): ", "global batch size: ", "train_steps_per_second: "),
    *("eval", "val_", "[", "INFO:", " - ", "/gpu", " per gpu", "K", " M", "loss ", "%"),
    *("0", "1", "7.5", "2.32", ".", ".31", ",", "e-9", "9" * 400, "0." + "0" * 320 + "1", " "),
)


@MANY
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=30).map("".join))
def test_any_text_can_be_read(text: str) -> None:
    found = throughput.read(text)
    assert found is None or (found.rate > 0 and math.isfinite(found.rate))


@pytest.mark.parametrize("way", ["10/100 [00:01<00:02, {}it/s]", "step 5: time {}ms"])
@MANY
@given(st.lists(st.sampled_from(("1", "20", "2.32", ".", ".31")), max_size=4).map("".join))
def test_numbers_that_run_into_each_other_are_none(way: str, number: str) -> None:
    found = throughput.read(way.format(number))
    assert (found is None) == (re.fullmatch(r"\d+(\.\d+)?", number) is None)


@MANY
@given(st.integers(0, 10**9), st.floats(1e-3, 1e9, allow_nan=False))
def test_what_our_examples_print_is_read_back(step: int, rate: float) -> None:
    found = throughput.read(f"step {step} loss 1.3823 samples/s {rate:.4f}")
    assert found == Throughput(rate=float(f"{rate:.4f}"), unit="samples", step=step)
