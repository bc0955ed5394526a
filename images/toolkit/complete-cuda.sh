#!/bin/sh
# Give the CUDA packages of pip the names by which compilers look for them.
set -eu

cd /opt/venv/lib/python3.11/site-packages/nvidia
[ -e cu13/lib64 ] || ln -s lib cu13/lib64
for library in cu13/lib/lib*.so.* nccl/lib/libnccl.so.*; do
    short="${library%%.so.*}.so"
    [ -e "$short" ] || ln -s "${library##*/}" "$short"
done
