"""Open NCCL's network plug-in as NCCL does, and print which name could be opened, or why none.

Runs under any Python, in a process of its own: what it opens runs code. Torch has loaded the CUDA
runtime of its wheels by then, so that is loaded first.
"""

import ctypes
import glob
import os
import sys


def say(key, value):
    sys.stdout.write("%s=%s\n" % (key, " ".join(str(value).split())[:400]))


for folder in sys.path:
    for library in sorted(glob.glob(os.path.join(folder, "nvidia", "*", "lib", "libcudart.so.*"))):
        try:
            ctypes.CDLL(library)
        except OSError:
            pass
for name in sys.argv[1:]:
    try:
        ctypes.CDLL(name, getattr(os, "RTLD_NOW", 2))
    except OSError:
        say("failed " + name, sys.exc_info()[1])
    else:
        say("opened", name)
        break
say("whole", 1)
