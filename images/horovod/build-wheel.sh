#!/usr/bin/env bash
# Build a Horovod wheel against the PyTorch of one Python, once, and keep it outside the repository.
#
#   usage: build-wheel.sh [--python PY] [--output DIR] [--with gloo|mpi|nccl] [--lock FILE]
#
#   --python PY   interpreter whose torch the wheel is linked against   (default: python3)
#   --output DIR  where wheels are kept   (default: $CLUSTERKIT_WHEELS, else ~/.cache/clusterkit/wheels)
#   --with KIND   gloo: CPU tensors only; nccl: GPU tensors over NCCL as well, needs nvcc; mpi: CPU tensors
#                 over gloo or the MPI whose mpicxx comes first on PATH   (default: gloo)
#   --lock FILE   take Horovod's source by the hash in this lock file, and the build tools from the given
#                 Python: in an image nothing comes in that is not pinned
#
# The last line of stdout is the path of the wheel; everything else goes to stderr. The file name carries
# the versions of Horovod, torch, MPI and Python, so an up-to-date wheel is found again and nothing is built:
#
#   pip install "$(images/horovod/build-wheel.sh --python .venv/bin/python)"
#
# The given Python needs pip and torch; nothing is installed into it.
set -euo pipefail

readonly horovod_version=0.28.1 # the last release
python=python3
output=${CLUSTERKIT_WHEELS:-$HOME/.cache/clusterkit/wheels}
kind=gloo
lock=

say() { printf 'build-wheel: %s\n' "$*" >&2; }
die() {
    say "error: $1"
    shift
    for hint in "$@"; do say "  $hint"; done
    exit 2
}

while (($#)); do
    case $1 in
        -h | --help) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
        --python | --output | --with | --lock) (($# > 1)) || die "$1 needs a value" ;;&
        --python) python=$2 ;;
        --output) output=$2 ;;
        --with) kind=$2 ;;
        --lock) lock=$2 ;;
        *) die "unknown argument: $1" "type: build-wheel.sh --help" ;;
    esac
    shift 2
done
[[ $kind == gloo || $kind == mpi || $kind == nccl ]] || die "--with takes gloo, mpi or nccl, not '$kind'"

# --- what the wheel depends on, and so its name -------------------------------------------------------------
python=$(command -v "$python") || die "no such Python interpreter" "type: build-wheel.sh --python /path/to/python"
torch=$("$python" -c 'import torch; print(torch.__version__)' 2>/dev/null) ||
    die "torch cannot be imported by $python" "type: $python -m pip install torch"
tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
with=$kind
if [[ $kind == mpi ]]; then
    # Open MPI and MPICH (Intel MPI's as well) are no replacement for each other: the name tells whose it is.
    command -v mpicxx >/dev/null || die "mpicxx is missing" "type: apt-get install --yes libopenmpi-dev"
    with=$(mpicxx -E -dM -x c++ - <<<'#include <mpi.h>' | sed -nE \
        's/^#define OMPI_MAJOR_VERSION ([0-9]+).*/openmpi\1/p; s/^#define MPICH_VERSION "([0-9]+).*/mpich\1/p')
    [[ $with ]] || die "$(command -v mpicxx) is of neither Open MPI nor MPICH" "type: mpicxx -show"
