"""accelerate: `accelerate launch` on every node, told everything; a static rendezvous.

Its number of processes is that of all nodes together, and every node has the same share of them
(accelerate#327). Strategies stand in a configuration of its own: `--set accelerate.preset=fsdp`
renders one, and `--set accelerate.config_file=FILE` names yours.
"""

from __future__ import annotations

from clusterkit.core.data import framework_files
from clusterkit.core.errors import UserError
from clusterkit.core.model import NodeCommand, Runtime, Word
from clusterkit.launch.frameworks.base import (
    Framework,
    LaunchInputs,
    decided_error,
    launched_by,
    option_words,
    preset_text,
    shared_files,
)

CONFIG_FILE = "accelerate.yaml"
_DECIDED = frozenset(
    {"num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port"}
    | {"rdzv_backend", "rdzv_conf", "same_network", "multi_gpu", "cpu"}
)


def command(inputs: LaunchInputs) -> NodeCommand:
    """Return the launcher's command; every node runs the same one."""
    decided = next((name for name in inputs.options if name in _DECIDED), None)
    if decided is not None:
        raise decided_error(f"accelerate.{decided}")
    preset = inputs.options.get("preset", "ddp")
    own = "config_file" in inputs.options
    if own and "preset" in inputs.options:
        raise UserError("accelerate has two configurations", hint="keep preset or config_file")
    files = {
        **framework_files("accelerate", "accelerate_launch.py"),
        **framework_files("torchrun", "agent.py"),
        **shared_files("clusterkit_failure.py"),
    }
    config: tuple[Word, ...] = ()
    if not own:
        files[CONFIG_FILE] = preset_text("accelerate", preset)
        config = (("--config_file=", Runtime.TMP, f"/{CONFIG_FILE}"),)
    return NodeCommand(
        argv=launched_by(
            "accelerate_launch.py",
            inputs,
            *config,
            f"--num_processes={inputs.processes}",
            ("--num_machines=", Runtime.NNODES),
            ("--machine_rank=", Runtime.NODE_RANK),
            ("--main_process_ip=", Runtime.HEAD_ADDR),
            ("--main_process_port=", Runtime.PORT),
            "--rdzv_backend=static",
            *option_words(inputs.options, skip=("preset",)),
            script=inputs.for_launcher(no_python="--no_python"),
        ),
        files=files,
    )


FRAMEWORK = Framework(
    name="accelerate",
    summary="Hugging Face Accelerate: DDP, FSDP, DeepSpeed by its configuration",
    package="accelerate",
    starts=("hf", "huggingface", "trainer", "transformers"),
    image="accelerate",
    command=command,
    torch=True,
    by_hand='on each host K: CK_NODES="HOST0 HOST1" CK_NODE_RANK=K bash node.sh',
    provides=("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
)
