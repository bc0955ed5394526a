"""Train a Keras model with MultiWorkerMirroredStrategy in two processes: does the loss fall?"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

STEPS = 30
GPUS = len([*Path("/dev").glob("nvidia[0-9]*")])


def main() -> None:
    """Start two processes that know each other, and say how both have ended."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    workers = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    started = [
        subprocess.Popen(
            [sys.executable, __file__],
            env={
                **os.environ,
                # One for each; a process that sees both would take both.
                "CUDA_VISIBLE_DEVICES": str(index) if GPUS >= 2 else "-1",
                "TF_CONFIG": json.dumps(
                    {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
                ),
            },
        )
        for index in range(2)
    ]
    sys.exit(max(abs(one.wait()) for one in started))


def train() -> None:
    """Be a worker: train, and let the first one speak."""
    import keras  # noqa: PLC0415 - seconds, which the process that starts the others saves
    import tensorflow as tf  # noqa: PLC0415

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    index = strategy.cluster_resolver.task_id
    world = strategy.num_replicas_in_sync
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.layers.Dense(64, activation="tanh"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((16,)), *layers])
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)

    def learn(step):
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        inputs = tf.random.stateless_normal((64, 16), (1 + replica, step))
        wanted = tf.reduce_sum(inputs, axis=1, keepdims=True)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs) - wanted) ** 2)
            share = loss / world  # the optimizer adds up gradients
        gradients = tape.gradient(share, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(step):
        return strategy.reduce("MEAN", strategy.run(learn, (step,)), axis=None)

    losses = [float(train_step(tf.constant(step))) for step in range(STEPS)]
    if not losses[-1] < 0.5 * losses[0]:
        sys.exit(f"health: tensorflow: the loss does not fall: {losses[0]:.3f} -> {losses[-1]:.3f}")
    where = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    if GPUS >= 2 and where == "CPU":
        sys.exit("health: tensorflow sees no GPU, though the container has some")
    if index == 0:
        ranks = f"tensorflow {tf.__version__}, {world} ranks, {where}"
        print(f"health: {ranks}: loss {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    train() if "TF_CONFIG" in os.environ else main()