fi
# A local version (PEP 440) makes pip, and `pip freeze`, tell apart wheels for different builds of torch.
local_version=torch${torch//[^0-9A-Za-z]/.}.$with
wheel_name=horovod-$horovod_version+$local_version-$tag-$tag-linux_$(uname -m).whl

mkdir -p "$output"
wheel=$(cd "$output" && pwd)/$wheel_name
if [[ -f $wheel ]]; then
    say "already there"
    printf '%s\n' "$wheel"
    exit 0
fi

# --- tools ---------------------------------------------------------------------------------------------------
for tool in cmake make g++; do
    command -v "$tool" >/dev/null || die "$tool is missing" "type: apt-get install --yes cmake make g++"
done
"$python" -m pip --version >/dev/null 2>&1 || die "$python has no pip" "type: $python -m ensurepip"
if [[ $kind == nccl ]]; then
    "$python" -c 'import sys, torch; sys.exit(torch.version.cuda is None)' ||
        die "--with nccl needs a CUDA build of torch, and $python has $torch" "type: build-wheel.sh --with gloo"
    command -v nvcc >/dev/null || [[ -x ${CUDA_HOME:-/usr/local/cuda}/bin/nvcc ]] ||
        die "nvcc is missing, and --with nccl compiles CUDA kernels" "use a CUDA devel image, or set CUDA_HOME"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip() { "$python" -m pip --quiet --disable-pip-version-check --no-input "$@" >&2; }

# --- build tools beside the given Python, not in it -------------------------------------------------------
# setup.py is of 2023: it asks for its run-time requirements while building (setup_requires), and predates
# setuptools 80. Its CMake run imports torch, so the build cannot be isolated from the given Python.
say "fetching horovod $horovod_version and its build tools"
wanted=("horovod==$horovod_version")
if [[ $lock ]]; then
    wanted=(--require-hashes --requirement "$lock")
else
    pip install --target "$work/tools" 'setuptools<80' wheel packaging cloudpickle psutil pyyaml cffi
    export PYTHONPATH=$work/tools${PYTHONPATH:+:$PYTHONPATH}
fi
pip download --no-deps --no-build-isolation --no-binary horovod --dest "$work" "${wanted[@]}"
tar -xzf "$work/horovod-$horovod_version.tar.gz" -C "$work"
source=$work/horovod-$horovod_version

# --- the fix: today's torch headers are C++20, and Horovod asks for C++14 -----
sed -i -E 's/(CMAKE_CXX_STANDARD) 1[1-7]\)/\1 20)/' "$source/CMakeLists.txt" "$source/horovod/torch/CMakeLists.txt"
sed -i 's/(CMAKE_CUDA_STANDARD 11)/(CMAKE_CUDA_STANDARD 17)/' "$source/horovod/common/ops/cuda/CMakeLists.txt"
grep -q 'CMAKE_CXX_STANDARD 20)' "$source/horovod/torch/CMakeLists.txt" ||
    die "the C++20 fix no longer applies to the sources of horovod $horovod_version"

# --- no debug information: it is 62 of the 64 MB of the library, and two fifths of the time to compile -----
sed -i 's/REPLACE "-O2" "-O3" CMAKE_CXX_FLAGS/REPLACE "-O2 -g" "-O3" CMAKE_CXX_FLAGS/' "$source/CMakeLists.txt"
grep -q '"-O2 -g" "-O3"' "$source/CMakeLists.txt" || die "flags of horovod $horovod_version are others"

# --- build ---------------------------------------------------------------------------------------------------
# By default Horovod compiles for the very CPU it is built on (-march=native): no good for a wheel that is kept.
case $(uname -m) in
    x86_64) arch_flags=-march=x86-64-v3 ;;
    *) arch_flags=-O2 ;; # must not be empty, or the default comes back
esac
export HOROVOD_BUILD_ARCH_FLAGS=${HOROVOD_BUILD_ARCH_FLAGS:-$arch_flags}
export HOROVOD_LOCAL_VERSION=$local_version MAKEFLAGS=${MAKEFLAGS:--j$(nproc)}
export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
export HOROVOD_WITH_GLOO=1
if [[ $kind == mpi ]]; then export HOROVOD_WITH_MPI=1; else export HOROVOD_WITHOUT_MPI=1; fi
[[ $kind != nccl ]] || export HOROVOD_GPU_OPERATIONS=NCCL

say "building $wheel_name with $(nproc) cores: some minutes (log: $output/horovod-build.log)"
if ! pip -vv wheel --no-deps --no-build-isolation --wheel-dir "$work/dist" "$source" 2>"$output/horovod-build.log"; then
    grep --ignore-case --max-count 20 -E '(^|[^a-z])error[ :]' "$output/horovod-build.log" >&2 || true
    die "horovod did not compile; the whole log: $output/horovod-build.log"
fi
[[ -f $work/dist/$wheel_name ]] || die "unexpected wheel name: $(cd "$work/dist" && echo ./*), not $wheel_name"
mv "$work/dist/$wheel_name" "$wheel.$$" && mv "$wheel.$$" "$wheel" # whole or not at all, also across file systems
rm -f "$output/horovod-build.log"
printf '%s\n' "$wheel"
