"""The framework `spark` without Spark: what it hands on, refuses, and misses on a node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from clusterkit.core import peers
from clusterkit.core.data import PEERS, data_dir
from clusterkit.core.errors import UserError
from clusterkit.core.model import NodeCommand
from clusterkit.core.ports import hold_port
from clusterkit.launch.frameworks import LaunchInputs, load_framework

LAUNCH = data_dir("templates/frameworks/spark") / "spark_launch.py"
RANKS = data_dir("templates/programs/ranks")
TOKEN = "the same on all nodes"


def command(script: str = "x.py", **options: str) -> NodeCommand:
    inputs = LaunchInputs(script=script, nodes=3, slots=(2, 2, 1), processes=5, options=options)
    return load_framework("spark").command(inputs)


def test_a_key_of_spark_is_set_by_its_own_name() -> None:
    argv = command(**{"executor.memory": "2g", "jars.packages": "a:b:1"}).argv
    assert argv[3:] == (
        "--processes=5",
        "--conf=spark.executor.memory=2g",
        "--conf=spark.jars.packages=a:b:1",
        "x.py",
    )


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("master", "the cluster is the job's own"),
        ("cores.max", "--processes"),
        ("worker.timeout", "--env SPARK_DAEMON_JAVA_OPTS=-Dspark.worker.timeout=7"),
    ],
)
def test_what_programs_cannot_set_is_refused(key: str, hint: str) -> None:
    with pytest.raises(UserError, match=f"spark.{key} is ") as refused:
        command(**{key: "7"})
    assert hint in str(refused.value.problems[0].hint)


def test_a_script_that_spark_submit_would_not_know_is_refused() -> None:
    assert command("program.jar").argv[-1] == "program.jar"
    with pytest.raises(UserError, match=r"ends in neither \.py nor \.jar"):
        command("train")


START_S = "import spark_launch as launch; launch.START_S = 3; launch.main()"


def launched(tmp_path: Path, code: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """Run the launcher as the only node, named w7, without any Spark or Java."""
    with start(tmp_path, code, **more) as process:
        output, errors = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def start(tmp_path: Path, code: str = "", **more: str) -> subprocess.Popen[str]:
    environment = {
        "PATH": str(tmp_path),
        "CK_TOKEN": TOKEN,
        "CK_NODES": "w7",
        "CK_SLOTS": "2",
        "CK_NODE_RANK": "0",
        "CK_NODE_NAME": "w7",
        "CK_HEAD_ADDR": "127.0.0.1",
        "CK_PORT": "21000",
        "CK_TMP": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        **more,
    }
    shutil.copy(peers.__file__, tmp_path / PEERS)
    return subprocess.Popen(
        [sys.executable, "-S", *(["-c", code] if code else [LAUNCH]), "--processes=2", "x.py"],
        env={**environment, "PYTHONPATH": f"{LAUNCH.parent}:{RANKS}:{tmp_path}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\nexit 9\n")
    path.chmod(0o755)
    return path


def test_a_node_without_java_is_named(tmp_path: Path) -> None:
    done = launched(tmp_path)
    assert done.returncode == 1
    assert "no Java on w7" in done.stderr
    assert "openjdk-17-jre-headless" in done.stderr


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    done = launched(tmp_path, JAVA_HOME="/opt/jdk")
    assert "there is no bin/java in JAVA_HOME, /opt/jdk, on w7" in done.stderr


def test_a_node_without_spark_is_told_what_to_install(tmp_path: Path) -> None:
    executable(tmp_path / "java")
    done = launched(tmp_path)
    assert done.returncode == 1
    assert f"no Spark on w7: {sys.executable} -m pip install pyspark" in done.stderr


def test_a_spark_home_without_spark_is_named(tmp_path: Path) -> None:
    java = executable(tmp_path / "jdk" / "bin" / "java")
    done = launched(tmp_path, JAVA_HOME=str(java.parents[1]), SPARK_HOME=str(tmp_path))
    assert f"there is no bin/spark-class in {tmp_path}, of SPARK_HOME, on w7" in done.stderr


def test_a_master_that_ends_is_reported_with_its_last_words(tmp_path: Path) -> None:
    """A port that is taken ends it, for example."""
    executable(tmp_path / "java")
    (executable(tmp_path / "spark/bin/spark-class")).write_text(
        "#!/bin/sh\necho 'java.net.BindException: Address already in use'\nexit 1\n"
    )
    results = tmp_path / "results"
    failure = tmp_path / "failure.json"
    done = launched(
        tmp_path,
        SPARK_HOME=str(tmp_path / "spark"),
        CK_RESULTS=str(results),
        CK_FAILURE=str(failure),
        PATH=f"{tmp_path}:{os.environ['PATH']}",
    )
    assert done.returncode == 1
    assert "BindException: Address already in use" in done.stderr
    assert "the Spark master has ended, exit code 1, on w7" in done.stderr
    assert '"node": "w7"' in failure.read_text()
    assert "BindException" in (results / "spark" / "w7" / "master.log").read_text()


STAND_IN = """\
#!{python}
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

words = dict(zip(sys.argv[2::2], sys.argv[3::2]))
alive = [{{"host": words["--host"], "state": "ALIVE", "cores": 2}}]


class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({{"workers": alive}}).encode())


if sys.argv[1].endswith("Worker"):
    os.fork() or os.setsid()
    time.sleep(300)
HTTPServer((words["--host"], int(words["--webui-port"])), Page).serve_forever()
"""
"""In place of Spark's master, which knows one worker, and of a worker, which hides a process."""


@pytest.fixture
def port() -> Iterator[int]:
    held = hold_port(18000, 18999, seed="spark")  # tests run at the same time
    yield held.number
    held.hold.close()


def stand_in(tmp_path: Path, port: int, driver: str) -> dict[str, str]:
    executable(tmp_path / "java")
    spark_class = executable(tmp_path / "spark/bin/spark-class")
    spark_class.write_text(STAND_IN.format(python=sys.executable))
    executable(tmp_path / "spark/bin/spark-submit").write_text(f"#!/bin/sh\n{driver}\n")
    return {
        "CK_PORT": str(port),
        "CK_NODE_ADDR": "127.0.0.1",
        "SPARK_HOME": str(tmp_path / "spark"),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }


def marked(text: str) -> list[str]:
    """Return the command line of every process with `text` in its environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if text.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text())
    return found


def test_the_job_ends_as_the_driver_does_and_leaves_nothing(tmp_path: Path, port: int) -> None:
    driver = 'for word; do echo "$word"; done; exit 7'
    done = launched(tmp_path, **stand_in(tmp_path, port, driver))
    assert done.returncode == 7, done.stderr
    told = done.stdout.splitlines()
    assert told[:2] == [
        "clusterkit: Spark: workers on w7, 2 cores",
        f"--master=spark://127.0.0.1:{port}",
    ]
    assert {"--conf=spark.cores.max=2", "--conf=spark.ui.enabled=false"} < set(told)
    assert told[-1] == "x.py"
    assert marked(str(tmp_path)) == []


def test_workers_that_do_not_come_are_named(tmp_path: Path, port: int) -> None:
    nodes = {"CK_NODES": "w7 w8 w9", "CK_SLOTS": "1 1 1"}
    done = launched(tmp_path, START_S, **{**stand_in(tmp_path, port, "exit 0"), **nodes})
    assert done.returncode == 1
    assert "no Spark worker has come within 3 s from w8 (not heard of), w9" in done.stderr
    assert marked(str(tmp_path)) == []
