"""Measure collectives between ranks of a job, and write down what came of it.

Started by torchrun on every node, with its wishes as JSON in the one argument. Rank 0 writes
collectives.json into the folder of results, again after each size, so that what was measured before
a failure is kept; clusterkit/observe/bench/allreduce/document.py reads it.
"""

import gc
import json
import math
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

gc.disable()  # a quarter of the CPU time that torch takes to be imported, and nothing is garbage

import torch
import torch.distributed as dist
from clusterkit_collective import Collective, rounded
from torch.distributed.rendezvous import rendezvous

gc.freeze()
gc.enable()

PATIENCE_S = 300.0
"""How long ranks wait for each other: importing torch from a busy shared folder takes minutes."""
REPEATS = 5
WARM_UP, BRIEF_S = 5, 0.1
"""Collectives that are not counted, and what one may last that they are worth it."""
FEWEST = 2
"""Timed collectives, below which a size is left out."""
MEMORY_SHARE = 0.25
"""Of what is free for each rank: the part that a message may have. A gather has two buffers."""


class Bench:
    """What rank 0 knows of the run."""

    def __init__(self, options, store, rank, world):
        self.options, self.store, self.rank, self.world = options, store, rank, world
        self.group, self.group_ranks = None, world
        self.began = time.perf_counter()
        self.document: dict[str, Any] = {"schema": 1, "kind": "clusterkit-collectives"}
        self.document.update(complete=False, measured=[], wrong=[], left_out=[])

    def keep(self, **news):
        """Write down what is known by now."""
        self.document.update(news)
        folder = os.environ.get("CK_RESULTS")
        if self.rank or not folder:
            return
        Path(folder).mkdir(parents=True, exist_ok=True)
        written = Path(folder, ".collectives.json")
        written.write_text(json.dumps(self.document), encoding="utf-8")
        written.replace(Path(folder, "collectives.json"))

    def leave_out(self, op, sizes, why):
        """Note sizes that are not measured."""
        self.document["left_out"] += [{"op": op, "bytes": size, "why": why} for size in sizes]

    def agree(self):
        """Return what rank 0 decides, from what all ranks say of themselves."""
        self.store.set(f"who/{self.rank}", json.dumps(_myself()))
        if self.rank == 0:
            everyone = [json.loads(self.store.get(f"who/{k}")) for k in range(self.world)]
            self.store.set("agreed", json.dumps(_decide(self.options, everyone)))
            self.document["nodes"] = [one["node"] for one in everyone]
        return json.loads(self.store.get("agreed"))


