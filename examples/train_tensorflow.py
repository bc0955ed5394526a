"""Train with TensorFlow: every process holds the whole model, and they average the gradients.

    clusterkit submit --framework tensorflow --nodes 2 examples/train_tensorflow.py --steps 200

MultiWorkerMirroredStrategy where there is a TF_CONFIG, and so other processes; MirroredStrategy
where there is none. By hand, on one machine: `python examples/train_tensorflow.py`.
With `--keras` it is a model and an optimizer of Keras, in the same loop: Keras 3's `fit` knows no
MultiWorkerMirroredStrategy (keras-team/keras issue 20585). All hosts must share the folder of
checkpoints, which the first process writes.
"""

import argparse
import math
import os
import time
from pathlib import Path

import keras  # type: ignore[import-not-found]
import numpy as np
import tensorflow as tf  # type: ignore[import-not-found]

FEATURES, CLASSES = 16, 8
FILE = "tensorflow.npz"


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the arguments that every TensorFlow script here takes."""
    args = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    args.add_argument("--steps", type=int, default=100)
    args.add_argument("--batch-size", type=int, default=64, help="samples per step, of one replica")
    args.add_argument("--lr", type=float, default=0.5)
    args.add_argument("--seed", type=int, default=0)
    args.add_argument("--width", type=int, default=64, help="of the model")
    args.add_argument("--log-every", type=int, default=10, metavar="STEPS")
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

    def logits(self, points: tf.Tensor) -> tf.Tensor:
        """Return what the model holds of each class, for each point."""
        first, shift, second, bias = self.weights
        return tf.nn.relu(points @ first + shift) @ second + bias

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


class KerasStudent(Student):
    """The same with a model and an optimizer of Keras."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        keras.utils.set_random_seed(args.seed)
        layers = keras.layers.Dense(args.width, activation="relu"), keras.layers.Dense(CLASSES)
        self.model = keras.Sequential([keras.Input((FEATURES,)), *layers])
        self.optimizer = keras.optimizers.Adam(args.lr / 10)
        self.optimizer.build(self.model.trainable_variables)
        self.weights = [one.value for one in (*self.model.variables, *self.optimizer.variables)]

    def logits(self, points: tf.Tensor) -> tf.Tensor:
        """Return what the model holds of each class, for each point."""
        return self.model(points, training=True)

    def learn(self, batch: tf.Tensor) -> tf.Tensor:
        """Take a step on this batch, and return its loss."""
        weights = self.model.trainable_variables
        with tf.GradientTape() as tape:
            loss = self.loss(batch)
            # The optimizer adds up the gradients of all replicas.
            share = loss / tf.distribute.get_strategy().num_replicas_in_sync
        self.optimizer.apply_gradients(zip(tape.gradient(share, weights), weights, strict=True))
        return loss


class Progress:
    """Print the lines that README.md documents, in one process of all."""

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

    def advance(self, step: int, loss: float) -> None:
        """Print a step if it is the first, the last, or one of every so many."""
        if step == 1:
            self.first_loss = loss
        self.last_loss = loss
        if 1 < step < self.args.steps and step % self.args.log_every:
            return
        (before, then), now = self.since, time.perf_counter()
        rate = (step - before) * self.args.batch_size * self.world / (now - then)
        self.since = (step, now)
        self.print(f"step {step} loss {loss:.4f} samples/s {rate:.1f}")

    def done(self) -> None:
        """Print the last line."""
        losses = f"{self.first_loss:.2f} -> {self.last_loss:.2f}"
        self.print(f"done: loss {losses} in {self.args.steps} steps")


def main() -> None:
    """Join the other processes, train."""
    arguments = parser(__doc__)
    arguments.add_argument("--keras", action="store_true", help="a model of Keras")
    arguments.add_argument(
        "--checkpoint-dir", type=Path, help="save here; resume from what is here"
    )
    arguments.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    args = arguments.parse_args()
    several = "TF_CONFIG" in os.environ
    # Before anything else of TensorFlow: it connects the processes.
    strategy = (
        tf.distribute.MultiWorkerMirroredStrategy() if several else tf.distribute.MirroredStrategy()
    )
    world = strategy.num_replicas_in_sync
    progress = Progress(args, world, speaks=not several or leads(strategy.cluster_resolver))
    with strategy.scope():
        student = KerasStudent(args) if args.keras else Student(args)

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(step: tf.Tensor) -> tf.Tensor:
        def of_replica(step: tf.Tensor) -> tf.Tensor:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            return student.learn(step * world + replica)

        return strategy.reduce("MEAN", strategy.run(of_replica, (step,)), axis=None)

    for step in range(resumed(student, progress) + 1, args.steps + 1):
        progress.advance(step, float(train_step(tf.constant(step))))
        if args.checkpoint_dir and (step == args.steps or step % args.checkpoint_every == 0):
            save(student, progress, step)
    progress.done()


def save(student: Student, progress: Progress, step: int) -> None:
    """Write a checkpoint, whole or not at all: a kill leaves the one before it."""
    if not progress.speaks:
        return
    folder = student.args.checkpoint_dir
    folder.mkdir(parents=True, exist_ok=True)
    weights = {str(number): one.numpy() for number, one in enumerate(student.weights)}
    with (folder / "tensorflow.unfinished").open("wb") as file:
        np.savez(file, step=step, losses=(progress.first_loss, progress.last_loss), **weights)
        file.flush()
        os.fsync(file.fileno())
    (folder / "tensorflow.unfinished").replace(folder / FILE)


def resumed(student: Student, progress: Progress) -> int:
    """Return the step up to which a checkpoint has come, having loaded it; 0 without one."""
    folder = student.args.checkpoint_dir
    if folder is None or not (folder / FILE).exists():
        return 0
    with np.load(folder / FILE) as saved:  # arrays only: no pickle is loaded
        for number, weight in enumerate(student.weights):
            weight.assign(saved[str(number)])
        progress.first_loss, progress.last_loss = map(float, saved["losses"])
        step = int(saved["step"])
    progress.since = (step, time.perf_counter())
    progress.print(f"resume: step {step} from {folder}")
    return step


def leads(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> bool:
    """Tell whether this process speaks for all: the chief, or the first worker without one."""
    leader = "chief" if "chief" in resolver.cluster_spec().jobs else "worker"
    return (resolver.task_type, resolver.task_id) == (leader, 0)


if __name__ == "__main__":
    main()
