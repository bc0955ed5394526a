"""Tell which worker of Ray Train ended the training, by clusterkit_failure.py.

Ray Train loads this by RAY_TRAIN_CALLBACKS, and runs it in its controller, on the first node.
"""

import clusterkit_failure
import ray

try:
    from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback
except ImportError:  # in another release it may be elsewhere; then nothing is told
    from ray.train.v2.api.callback import RayTrainCallback

    class ControllerCallback(RayTrainCallback):  # type: ignore[no-redef]
        """Called by nobody."""

    class WorkerGroupCallback(RayTrainCallback):  # type: ignore[no-redef]
        """Called by nobody."""


class Failure(ControllerCallback, WorkerGroupCallback):
    """Knows where each rank is, and is asked when all is over."""

    def __init__(self):
        self.places = {}

    def after_worker_group_training_start(self, worker_group):
        """Note the node and the local rank of each rank."""
        names = {node["NodeManagerAddress"]: node["NodeName"] for node in ray.nodes()}
        self.places = {
            worker.distributed_context.world_rank: (
                names.get(worker.metadata.node_ip),
                worker.distributed_context.local_rank,
            )
            for worker in worker_group.get_workers()
        }

    def after_controller_finish(self, result):
        """Tell of the rank that failed, if the training has ended with that."""
        failures = getattr(result.error, "worker_failures", {})
        ranks = [rank for rank in failures if self.places.get(rank, (None,))[0]]
        if not ranks:
            return
        lost_another = clusterkit_failure.only_lost_another
        rank = min(ranks, key=lambda rank: (lost_another(failures[rank]), rank))
        (node, local_rank), failure = self.places[rank], failures[rank]
        message = clusterkit_failure.text_of(failure)
        clusterkit_failure.tell(node, rank, 1, local_rank=local_rank, message=message)
