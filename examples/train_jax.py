"""Train with JAX: one program over the devices of all processes, which divides each batch.

    clusterkit submit --framework env --nodes 2 examples/train_jax.py --steps 200

The model is that of charlm.py, written for JAX (charlm_jax.py); torch is here for the text and the
arguments only.
"""

import argparse
import os
import sys
import traceback
from functools import partial
from pathlib import Path

import charlm
import charlm_jax
import jax
import jax.numpy as jnp
import numpy as np
import session
import torch
from charlm_jax import Tree
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def join() -> None:
    """Find the other processes: their first one is at JAX_COORDINATOR_ADDRESS.

    Each takes the devices of its own, JAX_LOCAL_DEVICE_IDS. Without GPUs, they meet on gloo.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        num_processes=int(os.environ["WORLD_SIZE"]), process_id=int(os.environ["RANK"])
    )


def main() -> None:
    """Join the other processes, train, leave together."""
    args = session.parser(__doc__).parse_args()
    join()
    try:
        train(args)
    except BaseException:  # noqa: BLE001 - whatever it was
        # At its exit JAX waits minutes for the others, and those wait for this process.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    jax.distributed.shutdown()


def train(args: argparse.Namespace) -> None:
    """Train until `--steps`, from the checkpoint on if there is one."""
    rank, world = jax.process_index(), jax.process_count()
    where = torch.device("cuda" if jax.default_backend() == "gpu" else "cpu")
    progress = session.Progress("jax", args, rank, world, where, mean)
    text = charlm.Text(args, rank, world)
    mesh = Mesh(jax.devices(), ("data",))
    shards = NamedSharding(mesh, P("data"))
    state = fresh(args)
    if saved := load(args.checkpoint_dir, state):
        state = saved["state"]
        progress.resume({name: float(value) for name, value in saved["progress"].items()})
    state = jax.device_put(state, NamedSharding(mesh, P()))
    step = jax.jit(partial(train_step, lr=args.lr))
    while progress.step < args.steps:
        tokens = text.batch(progress.step).numpy().astype(np.int32)
        state, loss = step(state, jax.make_array_from_process_local_data(shards, tokens))
        progress.advance(torch.tensor(float(loss)))
        if progress.save_due() and rank == 0:
            save(args.checkpoint_dir, state, progress)
    progress.done()


def mean(value: torch.Tensor) -> float:
    """Average over the processes."""
    return float(np.mean(multihost_utils.process_allgather(np.float32(value.item()))))


def train_step(state: Tree, tokens: Array, lr: float) -> tuple[Tree, Array]:
    """Return the state after a step of AdamW, and the loss.

    `tokens` lie on all devices, a part of the batch on each; the model on all of them whole. The
    compiler sees that and adds up the gradients.
    """
    loss, gradients = jax.value_and_grad(charlm_jax.loss_of)(state["model"], tokens)
    count = state["count"] + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["second"], gradients)

    def moved(weight: Array, m: Array, v: Array) -> Array:
        size = (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)
        return weight * (1 - lr * 0.01) - lr * size

    model = jax.tree.map(moved, state["model"], first, second)
    return {"model": model, "first": first, "second": second, "count": count}, loss


def fresh(args: argparse.Namespace) -> Tree:
    """Return the model as it begins, and an optimizer that knows nothing yet."""
    model = charlm_jax.fresh(args)
    zeros = jax.tree.map(jnp.zeros_like, model)
    return {"model": model, "first": zeros, "second": zeros, "count": jnp.zeros((), jnp.int32)}


def save(folder: Path, state: Tree, progress: session.Progress) -> None:
    """Write a checkpoint of one file, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / "jax.unfinished.npz"
    told = {name: np.float64(value) for name, value in progress.state().items()}
    leaves = jax.tree.leaves({"state": state, "progress": told})
    np.savez(unfinished, *map(np.asarray, leaves))
    unfinished.replace(folder / "jax.npz")


def load(folder: Path | None, like: Tree) -> Tree | None:
    """Read the checkpoint in process 0 and hand it round: hosts need not share a file system.

    The others have arrays of the same types to receive it in.
    """
    if folder is None:
        return None
    names = ("step", "first_loss", "last_loss")
    tree = {"state": like, "progress": {name: np.float64(0) for name in names}}
    there = jax.process_index() == 0 and (folder / "jax.npz").exists()
    if not multihost_utils.broadcast_one_to_all(np.bool_(there)):
        return None
    if there:
        with np.load(folder / "jax.npz") as file:
            tree = jax.tree.unflatten(jax.tree.structure(tree), [file[name] for name in file.files])
    return multihost_utils.broadcast_one_to_all(tree)


if __name__ == "__main__":
    main()
