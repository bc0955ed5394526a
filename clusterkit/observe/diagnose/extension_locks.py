"""Locks of torch extensions that a killed build has left, and for which a job waits for ever.

PyTorch builds an extension, such as DeepSpeed's ops, while a file `lock` exists beside it
(torch/utils/file_baton.py); ranks that wait for its end print nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from clusterkit.core import reading
from clusterkit.observe.diagnose.evidence import took_steps

_END = 1 << 16
_USES = (b"eepspeed", b"DeepSpeed", b"torch_extensions", b"cpp_extension")


def old_locks(
    logs: Iterable[Path], env: Mapping[str, str], before: float, *, framework: str
) -> Iterator[Path]:
    """Yield locks that are older than the job, where its ranks may wait for one.

    They may where they took no step and something tells of extensions; `before` is the time of
    submission, in seconds since the epoch. Only what this machine sees is looked at.
    """
    ends = [reading.read_end(log, _END) for log in logs]
    uses = framework == "deepspeed" or any(word in end for end in ends for word in _USES)
    if not uses or any(took_steps(end) for end in ends):
        return
    home = env.get("HOME") or os.environ.get("HOME") or "/"
    root = Path(env.get("TORCH_EXTENSIONS_DIR") or Path(home, ".cache", "torch_extensions"))
    try:
        for path in sorted((*root.glob("*/lock"), *root.glob("*/*/lock"))):
            if path.stat().st_mtime < before:
                yield path
    except OSError:  # it went meanwhile
        return
