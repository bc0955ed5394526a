"""Name the first rank of a job to fail, in the file CK_FAILURE, where that is set."""

import json
import os
from contextlib import suppress
from pathlib import Path


def tell(node, rank, exit_code, **more):
    """Write the file, unless there is one; `exit_code` is as a shell gives it."""
    path = os.environ.get("CK_FAILURE")
    if not path:
        return
    document = {"node": node, "rank": rank, "exit_code": exit_code, **more}
    draft = Path(f"{path}.{rank}.{os.getpid()}")  # a rank and who started it may both tell
    with suppress(OSError):  # unlike a rename, a link replaces nothing: the first rank counts
        draft.write_text(json.dumps(document), encoding="utf-8")
        try:
            Path(path).hardlink_to(draft)
        finally:
            draft.unlink()
