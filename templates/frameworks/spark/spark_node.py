"""What runs of Spark on one node, and where: for launch.py beside it."""

import fcntl
import hmac
import importlib.util
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from collections import deque
from contextlib import suppress
from pathlib import Path

import clusterkit_failure
import clusterkit_peers
import clusterkit_tree

GRACE_S = 4
"""From SIGTERM to SIGKILL; clusterkit's own grace time is 8 s."""
TAIL_LINES = 12
_SIOCGIFADDR = 0x8915
_SPARE_SIGNAL = "63"
PAGE_FILTER = "org.apache.spark.ui.JWSFilter"


class Spark:
    """The part of a Spark cluster that runs on this node."""

    def __init__(self, script):
        self.name, self.rank = os.environ["CK_NODE_NAME"], int(os.environ["CK_NODE_RANK"])
        self.member = clusterkit_peers.member_of_job("spark")
        self.slots = int(os.environ["CK_SLOTS"].split()[self.rank])
        check_java()
        self.home = spark_home()
        self.address = own_address()
        self.gpus = own_gpus(self.slots)
        self.tmp = Path(os.environ["CK_TMP"])
        self.logs = log_folder()
        self.environment = environment_of(self.home, self.address, script)
        self.children = {}

    def about(self):
        """Return what the first node has to know."""
        return {
            "address": self.address,
            "slots": self.slots,
            "gpus": len(self.gpus),
        }

    def start_worker(self, master):
        """Start this node's worker; its ports are whatever the system gives."""
        if self.gpus:
            self.offer_gpus()
        self.start_daemon(
            "worker",
            "org.apache.spark.deploy.worker.Worker",
            *("--host", self.address, "--webui-port", "0"),
            *("--cores", str(self.slots), "--work-dir", str(self.tmp / "work")),
            master,
        )

    def start_daemon(self, name, kind, *words):
        """Start a part of the cluster, whose output goes to a file."""
        with (self.logs / f"{name}.log").open("ab") as out:
            self.children[name] = subprocess.Popen(
                [
                    *(str(self.home / "bin" / "spark-class"), kind),
                    *("--properties-file", self.write_settings("daemon", self.of_daemons())),
                    *words,
                ],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def of_daemons(self):
        """Return what master and workers are told, beside who is of the job.

        Their pages would show all output, and end programs, for whoever asks.
        """
        settings = {
            # Spark 4 also takes programs by HTTP on port 6066, of every cluster that allows it.
            "spark.master.rest.enabled": "false",
            "spark.master.ui.decommission.allow.mode": "DENY",
            "spark.ui.killEnabled": "false",
        }
        if any(self.home.glob("jars/jjwt-impl-*.jar")):  # Spark 4: the filter needs it
            settings["spark.ui.filters"] = PAGE_FILTER
            key = urlsafe_b64encode(derived("spark pages")).decode()
            settings[f"spark.{PAGE_FILTER}.param.secretKey"] = key
        return settings

    def write_settings(self, name, settings):
        """Return a file, for this user alone, by which parts of Spark know each other.

        Among the arguments of a program everybody would see the secret.
        """
        folder = os.environ.get("SPARK_CONF_DIR") or self.home / "conf"
        text = ""
        with suppress(OSError):  # our file takes its place; of two equal keys the last one counts
            text = Path(folder, "spark-defaults.conf").read_text("utf-8", "replace") + "\n"
        settings = {
            **settings,
            "spark.authenticate": "true",
            "spark.authenticate.secret": derived("spark").hex(),
        }
        if "spark.network.crypto.enabled" not in text:
            settings["spark.network.crypto.enabled"] = "true"
        path = self.tmp / f"spark-{name}.conf"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
            out.write(text + "".join(f"{key} {value}\n" for key, value in settings.items()))
        return str(path)

    def offer_gpus(self):
        """Let the worker give each task GPUs of its own.

        Under CUDA_VISIBLE_DEVICES TorchDistributor leaves every rank of a node on the first GPU:
        it believes that somebody has chosen for it.
        """
        path = self.tmp / "gpus.json"
        what = {"componentName": "spark.worker", "resourceName": "gpu"}
        path.write_text(json.dumps([{"id": what, "addresses": self.gpus}]))
        self.environment.pop("CUDA_VISIBLE_DEVICES", None)
        self.environment["SPARK_WORKER_OPTS"] += (
            f' "-Dspark.worker.resourcesFile={path}"'
            f" -Dspark.worker.resource.gpu.amount={len(self.gpus)}"
        )

    def broken(self):
        """Return which part has ended, if one has."""
        ended = (name for name in ("master", "worker") if name in self.children)
        return next((name for name in ended if self.children[name].poll() is not None), None)

    def blame(self, name):
        """End this node because of one of its parts, with its last words."""
        code = self.children[name].returncode
        code = code if code >= 0 else 128 - code
        message = f"the Spark {name} has ended, exit code {code}"
        clusterkit_failure.tell(self.name, self.rank, code or 1, message=message)
        fail(f"{message}, on {self.name}", self.tail(name), code=code or 1)

    def tail(self, name):
        """Return the last lines of a part's output."""
        with (self.logs / f"{name}.log").open(errors="replace") as lines:
            return "".join(deque(lines, TAIL_LINES))

    def end(self):
        """End everything that was started here, and keep what the executors have said."""
        running = [child for child in self.children.values() if child.poll() is None]
        for child in running:
            child.terminate()
        deadline = time.monotonic() + GRACE_S
        for child in running:
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(0, deadline - time.monotonic()))
        # Python workers have process groups of their own, and survive an executor that is killed.
        clusterkit_tree.kill_descendants()
        if self.logs.parent != self.tmp:
            for path in (self.tmp / "work").glob("app-*/*/std*"):
                app, executor = path.parts[-3:-1]
                with suppress(OSError):
                    shutil.copyfile(path, self.logs / f"{app}-{executor}.{path.name}")


