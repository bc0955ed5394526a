"""Become a program that gets a signal when its parent ends: PARENT SIGNAL PROGRAM [ARGUMENT...].

The kernel sends it, however the parent ends (PR_SET_PDEATHSIG, prctl(2)). Python code between fork
and exec would not be safe with threads. Where Python has no ctypes, the program runs all the same.
What Python ignores is not ignored in it (`restore_signals` of Popen does the same).
"""

import os
import signal
import sys

parent, number = int(sys.argv[1]), int(sys.argv[2])
try:
    import ctypes

    ctypes.CDLL(None).prctl(1, number, 0, 0, 0)
except (ImportError, OSError, AttributeError):
    pass
for ignored in signal.SIGPIPE, signal.SIGXFSZ:
    signal.signal(ignored, signal.SIG_DFL)
if os.getppid() == parent:
    os.execvp(sys.argv[3], sys.argv[3:])
