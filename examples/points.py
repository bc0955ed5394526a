"""Learn the class of a point: the task, the arguments and the progress of the TensorFlow scripts.

They need no torch, so session.py is not for them. A checkpoint is one file of arrays, written by
one process and read by those that hold weights: the hosts must share its folder.
"""

import argparse
import math
import os
import time
from pathlib import Path

import numpy as np
import tensorflow as tf  # type: ignore[import-not-found]

FEATURES, CLASSES = 16, 8
FILE = "tensorflow.npz"


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the arguments that every TensorFlow script here takes."""
    args = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    args.add_argument("--steps", type=int, default=100, help="last step, resumed ones counted")
    args.add_argument("--batch-size", type=int, default=64, help="samples per step, of one replica")
    args.add_argument("--lr", type=float, default=0.5)
    args.add_argument("--seed", type=int, default=0)
    args.add_argument("--width", type=int, default=64, help="of the model")
    args.add_argument("--log-every", type=int, default=10, metavar="STEPS")
    args.add_argument("--checkpoint-dir", type=Path, help="save here; resume from what is here")
    args.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    return args


class Student(tf.Module):  # type: ignore[misc]
    """Learn to which class a hidden linear map counts a point: from ln(8) = 2.1 nats downward."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.args = args
        self.hidden = tf.random.stateless_normal((FEATURES, CLASSES), (args.seed, 0))
        shapes = ((FEATURES, args.width), (args.width,), (args.width, CLASSES), (CLASSES,))
        self.weights = [
            # What replicas assign is averaged: a step of all together.
            tf.Variable(
                tf.random.stateless_normal(shape, (args.seed, 1 + number)) / math.sqrt(shape[0]),
                aggregation=tf.VariableAggregation.MEAN,
            )
            for number, shape in enumerate(shapes)
        ]

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        """Return what the model holds of each class, for each point."""
        first, shift, second, bias = self.weights
        return tf.nn.relu(x @ first + shift) @ second + bias

    def loss(self, batch: tf.Tensor) -> tf.Tensor:
        """Return the mean cross-entropy of batch number `batch`, which follows from it alone."""
        points = tf.random.stateless_normal(
            (self.args.batch_size, FEATURES), tf.stack((self.args.seed + 1, batch))
        )
        classes = tf.argmax(points @ self.hidden, axis=1)
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=classes, logits=self.logits(points)
            )
        )

    def learn(self, batch: tf.Tensor) -> tf.Tensor:
        """Take a step on this batch, and return its loss."""
        with tf.GradientTape() as tape:
            loss = self.loss(batch)
        gradients = tape.gradient(loss, self.weights)
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.assign_sub(self.args.lr * gradient)
        return loss


class Progress:
    """Print the lines that README.md documents and save, in one process of all; resume in each."""

    def __init__(self, args: argparse.Namespace, world: int, *, speaks: bool = True) -> None:
        self.args, self.world, self.speaks = args, world, speaks
        self.first_loss = self.last_loss = math.nan
        self.since = (0, time.perf_counter())
        device = "cuda" if tf.config.list_physical_devices("GPU") else "cpu"
        self.print(f"start: framework tensorflow, world size {world}, device {device}")

    def print(self, line: str) -> None:
        """Print one line, at once: someone may follow the log."""
        if self.speaks:
            print(line, flush=True)

    def log_due(self, step: int) -> bool:
        """Tell whether this step is the first, the last, or one of every so many."""
        return step in {1, self.args.steps} or step % self.args.log_every == 0

    def save_due(self, step: int) -> bool:
        """Tell whether to save after this step."""
        last = step == self.args.steps
        return bool(self.args.checkpoint_dir) and (last or step % self.args.checkpoint_every == 0)

    def advance(self, student: Student, step: int, loss: float) -> None:
        """Print a step and save after it, where either is due."""
        if step == 1:
            self.first_loss = loss
        self.last_loss = loss
        if self.log_due(step):
            (before, then), now = self.since, time.perf_counter()
            rate = (step - before) * self.args.batch_size * self.world / (now - then)
            self.since = (step, now)
            self.print(f"step {step} loss {loss:.4f} samples/s {rate:.1f}")
        if self.save_due(step) and self.speaks:
            self.save(student, step)

    def save(self, student: Student, step: int) -> None:
        """Write a checkpoint, whole or not at all: a kill leaves the one before it."""
        folder: Path = self.args.checkpoint_dir
        folder.mkdir(parents=True, exist_ok=True)
        weights = {str(number): one.numpy() for number, one in enumerate(student.weights)}
        with (folder / "tensorflow.unfinished").open("wb") as file:
            np.savez(file, step=step, losses=(self.first_loss, self.last_loss), **weights)
            file.flush()
            os.fsync(file.fileno())
        (folder / "tensorflow.unfinished").replace(folder / FILE)

    def resume(self, student: Student) -> int:
        """Return the step up to which a checkpoint has come, having loaded it; 0 without one."""
        folder: Path | None = self.args.checkpoint_dir
        if folder is None or not (folder / FILE).exists():
            return 0
        with np.load(folder / FILE) as saved:  # arrays only: no pickle is loaded
            for number, weight in enumerate(student.weights):
                weight.assign(saved[str(number)])
            self.first_loss, self.last_loss = map(float, saved["losses"])
            step = int(saved["step"])
        self.since = (step, time.perf_counter())
        self.print(f"resume: step {step} from {folder}")
        return step

    def done(self) -> None:
        """Print the last line."""
        losses = f"{self.first_loss:.2f} -> {self.last_loss:.2f}"
        self.print(f"done: loss {losses} in {self.args.steps} steps")
