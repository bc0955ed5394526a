#!/usr/bin/env bash
# train: what one node runs (spark). Rendered by clusterkit 0.1.0.
# Inside an allocation everything it needs is in the environment. By hand, on each host:
#   CK_NODES="host1 host2" CK_NODE_RANK=0 bash node.sh     # and CK_NODE_RANK=1 on host2
# On several hosts also, the same on each:  export CK_TOKEN=...     # made by `openssl rand -hex 16`
# shellcheck disable=SC1003,SC2016,SC2054 # values are literal: so are their dollars, commas, backslashes
set -euo pipefail
# A signal ahead of the time limit (USR1, USR2) is for training scripts that handle it; for all
# the others, launchers included, it must not be deadly. An ignored signal stays ignored in children.
trap '' USR1 USR2
umask u=rwx # whatever others may: the owner can use what is written below

[[ -n ${CK_NODES:-} ]] || CK_NODES='n3 n1'
[[ -n ${CK_SLOTS:-} ]] || CK_SLOTS='4 4'
read -r -a ck_nodes <<<"$CK_NODES"
read -r -a ck_slots <<<"$CK_SLOTS"
CK_NNODES=${#ck_nodes[@]}
while ((${#ck_slots[@]} < CK_NNODES)); do ck_slots+=("${ck_slots[0]}"); done
CK_SLOTS="${ck_slots[*]:0:CK_NNODES}"
CK_NODE_RANK=${CK_NODE_RANK:-0}
CK_NODE_NAME=${ck_nodes[CK_NODE_RANK]}
CK_HEAD_ADDR=${CK_HEAD_ADDR:-${ck_nodes[0]}}
CK_PORT=${CK_PORT:-20000}
CK_JOB_ID=${CK_JOB_ID:-0}
CK_RESTART_COUNT=${CK_RESTART_COUNT:-0}
# By this the nodes know who is of this job: whoever else comes could run programs as this user.
CK_TOKEN=${CK_TOKEN:-}
if ((CK_NNODES == 1 && ${#CK_TOKEN} == 0)); then
  CK_TOKEN=$(od -An -vtx1 -N16 /dev/urandom | tr -d ' \n')
elif ((${#CK_TOKEN} < 16)); then
  echo "clusterkit: error: $CK_NODE_NAME: CK_TOKEN is not set, or has fewer than 16 characters" >&2
  echo "  hint: the nodes know each other by it, so it is the same on all of them:" >&2
  echo "    export CK_TOKEN=\"\$(openssl rand -hex 16)\"  # once; on the others, what it is there" >&2
  exit 2
fi
export CK_TOKEN
# TMPDIR may be that of the submitting shell, and name a folder that only its machine has.
[[ -d ${TMPDIR:-} && -w ${TMPDIR:-} ]] || TMPDIR=/tmp
CK_TMP=$(mktemp -d "$TMPDIR/clusterkit-$CK_JOB_ID-XXXXXX")
trap 'rm -rf "$CK_TMP"' EXIT
export CK_NODES CK_SLOTS CK_NNODES CK_NODE_RANK CK_NODE_NAME CK_HEAD_ADDR CK_PORT CK_JOB_ID
export CK_RESTART_COUNT CK_TMP TMPDIR
export CK_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-}
# Unless told otherwise, the ranks of a node share its cores; each would start a thread on all.
ck_threads=$(($(nproc) / ck_slots[CK_NODE_RANK]))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((ck_threads > 0 ? ck_threads : 1))}

# Gloo takes the interface of the host's own name, often the wrong one (127.0.1.1): name the one
# that has the head's address, or leads to it.
ck_interface() {
  local addr dev
  addr=$(getent ahostsv4 "$CK_HEAD_ADDR" | awk 'NR == 1 { print $1 }')
  dev=$(ip -4 -o addr show | awk -v addr="$addr" '{ split($4, a, "/"); if (a[1] == addr) print $2 }')
  [[ -n $dev ]] || dev=$(ip -4 route get "$addr" | sed -n 's/.* dev \([^ ]*\).*/\1/p')
  printf '%s\n' "${dev%%$'\n'*}"
}
if [[ -z ${GLOO_SOCKET_IFNAME:-} ]] && ck_dev=$(ck_interface 2>/dev/null) && [[ -n $ck_dev ]]; then
  export GLOO_SOCKET_IFNAME=$ck_dev
fi

cat >"$CK_TMP"/launch.py <<'CK_FILE'
"""Run a program on a Spark cluster of the job's own: launch.py --processes N [--conf K=V] SCRIPT...

Runs once on every node of a job, with clusterkit's CK_* variables in its environment. The first
node runs Spark's standalone master, every node one worker with as many cores as it has slots. No
SSH: each node's launch.py starts its own, told over one connection to CK_PORT + 1 where the master
is (clusterkit_peers.py). Master, workers, driver and executors know each other by a secret made of
the job's token. Once all workers are registered, the first node runs `spark-submit` of the script,
and the cluster ends with it. The master listens on CK_PORT; its web page is on CK_PORT + 2, that of
the driver on CK_PORT + 3 where it is wanted. Needs Java, and Spark: `pip install pyspark`, or
SPARK_HOME.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from ipaddress import ip_address

import clusterkit_peers
import clusterkit_tree
import spark_node

START_S = 300
"""How long all nodes together may take until every worker is registered."""
LOOK_S = 0.2
BEAT_S = 5
SILENCE_S = 60
"""After so long without a sign a node has gone."""
MOST = 1 << 16
"""Slots and GPUs that a node may say it has."""
LONGEST_PAGE = 1 << 26
OTHERS_TELL_S = 5
"""How long a node that has lost another one is not blamed, for that one to come first."""

say, fail = spark_node.say, spark_node.fail


def main():
    parser = argparse.ArgumentParser(description="run a program on a Spark cluster of its own")
    parser.add_argument("--processes", type=int, required=True, help="cores of all workers")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="SCRIPT [ARGUMENTS...]")
    options = parser.parse_args()

    clusterkit_tree.adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    spark = spark_node.Spark(options.command[0])
    try:
        code = lead(spark, options) if spark.rank == 0 else follow(spark)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        spark.end()
    sys.exit(code)


# The first node


def lead(spark, options):
    """Run master, worker and driver; return the driver's exit code."""
    deadline = time.monotonic() + START_S
    port = int(os.environ["CK_PORT"])
    server = Server(spark, port + 1)
    # A port that is taken is an error, and not a reason to take the next one.
    spark.environment["SPARK_MASTER_OPTS"] += " -Dspark.port.maxRetries=0"
    places = ("--host", spark.address, "--port", str(port), "--webui-port", str(port + 2))
    spark.start_daemon("master", "org.apache.spark.deploy.master.Master", *places)
    while workers_of(spark, port + 2) is None:
        look_after(spark, server)
        if time.monotonic() > deadline:
            fail(f"the Spark master on {spark.name} does not answer", spark.tail("master"))
    master = f"spark://{spark.address}:{port}"
    # Not sooner: a worker that finds no master tries again only after 5 to 15 seconds.
    server.announce(master)
    spark.start_worker(master)
    await_workers(spark, server, port + 2, deadline)
    confs = {**defaults(spark, server, options.processes), **pairs_of(options.conf)}
    driver = subprocess.Popen(
        [
            str(spark.home / "bin" / "spark-submit"),
            f"--master={master}",
            "--deploy-mode=client",
            f"--properties-file={spark.write_settings('driver', {})}",
            *(f"--conf={key}={value}" for key, value in confs.items()),
            *options.command,
        ],
        env=spark.environment,
    )
    spark.children["driver"] = driver
    while (code := driver.poll()) is None:
        look_after(spark, server)
    server.end()
    return code if code >= 0 else 128 - code


def defaults(spark, server, processes):
    """Return the configuration of the driver as far as the job decides it."""
    about = [server.there[name] for name in server.nodes]
    slots = [one["slots"] for one in about]
    processes = min(processes, sum(slots))
    confs = {
        "spark.driver.host": spark.address,
        "spark.driver.bindAddress": spark.address,
        "spark.ui.enabled": "false",
        "spark.ui.port": str(int(os.environ["CK_PORT"]) + 3),
        "spark.log.level": "WARN",
        "spark.cores.max": str(processes),
        "spark.default.parallelism": str(processes),
        # A barrier stage needs all its slots at once: the first task waits for all executors.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.executorEnv.OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"],
    }
    if all(one["gpus"] for one in about):
        each = slots[0] if len(set(slots)) == 1 else 1  # all executors of a program are alike
        confs["spark.executor.cores"] = confs["spark.executor.resource.gpu.amount"] = str(each)
        confs["spark.task.resource.gpu.amount"] = "1"
    return confs


def pairs_of(words):
    return dict(word.split("=", 1) for word in words)


def await_workers(spark, server, port, deadline):
    while True:
        look_after(spark, server)
        there = workers_of(spark, port) or []
        alive = {worker["host"] for worker in there if worker["state"] == "ALIVE"}
        missing = [
            name for name in server.nodes if server.there.get(name, {}).get("address") not in alive
        ]
        if not missing:
            cores = sum(worker["cores"] for worker in there)
            say(f"Spark: workers on {' '.join(server.nodes)}, {cores} cores")
            return
        if time.monotonic() > deadline:
            told = [name if name in server.there else f"{name} (not heard of)" for name in missing]
            fail(f"no Spark worker has come within {START_S} s from {', '.join(told)}")


def workers_of(spark, port):
    """Return what the master says of its workers; None while it does not answer."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    page = f"http://{spark.address}:{port}/json/"
    asked = urllib.request.Request(page, headers=spark_node.page_pass())
    with suppress(OSError, ValueError), direct.open(asked, timeout=5) as answer:
        return json.loads(answer.read(LONGEST_PAGE))["workers"]
    return None


def look_after(spark, server):
    """Wait a moment; end this node if a part of the cluster has gone."""
    time.sleep(LOOK_S)
    server.beat()
    if name := spark.broken():
        spark.blame(name)
    if server.lost:
        say(f"lost the Spark worker of {server.lost[0]}")
        time.sleep(OTHERS_TELL_S)
        sys.exit(1)


class Server:
    """The other nodes as the first one knows them."""

    def __init__(self, spark, port):
        self.nodes = os.environ["CK_NODES"].split()
        self.there = {spark.name: spark.about()}
        self.lines = {}
        self.lost = []
        self.ending = False
        self.master = None
        self.beat_at = 0.0
        self.announced = threading.Event()
        if len(self.nodes) == 1:
            return
        try:
            # The nodes of a local job have loopback addresses of their own.
            address = os.environ.get("CK_NODE_ADDR", ""), port
            self.listener = clusterkit_peers.Listener(address, spark.member, self.serve)
        except OSError as error:
            fail(f"port {port} of {spark.name}: {error.strerror}")

    def serve(self, line):
        """Keep in touch with one node for as long as it is there."""
        name = self.nodes[line.rank]
        about = self.read(line.receive(SILENCE_S))
        if name in self.there:
            return
        self.there[name] = about
        self.announced.wait()
        self.lines[name] = line
        with suppress(OSError):
            line.send({"master": self.master})
            for _ in line.messages(SILENCE_S):
                pass
        if not self.ending:
            self.lost.append(name)
        del self.lines[name]

    def read(self, about):
        """Return what a node says of itself, if it can be so."""
        try:
            address = str(ip_address(clusterkit_peers.text(about, "address", 64)))
        except ValueError as error:
            raise clusterkit_peers.PeerError("sends no address") from error
        slots, gpus = (clusterkit_peers.whole(about, name, 0, MOST) for name in ("slots", "gpus"))
        return {"address": address, "slots": slots, "gpus": gpus}

    def announce(self, master):
        """Tell all nodes, those included that come later, where the master is."""
        self.master = master
        self.announced.set()

    def beat(self):
        """Let all nodes know now and then that this one is there."""
        if time.monotonic() >= self.beat_at:
            self.beat_at = time.monotonic() + BEAT_S
            self.tell_all({})

    def tell_all(self, message):
        """Tell all nodes something; who has gone is noticed by who reads."""
        for line in list(self.lines.values()):
            with suppress(OSError):
                line.send(message)

    def end(self):
        """Tell all nodes that the driver has ended, and wait until they have left."""
        self.ending = True
        self.tell_all({"end": True})
        deadline = time.monotonic() + 2 * spark_node.GRACE_S
        while self.lines and time.monotonic() < deadline:
            time.sleep(LOOK_S)


# The other nodes


def follow(spark):
    """Run this node's worker until the first node says that it is over."""
    head = os.environ["CK_HEAD_ADDR"], int(os.environ["CK_PORT"]) + 1
    try:
        line = clusterkit_peers.connect_within(START_S, head, spark.member)
        line.send(spark.about())
    except OSError as error:
        fail(str(error))
    told: dict[str, str] = {}
    threading.Thread(target=listen, args=(line, told), daemon=True).start()
    beat_at = 0.0
    while "end" not in told:
        # The first node's word counts more than a worker that has lost its master.
        if "gone" in told:
            lost_head()
        if "master" in told and "worker" not in spark.children:
            spark.start_worker(told["master"])
        if name := spark.broken():
            spark.blame(name)
        if time.monotonic() >= beat_at:
            beat_at = time.monotonic() + BEAT_S
            with suppress(OSError):  # who listens notices as well
                line.send({})
        time.sleep(LOOK_S)
    spark.end()  # before the connection, whose end is the first node's sign
    line.end()
    return 0


def listen(line, told):
    """Note what the first node says, until it has gone."""
    with suppress(OSError):
        while True:
            message = line.receive(SILENCE_S if "master" in told else START_S)
            if "master" in message:
                told["master"] = clusterkit_peers.text(message, "master", 256)
            if "end" in message:
                told["end"] = True
    told["gone"] = True


def lost_head():
    say(f"lost the first node, {os.environ['CK_NODES'].split()[0]}")
    time.sleep(OTHERS_TELL_S)
    sys.exit(1)


if __name__ == "__main__":
    main()
CK_FILE

cat >"$CK_TMP"/spark_node.py <<'CK_FILE'
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
CK_FILE

cat >"$CK_TMP"/clusterkit_failure.py <<'CK_FILE'
"""Name the first rank of a job to fail, in the file CK_FAILURE, where that is set.

And the first one to end well, in a file beside it: whoever waits for it then fails in its place.
"""

import json
import os
from contextlib import suppress
from pathlib import Path


def tell(node, rank, exit_code, **more):
    """Write the file, unless there is one; `exit_code` is as a shell gives it."""
    tell_first("", {"node": node, "rank": rank, "exit_code": exit_code, **more})


def tell_ended(node, rank):
    """Say that a rank has ended with exit code 0, unless another was first."""
    tell_first(".ended", {"node": node, "rank": rank})


def tell_first(suffix, document):
    path = os.environ.get("CK_FAILURE")
    if not path:
        return
    rank = document["rank"]
    draft = Path(f"{path}.{rank}.{os.getpid()}")  # a rank and who started it may both tell
    with suppress(OSError):  # unlike a rename, a link replaces nothing: the first rank counts
        try:
            draft.touch(mode=0o600)  # as all of a run, whatever the umask
            draft.write_text(json.dumps(document), encoding="utf-8")
            Path(path + suffix).hardlink_to(draft)
        finally:
            draft.unlink()
CK_FILE

cat >"$CK_TMP"/clusterkit_tree.py <<'CK_FILE'
"""Keep the processes below this one together, so that none is left when it ends."""

import collections
import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

KILL_S = 2
BECOME_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""


def adopt_orphans():
    """Become the parent of every process below this one whose own parent dies."""
    ctypes.CDLL(None).prctl(BECOME_SUBREAPER, 1, 0, 0, 0)


def kill_descendants():
    """Kill all processes below this one, and give up those that do not go."""
    deadline = time.monotonic() + KILL_S
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def descendants(root):
    """Return the processes below `root` that have not ended."""
    children = collections.defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # The name stands in parentheses, and may hold some itself.
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            children[int(parent)].append((int(entry.name), state))
    found, ahead = [], [root]
    while ahead:
        for pid, state in children[ahead.pop()]:
            ahead.append(pid)
            if state not in "ZX":
                found.append(pid)
    return found
CK_FILE

cat >"$CK_TMP"/clusterkit_peers.py <<'CK_FILE'
(clusterkit/core/peers.py)
CK_FILE

[[ -n ${CK_WORKDIR:-} ]] || CK_WORKDIR='/home/ada/my project'
cd "$CK_WORKDIR"
ck_command=(
  python3
  -u
  "${CK_TMP}"/launch.py
  --processes=8
  train.py
)
# In the background, so that a signal is passed on at once and not after the command has ended.
"${ck_command[@]}" <&0 &
ck_child=$!
trap 'kill -TERM "$ck_child" 2>/dev/null || true' TERM INT
ck_status=0
wait "$ck_child" || ck_status=$?
while kill -0 "$ck_child" 2>/dev/null; do
  ck_status=0
  wait "$ck_child" || ck_status=$?
done
exit "$ck_status"
