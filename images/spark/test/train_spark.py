"""Have Spark run torch's own test on two of its tasks, by TorchDistributor."""

from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
# On the CPU: which GPUs a task gets is said by a discovery script, which a site writes.
ranks = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
ranks.run("/opt/clusterkit/train_torch.py")
print(f"health: spark {spark.version}")
spark.stop()
