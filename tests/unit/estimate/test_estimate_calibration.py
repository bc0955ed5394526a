"""A measured step becomes factors, which stay for a cluster and make the estimate meet it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core.errors import UserError
from clusterkit.estimate.calibrate import calibrate
from clusterkit.estimate.factors import (
    Calibration,
    calibration_file,
    load_calibration,
    save_calibration,
)
from clusterkit.estimate.measurement import (
    Measurement,
    parse_measurement,
    read_measurement,
)
from clusterkit.estimate.memory.phases import memory_of
from clusterkit.estimate.setup import Checkpointing, Library, Precision, Sharding
from clusterkit.estimate.speed.step_time import speed_of

SETUP = {
    "model": "llama-3.1-8b",
    "gpu": "NVIDIA H100 80GB HBM3",
    "gpus": 16,
    "gpus_per_node": 8,
    "strategy": "fsdp",
    "precision": "bf16",
    "seq": 4096,
    "micro_batch": 1,
    "accumulation": 2,
    "checkpointing": "full",
}
MEASURED = {
    "schema": 1,
    "setup": SETUP,
    "allocated_bytes": 42e9,
    "reserved_bytes": 48e9,
    "step_s": 1.5,
    "all_reduce": [
        {"bytes": 65536, "seconds": 1e-4, "ranks": 16},
        {"bytes": 1 << 28, "seconds": 2.5e-3, "ranks": 16},
    ],
}


def measurement(**changes: Any) -> Measurement:
    return parse_measurement(MEASURED | changes, source="step.json")


def without(document: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in keys}


def test_a_file_is_read_as_the_setup_that_it_describes(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    file.write_text(json.dumps(MEASURED), encoding="utf-8")
    found = read_measurement(file)
    setup = found.setup
    assert (setup.library, setup.sharding) == (Library.FSDP2, Sharding.FULL)
    assert (setup.gpu.name, setup.gpus, setup.nodes) == ("H100-SXM5-80GB", 16, 2)
    assert (setup.precision, setup.checkpointing) == (Precision.AMP_BF16, Checkpointing.FULL)
    assert (setup.micro_batch, setup.accumulation, setup.global_batch) == (1, 2, 32)
    assert found.subject == "llama-3.1-8b, fsdp, 16 x H100-SXM5-80GB"


def test_the_estimate_meets_what_was_measured() -> None:
    found = measurement()
    known = calibrate(found)
    memory = memory_of(found.setup, calibration=known)
    speed = speed_of(found.setup, calibration=known)
    assert memory.allocated == pytest.approx(42e9, rel=1e-3)
    assert memory.reserved.likely == pytest.approx(48e9, rel=1e-3)
    assert speed.step_s.likely == pytest.approx(1.5, rel=1e-3)
    assert known.gpu == "H100-SXM5-80GB"
    assert known.measured_step


def test_the_largest_all_reduce_gives_the_bandwidth() -> None:
    one, twice = (
        measurement(),
        measurement(all_reduce=[{"bytes": 1 << 28, "seconds": 5e-3, "ranks": 16}]),
    )
    known, slower = calibrate(one), calibrate(twice)
    assert slower.inter_busbw_scale == pytest.approx(known.inter_busbw_scale / 2)
    assert known.intra_busbw_scale == 1
    inside = calibrate(measurement(all_reduce=[{"bytes": 1 << 28, "seconds": 2e-3, "ranks": 8}]))
    assert inside.inter_busbw_scale == 1
    assert inside.intra_busbw_scale != 1


def test_what_was_not_measured_stays_as_it_was() -> None:
    before = Calibration(inter_busbw_scale=0.7, reserved_ratio=1.3, gpu="H100-SXM5-80GB")
    step_only = parse_measurement(
        without(MEASURED, "allocated_bytes", "reserved_bytes", "all_reduce"), source="step.json"
    )
    known = calibrate(step_only, before=before)
    assert (known.inter_busbw_scale, known.reserved_ratio) == (0.7, 1.3)
    assert (known.activation_scale, known.measured_step) == (1, True)
    other = Calibration(inter_busbw_scale=0.7, gpu="A100-SXM4-80GB")
    assert calibrate(step_only, before=other).inter_busbw_scale == 1


def test_what_nvidia_smi_shows_beyond_torch_is_context() -> None:
    known = calibrate(measurement(device_bytes=50e9))
    assert known.context_bytes == pytest.approx(2e9)


def test_a_model_that_is_too_small_says_nothing_of_others() -> None:
    tiny = {"model_type": "gpt2", "n_layer": 2, "n_embd": 128, "n_head": 2, "vocab_size": 96}
    setup = SETUP | {"model": tiny, "seq": 64, "checkpointing": "none"}
    known = calibrate(measurement(setup=setup, allocated_bytes=5e7, reserved_bytes=9e7))
    assert (known.utilisation_scale, known.activation_scale, known.reserved_ratio) == (1, 1, None)
    assert not known.measured_step
    assert known.note.count("use a larger model") == 2
    assert known.inter_busbw_scale != 1
    with pytest.raises(UserError, match="nothing can be learned from this run: the step waits"):
        calibrate(measurement(setup=setup, allocated_bytes=5e7, all_reduce=[]))


def test_a_model_may_be_a_configuration() -> None:
    config = {
        "model_type": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 4, "n_positions": 128,
        "vocab_size": 96, "tie_word_embeddings": False, "params": 3_210_000,
    }  # fmt: skip
    found = measurement(setup=SETUP | {"model": config})
    assert (found.setup.model.layers, found.setup.model.params) == (4, 3_210_000)
    assert measurement(setup=SETUP | {"model": "7B"}).setup.model.params > 6e9


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        ({"gpu": None}, "no GPU was measured"),
        ({"gpu": "H101"}, "did you mean 'H100"),
        ({"model": "llama-9"}, "setup.model"),
        ({"strategy": "fdsp"}, "did you mean 'fsdp'"),
        ({"gpus": 0}, "gpus must be at least 1, not 0"),
        ({"gpus": True}, "gpus must be a whole number, not 'True'"),
        ({"seq": None}, "setup.seq"),
        ({"tp": 3}, "16 GPUs are not a multiple of tp x pp x cp"),
        ({"checkpointing": "ful"}, "did you mean 'full'"),
        ({"precision": "bf17"}, "setup.precision"),
        ({"interconnect": "nrd"}, "setup.interconnect"),
        ({"micro_batches": 2}, "did you mean 'micro_batch'"),
        ({"lora_rank": 8}, "the strategy has no adapter"),
        ({"strategy": "lora", "lora_rank": 0}, "lora_rank must be at least 1, not 0"),
        ({"flash_attention": "yes"}, "flash_attention must be true or false, not 'yes'"),
    ],
)
def test_a_setup_that_cannot_be_is_refused(setup: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        measurement(setup=SETUP | setup)
    assert said in str(refused.value)
    assert "step.json" in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"step_s": 0}, "step_s"),
        ({"step_s": "fast"}, "step_s: Input should be a valid number"),
        ({"allocated_bytes": float("nan")}, "allocated_bytes"),
        ({"all_reduce": [{"bytes": 5}]}, "all_reduce[0]"),
        ({"all_reduce": [7]}, "all_reduce[0]"),
        ({"all_reduce": 7}, "all_reduce must be a list, not '7'"),
        ({"setup": None}, "setup is missing"),
        ({"step_s": None, "allocated_bytes": None, "all_reduce": []}, "nothing was measured"),
        ({"schema": 2}, "this is not a measurement"),
    ],
)
def test_a_file_of_another_sort_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        measurement(**changes)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reserved_bytes": 40e9}, "42 GB is not below reserved_bytes, 40 GB"),
        ({"device_bytes": 48e9}, "48 GB is not below device_bytes, 48 GB"),
        ({"reserved_bytes": 90e9}, "is not below the memory of the GPU, 85.9 GB"),
        ({"allocated_bytes": None}, "48 GB says nothing without allocated_bytes"),
    ],
)
def test_memory_that_contradicts_itself_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        measurement(**changes)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"step_s": 1500.0}, "step_s: 1.5e+03 s measured"),
        ({"step_s": 0.0015}, "step_s: 0.0015 s measured"),
        ({"allocated_bytes": 2e9, "reserved_bytes": None}, "allocated_bytes: 2 GB measured"),
        ({"allocated_bytes": 85e9, "reserved_bytes": None, "step_s": None,
          "setup": SETUP | {"seq": 512}}, "allocated_bytes: 85 GB measured"),
        ({"all_reduce": [{"bytes": 1 << 28, "seconds": 0.4, "ranks": 16}]}, "over 2 nodes: 400 ms"),
        ({"all_reduce": [{"bytes": 1 << 28, "seconds": 1e-6, "ranks": 8}]}, "within a node: 0.001"),
    ],
)  # fmt: skip
def test_figures_of_another_run_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        calibrate(measurement(**changes))
    assert said in str(refused.value)
    assert "estimated" in str(refused.value)
    assert "hint: " in str(refused.value)


def test_a_slow_network_is_named_to_be_measured() -> None:
    rows = [{"bytes": 1 << 28, "seconds": 0.5, "ranks": 16}]
    with pytest.raises(UserError, match='"interconnect": "ethernet-25"'):
        calibrate(measurement(all_reduce=rows))
    named = measurement(all_reduce=rows, setup=SETUP | {"interconnect": "ethernet-10"}, step_s=None)
    assert 0.5 < calibrate(named).inter_busbw_scale < 2


def test_a_setup_says_what_changes_its_figures() -> None:
    lora = {"strategy": "lora", "lora_rank": 64, "flash_attention": False}
    setup = measurement(setup=SETUP | lora | {"offload_activations": True}).setup
    assert setup.adapter is not None
    assert (setup.adapter.rank, setup.flash_attention, setup.offload_activations) == (
        64,
        False,
        True,
    )


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '{"schema": 1}'])
def test_a_torn_file_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"step\.json"):
        read_measurement(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.json"):
        read_measurement(tmp_path / "gone.json")


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(UserError) as refused:
        measurement(setup={"gpu": "H101", "gpus": -1}, step_s=-1)
    assert len(refused.value.problems) > 4


def test_a_calibration_stays_for_a_cluster(tmp_path: Path) -> None:
    path = calibration_file("a100", {"XDG_CONFIG_HOME": str(tmp_path)})
    assert path == tmp_path / "clusterkit" / "calibration" / "a100.json"
    assert load_calibration(path) is None
    known = calibrate(measurement())
    save_calibration(path, known)
    assert load_calibration(path) == known
    save_calibration(path, Calibration())
    assert load_calibration(path) == Calibration()


def test_without_a_home_folder_nothing_can_stay() -> None:
    with pytest.raises(UserError, match="set HOME"):
        calibration_file("a100", {})


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", '{"schema": 2}', '{"schema": 1, "utilisation_scale": 0}',
     '{"schema": 1, "activation_scale": "2"}', '{"schema": 1, "reserved_ratio": -1}'],
)  # fmt: skip
def test_a_calibration_that_somebody_broke_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a100.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="this is not a calibration"):
        load_calibration(path)
