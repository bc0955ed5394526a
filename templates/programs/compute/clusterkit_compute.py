"""Multiply the same matrices on every GPU of a job, time that, and check what comes of it.

Started by torchrun on every node, with its wishes as JSON in the one argument. Rank 0 writes
compute.json into the folder of results, also where a rank never answers;
clusterkit/observe/bench/compute.py reads it.

The values are whole numbers of which any sum is one that float32 holds, so a product is the same
bits in whatever order it was added up.
"""

import gc
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

gc.disable()  # a quarter of the CPU time that torch takes to be imported, and nothing is garbage

import torch
from clusterkit_meeting import LARGEST, LATE_S, Meeting, node

gc.freeze()
gc.enable()

BASE = 256
"""Rows and columns of the block that is repeated all over a matrix: its product is soon known."""
PARTS = 20
"""How often the load is timed and its last product checked."""
MEMORY_SHARE = 0.25


class Watch(threading.Thread):
    """What nvidia-smi says of the GPUs of this node, before, while and after they work."""

    def __init__(self, seconds):
        super().__init__(daemon=True)  # a driver that hangs holds nobody up
        self.every, self.readings = seconds / 4, []
        self.began, self.ended = threading.Event(), threading.Event()

    def run(self):
        """Read until the work is over, where there is an NVIDIA GPU."""
        if self.read("before") == 77:
            self.readings.clear()
            return
        while not self.ended.wait(self.every):
            self.read("load")
        self.read("after")

    def read(self, when):
        """Keep one reading; return its exit code."""
        script = Path(__file__).with_name("clusterkit_vitals.sh")
        found: dict[str, Any] = {"when": when, "exit_code": None, "text": ""}
        try:
            done = subprocess.run(
                ["sh", str(script)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=LATE_S / 3,
                env={**os.environ, "LC_ALL": "C"},
            )
            text = done.stdout.decode("utf-8", errors="replace")
            found.update(exit_code=done.returncode, text=text[: LARGEST // 32])
        except subprocess.TimeoutExpired:
            pass
        if len(self.readings) < 12:
            self.readings.append(found)
        self.began.set()
        return found["exit_code"]


def myself():
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    local = int(os.environ.get("LOCAL_RANK", "0"))
    me = {"node": node(), "gpu": local}
    if not gpus:
        return {**me, "device": "cpu"}, torch.device("cpu")
    properties = torch.cuda.get_device_properties(local if local < gpus else 0)
    me["device"] = properties.name
    if local >= gpus:
        return {**me, "error": f"torch sees {gpus} GPUs on this node"}, None
    torch.cuda.set_device(local)
    me["uuid"] = f"GPU-{getattr(properties, 'uuid', '')}"
    return me, torch.device("cuda", local)


def settle(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def kind_of(device):
    """Return the type of the values, the largest one, and how many rows a matrix may have."""
    if device.type == "cpu":
        return torch.float32, 31, 1024
    # Matrix units of Volta and Turing know no bfloat16, and float16 ends at 65504.
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0):
        return torch.float16, 1, 8192
    return torch.bfloat16, 31, 8192


def size_for(most, dtype, device):
    """Return how many rows a matrix has, so that three take a part of the free memory."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 1 << 40
    while most > BASE and 3 * most * most * torch.finfo(dtype).bits // 8 > free * MEMORY_SHARE:
        most //= 2
    return most


class Product:
    """Two matrices of a fixed seed, and what their product has to be."""

    def __init__(self, device):
        self.device = device
        self.dtype, largest, most = kind_of(device)
        self.size = size_for(most, self.dtype, device)
        seed, times = torch.Generator().manual_seed(25), self.size // BASE
        left, right = (
            torch.randint(-largest, largest + 1, (BASE, BASE), generator=seed) for _ in range(2)
        )
        exact = (left @ right * times).to(torch.float32).to(self.dtype)
        self.expected = exact.to(device).view(1, BASE, 1, BASE)
        self.left, self.right = (
            one.to(self.dtype).to(device).repeat(times, times) for one in (left, right)
        )
        self.result = torch.empty_like(self.left)

    def timed(self, times):
        """Return the seconds of one of `times` products."""
        self.result.fill_(float("nan"))  # what is not written is not right
        settle(self.device)
        began = time.perf_counter()
        for _ in range(times):
            torch.matmul(self.left, self.right, out=self.result)
        settle(self.device)
        return (time.perf_counter() - began) / times

    def wrong(self):
        """Return how many elements of the last product are wrong, and the first in words."""
        times = self.size // BASE
        bad = (self.result.view(times, BASE, times, BASE) != self.expected).view(-1)
        count = int(bad.sum())
        if not count:
            return 0, ""
        row, column = divmod(int(bad.to(torch.uint8).argmax()), self.size)
        right = self.expected[0, row % BASE, 0, column % BASE].item()
        is_ = self.result[row, column].item()
        return count, f"row {row}, column {column} is {is_:g} and not {right:g}"


def measure(device, seconds):
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    product = Product(device)
    found: dict[str, Any] = {"dtype": str(product.dtype).removeprefix("torch.")}
    found.update(size=product.size, seconds=[], checks=0, failed=0, wrong=0, detail="")

    def check():
        count, first = product.wrong()
        found["detail"] = found["detail"] or first
        found["checks"] += 1
        found["failed"] += bool(count)
        found["wrong"] += count

    began = time.perf_counter()
    product.timed(1)
    check()
    once = product.timed(1)
    while time.perf_counter() - began < min(2.0, seconds / 5):
        once = product.timed(max(1, int(0.1 / once)))
    each = max(1, int(seconds / PARTS / once))
    began = time.perf_counter()
    while not found["seconds"] or time.perf_counter() - began < seconds:
        found["seconds"].append(product.timed(each))
        check()
    return found


def answer_of(me, device, seconds):
    """Return what this rank found, or why it found nothing."""
    watch = Watch(seconds) if me["gpu"] == 0 else None
    if watch is not None:
        watch.start()
        watch.began.wait(LATE_S / 3)
    try:
        if device is not None:
            me.update(measure(device, seconds))
    except RuntimeError as error:  # out of memory, a GPU that is lost
        me["error"] = str(error).strip().partition("\n")[0][:200] or "an error without words"
    if watch is not None:
        watch.ended.set()
        watch.join(LATE_S / 3)
        me["readings"] = list(watch.readings)
    return me


def main(text):
    seconds = json.loads(text)["seconds"]
    me, device = myself()
    meeting = Meeting("compute")
    meeting.agree(me)
    meeting.end(answer_of(me, device, seconds), LATE_S + seconds / 2)


if __name__ == "__main__":
    main(*sys.argv[1:])
