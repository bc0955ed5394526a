"""Train with TensorFlow's parameter servers: workers take steps on variables that the servers hold.

    clusterkit submit --framework tensorflow --ps 1 --nodes 3 examples/train_tensorflow_ps.py

The chief hands out the steps, and nobody waits for anybody between two of its lines.
"""

import os

import tensorflow as tf  # type: ignore[import-not-found]
import train_tensorflow


def main() -> None:
    """Serve, or hand out the steps: what TF_CONFIG says of this process."""
    args = train_tensorflow.parser(__doc__).parse_args()
    if "TF_CONFIG" not in os.environ:
        raise SystemExit("no TF_CONFIG: a chief, a worker and a ps are needed")
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type != "chief":
        server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
        )
        server.join()  # for ever: it is ended when the chief has

    workers = resolver.cluster_spec().num_tasks("worker")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    progress = train_tensorflow.Progress(args, workers)
    with strategy.scope():
        student = train_tensorflow.Student(args)

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(batch: tf.Tensor) -> tf.Tensor:
        return strategy.run(student.learn, (batch,))

    for step in range(1, args.steps + 1):
        batches = range(step * workers, (step + 1) * workers)
        losses = [coordinator.schedule(train_step, (tf.constant(batch),)) for batch in batches]
        if step in (1, args.steps) or step % args.log_every == 0:
            coordinator.join()
            progress.advance(step, sum(loss.fetch() for loss in losses) / workers)
    progress.done()


if __name__ == "__main__":
    main()
