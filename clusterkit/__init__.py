"""clusterkit: take a distributed training job from a script to every node, at full speed."""

__version__ = "0.1.0"
