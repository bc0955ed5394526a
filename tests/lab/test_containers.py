"""Steps within a step, as pyxis needs them: real Slurm, and an srun that heeds no image.

What it starts has mounts of its own, as a container has.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.lab_jobs import Cluster, await_true
from tests.lab import Lab
from tests.lab.lab import UNSCALED

pytestmark = pytest.mark.lab

SRUN = """#!/usr/bin/env bash
if [[ $1 == --help ]]; then echo --container-image; exit; fi
options=() inside=()
while [[ $1 == -* ]]; do
  [[ $1 == --container-* ]] && inside=(unshare --mount --propagation private) || options+=("$1")
  shift
done
exec /usr/bin/srun "${options[@]}" "${inside[@]}" "$@"
"""
TIDY = """
trap 'trap "" TERM; sleep 0.5; touch "$CK_RESULTS/saved-$CK_NODE_RANK"; exit 0' TERM
setsid sleep 1000 &
touch "$CK_RESULTS/begun-$CK_NODE_RANK"
wait
"""


@pytest.fixture
def pyxis(lab: Lab, tmp_path: Path) -> tuple[Cluster, dict[str, object]]:
    """Return a cluster whose srun takes the options of pyxis, and how to submit there."""
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    wanted = {"path": str(tmp_path), "nodes": 2, "image": "x", "container": "pyxis"}
    return Cluster(lab, tmp_path), wanted


def test_the_exit_code_comes_through(pyxis: tuple[Cluster, dict[str, object]]) -> None:
    cluster, wanted = pyxis
    run = cluster.submit("echo kept >$CK_RESULTS/$CK_NODE_RANK; exit 7", **wanted)
    assert cluster.ends(run) == ("failed", 7)
    assert sorted(path.name for path in run.results.iterdir()) == ["0", "1"]


def test_a_command_enters_the_container_and_a_cancelled_job_tidies_up_and_leaves_nothing(
    pyxis: tuple[Cluster, dict[str, object]],
) -> None:
    cluster, wanted = pyxis
    cluster.environment |= UNSCALED  # three seconds from SIGTERM to SIGKILL otherwise
    run = cluster.submit(f"mount -t tmpfs none /mnt && touch /mnt/inside; {TIDY}", **wanted)
    await_true(lambda: all((run.results / f"begun-{rank}").exists() for rank in range(2)))
    words = ("sh", "-c", 'echo "$CK_NODE_NAME"; ls /mnt; exit 4')
    assert cluster.ck("exec", run.run_id, "--node", "1", "--", *words) == (4, "n2\ninside\n")
    cluster.ck("cancel", run.run_id)
    assert cluster.ends(run)[0] == "cancelled"
    await_true(lambda: not cluster.left(run), 15.0)
    # Not by the log: what srun still brings of it, once it is told to end, is up to srun.
    assert all((run.results / f"saved-{rank}").exists() for rank in range(2))


def test_a_node_that_fails_ends_the_other(
    pyxis: tuple[Cluster, dict[str, object]],
) -> None:
    cluster, wanted = pyxis
    run = cluster.submit(f'[ "$CK_NODE_RANK" = 0 ] || {{ sleep 2; exit 5; }}; {TIDY}', **wanted)
    assert cluster.ends(run) == ("failed", 5)
    # Slurm ends the srun of the other node as well, which leaves its step no time.
    await_true(lambda: not cluster.left(run), 15.0)
