"""Keep Ray Train from asking for the dashboard that a job has not, and from saying so every second.

Any Python of the job's Ray loads this first, by PYTHONPATH; a site's own file of this name as well.
"""

import importlib.util
import logging
import sys
from importlib.machinery import PathFinder
from pathlib import Path

CLEANER = "ray.train.v2._internal.execution.controller.placement_group_cleaner"

logging.getLogger(CLEANER).setLevel(logging.ERROR)
here = str(Path(__file__).parent)
spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if entry != here])
if spec is not None and spec.loader is not None:
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
