"""The virtual environment of a framework, and a desk whose jobs run in it."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.desk import CONFIG, ROOT, Desk
from tests.lab.lab import Lab


def python_of(name: str) -> Path:
    """Return the interpreter of the environment that NAME.txt beside this file describes."""
    python = ROOT / ".venvs" / name / "bin" / "python"
    assert python.exists(), f"{python} is missing: make .venvs/{name}.done"
    return python


def desk_of(lab: Lab, name: str, environment: str) -> Desk:
    """Return a desk on the practice cluster whose jobs run in a framework's environment."""
    desk = Desk.of(lab, name)
    text = CONFIG.format(python=python_of(environment))
    (desk.folder / "clusterkit.yaml").write_text(text)
    return desk


def desk_with_local(lab: Lab, name: str, environment: str) -> Desk:
    """Return such a desk whose clusters are `lab`, `rack`, and `here`: the head host itself."""
    desk = desk_of(lab, name, environment)
    with (desk.folder / "clusterkit.yaml").open("a") as config:
        config.write(f"  here: {{kind: local, python: {python_of(environment)}, run_dir: runs}}\n")
    return desk


def left(desk: Desk, run_dir: str) -> list[str]:
    """Return the command lines of a job's processes on all hosts."""
    found = []
    for host in ("head", *desk.lab.nodes):
        for process in desk.lab.processes(host):
            try:
                environ = Path(f"/proc/{process.pid}/environ").read_bytes()
            except OSError:
                continue
            if Path(run_dir).name.encode() in environ:
                found.append(f"{host}: {' '.join(process.argv)}")
    return found
