"""Be a rank of MPI: tell torch.distributed by mpi4py who is who, and train as torch's test does."""

import os
import runpy
import socket
import sys

from mpi4py import MPI

world = MPI.COMM_WORLD
if world.allreduce(1) < 2:
    sys.exit("health: MPI has one rank only: mpi4py found another MPI than mpirun's")
with socket.create_server(("127.0.0.1", 0)) as free:
    port = world.bcast(free.getsockname()[1])
rank, size = str(world.rank), str(world.size)
os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
if world.rank == 0:
    print("health:", MPI.Get_library_version().partition(",")[0], flush=True)
MPI.Finalize()  # that test ends its process itself
runpy.run_path("/opt/clusterkit/train_torch.py", run_name="__main__")
