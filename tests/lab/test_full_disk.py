"""Jobs whose run folder lies on a small disk that all hosts share, and that is full."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterkit.executors.run import node_results
from clusterkit.executors.run.runfolder import RunFolder, read_submission
from tests.helpers.lab_faults import mounted
from tests.helpers.lab_jobs import Cluster, await_true, started
from tests.lab import Lab
from tests.lab.fixtures import give_up
from tests.lab.layout import MissingToolsError

pytestmark = pytest.mark.lab


@dataclass(frozen=True)
class Disk:
    """A disk, and the folder where all hosts have it."""

    folder: Path
    device: str

    def fill(self, *, but_kib: int = 0) -> None:
        for name in ("left", "last"):  # one more block of the first may need another for itself
            with (self.folder / name).open("wb", buffering=0) as stream:
                with suppress(OSError):
                    while True:
                        stream.write(bytes(1024))
                os.fsync(stream.fileno())
        with (self.folder / "left").open("r+b") as stream:
            stream.truncate(max(0, stream.seek(0, os.SEEK_END) - but_kib * 1024))
            os.fsync(stream.fileno())


@pytest.fixture
def disk(lab: Lab, tmp_path: Path) -> Iterator[Disk]:
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as stream:
        stream.truncate(2 << 20)
    # Without blocks that only root may have: the hosts of the lab know no other user.
    made = subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=False, capture_output=True)
    words = ["losetup", "--find", "--show", image]
    looped = subprocess.run(words, check=False, capture_output=True, text=True)
    if made.returncode or looped.returncode:
        give_up(MissingToolsError("no small disk: mkfs.ext4 and losetup are needed"))
    device = looped.stdout.strip()
    try:
        with ExitStack() as stack:
            subprocess.run(["mount", device, folder], check=True)
            stack.callback(subprocess.run, ["umount", "--lazy", folder], check=True)
            for host in lab.hosts:
                stack.enter_context(mounted(lab, host, device, str(folder)))
            yield Disk(folder=folder, device=device)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def told(cluster: Cluster, run: RunFolder) -> str:
    document = json.loads(cluster.ck("wait", str(run.path), "--json")[1])
    return f"{document['state']} {document['exit_code']}: {document['reason']}"


def clusters_on(disk: Disk, lab: Lab, kind: str) -> Cluster:
    folder = disk.folder / "desk"
    folder.mkdir()
    return Cluster(lab, folder, kind)


def test_slurm_starts_a_job_whose_disk_has_filled_up(lab: Lab, disk: Disk) -> None:
    cluster = clusters_on(disk, lab, "slurm")
    run = cluster.submit("echo on", directives={"hold": None})
    submission = read_submission(run)
    assert submission is not None
    disk.fill()
    lab.run("head", ["scontrol", "release", str(submission.job_id)], check=True)
    # The first node to fail ends the step, perhaps before the others have left a word.
    why = r"failed 74: n\S+ could not begin, or write anything: No space left on device"
    assert re.fullmatch(why, told(cluster, run))
    # Also once there is room again, by what the nodes have left in the folder.
    (disk.folder / "left").unlink()
    assert re.fullmatch(why, told(cluster, run))
    assert "a disk is full" in cluster.ck("diagnose", str(run.path))[1]


def test_over_ssh_a_disk_that_is_full_from_any_moment_on_is_named(lab: Lab, disk: Disk) -> None:
    cluster = clusters_on(disk, lab, "ssh")
    for but_kib in (48, 54):
        disk.fill(but_kib=but_kib)
        done = cluster.client("echo on; exit 7")
        if done.returncode:
            assert "No space left on device" in done.stderr
            continue
        end = told(cluster, RunFolder(Path(done.stdout.splitlines()[0])))
        assert end.startswith(("failed 7: ", "failed 74: "))
        assert "exited with 7" in end or "No space left on device" in end
        assert "was killed" not in end
        (disk.folder / "left").unlink()


def is_over(cluster: Cluster, run: RunFolder) -> bool:
    """Tell whether all nodes have left a word, or ended without, as Slurm may have them."""
    return node_results.count_ended(run, 0) == 3 or not cluster.left(run)


@pytest.mark.parametrize("kind", ["slurm", "ssh"])
def test_a_disk_that_is_full_in_the_middle_is_told_also_where_ranks_end_well(
    lab: Lab, disk: Disk, kind: str, tmp_path: Path
) -> None:
    cluster = clusters_on(disk, lab, kind)
    for freed in (False, True):
        go = tmp_path / f"go-{freed}"
        run = cluster.submit(f"echo on; until [[ -e {go} ]]; do sleep 0.2; done; echo off")
        await_true(started(run))
        disk.fill()
        go.touch()
        if freed:
            await_true(lambda run=run: is_over(cluster, run))
            (disk.folder / "left").unlink()
        end = told(cluster, run)
        (disk.folder / "left").unlink(missing_ok=True)
        print(f"{kind}, {'freed' if freed else 'full'}: {end}")
        assert "No space left on device" in end
        assert end.startswith(("succeeded 0: ", "failed 74: "))
        assert "was killed" not in end
