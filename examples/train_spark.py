"""Train with PyTorch DDP on Spark: a task of TorchDistributor is a rank, each on a core of its own.

    clusterkit submit --framework spark --nodes 2 examples/train_spark.py --steps 200

This is the driver: it runs on one node, and has Spark run train_ddp.py, whose arguments it takes,
on all of them. By hand, on one machine: `spark-submit --master 'local[2]' examples/train_spark.py`.
"""

from pathlib import Path

import session
from pyspark.ml.torch.distributor import TorchDistributor  # type: ignore[import-not-found]
from pyspark.sql import SparkSession  # type: ignore[import-not-found]


def main() -> None:
    """Run one rank on each core of the cluster; return when all have ended."""
    args, others = session.parser(__doc__).parse_known_args()
    if args.checkpoint_dir is not None:
        # Ranks start in folders of Spark's own.
        args.checkpoint_dir = args.checkpoint_dir.absolute()
    spark = SparkSession.builder.getOrCreate()
    given = {name: value for name, value in vars(args).items() if value is not None}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    ranks = TorchDistributor(
        num_processes=spark.sparkContext.defaultParallelism,
        local_mode=False,
        use_gpu=spark.conf.get("spark.task.resource.gpu.amount", "0") != "0",
    )
    ranks.run(str(Path(__file__).absolute().with_name("train_ddp.py")), *words, *others)
    spark.stop()


if __name__ == "__main__":
    main()
