"""Tell of an exception that ends a rank, before its sockets close: Python loads this first.

Which process ends first says nothing: a rank that raises closes its sockets while Python ends, and
those who lose it by that may have ended before (Horovod's own exit handler even ends them). Whoever
has only lost another rank waits until that one has been told of, and keeps its own sockets open.

This file is on PYTHONPATH for the rank alone: nothing that it starts finds it there. Another file
of its name, a site's own, is loaded as well.
"""

import atexit
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import clusterkit_failure

OTHERS_TELL_S = 2
"""How long a rank that has lost another one waits before it tells of itself."""


def note(kind, value, trace):
    if issubclass(kind, Exception):  # KeyboardInterrupt becomes a signal
        lost = clusterkit_failure.only_lost_another(value)
        if lost and (output := clusterkit_failure.output()):  # the other rank has said its own
            with suppress(OSError):
                Path(os.environ["CK_TMP"], f"lost-another-{rank}").write_text(str(output["size"]))
        # As the first thing of Python's end: whatever hook called this one prints after it.
        atexit.register(tell, clusterkit_failure.text_of(value), lost)
    report(kind, value, trace)


def tell(message, lost):
    output = clusterkit_failure.output()
    deadline = time.monotonic() + (OTHERS_TELL_S if lost else 0)
    while time.monotonic() < deadline and not Path(os.environ["CK_FAILURE"]).exists():
        time.sleep(0.05)
    # Others may be forks of it, or what a rank's own shell script starts, and goes on without.
    if os.getpid() == me and os.getppid() == int(launcher):
        clusterkit_failure.tell(
            os.environ["CK_NODE_NAME"],
            int(rank),
            1,
            local_rank=int(local_rank),
            message=message,
            log=output,
        )


me = os.getpid()
launcher, rank, local_rank = os.environ.pop("CK_TOLD_AS").split()
report = sys.excepthook
sys.excepthook = note

before = os.environ["PYTHONPATH"].split(os.pathsep)
os.environ["PYTHONPATH"] = os.pathsep.join(it for it in before if it != os.environ["CK_TMP"])
if not os.environ["PYTHONPATH"]:
    del os.environ["PYTHONPATH"]
here = str(Path(__file__).parent)
sys.path = [entry for entry in sys.path if entry != here]
ours = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # noqa: F401
except ImportError as error:
    if error.name != "sitecustomize":
        raise
    sys.modules["sitecustomize"] = ours
