"""Name the first rank of a job to fail, in the file CK_FAILURE, where that is set.

And the first one to end well, in a file beside it: whoever waits for it then fails in its place.
"""

import json
import os
import re
from contextlib import suppress
from pathlib import Path

LOST_ANOTHER = re.compile(
    "HorovodInternalError|Dist(Network|Store)Error|(closed|reset) by peer|[Bb]roken pipe|[Gg]loo"
    "|NCCL|[Tt]imed? ?out"
)
"""In what ranks say that have only lost another one: Horovod, torch.distributed, sockets."""
OTHERS_TELL_S = 2
"""How long who has only lost another is not told of, for the one that failed to come first."""
MESSAGE = 4000
"""Characters of what an exception says that are written; whoever reads it keeps fewer."""


def only_lost_another(error):
    """Tell whether an exception may come of another rank's end."""
    return isinstance(error, (RuntimeError, OSError)) and bool(LOST_ANOTHER.search(text_of(error)))


def text_of(error):
    """Return what an exception says, with its kind."""
    with suppress(Exception):  # it is a script's own, and may fail at that
        return f"{type(error).__name__}: {error}"
    return type(error).__name__


def output():
    """Return which file the output goes to, and how far it has come; None where it is closed."""
    with suppress(OSError):
        found = os.fstat(2)
        return {"inode": found.st_ino, "size": found.st_size}
    return None


def leave_note(folder, rank, size):
    """Note for who has started the ranks how far the output had come when one lost another."""
    with suppress(OSError):
        Path(folder, f"lost-another-{rank}").write_text(str(size))


def tell(node, rank, exit_code, *, into=None, message=None, **more):
    """Write the file, unless there is one; `exit_code` is as a shell gives it.

    It is the one called `into`, where that is given, as a script may have changed the environment.
    """
    said = message[:MESSAGE] if isinstance(message, str) else None
    document = {"node": node, "rank": rank, "exit_code": exit_code, "message": said, **more}
    tell_first(into or os.environ.get("CK_FAILURE"), document)


def tell_ended(node, rank):
    """Say that a rank has ended with exit code 0, unless another was first."""
    path = os.environ.get("CK_FAILURE")
    tell_first(path and f"{path}.ended", {"node": node, "rank": rank})


def tell_first(path, document):
    if not path:
        return
    rank = document["rank"]
    draft = Path(f"{path}.{rank}.{os.getpid()}")  # a rank and who started it may both tell
    with suppress(OSError):  # unlike a rename, a link replaces nothing: the first rank counts
        try:
            draft.touch(mode=0o600)  # as all of a run, whatever the umask
            draft.write_text(json.dumps(document), encoding="utf-8")
            os.link(draft, path)  # Path has a method for it from Python 3.10 on
        finally:
            draft.unlink()
