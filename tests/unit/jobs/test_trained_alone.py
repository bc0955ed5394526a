"""A job that succeeded as many times as it has ranks is told as such after the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.command_line import typed_in

ALONE = """\
if 0:
    import torch
    torch.ones(1).backward()
for epoch in range(1, 4):
    print(f"epoch {epoch} loss 0.5", flush=True)
"""
FIRST = ALONE.replace("for epoch", "import os\nfor epoch").replace(
    "    print", "    if os.environ['CK_NODE_RANK'] == '0': print"
)
LIGHTNING = "print('`Trainer.fit` stopped: `max_epochs=3` reached.')\n"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (ALONE, "each of the 2 ranks trained by itself: all printed `epoch 3`, and nothing in"),
        (ALONE + "# torch.distributed", None),
        (FIRST, None),
        (LIGHTNING, "each of the 2 ranks trained by itself: all printed `Trainer.fit stopped`"),
        (f"print('All distributed processes registered.')\n{LIGHTNING}", None),
    ],
)
def test_ranks_that_each_trained_by_themselves_are_told(
    tmp_path: Path, script: str, words: str | None
) -> None:
    (tmp_path / "clusterkit.yaml").write_text("clusters: {here: {kind: local, run_dir: runs}}\n")
    (tmp_path / "train.py").write_text(script)
    argv = ["submit", "--cluster", "here", "--framework", "env", "--nodes", "2", "--wait"]
    done = typed_in(tmp_path, *argv, "train.py")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "trained by itself" in line]
    assert len(told) == (words is not None)
    assert words is None or words in told[0]
