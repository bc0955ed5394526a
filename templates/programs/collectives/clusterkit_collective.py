"""One collective between the ranks of a process group: run it, time it, check what comes of it.

Values are whole numbers that float32 adds without error, so that what is wrong is wrong and not
rounded: element i of rank r is r % 31 + 1 + i % 13.
"""

import time

import torch
import torch.distributed as dist

WIDTH = 4
"""Bytes of an element, float32."""
_WHOLE = frozenset({"all_reduce", "broadcast", "sendrecv"})
"""Collectives of which each rank has all of the message."""
_CHUNK = 1 << 22
"""Elements that are checked at once: a message may fill most of the memory."""


def rounded(op, size, world):
    """Return a size in bytes that this many ranks can share, at most `size` where that goes."""
    unit = WIDTH if op in _WHOLE else WIDTH * world
    return max(unit, size // unit * unit)


class Collective:
    """The buffers of one collective of a group of ranks, by default of all.

    `size` is what nccl-tests calls so: what all ranks hold of the message together, and in an
    all-to-all or a send and receive what each sends.
    """

    def __init__(self, op, size, device, group=None):
        self.op, self.device, self.group = op, device, group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        count = size // WIDTH
        part = count // self.world
        self.sent = torch.empty(part if op == "all_gather" else count, device=device)
        self.result = self.sent
        if op in {"all_gather", "alltoall", "sendrecv"}:
            self.result = torch.empty(count, device=device)
        elif op == "reduce_scatter":
            self.result = torch.empty(part, device=device)

    def run(self):
        """Run it once; on a GPU, it has only begun then."""
        if self.op == "all_reduce":
            dist.all_reduce(self.sent, group=self.group)
        elif self.op == "broadcast":
            dist.broadcast(self.sent, self._global(0), group=self.group)
        elif self.op == "alltoall":
            dist.all_to_all_single(self.result, self.sent, group=self.group)
        elif self.op == "sendrecv":
            self._pass_on()
        elif self.op == "all_gather":
            gather = _called("all_gather_single", "all_gather_into_tensor")
            gather(self.result, self.sent, group=self.group)
        else:
            scatter = _called("reduce_scatter_single", "reduce_scatter_tensor")
            scatter(self.result, self.sent, group=self.group)

    def _pass_on(self):
        """Send to the next rank of the group and receive from the one before, as nccl-tests do."""
        to, source = (self._global((self.rank + step) % self.world) for step in (1, -1))
        messages = [
            dist.P2POp(dist.isend, self.sent, to, self.group),
            dist.P2POp(dist.irecv, self.result, source, self.group),
        ]
        for message in dist.batch_isend_irecv(messages):
            message.wait()

    def _global(self, rank):
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def timed(self, times=1):
        """Return the seconds of one of `times` collectives on this rank; all begin together."""
        self.settle()
        dist.barrier()
        self.settle()
        began = time.perf_counter()
        for _ in range(times):
            self.run()
        self.settle()
        return (time.perf_counter() - began) / times

    def settle(self):
        """Wait until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def wrong(self):
        """Run it on known values; return (how many elements are wrong, the first in words)."""
        for start, piece in _chunks(self.sent):
            piece.copy_(_places(start, piece) + (self.rank % 31 + 1))
        receives = self.result is not self.sent or (self.op == "broadcast" and self.rank)
        self.result.fill_(-1.0) if receives else None
        self.run()
        self.settle()
        count, first = 0, None
        for start, piece in _chunks(self.result):
            bad = (piece != self._expected(start, piece)).nonzero().flatten()
            if first is None and len(bad):
                k = int(bad[0])
                right = self._expected(start, piece)[k].item()
                first = f"element {start + k} is {piece[k].item():g} and not {right:g}"
            count += len(bad)
        if self.result is self.sent:
            self.sent.zero_()  # sums of sums would overflow soon
        return count, first

    def _expected(self, start, piece):
        ranks = torch.arange(self.world, device=self.device) % 31 + 1
        if self.op in {"broadcast", "sendrecv"}:
            source = 0 if self.op == "broadcast" else self.rank - 1
            return _places(start, piece) + ranks[source]
        if self.op in {"all_gather", "alltoall"}:
            part = len(self.result) // self.world
            index = torch.arange(start, start + len(piece), device=self.device)
            first = self.rank * part if self.op == "alltoall" else 0
            return ((first + index % part) % 13 + ranks[index // part]).to(piece.dtype)
        shift = self.rank * len(self.result) if self.op == "reduce_scatter" else 0
        return _places(start + shift, piece) * self.world + ranks.sum()


def _called(name, before):
    """Return a function of torch by its name, or by the one that it had before torch 2.13."""
    return getattr(dist, name, None) or getattr(dist, before)


def _chunks(data):
    for start in range(0, len(data), _CHUNK):
        yield start, data[start : start + _CHUNK]


def _places(start, piece):
    """Return i % 13 for the elements of `piece`, the first of which is `start`."""
    index = torch.arange(start, start + len(piece), device=piece.device)
    return (index % 13).to(piece.dtype)
