"""deepspeed: its own launcher on every node, told everything, so that it needs no SSH.

`--no_ssh` makes each node start only its own ranks; the hostfile gives the world, and the master
address is explicit because the launcher would otherwise ask the first host over SSH
(deepspeed#5136). Ranks start through `templates/deepspeed/rank.sh`, which says why.
"""

from __future__ import annotations

from clusterkit.data import read_data
from clusterkit.errors import UserError
from clusterkit.frameworks.base import Framework, LaunchInputs, option_words
from clusterkit.model import NodeCommand, Runtime, Word
from clusterkit.presets import preset_text

CONFIG_FLAGS = ("--deepspeed_config", "--deepspeed-config")
CONFIG_FILE = "ds_config.json"
DECIDED = frozenset(
    {"hostfile", "include", "exclude", "num_nodes", "num_gpus", "node_rank", "master_addr"}
    | {"master_port", "no_ssh", "no_python", "launcher"}
)
"""Options of the launcher that the plan decides; a filter here would also leave nodes behind."""


def command(inputs: LaunchInputs) -> NodeCommand:
    """Return the launcher's command; every node runs the same one."""
    _refuse_own_options(inputs)
    files = {"rank.sh": read_data("templates", "deepspeed", "rank.sh")}
    config: tuple[Word, ...] = ()
    if inputs.deepspeed_preset is not None:
        files[CONFIG_FILE] = preset_text(inputs.deepspeed_preset)
        config = (CONFIG_FLAGS[0], (Runtime.TMP, f"/{CONFIG_FILE}"))
    return NodeCommand(
        argv=(
            inputs.python,
            "-u",
            "-m",
            "deepspeed.launcher.runner",
            ("--hostfile=", Runtime.TMP, "/hostfile"),
            "--no_ssh",
            ("--node_rank=", Runtime.NODE_RANK),
            ("--master_addr=", Runtime.HEAD_ADDR),
            ("--master_port=", Runtime.PORT),
            "--no_local_rank",
            "--no_python",
            *option_words(inputs.options, skip=("no_local_rank",)),
            "sh",
            (Runtime.TMP, "/rank.sh"),
            inputs.python,
            inputs.script,
            *inputs.args,
            *config,
        ),
        env={"CK_NO_LOCAL_RANK": "1"} if "no_local_rank" in inputs.options else {},
        files=files,
        hostfile=True,
    )


def _refuse_own_options(inputs: LaunchInputs) -> None:
    taken = [option for option in inputs.options if option in DECIDED]
    if taken:
        raise UserError(
            f"deepspeed.{taken[0]} is decided by clusterkit",
            hint="choose with --nodes, --exclude and --gpus-per-node; "
            "clusterkit hostfile --include filters a hostfile",
        )
    has_config = any(arg.split("=", 1)[0] in CONFIG_FLAGS for arg in inputs.args)
    if has_config and inputs.deepspeed_preset is not None:
        raise UserError(
            "two DeepSpeed configurations: a preset, and --deepspeed_config among the arguments",
            hint="keep one of --ds-preset and --deepspeed_config",
        )


FRAMEWORK = Framework(
    name="deepspeed",
    summary="DeepSpeed's launcher: ZeRO-1/2/3, offload",
    package="deepspeed",
    image="deepspeed",
    command=command,
    provides=("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    by_hand="deepspeed --hostfile hostfile --master_addr HOST1 train.py",
)
