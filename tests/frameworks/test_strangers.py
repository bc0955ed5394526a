"""Another user of the machine at the ports of Spark and Ray jobs, and looking for their secrets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.frameworks.environment import python_of
from tests.helpers.port_ranges import next_range

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]

SPARK = """
import os, time
from pyspark.sql import SparkSession

context = SparkSession.builder.getOrCreate().sparkContext
with open("secret", "w") as out:
    out.write(context.getConf().get("spark.authenticate.secret"))
while not os.path.exists("go"):
    assert context.parallelize(range(100), 2).sum() == 4950
    time.sleep(1)
print("computed on", len({*context.parallelize(range(8), 8).map(lambda _: os.getpid()).collect()}))
"""
SPARK_STRANGER = """
import sys
from pyspark.sql import SparkSession

session = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false")
print("in:", session.getOrCreate().sparkContext.parallelize([1], 1).map(str).collect(), flush=True)
"""
RAY = """
import os, time
import ray

ray.init()
with open("secret", "w") as out:
    out.write(os.environ["RAY_AUTH_TOKEN"])
while not os.path.exists("go"):
    time.sleep(0.5)
ray.get(ray.remote(lambda: print("computed")).remote())
time.sleep(1)
"""
RAY_STRANGER = """
import sys
import ray

ray.init(address=sys.argv[1])
print("in:", ray.get(ray.remote(lambda: 1).remote()), flush=True)
"""


class Job:
    """A job of two nodes on this machine, which continues until a file `go` is there."""

    def __init__(self, folder: Path, framework: str, program: str) -> None:
        self.folder, self.python = folder, python_of(framework)
        self.port, _ = next_range()
        ports = f"{self.port}-{self.port + 9}"
        cluster = f"{{kind: local, run_dir: runs, port_range: {ports}, python: {self.python}}}"
        (folder / "clusterkit.yaml").write_text(f"clusters: {{here: {cluster}}}\n")
        (folder / "program.py").write_text(program)
        (folder / "tmp").mkdir()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "clusterkit", "submit", "--cluster", "here"),
                *("--framework", framework, "--nodes", "2", "--preflight", "off", "--follow"),
                "program.py",
            ],
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder / "tmp")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            umask=0,
        )

    def secret(self) -> str:
        """Return the secret that the program has found, once it runs."""
        deadline = time.monotonic() + 400
        while time.monotonic() < deadline and self.process.poll() is None:
            with suppress(OSError):
                if len(text := (self.folder / "secret").read_text()) == 64:
                    return text
            time.sleep(0.2)
        raise AssertionError(self.end())

    def try_in(self, program: str, address: str, **variables: str) -> str:
        """Return what somebody sees who comes from outside the job."""
        known = {"PATH": os.environ["PATH"], "TMPDIR": str(self.folder), **variables}
        words = [self.python, "-c", program, address]
        with suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                words, env=known, capture_output=True, text=True, check=False, timeout=90
            )
            return done.stdout + done.stderr
        return "timed out"

    def end(self) -> str:
        (self.folder / "go").touch()
        return self.process.communicate(timeout=300)[0]


@contextmanager
def running(folder: Path, framework: str, program: str) -> Iterator[Job]:
    job = Job(folder, framework, program)
    try:
        yield job
    finally:
        (folder / "go").touch()
        if job.process.poll() is None:
            job.process.terminate()
            job.process.communicate(timeout=60)


def seen_by_others(folder: Path, secret: str) -> Iterator[str]:
    """Yield where somebody else could read the secret: arguments of programs, and files."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if secret.encode() in path.read_bytes():
                yield str(path)
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if Path(place, name).stat().st_mode & 0o055]
        for path in (Path(place, name) for name in names):
            with suppress(OSError):
                if path.stat().st_mode & 0o044 and secret.encode() in path.read_bytes():
                    yield str(path)


def logs_of(folder: Path) -> list[Path]:
    logs = [path for path in folder.glob("runs/*/**/*") if path.is_file()]
    assert len(logs) > 4
    return logs


def test_a_stranger_cannot_use_the_spark_of_a_job(tmp_path: Path) -> None:
    with running(tmp_path, "spark", SPARK) as job:
        secret = job.secret()
        (tmp_path / "secret").unlink()
        assert list(seen_by_others(tmp_path, secret)) == []
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{job.port + 2}/json/", timeout=30)
        assert refused.value.code == 403
        assert "in:" not in job.try_in(SPARK_STRANGER, f"spark://127.0.0.1:{job.port}")
        output = job.end()
        assert job.process.returncode == 0, output
    (log,) = tmp_path.glob("runs/*/results/spark/node-0/master.log")
    assert len(re.findall("Registering app", log.read_text())) == 1
    assert "computed on" in output
    assert not any(secret in path.read_text(errors="replace") for path in logs_of(tmp_path))


def test_a_stranger_cannot_use_the_ray_of_a_job(tmp_path: Path) -> None:
    with running(tmp_path, "ray", RAY) as job:
        secret = job.secret()
        (tmp_path / "secret").unlink()
        assert list(seen_by_others(tmp_path, secret)) == []
        address = f"127.0.0.2:{job.port}"
        assert "in:" not in job.try_in(RAY_STRANGER, address)
        guess = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
        assert "in:" not in job.try_in(RAY_STRANGER, address, **guess)
        output = job.end()
        assert job.process.returncode == 0, output
    assert "computed" in output
    assert not any(secret in path.read_text(errors="replace") for path in logs_of(tmp_path))
