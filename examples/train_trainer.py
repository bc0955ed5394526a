"""Train with the Trainer of Hugging Face transformers: it finds the other ranks by itself.

    clusterkit submit --framework accelerate --nodes 2 examples/train_trainer.py --steps 200

By hand, on one machine: `accelerate launch --num_processes 2 examples/train_trainer.py`.
"""

# ruff: noqa: ARG002 - the Trainer calls every hook with the same words

import argparse
import signal
import time
from typing import Any

import charlm
import session
import torch
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import get_last_checkpoint


class Batches(IterableDataset[dict[str, Tensor]]):
    """Give out samples of this rank's shard of the text, from a step on."""

    def __init__(self, args: argparse.Namespace, rank: int, world: int, step: int) -> None:
        self.text, self.args, self.step = charlm.Text(args, rank, world), args, step

    def __iter__(self) -> Any:
        """Yield tokens and labels; the model itself shifts them by one."""
        for step in range(self.step, self.args.steps):
            for row in self.text.batch(step):
                yield {"input_ids": row[:-1], "labels": row[:-1]}


class Lines(TrainerCallback):
    """Print what README.md documents, on rank 0, and save when the end is near."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.args, self.device, self.noticed = args, device, False
        self.since = (0, time.perf_counter())
        if args.checkpoint_dir is not None:
            signal.signal(signal.SIGUSR2, lambda *_: setattr(self, "noticed", True))

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Say where this run starts."""
        self.since = (state.global_step, time.perf_counter())
        if state.is_world_process_zero:
            world = f"world size {args.world_size}, device {self.device.type}"
            print(f"start: framework trainer, {world}", flush=True)
            if state.global_step:
                print(f"resume: step {state.global_step} from {args.output_dir}", flush=True)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Print a step; the Trainer has averaged the loss over the ranks."""
        loss = more["logs"].get("loss")
        if loss is None or not state.is_world_process_zero:
            return
        (step, then), now = self.since, time.perf_counter()
        samples = (state.global_step - step) * args.per_device_train_batch_size * args.world_size
        self.since = (state.global_step, now)
        rate = samples / (now - then)
        print(f"step {state.global_step} loss {loss:.4f} samples/s {rate:.1f}", flush=True)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Save where any rank was told that the end is near: all ranks save, or none."""
        if self.args.checkpoint_dir is None or args.world_size == 1:
            return
        if session.mean(torch.tensor(float(self.noticed), device=self.device)) > 0:
            self.noticed, control.should_save = False, True
            if state.is_world_process_zero:
                print(f"notice: saving after step {state.global_step}", flush=True)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Print the last line; the history is in the checkpoints."""
        losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
        if state.is_world_process_zero and losses:
            learned = f"loss {losses[0]:.2f} -> {losses[-1]:.2f}"
            print(f"done: {learned} in {state.global_step} steps", flush=True)


def main() -> None:
    """Train until `--steps`, from the checkpoint on if there is one."""
    args = session.parser(__doc__).parse_args()
    folder = args.checkpoint_dir
    arguments = TrainingArguments(
        output_dir=str(folder) if folder else "unused",
        max_steps=args.steps,
        per_device_train_batch_size=args.batch_size,
        learning_rate=args.lr,
        lr_scheduler_type="constant",
        seed=args.seed,
        bf16=False,
        logging_steps=args.log_every,
        logging_first_step=True,
        save_strategy="steps" if folder else "no",
        save_steps=args.checkpoint_every,
        save_total_limit=2,
        disable_tqdm=True,
        report_to=[],
        use_cpu=not torch.accelerator.is_available(),
        ddp_find_unused_parameters=False,
        ignore_data_skip=True,  # the text knows its steps
        accelerator_config={"dispatch_batches": False, "split_batches": False},
    )
    last = get_last_checkpoint(str(folder)) if folder and folder.is_dir() else None
    step = int(last.rsplit("-", 1)[1]) if last else 0
    trainer = Unsharded(
        model=GPT2LMHeadModel(
            GPT2Config(**charlm.shape(args), bos_token_id=None, eos_token_id=None)
        ),
        args=arguments,
        train_dataset=Batches(args, arguments.process_index, arguments.world_size, step),
        callbacks=[Lines(args, arguments.device)],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=last)
    if arguments.world_size > 1:
        session.leave()


class Unsharded(Trainer):
    """A Trainer whose data is one rank's own already."""

    def get_train_dataloader(self) -> Any:
        """Return the batches as they come."""
        return torch.utils.data.DataLoader(
            self.train_dataset, batch_size=self.args.per_device_train_batch_size
        )


if __name__ == "__main__":
    main()
