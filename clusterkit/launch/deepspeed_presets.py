"""The named DeepSpeed configurations: each is the file `frameworks/deepspeed/NAME.json`."""

from __future__ import annotations

from clusterkit.core.data import data_dir, read_template
from clusterkit.core.errors import Problem, choices_hint


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets."""
    return tuple(
        sorted(path.stem for path in data_dir("templates/frameworks/deepspeed").glob("*.json"))
    )


def preset_text(name: str) -> str:
    """Return the preset as it is written to `ds_config.json`."""
    return read_template(f"frameworks/deepspeed/{name}.json")


def check_preset(name: str, framework: str) -> list[Problem]:
    """Return what is wrong with asking for preset `name` under `framework`."""
    problems = []
    if framework != "deepspeed":
        message = f"--ds-preset {name} is for deepspeed, and the framework is {framework}"
        hint = "--framework deepspeed, or leave --ds-preset out"
        problems.append(Problem(message=message, hint=hint, key="ds_preset"))
    if name not in preset_names():
        message, hint = f"unknown DeepSpeed preset {name!r}", choices_hint(name, preset_names())
        problems.append(Problem(message=message, hint=hint, key="ds_preset"))
    return problems
