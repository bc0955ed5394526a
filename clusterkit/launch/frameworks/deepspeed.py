"""deepspeed: its own launcher on every node, told everything, so that it needs no SSH.

`--no_ssh` makes each node start only its own ranks; the hostfile gives the world, and the master
address is explicit because the launcher would otherwise ask the first host over SSH
(deepspeed#5136). Ranks start through `rank.sh`, which says why.

A filter drops nodes in the node script, where their names are known; the launcher refuses to
start on a node that its own filter drops. It gets what is left slot by slot, as some releases
take a bare host name for none of its slots (deepspeed#6671).
"""

from __future__ import annotations

from clusterkit.core.data import framework_files
from clusterkit.core.errors import UserError
from clusterkit.core.hosts.slots import filter_slots, pool_of_unnamed
from clusterkit.core.model import FILTERED, NodeCommand, Runtime, SlotFilter, Word
from clusterkit.launch.frameworks.base import Framework, LaunchInputs, option_words, preset_text

CONFIG_FLAGS = ("--deepspeed_config", "--deepspeed-config")
CONFIG_FILE = "ds_config.json"
TRAINER_PRESET = "zero3-auto"
"""What only the Trainer of transformers fills in; it takes a configuration as `--deepspeed`."""
DECIDED = frozenset(
    {"hostfile", "num_nodes", "num_gpus", "node_rank", "master_addr"}
    | {"master_port", "no_ssh", "no_python", "launcher", "elastic_training"}
)
"""Options of the launcher that the plan decides. Elastic training, of older releases, is torch's
c10d rendezvous, which runs what anybody writes to its port."""
FILTERS = ("include", "exclude")


def command(inputs: LaunchInputs) -> NodeCommand:
    """Return the launcher's command; every node runs the same one."""
    _refuse_own_options(inputs)
    files = framework_files("deepspeed", "rank.sh")
    config: tuple[Word, ...] = ()
    if inputs.deepspeed_preset is not None:
        files[CONFIG_FILE] = preset_text("deepspeed", inputs.deepspeed_preset)
        flag = "--deepspeed" if inputs.deepspeed_preset == TRAINER_PRESET else CONFIG_FLAGS[0]
        config = (flag, (Runtime.TMP, f"/{CONFIG_FILE}"))
    slot_filter = None if inputs.one_host else _slot_filter(inputs)
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
            *((("--include=", FILTERED),) if slot_filter else ()),
            *option_words(inputs.options, skip=("no_local_rank", *FILTERS)),
            "sh",
            (Runtime.TMP, "/rank.sh"),
            str(len(inputs.program)),
            *inputs.program,
            *inputs.args,
            *config,
        ),
        env={"CK_NO_LOCAL_RANK": "1"} if "no_local_rank" in inputs.options else {},
        files=files,
        hostfile=True,
        slot_filter=slot_filter,
    )


def _slot_filter(inputs: LaunchInputs) -> SlotFilter | None:
    given = {name: inputs.options[name] for name in FILTERS if inputs.options.get(name)}
    if not given:
        return None
    name, text = next(iter(given.items()))
    if inputs.node_names:
        slots = (tuple(range(count)) for count in inputs.slots)
        pool = dict(zip(inputs.node_names, slots, strict=True))
    else:
        pool = pool_of_unnamed(inputs.nodes, inputs.slots[0], text)
    left = filter_slots(pool, **given, prefix="deepspeed.")
    if not left:
        raise UserError(f"deepspeed.{name} leaves no slot", hint="name fewer hosts in it")
    if any(":" in host for host in left):
        raise UserError("DeepSpeed's filters cannot name IPv6 addresses", hint="use host names")
    processes = sum(len(slots) for slots in left.values())
    return SlotFilter(option=f"deepspeed.{name}", text=text, processes=processes)


def _refuse_own_options(inputs: LaunchInputs) -> None:
    taken = [option for option in inputs.options if option in DECIDED]
    if taken:
        raise UserError(
            f"deepspeed.{taken[0]} is decided by clusterkit",
            hint="choose with --nodes, --exclude and --gpus-per-node, or filter with "
            "deepspeed.include or deepspeed.exclude",
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
    starts=("zero", "zero1", "zero2", "zero3"),
    image="deepspeed",
    command=command,
    torch=True,
    provides=("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    by_hand="deepspeed --hostfile hostfile --master_addr HOST1 train.py",
)
