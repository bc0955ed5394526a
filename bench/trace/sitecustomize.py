"""On the PYTHONPATH of both contenders: every Python that starts notes when, where and as what."""

import os
import sys
import time

if folder := os.environ.get("BENCH_STAMPS"):
    words = " ".join(word.rpartition("/")[2] for word in sys.orig_argv if "\n" not in word)
    with open(f"{folder}/trace", "a") as trace:  # noqa: PTH123 - before anything is imported
        trace.write(f"{time.time():.6f}\t{os.uname().nodename}\t{words}\n")
