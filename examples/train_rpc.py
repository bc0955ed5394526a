"""Train with torch.distributed.rpc: rank 0 holds the weights, the others compute gradients.

    clusterkit submit --framework torchrun --nodes 3 examples/train_rpc.py --steps 200

A parameter server: trainers send it gradients, and are answered with the new weights once all have
sent theirs, so the losses are those of train_ddp.py with one process fewer. For what is no
collective (a simulator, a queue, a server of many models); for gradients alone DDP is faster.
RPC runs what any peer asks for: nodes that strangers reach are not for it (docs, frameworks).
"""

import argparse
import os
import threading
from typing import Any

import charlm
import session
import torch
from torch import Tensor
from torch.distributed import rpc
from torch.futures import Future

Weights = dict[str, Tensor]


def main() -> None:
    """Join the other ranks; serve or train; leave together."""
    args = session.parser(__doc__).parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world < 2:
        raise SystemExit("train_rpc.py needs 2 processes, a server and a trainer: --nodes 2")
    if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
        os.environ.setdefault("TP_SOCKET_IFNAME", interface)
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=world)
    if rank == 0:
        Server.only = Server(args, world - 1)
        Server.ready.set()
        Server.only.finished.wait()  # in Python, where a notice of the end is heard
    else:
        train(args, rank - 1, world - 1)
    rpc.shutdown()  # waits until nobody asks any more


class Server:
    """Hold weights and optimizer; add up what the trainers send."""

    only: "Server"
    ready = threading.Event()

    def __init__(self, args: argparse.Namespace, trainers: int) -> None:
        self.args, self.trainers = args, trainers
        self.progress = session.Progress("rpc", args, 0, trainers, torch.device("cpu"), Tensor.item)
        self.model = charlm.CharLM(args)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.lock = threading.Lock()
        self.losses: list[Tensor] = []
        self.answer: Future[Weights] = Future()
        if args.checkpoint_dir and (saved := session.load(args.checkpoint_dir / "rpc.pt")):
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.progress.resume(saved["progress"])
        self.finished = threading.Event()
        if self.progress.step >= args.steps:
            self.finished.set()

    def add(self, gradients: Weights, loss: Tensor) -> Future[Weights]:
        """Take a trainer's gradients; with those of the last one, train a step and answer all."""
        with self.lock:
            for name, weight in self.model.named_parameters():
                part = gradients[name] / self.trainers
                weight.grad = part if weight.grad is None else weight.grad + part
            self.losses.append(loss)
            answer = self.answer
            if len(self.losses) == self.trainers:
                self.step()
                self.answer = Future()
                answer.set_result(self.weights())
            return answer

    def step(self) -> None:
        """Train a step with the gradients that are there."""
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.progress.advance(torch.stack(self.losses).mean())
        self.losses = []
        if self.progress.save_due():
            path = self.args.checkpoint_dir / "rpc.pt"
            session.save(path, self.model, self.optimizer, self.progress)
        if self.progress.step >= self.args.steps:
            self.progress.done()
            self.finished.set()

    def weights(self) -> Weights:
        """Return a copy of the weights: the next step changes them in place."""
        return {name: weight.detach().clone() for name, weight in self.model.named_parameters()}


def start() -> tuple[int, Weights]:
    """Return, on the server, the step that is next and the weights."""
    Server.ready.wait()
    return Server.only.progress.step, Server.only.weights()


@rpc.functions.async_execution
def push(gradients: Weights, loss: Tensor) -> Future[Weights]:
    """Give the server gradients; the answer comes when all trainers have."""
    return Server.only.add(gradients, loss)


def train(args: argparse.Namespace, number: int, trainers: int) -> None:
    """Compute gradients until `--steps`."""
    text = charlm.Text(args, number, trainers)
    model = charlm.CharLM(args)
    first, weights = rpc.rpc_sync("rank0", start)
    for step in range(first, args.steps):
        model.load_state_dict(weights)
        model.zero_grad()
        loss: Any = model(text.batch(step))
        loss.backward()
        gradients = {name: weight.grad for name, weight in model.named_parameters()}
        weights = rpc.rpc_sync("rank0", push, args=(gradients, loss.detach()))


if __name__ == "__main__":
    main()
