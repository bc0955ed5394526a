"""Tell of an exception that ends a Horovod rank; any Python loads this file first.

When a script raises, Horovod's own exit handler ends the other ranks before this one, so that which
process ends first says nothing. This file is on PYTHONPATH for the rank alone; another file of its
name, a site's own, is loaded as well.
"""

import os
import sys
from pathlib import Path

import clusterkit_failure


def tell(kind, value, trace):
    if kind.__name__ == "HorovodInternalError":
        # It has lost another rank, whose words end here at the latest.
        note = Path(os.environ["CK_TMP"], f"lost-another-{os.environ['HOROVOD_RANK']}")
        note.write_text(str(os.fstat(2).st_size))
        report(kind, value, trace)
        return
    report(kind, value, trace)
    output = os.fstat(2)
    clusterkit_failure.tell(
        os.environ["CK_NODE_NAME"],
        int(os.environ["HOROVOD_RANK"]),
        1,
        local_rank=int(os.environ["HOROVOD_LOCAL_RANK"]),
        message=f"{kind.__name__}: {value}",
        log={"inode": output.st_ino, "size": output.st_size},
    )


report = sys.excepthook
sys.excepthook = tell

before = os.environ.pop("CK_PYTHONPATH", "")
os.environ["PYTHONPATH"] = before
if not before:
    del os.environ["PYTHONPATH"]
here = str(Path(__file__).parent)
sys.path = [entry for entry in sys.path if entry != here]
ours = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # noqa: F401
except ImportError:
    sys.modules["sitecustomize"] = ours
