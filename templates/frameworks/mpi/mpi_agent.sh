#!/bin/sh
# What mpirun calls in place of ssh, in the folder where this file is: agent.sh HOST COMMAND...
trap '' USR1 USR2 # notices for training scripts, which Slurm sends to every process
exec "$CK_MPI_PYTHON" -u mpi_nodes.py "$@"
