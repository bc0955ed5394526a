"""The framework `accelerate`: what its launcher is told, and configurations that it reads."""

from __future__ import annotations

import pytest

from clusterkit.core.data import data_dir
from clusterkit.core.errors import UserError
from clusterkit.core.model import NodeCommand
from clusterkit.launch.frameworks import LaunchInputs, load_framework
from tests.helpers.needs import module

PRESETS = sorted(data_dir("templates/frameworks/accelerate").glob("*.yaml"))


def command(**options: str) -> NodeCommand:
    inputs = LaunchInputs(script="x.py", nodes=3, slots=(2, 2, 2), processes=6, options=options)
    return load_framework("accelerate").command(inputs)


def test_the_number_of_processes_is_that_of_all_nodes() -> None:
    """The most common mistake with it."""
    assert "--num_processes=6" in command().argv


def test_options_of_the_launcher_beat_the_configuration() -> None:
    argv = command(preset="fsdp", mixed_precision="no").argv
    assert "--mixed_precision=no" in argv
    assert not any("preset" in str(word) for word in argv)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "fdsp"}, "unknown configuration preset 'fdsp'"),
        ({"num_processes": "4"}, "accelerate.num_processes is decided by the plan"),
        ({"preset": "ddp", "config_file": "a.yaml"}, "two configurations"),
    ],
)
def test_what_it_refuses(options: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        command(**options)


def test_a_configuration_of_the_users_own_is_the_only_one() -> None:
    told = command(config_file="my own.yaml")
    assert "--config_file=my own.yaml" in told.argv
    assert "accelerate.yaml" not in told.files


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_accelerate_itself_reads_the_presets(path: object) -> None:
    """Its own launcher, as far as the command of the ranks."""
    launch = module("accelerate.commands.launch")
    words = ["--config_file", str(path), "--num_processes=6", "--num_machines=3"]
    parser = launch.launch_command_parser()
    arguments, defaults, _ = launch._validate_launch_command(
        parser.parse_args([*words, "--machine_rank=1", "--main_process_ip=n1", "x.py"])
    )
    name = getattr(path, "stem", "")
    assert arguments.use_fsdp is (name == "fsdp")
    assert arguments.use_deepspeed is name.startswith("zero")
    assert arguments.mixed_precision == "bf16"
    if name.startswith("zero"):
        assert arguments.zero_stage == int(name[-1])
        assert arguments.deepspeed_multinode_launcher == "standard"
    assert defaults is not None