def derived(purpose):
    """Return a secret that follows from the job's token; nobody gets from it to the token."""
    return hmac.new(os.environ["CK_TOKEN"].encode(), purpose.encode(), "sha256").digest()


def page_pass():
    """Return the header with which the master's page lets its own job in (JWS, RFC 7515)."""

    def encoded(data):
        return urlsafe_b64encode(data).rstrip(b"=")

    text = encoded(b'{"alg":"HS256"}') + b"." + encoded(b'{"sub":"clusterkit"}')
    signature = encoded(hmac.new(derived("spark pages"), text, "sha256").digest())
    return {"Authorization": f"Bearer {(text + b'.' + signature).decode()}"}


def check_java():
    home = os.environ.get("JAVA_HOME")
    if home:
        if not os.access(Path(home, "bin", "java"), os.X_OK):
            fail(f"there is no bin/java in JAVA_HOME, {home}, on {os.environ['CK_NODE_NAME']}")
    elif shutil.which("java") is None:
        fail(
            f"no Java on {os.environ['CK_NODE_NAME']}, which Spark runs on: install Java 17 "
            "(Debian: openjdk-17-jre-headless), load its module, or set JAVA_HOME"
        )


def spark_home():
    """Return the folder of Spark: that of SPARK_HOME, or of this Python's pyspark."""
    given = os.environ.get("SPARK_HOME")
    found = None if given else importlib.util.find_spec("pyspark")
    origin = found.origin if found else None
    if not given and origin is None:
        fail(
            f"no Spark on {os.environ['CK_NODE_NAME']}: {sys.executable} -m pip install pyspark, "
            "or set SPARK_HOME"
        )
    home = Path(given or Path(origin or "").parent)
    if not (home / "bin" / "spark-class").is_file():
        whose = "SPARK_HOME" if given else "pyspark (the client alone?)"
        fail(f"there is no bin/spark-class in {home}, of {whose}, on {os.environ['CK_NODE_NAME']}")
    return home


def own_address():
    """Return the address at which the other nodes reach this one.

    It is that of the interface that Gloo is given as well; a local job says it, all its nodes being
    one machine.
    """
    if given := os.environ.get("CK_NODE_ADDR"):
        return given
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if interface:
            with suppress(OSError):
                request = struct.pack("256s", interface.encode()[:15])
                return socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24])
        probe.connect((os.environ["CK_HEAD_ADDR"], 9))  # of UDP: nothing is sent
        return probe.getsockname()[0]


def own_gpus(slots):
    """Return the numbers of as many GPUs as there are slots; none where there are too few."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        there = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia*"))
        numbers = [str(number) for number in range(sum(name.isdigit() for name in there))]
    else:
        numbers = [text.strip() for text in chosen.split(",")]
    whole = len(numbers) >= slots and all(text.isdigit() for text in numbers)
    return numbers[:slots] if whole else []


def log_folder():
    """Return where output is kept: with the job's results, where they can be written."""
    places = [Path(os.environ["CK_TMP"], "logs")]
    if os.environ.get("CK_RESULTS"):
        places.insert(0, Path(os.environ["CK_RESULTS"], "spark", os.environ["CK_NODE_NAME"]))
    for place in places:
        with suppress(OSError):  # inside an image there may be no run folder
            place.mkdir(parents=True, exist_ok=True)
            return place
    return fail(f"cannot write to {places[-1]}")


def environment_of(home, address, script):
    """Return the environment of all parts; executors and their Python inherit it."""
    before = os.environ.get("PYTHONPATH", "")
    beside = str(Path(script).absolute().parent)
    return {
        "SPARK_MASTER_OPTS": "",
        "SPARK_WORKER_OPTS": "",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": address,
        "SPARK_LOCAL_DIRS": str(Path(os.environ["CK_TMP"], "local")),
        "PYTHONUNBUFFERED": "1",
        # Python puts the folder of a script on its path; for executors nobody would.
        "PYTHONPATH": os.pathsep.join(filter(None, (beside, before))),
        # Java takes SIGUSR2 for itself, and dies of one that it has not sent.
        "_JAVA_SR_SIGNUM": _SPARE_SIGNAL,
    }


def say(text):
    print(f"clusterkit: {text}", flush=True)


def fail(text, details="", code=1):
    print(f"{details}clusterkit: error: {text}", file=sys.stderr, flush=True)
    sys.exit(code)
