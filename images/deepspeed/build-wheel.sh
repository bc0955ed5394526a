#!/bin/sh
# Build the wheel of DeepSpeed from the source that a lock file pins, with the ops that DS_BUILD_* name.
#
#   usage: build-wheel.sh LOCK FOLDER
#
# The wheel is kept below FOLDER, by all that decides what is in it, and found there the next time.
# The last line of stdout is its path.
set -eu

torch=$(python -c 'import torch; print(torch.__version__)')
key=$({ cat "$0" "$1"; env | grep -E '^(DS|TORCH_CUDA)_' | sort; echo "$torch"; uname -m; } | sha256sum | cut -c1-16)
kept=$2/$key

if ! [ -d "$kept" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    pip download --quiet --no-deps --no-build-isolation --require-hashes --requirement "$1" --dest "$work" >&2
    tar -xzf "$work"/deepspeed-*.tar.gz -C "$work" --strip-components 1
    # DeepSpeed compiles for the very CPU it is built on; an image goes to others. v3 is AVX2: servers since 2013.
    if [ "$(uname -m)" = x86_64 ]; then
        sed -i 's/-march=native/-march=x86-64-v3/; s/-D__AVX512__/-D__AVX256__/' "$work/op_builder/builder.py"
        grep -q march=x86-64-v3 "$work/op_builder/builder.py"
    fi
    # Debug information takes two fifths of the time to compile. DeepSpeed's own -g comes after CFLAGS.
    sed -i "s/'-g', //" "$work/op_builder/builder.py" "$work/op_builder/cpu/builder.py"
    if grep -q "'-g'" "$work/op_builder/builder.py" "$work/op_builder/cpu/builder.py"; then exit 1; fi
    # With ninja, files are compiled beside each other. -g0: Debian's Python asks for -g.
    DS_ENABLE_NINJA=1 CFLAGS=-g0 \
        pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$kept.$$" "$work" >&2
    mv "$kept.$$" "$kept" # whole or not at all
fi
echo "$kept"/*.whl
