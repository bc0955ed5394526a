"""A practice cluster on one Linux machine: real Slurm, real sshd, no containers.

``python -m tests.lab up`` starts hosts ``head`` and ``n1`` .. ``nN``. Each host is one
process tree in its own network, mount, UTS, PID and IPC namespaces; the bridge between
them lives in a namespace of its own. The machine itself sees no interface, no mount and
no file outside the lab folder (``/tmp/clusterkit-lab``, or ``CLUSTERKIT_LAB``).

``up --accounting`` adds slurmdbd with a database of its own; without, ``sacct`` has no answer.
``up --nodes 6 --cloud 4`` makes it elastic: the last four nodes are powered down until
a job has them resumed, and ``power/log`` in the lab folder tells what was asked of ResumeProgram.

In tests, take the ``lab`` fixture of :mod:`tests.lab.fixtures`.
"""

from tests.lab.lab import HostProcess, Lab
from tests.lab.layout import DEFAULT_ROOT, LabError, MissingToolsError

__all__ = ["DEFAULT_ROOT", "HostProcess", "Lab", "LabError", "MissingToolsError"]
