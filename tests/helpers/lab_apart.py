"""Hosts of the practice cluster that share nothing where clusterkit keeps its things."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.helpers.desk import ROOT, Desk
from tests.helpers.lab_faults import mounted
from tests.helpers.needs import lack, require
from tests.lab import Lab

OURS = "/root/.clusterkit"
"""Where clusterkit keeps its things on the hosts, which all log in as root."""

CONFIG = """\
clusters:
  apart:
    kind: ssh
    hosts: n[1-3]
    shared_filesystem: false
    gpus_per_node: 2
    python: {python}
    run_dir: runs
    env: {{DS_ACCELERATOR: cpu}}
"""


@contextmanager
def homes_apart(lab: Lab, hosts: Sequence[str], *, size: str = "700m") -> Iterator[None]:
    """Give each host a disk of its own at `OURS`."""
    Path(OURS).mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for host in hosts:
            words = ("-t", "tmpfs", "-o", f"size={size},mode=0700", host, OURS)
            stack.enter_context(mounted(lab, host, *words))
        yield


def desk_apart(lab: Lab, name: str) -> Desk:
    """Return a desk whose cluster is made of such hosts."""
    desk = Desk.of(lab, name)
    (desk.folder / "clusterkit.yaml").write_text(CONFIG.format(python=sys.executable))
    return desk


def wheelhouse(folder: Path) -> Path:
    """Return a folder with our wheel, and those of everything that it needs."""
    require("hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:"]
    argv = [*pip, "--dest", str(folder), *map(str, folder.glob("*.whl"))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        lack(f"pip cannot download what clusterkit needs: {last}")
    return folder


def tiny_wheel(folder: Path, name: str) -> Path:
    """Write the wheel of a module that says hello, and return its folder."""
    folder.mkdir()
    about = f"{name}-1.0.dist-info"
    contents = {
        f"{name}.py": 'HELLO = "hello"\n',
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    contents[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in (*contents, f"{about}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, text in contents.items():
            wheel.writestr(path, text)
    return folder
