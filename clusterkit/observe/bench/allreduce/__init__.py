"""How fast collectives of a job's ranks are, by a program of ours or by nccl-tests."""
