"""One rank of an all-reduce between two nodes: prints bytes, seconds of one, and the device.

Ends by SIGALRM where it takes longer than it may once the ranks have met.
"""

import gc
import signal
import sys
from datetime import timedelta

gc.disable()  # a quarter of the CPU time that torch takes to be imported, and nothing is garbage

import torch
import torch.distributed as dist
from clusterkit_collective import Collective

gc.freeze()
gc.enable()

MIB = 1 << 20
MOST = {"gloo": 16 * MIB, "nccl": 1024 * MIB}
TIMED = 3
BUDGET_S = 0.5  # of one all-reduce


def measured(size, device, times=1):
    """Return the seconds of one all-reduce of `size` bytes, the slowest rank's; check its sum."""
    collective = Collective("all_reduce", size, device)
    if collective.wrong()[0]:
        raise RuntimeError("the all-reduce gave a wrong sum")
    took = torch.tensor([collective.timed() for _ in range(times)], device=device)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return took.min().item()


def main(backend, host, port, rank, world, local_rank, *limits):
    device = torch.device("cpu")
    if backend == "nccl":
        if int(local_rank) >= torch.cuda.device_count():
            sys.exit(f"Error: torch sees {torch.cuda.device_count()} GPUs here")
        device = torch.device("cuda", int(local_rank))
        torch.cuda.set_device(device)
    # Here all are awaited, as importing torch takes some of them longer; what hangs afterwards is
    # the all-reduce. Gloo connects for several times its own time limit.
    meet_s, run_s = map(float, limits)
    wait = timedelta(seconds=max(1.0, meet_s))
    store = dist.TCPStore(host, int(port), int(world), is_master=int(rank) == 0, timeout=wait)
    signal.setitimer(signal.ITIMER_REAL, run_s)
    dist.init_process_group(
        backend,
        store=store,
        rank=int(rank),
        world_size=int(world),
        timeout=timedelta(seconds=run_s),
    )
    first, size = measured(MIB, device), MIB
    # All ranks have the same slowest time, so all choose the same size.
    while size < MOST[backend] and first * size * 2 / MIB <= BUDGET_S:
        size *= 2
    seconds = measured(size, device, TIMED)
    name = "cpu" if backend == "gloo" else torch.cuda.get_device_name(device)
    sys.stdout.write(f"{size} {seconds:.6f} {name.replace(' ', '_')}\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


main(*sys.argv[1:])
