# shellcheck shell=sh
# Only these names: the rest of an environment may hold secrets.
env | awk '/^(NCCL|RCCL|GLOO|UCX|FI|OFI_NCCL|TORCH_NCCL|TORCH_FR|TP|RDMAV|IBV)_[A-Za-z0-9_]*=/'
