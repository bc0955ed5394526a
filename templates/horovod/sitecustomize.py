"""Tell of an exception that ends a Horovod rank, in the file CK_FAILURE; any Python loads it first.

When a script raises, Horovod's own exit handler ends the other ranks before this one, so that which
process ends first says nothing. This file is on PYTHONPATH for the rank alone; another file of its
name, a site's own, is loaded as well.
"""

import json
import os
import sys
from pathlib import Path


def tell(kind, value, trace):
    if kind.__name__ == "HorovodInternalError":
        # It has lost another rank, whose words end here at the latest.
        note = Path(os.environ["CK_TMP"], f"lost-another-{os.environ['HOROVOD_RANK']}")
        note.write_text(str(os.fstat(2).st_size))
        report(kind, value, trace)
        return
    report(kind, value, trace)
    output = os.fstat(2)
    document = {
        "node": os.environ["CK_NODE_NAME"],
        "rank": int(os.environ["HOROVOD_RANK"]),
        "local_rank": int(os.environ["HOROVOD_LOCAL_RANK"]),
        "exit_code": 1,
        "message": f"{kind.__name__}: {value}",
        "log": {"inode": output.st_ino, "size": output.st_size},
    }
    path = os.environ["CK_FAILURE"]
    draft = Path(f"{path}.{document['rank']}.raised")
    try:  # unlike a rename, a link replaces nothing: the first rank counts
        draft.write_text(json.dumps(document), encoding="utf-8")
        try:
            Path(path).hardlink_to(draft)
        finally:
            draft.unlink()
    except OSError:
        pass


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
