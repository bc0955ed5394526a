"""Train with TensorFlow's parameter servers: workers take steps on variables that the servers hold.

    clusterkit submit --framework tensorflow --ps 1 --nodes 3 examples/train_tensorflow_ps.py

The chief hands out the steps, and nobody waits for anybody between two of its lines or checkpoints.
It alone writes and reads those.
"""

import os

import points
import tensorflow as tf  # type: ignore[import-not-found]


def main() -> None:
    """Serve, or hand out the steps: what TF_CONFIG says of this process."""
    args = points.parser(__doc__).parse_args()
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
    progress = points.Progress(args, workers)
    with strategy.scope():
        student = points.Student(args)

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(batch: tf.Tensor) -> tf.Tensor:
        return strategy.run(student.learn, (batch,))

    for step in range(progress.resume(student) + 1, args.steps + 1):
        batches = range(step * workers, (step + 1) * workers)
        losses = [coordinator.schedule(train_step, (tf.constant(batch),)) for batch in batches]
        if progress.log_due(step) or progress.save_due(step):
            coordinator.join()
            progress.advance(student, step, sum(loss.fetch() for loss in losses) / workers)
    progress.done()


if __name__ == "__main__":
    main()
