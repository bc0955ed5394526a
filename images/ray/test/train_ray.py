"""Train with Ray Train on two workers, as torch's own test does with DDP."""

import tempfile

import ray
import torch
import train_torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device


def main() -> None:
    """Be the driver of a Ray that lives as long as this program."""
    gpus = torch.cuda.device_count() >= 2
    ray.init(
        num_cpus=3,  # two workers and what keeps them
        num_gpus=2 if gpus else 0,
        include_dashboard=False,
        object_store_memory=100_000_000,  # a container's /dev/shm is small
        _node_ip_address="127.0.0.1",
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=2, use_gpu=gpus),
            run_config=RunConfig(storage_path=folder),
        )
        trainer.fit()  # raises where a worker failed
    print(f"health: ray {ray.__version__}")


def train() -> None:
    """Be a worker; the first one says how it went."""
    device = get_device()
    train_torch.check("DDP", train_torch.train("DDP", device), device)


if __name__ == "__main__":
    main()
