"""Name the first rank of a job to fail, in the file CK_FAILURE, where that is set.

And the first one to end well, in a file beside it: whoever waits for it then fails in its place.
"""

import json
import os
from contextlib import suppress
from pathlib import Path


def tell(node, rank, exit_code, **more):
    """Write the file, unless there is one; `exit_code` is as a shell gives it."""
    tell_first("", {"node": node, "rank": rank, "exit_code": exit_code, **more})


def tell_ended(node, rank):
    """Say that a rank has ended with exit code 0, unless another was first."""
    tell_first(".ended", {"node": node, "rank": rank})


def tell_first(suffix, document):
    path = os.environ.get("CK_FAILURE")
    if not path:
        return
    rank = document["rank"]
    draft = Path(f"{path}.{rank}.{os.getpid()}")  # a rank and who started it may both tell
    with suppress(OSError):  # unlike a rename, a link replaces nothing: the first rank counts
        try:
            draft.touch(mode=0o600)  # as all of a run, whatever the umask
            draft.write_text(json.dumps(document), encoding="utf-8")
            Path(path + suffix).hardlink_to(draft)
        finally:
            draft.unlink()
