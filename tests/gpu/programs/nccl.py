"""Exchange something by NCCL, and write down what its flight recorder holds: `nccl.py FILE|-`."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
dist.init_process_group("nccl")
ones = torch.ones(1 << 20, device="cuda")
for _ in range(10):
    dist.all_reduce(ones)
torch.cuda.synchronize()
if sys.argv[1] != "-":
    recorded = torch._C._distributed_c10d._dump_nccl_trace()  # type: ignore[attr-defined]
    Path(sys.argv[1]).write_bytes(recorded)
dist.destroy_process_group()
