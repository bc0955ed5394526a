"""Tell of an exception that ends a rank, before its sockets close: Python loads this first.

Which process ends first says nothing: a rank that raises closes its sockets while Python ends, and
those who lose it by that may have ended before (Horovod's own exit handler even ends them). Whoever
has only lost another rank waits until that one has been told of, and keeps its own sockets open.

A Python that finds this folder on PYTHONPATH takes it off, so that what it starts does not find it.
Where the rank is a shell script or another program, every Python that this starts loads this file,
of whatever release, and does no more than that. Another file of its name, a site's own, is loaded
as well.
"""

import atexit
import os
import sys
import threading
import time


def watch(rank, local_rank):
    """Tell of the exception that ends this process, which is a rank."""
    try:
        import clusterkit_failure  # noqa: PLC0415 - by ranks alone
    except (ImportError, SyntaxError):  # a Python of before 3.6: who has started it tells
        return
    me, node, failure = os.getpid(), os.environ["CK_NODE_NAME"], os.environ["CK_FAILURE"]
    report = sys.excepthook

    def note(kind, value, trace):
        # KeyboardInterrupt becomes a signal; other processes are forks.
        if issubclass(kind, Exception) and os.getpid() == me and ends_python(value):
            lost = clusterkit_failure.only_lost_another(value)
            output = clusterkit_failure.output()
            if lost and output:  # the other rank has said its own
                clusterkit_failure.leave_note(here, rank, output["size"])
            # As the first thing of Python's end: whatever hook called this one prints after it.
            atexit.register(tell, clusterkit_failure.text_of(value), lost)
        report(kind, value, trace)

    def tell(message, lost):
        output = clusterkit_failure.output()
        deadline = time.monotonic() + (clusterkit_failure.OTHERS_TELL_S if lost else 0)
        while time.monotonic() < deadline and not os.path.exists(failure):  # noqa: PTH110
            time.sleep(0.05)
        clusterkit_failure.tell(
            node, rank, 1, into=failure, local_rank=local_rank, message=message, log=output
        )

    sys.excepthook = note


def ends_python(value):
    """Tell whether Python ends by an exception that its hook is called with.

    Python notes it before it calls the hook, and has left the script. Scripts call the hook to
    log, and so do C libraries (PyErr_Print) and consoles, which note it as well.
    """
    frame = sys._getframe()  # noqa: SLF001 - there is no other way to it
    while frame.f_back:
        frame = frame.f_back
    return (
        getattr(sys, "last_value", None) is value
        and frame.f_code.co_name not in ("<module>", "_run_module_as_main")
        and threading.current_thread() is threading.main_thread()
        and not sys.flags.inspect
    )


here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - for Python 2 as well
told_as = os.environ.pop("CK_TOLD_AS", "").split()
# Only what the launcher itself has started is the rank, not what a rank's shell script starts.
if len(told_as) == 3 and os.getppid() == int(told_as[0]):
    watch(int(told_as[1]), int(told_as[2]))

before = os.environ.pop("PYTHONPATH", "").split(os.pathsep)
after = os.pathsep.join(it for it in before if os.path.abspath(it) != here)  # noqa: PTH100
if after:
    os.environ["PYTHONPATH"] = after
sys.path = [entry for entry in sys.path if entry != here]
ours = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # noqa: F401
except ImportError as error:
    if getattr(error, "name", "sitecustomize") != "sitecustomize":
        raise
    sys.modules["sitecustomize"] = ours
