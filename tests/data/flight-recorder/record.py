"""Write the dumps that stand beside this file: `python record.py FOLDER`, on a CPU, with gloo.

Four ranks train together. In `missing`, rank 2 stays away from the fourth all_reduce; in
`differing`, rank 1 calls a broadcast there; in `well`, all is well.
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace  # type: ignore[attr-defined]

RANKS = 4
TIMEOUT_S = 4


def train(case, rank, out):
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    pairs = [dist.new_group(pair, group_desc="tensor") for pair in ([0, 1], [2, 3])]
    for _ in range(3):
        dist.broadcast(torch.ones(2, 3), rank // 2 * 2, group=pairs[rank // 2])
        dist.all_reduce(torch.ones(16))
    with suppress(RuntimeError):
        if case == "missing" and rank == 2:
            time.sleep(TIMEOUT_S + 1)
        elif case == "differing" and rank == 1:
            dist.broadcast(torch.ones(16), 0)
        else:
            dist.all_reduce(torch.ones(16))
    out.mkdir(parents=True, exist_ok=True)
    (out / f"rank-{rank}").write_bytes(_dump_fr_trace())
    os._exit(0)


def main():
    for port, case in enumerate(("missing", "differing", "well"), 29611):
        known = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
        known |= {"TORCH_FR_BUFFER_SIZE": "100", **os.environ}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-S", __file__, sys.argv[1], case, str(rank)],
                env={**known, "RANK": str(rank)},
            )
            for rank in range(RANKS)
        ]
        for rank in ranks:
            rank.wait()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        train(sys.argv[2], int(sys.argv[3]), Path(sys.argv[1], sys.argv[2]))
    main()