def _members(dimension, world):
    """Return the ranks of each group of a dimension of the layout, as `submit --tp` told it."""
    keys = [f"{'EXPERT_' * (dimension == 'ep')}MESH_{what}" for what in ("DIM_NAMES", "SHAPE")]
    names = os.environ.get(keys[0], "").split(",")
    sizes = [int(size) for size in os.environ.get(keys[1], "0").split(",")]
    if dimension not in names or len(names) != len(sizes) or math.prod(sizes) != world:
        told = ", ".join(f"{key}={os.environ.get(key)}" for key in keys)
        sys.exit(f"Error: no layout of {world} ranks has {dimension} groups: {told}")
    place = names.index(dimension)  # the last dimension is the fastest
    size, stride = sizes[place], math.prod(sizes[place + 1 :])
    if size < 2:
        sys.exit(f"Error: the layout has {dimension} 1: one rank has nobody to exchange data with")
    firsts = [rank for rank in range(world) if rank // stride % size == 0]
    return [[first + k * stride for k in range(size)] for first in firsts]


def _myself():
    cuda = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    gpus = torch.cuda.device_count() if cuda else 0
    return {
        "node": os.environ.get("CK_NODE_NAME") or socket.gethostname(),
        "gpus": gpus,
        "ranks": ranks,
        "device": torch.cuda.get_device_name(local) if local < gpus else "cpu",
        "free": torch.cuda.mem_get_info(local)[0] if local < gpus else 0,
        "host_free": _host_free() // ranks,
    }


def _host_free():
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 40


def _decide(options, everyone):
    """Return the backend, the device and the largest message; or what keeps all from it."""
    bare = [one for one in everyone if one["gpus"] < one["ranks"]]
    backend = options["backend"]
    if backend == "auto":
        backend = "gloo" if all(one["gpus"] == 0 for one in everyone) else "nccl"
    if backend == "nccl" and bare:
        few = bare[0]
        need = f"nccl needs a GPU for each of the {few['ranks']} ranks on {few['node']}"
        return {"error": f"{need}, and torch sees {few['gpus']} there"}
    devices = sorted({one["device"] for one in everyone}) if backend == "nccl" else ["cpu"]
    free = min(one["free" if backend == "nccl" else "host_free"] for one in everyone)
    return {
        "backend": backend,
        "device": ", ".join(devices),
        "limit": int(free * MEMORY_SHARE),
        "one_node": len({one["node"] for one in everyone}) == 1,
    }


def slowest(times, device):
    """Return each of these times as the slowest rank has it, the same on all ranks."""
    data = torch.tensor(times, dtype=torch.float64, device=device)
    dist.all_reduce(data, op=dist.ReduceOp.MAX)
    return data.tolist()


def check(bench, collective, size):
    """End the run on all ranks where the result is wrong on any."""
    count, first = collective.wrong()
    if count:
        found = {"op": collective.op, "bytes": size, "elements": count, "detail": first}
        found.update(rank=bench.rank, node=_myself()["node"])
        index = bench.store.add("wrong", 1) - 1
        bench.store.set(f"wrong/{index}", json.dumps(found))
    dist.barrier()
    collective.settle()
    wrong = bench.store.add("wrong", 0)
    if not wrong:
        return
    if bench.rank == 0:
        failures = [json.loads(bench.store.get(f"wrong/{k}")) for k in range(wrong)]
        failures.sort(key=lambda one: one["rank"])
        bench.keep(wrong=failures)
    dist.barrier()
    collective.settle()
    sys.exit(f"Error: {collective.op} of {size} bytes gave wrong results on {wrong} ranks")


def measure(bench, op, size, device, *, share, least):
    """Time one size; return seconds of one collective, or None where there was no time for it."""
    collective = Collective(op, size, device, bench.group)
    check(bench, collective, size)
    elapsed = time.perf_counter() - bench.began
    once, elapsed = slowest([collective.timed(), elapsed], device)
    if once < BRIEF_S:  # what lasts longer is warm by now
        once = slowest([collective.timed(WARM_UP)], device)[0]
    left = bench.options["seconds"] - elapsed
    wanted = min(bench.options["iterations"], max(least, int(left * share / max(once, 1e-9))))
    if wanted < FEWEST:
        return None
    repeats = min(REPEATS, wanted)
    each = wanted // repeats
    times = slowest([collective.timed(each) for _ in range(repeats)], device)
    check(bench, collective, size)
    found = {"op": op, "bytes": size, "seconds": times, "iterations": repeats * each}
    bench.document["measured"].append(found)
    bench.keep()
    if bench.rank == 0:
        usual = statistics.median(times)
        sys.stdout.write(f"{op} {size} bytes: {usual * 1e3:.3f} ms\n")
        sys.stdout.flush()
    return statistics.median(times)


def measure_all(bench, op, sizes, device, others):
    """Measure the sizes of one collective; `others` are still to come after it."""
    last = None
    for k, size in enumerate(sizes):
        left = slowest([bench.began + bench.options["seconds"] - time.perf_counter()], device)[0]
        # Values are written, sent and compared: as long as two collectives, and those to be timed.
        if last is not None and last * 2 * (3 + FEWEST) > left / (others + 1):
            bench.leave_out(op, sizes[k:], "there was no time for it")
            return
        share = size / sum(sizes[k:]) / (others + 1)
        try:
            # The first size is measured, however slow: something has to be known.
            least = FEWEST if last is None else 0
            last = measure(bench, op, size, device, share=share, least=least)
        except (NotImplementedError, RuntimeError) as error:
            if "upport" not in str(error) and not isinstance(error, NotImplementedError):
                raise
            bench.leave_out(op, sizes[k:], f"this torch cannot: {str(error).splitlines()[0][:120]}")
            return
        if last is None:
            bench.leave_out(op, sizes[k:], "there was no time for it")
            return


def run_nccl_tests(bench):
    """Run the programs of nccl-tests on the GPUs of this one node; tell whether that went."""
    ops, options = bench.options["ops"], bench.options
    if not all(shutil.which(f"{op}_perf") for op in ops):
        return False
    outputs = {}
    for op in ops:
        words = [f"{op}_perf", "-b", options["sizes"][0], "-e", options["sizes"][-1], "-f", 2]
        words += ["-g", bench.world, "-n", options["iterations"], "-c", 1]
        started = subprocess.Popen(
            [str(word) for word in words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            outputs[op], _ = started.communicate(timeout=options["seconds"])
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            outputs[op], _ = started.communicate()
        sys.stdout.write(outputs[op])
        if "busbw" not in outputs[op]:
            return False  # built for another CUDA, for example
    bench.keep(nccl_tests=outputs, complete=True)
    return True


def main(text):
    options = json.loads(text)
    patience = timedelta(seconds=PATIENCE_S)
    store, rank, world = next(rendezvous("env://", timeout=patience))
    store.set_timeout(patience)
    bench = Bench(options, dist.PrefixStore("clusterkit-collectives", store), rank, world)
    agreed = bench.agree()
    if "error" in agreed:
        sys.exit("Error: " + agreed["error"])
    options["sizes"] = options["sizes"][agreed["backend"]]
    bench.keep(backend=agreed["backend"], device=agreed["device"], torch=torch.__version__)
    by_torch = True
    over = options.get("over")
    members = [list(range(world))] if over is None else _members(over, world)
    if over is not None:
        first = members[0]
        bench.keep(group={"over": over, "ranks": len(first), "stride": first[1] - first[0]})
    alone = agreed["one_node"] and len(members) == 1
    if agreed["backend"] == "nccl" and alone and options["by"] != "torch":
        if rank == 0:
            bench.store.set("by", "nccl-tests" if run_nccl_tests(bench) else "torch")
        bench.store.set_timeout(timedelta(seconds=PATIENCE_S + 3 * options["seconds"]))
        by_torch = bench.store.get("by") == b"torch"
    if by_torch and options["by"] == "nccl-tests":
        sys.exit("Error: nccl-tests measure the GPUs of one node, and their programs are missing")
    if by_torch:
        measure_by_torch(bench, agreed, members, patience)


def measure_by_torch(bench, agreed, members, patience):
    device = torch.device("cpu")
    if agreed["backend"] == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        bench.keep(nccl=".".join(str(part) for part in torch.cuda.nccl.version()))
    dist.init_process_group(
        agreed["backend"],
        store=dist.PrefixStore("group", bench.store),
        rank=bench.rank,
        world_size=bench.world,
        timeout=patience,
    )
    if len(members) > 1:
        groups = [dist.new_group(ranks, timeout=patience) for ranks in members]
        mine = next(k for k, ranks in enumerate(members) if bench.rank in ranks)
        bench.group = groups[mine]
        bench.group_ranks = len(members[0])
    bench.began = time.perf_counter()
    ops = bench.options["ops"]
    for k, op in enumerate(ops):
        sizes = [rounded(op, size, bench.group_ranks) for size in bench.options["sizes"]]
        fit = [size for size in sizes if size <= agreed["limit"]]
        bench.leave_out(op, sizes[len(fit) :], "there is too little memory for it")
        measure_all(bench, op, fit, device, len(ops) - k - 1)
    bench.keep(complete=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
