"""Train with TensorFlow: every process holds the whole model, and they average the gradients.

    clusterkit submit --framework tensorflow --nodes 2 examples/train_tensorflow.py --steps 200

MultiWorkerMirroredStrategy where there is a TF_CONFIG, and so other processes; MirroredStrategy
where there is none. By hand, on one machine: `python examples/train_tensorflow.py`.
With `--keras` it is a model and an optimizer of Keras, in the same loop: Keras 3's `fit` knows no
MultiWorkerMirroredStrategy (keras-team/keras issue 20585). All hosts must share the folder of
checkpoints, which the first process writes.
"""

import argparse
import os

import keras  # type: ignore[import-not-found]
import points
import tensorflow as tf  # type: ignore[import-not-found]


class KerasStudent(points.Student):
    """The same with a model and an optimizer of Keras."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        keras.utils.set_random_seed(args.seed)
        classes = keras.layers.Dense(points.CLASSES)
        layers = keras.layers.Dense(args.width, activation="relu"), classes
        self.model = keras.Sequential([keras.Input((points.FEATURES,)), *layers])
        self.optimizer = keras.optimizers.Adam(args.lr / 10)
        self.optimizer.build(self.model.trainable_variables)
        self.weights = [one.value for one in (*self.model.variables, *self.optimizer.variables)]

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        """Return what the model holds of each class, for each point."""
        return self.model(x, training=True)

    def learn(self, batch: tf.Tensor) -> tf.Tensor:
        """Take a step on this batch, and return its loss."""
        weights = self.model.trainable_variables
        with tf.GradientTape() as tape:
            loss = self.loss(batch)
            # The optimizer adds up the gradients of all replicas.
            share = loss / tf.distribute.get_strategy().num_replicas_in_sync
        self.optimizer.apply_gradients(zip(tape.gradient(share, weights), weights, strict=True))
        return loss


def main() -> None:
    """Join the other processes, train."""
    arguments = points.parser(__doc__)
    arguments.add_argument("--keras", action="store_true", help="a model of Keras")
    args = arguments.parse_args()
    several = "TF_CONFIG" in os.environ
    # Before anything else of TensorFlow: it connects the processes.
    strategy = (
        tf.distribute.MultiWorkerMirroredStrategy() if several else tf.distribute.MirroredStrategy()
    )
    world = strategy.num_replicas_in_sync
    speaks = not several or leads(strategy.cluster_resolver)
    progress = points.Progress(args, world, speaks=speaks)
    with strategy.scope():
        student = KerasStudent(args) if args.keras else points.Student(args)

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(step: tf.Tensor) -> tf.Tensor:
        def of_replica(step: tf.Tensor) -> tf.Tensor:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            return student.learn(step * world + replica)

        return strategy.reduce("MEAN", strategy.run(of_replica, (step,)), axis=None)

    for step in range(progress.resume(student) + 1, args.steps + 1):
        progress.advance(student, step, float(train_step(tf.constant(step))))
    progress.done()


def leads(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> bool:
    """Tell whether this process speaks for all: the chief, or the first worker without one."""
    leader = "chief" if "chief" in resolver.cluster_spec().jobs else "worker"
    return (resolver.task_type, resolver.task_id) == (leader, 0)


if __name__ == "__main__":
    main()
