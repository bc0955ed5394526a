"""Run folders of the failed jobs of the practice cluster, kept as data: one file for each.

`CLUSTERKIT_GOLDEN=write pytest tests/lab/test_diagnose.py` lets all of them fail again, and writes
them anew, as after a new release of torch.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from clusterkit.executors.run.runfolder import RunFolder
from tests.helpers.paths import ROOT, TESTS

FOLDER = TESTS / "data" / "failures"
_TOLD = (
    *("plan.json", "state.json", "submission.json", "ended.json", "logs/*.log", "nodes/*.json"),
    *("failures/*", "ends/*.json", "submitit/*.out"),
)
"""What diagnose reads of a run folder."""
_HEAD = re.compile(r"(?m)^==> (\S+) <==\n")


def record(name: str, run: Path) -> None:
    """Write what diagnose reads of a job, with no path of this machine."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    paths = sorted({path for pattern in _TOLD for path in run.glob(pattern) if path.is_file()})
    parts = (f"==> {path.relative_to(run)} <==\n{_text(path)}" for path in paths)
    text = "".join(part if part.endswith("\n") else f"{part}\n" for part in parts)
    for path, other in (
        (run.parents[1], "/home/ada"),
        (sys.prefix, "/env"),
        (sys.base_prefix, "/usr"),
        (ROOT, "/opt/clusterkit"),
    ):
        text = text.replace(str(path), other)
    (FOLDER / f"{name}.txt").write_text(text, encoding="utf-8")


def _text(path: Path) -> str:
    if path.name != "plan.json":
        return path.read_bytes().decode(errors="replace")
    plan = json.loads(path.read_text(encoding="utf-8"))
    without_programs = {**plan, "command": {}, "one_host_command": {}}
    return json.dumps(without_programs, indent=1)


def recorded(name: str, folder: Path) -> RunFolder:
    """Write the run folder of a recorded job below `folder`."""
    _, *parts = _HEAD.split((FOLDER / f"{name}.txt").read_text(encoding="utf-8"))
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return RunFolder(folder)
