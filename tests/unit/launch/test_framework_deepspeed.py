"""DeepSpeed's presets: read by its own reader, offered by the flag, explained key by key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core.data import data_dir
from clusterkit.launch.options import JobOptions
from tests.helpers.needs import module
from tests.helpers.paths import ROOT

PRESETS = {
    path.stem: json.loads(path.read_text())
    for path in sorted(data_dir("templates/frameworks/deepspeed").glob("*.json"))
}
PAGE = (ROOT / "docs" / "how-to" / "deepspeed.md").read_text()


def keys(document: dict[str, Any]) -> Iterator[str]:
    for key, value in document.items():
        yield key
        if isinstance(value, dict):
            yield from keys(value)


@pytest.mark.parametrize("name", sorted(set(PRESETS) - {"zero3-auto"}))
def test_deepspeed_reads_a_preset_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = module("deepspeed.runtime.config")
    monkeypatch.setenv("WORLD_SIZE", "1")  # the batch of one rank: it asks no other
    monkeypatch.setenv("RANK", "0")
    preset = PRESETS[name]
    read = config.DeepSpeedConfig(preset)
    assert read.zero_config.stage == preset["zero_optimization"]["stage"]
    assert not read.zero_config.model_extra
    assert read.bfloat16_config.enabled == ("bf16" in preset)
    assert read.float16_config.enabled == ("fp16" in preset)
    assert read.zero_config.zero_quantized_weights == (name == "zeropp")


def test_transformers_fills_in_what_says_auto(tmp_path: Path) -> None:
    trainer = module("transformers.integrations.deepspeed")
    arguments = module("transformers").TrainingArguments(str(tmp_path), bf16=True, use_cpu=True)
    config = trainer.HfTrainerDeepSpeedConfig(PRESETS["zero3-auto"])
    config.trainer_config_process(arguments)

    class Config:
        hidden_size = 64

    class Model:
        config = Config

    config.trainer_config_finalize(arguments, Model, 100)
    assert "auto" not in json.dumps(config.config)
    assert config.config["bf16"]["enabled"] is True


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_offered_and_each_key_explained(name: str) -> None:
    assert name in str(JobOptions.__annotations__["ds_preset"])
    assert f"| `{name}` |" in PAGE
    told = PAGE[PAGE.index("## What each key does") :].replace(".", "`")
    aside = {"optimizer", "type", "params", "lr", "betas", "eps", "weight_decay", "device"}
    aside |= {"zero_optimization", "train_batch_size", "enabled", "aio"}
    unknown = [key for key in keys(PRESETS[name]) if key not in aside and f"`{key}`" not in told]
    aio = set(PRESETS[name].get("aio", {}))
    assert set(unknown) <= aio
