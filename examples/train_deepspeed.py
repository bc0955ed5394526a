r"""Train with DeepSpeed ZeRO: `--zero 1|2|3`, or all of DeepSpeed's own configuration in a file.

    clusterkit submit --framework deepspeed --nodes 2 examples/train_deepspeed.py --zero 3
    clusterkit submit --framework deepspeed --nodes 2 examples/train_deepspeed.py \
        --deepspeed_config examples/deepspeed.json

By hand, on one machine: `deepspeed --num_gpus 2 examples/train_deepspeed.py`; where there is no
GPU, `DS_ACCELERATOR=cpu deepspeed --num_accelerators 2 ...`.
Every rank writes its slice, so all hosts must share the checkpoint folder, and only as many
processes can resume from it.
"""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import charlm
import deepspeed  # type: ignore[import-untyped]
import measure
import session
from deepspeed import comm


def main() -> None:
    """Join the other ranks, train, leave together."""
    arguments = session.parser(__doc__)
    arguments.add_argument(
        "--local_rank", help="set by the deepspeed launcher; LOCAL_RANK says the same"
    )
    arguments.add_argument(
        "--deepspeed_config", type=Path, help="JSON file; --batch-size and --lr fill its gaps"
    )
    arguments.add_argument(
        "--zero", type=int, default=2, choices=range(4), help="stage, without a config file"
    )
    arguments.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    measure.add_argument(arguments)
    args = arguments.parse_args()
    # On CPU, DeepSpeed would now compile an op that only inference uses: half a minute, with g++.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # It also calls collectives by names that torch 2.13 deprecates, with a warning at every step.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    deepspeed.init_distributed()
    train(args)
    session.leave()


def train(args: argparse.Namespace) -> None:
    """Train until `--steps`, from the newest checkpoint on if there is one."""
    rank, world = comm.get_rank(), comm.get_world_size()
    model = charlm.CharLM(args)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=configuration(args)
    )
    args.batch_size = engine.train_micro_batch_size_per_gpu()  # the file may say another one
    stage = engine.zero_optimization_stage()
    progress = session.Progress(f"deepspeed ZeRO-{stage}", args, rank, world, engine.device)
    meter = measure.Meter(args, f"zero{stage}" if stage else "ddp", model, engine.device)
    text = charlm.Text(args, rank, world)
    if args.checkpoint_dir and (args.checkpoint_dir / "latest").exists():
        _, state = engine.load_checkpoint(str(args.checkpoint_dir))
        progress.resume(state["progress"])
    while progress.step < args.steps:
        loss = engine(text.batch(progress.step).to(engine.device))
        engine.backward(loss)
        engine.step()
        progress.advance(loss)
        meter.advance()
        if progress.save_due():  # the file `latest` is written last, so it names a whole checkpoint
            engine.save_checkpoint(
                str(args.checkpoint_dir), client_state={"progress": progress.state()}
            )
    progress.done()
    meter.write()
    engine.destroy()


def configuration(args: argparse.Namespace) -> dict[str, Any]:
    """Return the DeepSpeed configuration: the file, over what the other arguments say."""
    given = json.loads(args.deepspeed_config.read_text()) if args.deepspeed_config else {}
    return {
        "train_micro_batch_size_per_gpu": args.batch_size,
        # torch_adam: DeepSpeed's own Adam is another op that it compiles on first use
        "optimizer": {"type": "AdamW", "params": {"lr": args.lr, "torch_adam": True}},
        "zero_optimization": {"stage": args.zero},
        # fp16: the loss is scaled, by less after each overflow, so that small gradients stay
        "bf16": {"enabled": args.precision == "bf16"},
        "fp16": {"enabled": args.precision == "fp16", "initial_scale_power": 16},
        "steps_per_print": 10**9,  # this script prints for itself
    } | given


if __name__ == "__main__":
    main()
