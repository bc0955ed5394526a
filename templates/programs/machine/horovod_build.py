"""Print what Horovod was built with in this Python, as `horovodrun --check-build` does: JSON.

Nothing where there is none. Its library is asked (horovod/common/basics.py), which needs those of
the framework, but not the import of torch or TensorFlow, which takes seconds.
"""

import ctypes
import importlib.util
import json
import sysconfig
from pathlib import Path

LIBRARIES = {
    "torch": ("lib/libtorch_python.so", "mpi_lib_v2"),
    "tensorflow": ("libtensorflow_framework.so.2", "mpi_lib"),
}
"""What the framework itself has loaded by then, and the extension of Horovod, by framework."""
PARTS = ("mpi", "gloo", "nccl", "ddl", "ccl", "cuda", "rocm")


def folder(package):
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def built(framework, library):
    ctypes.CDLL(str(folder(framework) / LIBRARIES[framework][0]), ctypes.RTLD_GLOBAL)
    loaded = ctypes.CDLL(str(library))
    return [part for part in PARTS if getattr(loaded, f"horovod_{part}_built")()]


if horovod := folder("horovod"):
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    found = {name: horovod / name / f"{row[1]}{suffix}" for name, row in LIBRARIES.items()}
    found = {name: path for name, path in found.items() if path.exists() and folder(name)}
    parts = error = None
    for name, path in found.items():
        try:
            parts = built(name, path)
            break
        except (OSError, AttributeError) as problem:
            error = str(problem)
    print(json.dumps({"frameworks": list(found), "parts": parts, "error": error}))
