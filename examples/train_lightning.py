"""Train with Lightning: clusterkit starts the processes, and the Trainer finds itself among them.

    clusterkit submit --framework env --nodes 2 examples/train_lightning.py --steps 200

By hand, on one machine: `torchrun --standalone --nproc-per-node 2 examples/train_lightning.py`.
"""

# ruff: noqa: ARG002 - Lightning calls every hook with the same words

import argparse
import os
from collections.abc import Iterator
from typing import Any

import charlm
import lightning
import session
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset


class Batches(IterableDataset[Tensor]):
    """Hand out this rank's batches, from the step on that the Trainer is at."""

    def __init__(self, text: charlm.Text, trainer: lightning.Trainer) -> None:
        self.text, self.trainer = text, trainer

    def __iter__(self) -> Iterator[Tensor]:
        """Yield character numbers; the Trainer ends it."""
        step = self.trainer.global_step
        while True:
            yield self.text.batch(step)
            step += 1


class Speller(lightning.LightningModule):
    """The language model, its optimizer and its text, as Lightning wants them."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.args = args
        self.model = charlm.CharLM(args)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        loss: Tensor = self.model(batch)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer of all steps."""
        return torch.optim.AdamW(self.parameters(), lr=self.args.lr)

    def train_dataloader(self) -> DataLoader[Tensor]:
        """Return this rank's shard of the text, in batches already."""
        text = charlm.Text(self.args, self.global_rank, self.trainer.world_size)
        return DataLoader(Batches(text, self.trainer), batch_size=None)


class Lines(lightning.Callback):
    """Print what README.md documents, and save: also where any rank was told that the end is near.

    What Lightning does of that by itself would not come in time: it saves ahead of a time limit
    where Slurm sends SIGUSR1, and clusterkit, which starts the job again, sends SIGUSR2.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args

    def setup(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str
    ) -> None:
        """Begin to count, on every rank."""
        self.progress = session.Progress(
            "lightning",
            self.args,
            trainer.global_rank,
            trainer.world_size,
            trainer.strategy.root_device,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds of the progress."""
        return self.progress.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.progress.resume(state_dict)

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Any,
        batch: Tensor,
        batch_idx: int,
    ) -> None:
        """Count a step, and save where it is time."""
        self.progress.advance(outputs["loss"])
        if self.progress.save_due():
            trainer.save_checkpoint(self.args.checkpoint_dir / "lightning.ckpt")


def main() -> None:
    """Train until `--steps`, from the checkpoint on if there is one."""
    args = session.parser(__doc__).parse_args()
    devices = int(os.environ["LOCAL_WORLD_SIZE"])
    lines = Lines(args)
    trainer = lightning.Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=devices,
        num_nodes=int(os.environ["WORLD_SIZE"]) // devices,
        strategy="ddp",
        max_steps=args.steps,
        max_epochs=-1,
        callbacks=[lines],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    saved = args.checkpoint_dir / "lightning.ckpt" if args.checkpoint_dir else None
    trainer.fit(Speller(args), ckpt_path=saved if saved and saved.exists() else None)
    lines.progress.done()
    session.leave()


if __name__ == "__main__":
    main()
