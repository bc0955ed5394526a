"""Run a program on a Spark cluster of the job's own: launch.py --processes N [--conf K=V] SCRIPT...

Runs once on every node of a job, with clusterkit's CK_* variables in its environment. The first
node runs Spark's standalone master, every node one worker with as many cores as it has slots. No
SSH: each node's launch.py starts its own, told over one connection to CK_PORT + 1 where the master
is. Once all workers are registered, the first node runs `spark-submit` of the script, and the
cluster ends with it. The master listens on CK_PORT; its web page is on CK_PORT + 2, that of the
driver on CK_PORT + 3 where it is wanted. Needs Java, and Spark: `pip install pyspark`, or
SPARK_HOME.
"""

import argparse
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import suppress

import clusterkit_tree
import spark_node

START_S = 300
"""How long all nodes together may take until every worker is registered."""
LOOK_S = 0.2
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
    # A port that is taken is an error, and not a reason to take the next one. Spark 4 also takes
    # programs by HTTP on port 6066, of every cluster that does not say no.
    spark.environment["SPARK_MASTER_OPTS"] += (
        " -Dspark.port.maxRetries=0 -Dspark.master.rest.enabled=false"
    )
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
    with suppress(OSError, ValueError), direct.open(page, timeout=5) as answer:
        return json.load(answer)["workers"]
    return None


def look_after(spark, server):
    """Wait a moment; end this node if a part of the cluster has gone."""
    time.sleep(LOOK_S)
    if name := spark.broken():
        spark.blame(name)
    if server.lost:
        say(f"lost the Spark worker of {server.lost[0]}")
        time.sleep(OTHERS_TELL_S)
        sys.exit(1)


class Server:
    """The other nodes as the first one knows them; a line of JSON is a message."""

    def __init__(self, spark, port):
        self.nodes = os.environ["CK_NODES"].split()
        self.there = {spark.name: spark.about()}
        self.connections = {}
        self.lost = []
        self.ending = False
        self.master = None
        self.announced = threading.Event()
        self.listener = socket.create_server(("", port))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        """Take the calls of the other nodes."""
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        """Keep in touch with one node for as long as it is there."""
        keep_alive(connection)
        with connection, connection.makefile("r") as lines:
            try:
                about = json.loads(lines.readline())
                name = about["name"]
            except (OSError, ValueError, KeyError, TypeError):
                return
            if name not in self.nodes or name in self.there:
                return
            self.connections[name] = connection
            self.there[name] = about
            self.announced.wait()
            with suppress(OSError):
                send(connection, {"master": self.master})
                lines.read()
        if not self.ending:
            self.lost.append(name)
        del self.connections[name]

    def announce(self, master):
        """Tell all nodes, those included that come later, where the master is."""
        self.master = master
        self.announced.set()

    def end(self):
        """Tell all nodes that the driver has ended, and wait until they have left."""
        self.ending = True
        for connection in list(self.connections.values()):
            with suppress(OSError):
                send(connection, {"end": True})
        deadline = time.monotonic() + 2 * spark_node.GRACE_S
        while self.connections and time.monotonic() < deadline:
            time.sleep(LOOK_S)


# The other nodes


def follow(spark):
    """Run this node's worker until the first node says that it is over."""
    with connect() as connection, connection.makefile("r") as lines:
        send(connection, spark.about())
        master = read(lines).get("master")
        if master is None:
            lost_head()
        spark.start_worker(master)
        while not select.select([connection], [], [], LOOK_S)[0]:
            # The first node's word counts more than a worker that has lost its master.
            if name := spark.broken():
                spark.blame(name)
        if "end" not in read(lines):
            lost_head()
        spark.end()  # before the connection, whose end is the first node's sign
        return 0


def lost_head():
    say(f"lost the first node, {os.environ['CK_NODES'].split()[0]}")
    time.sleep(OTHERS_TELL_S)
    sys.exit(1)


def connect():
    head, port = os.environ["CK_HEAD_ADDR"], int(os.environ["CK_PORT"]) + 1
    deadline = time.monotonic() + START_S
    while True:
        try:
            connection = socket.create_connection((head, port), timeout=5)
        except OSError as error:
            if time.monotonic() > deadline:
                fail(f"nobody answers at {head}:{port} after {START_S} s: {error}")
            time.sleep(LOOK_S)
        else:
            connection.settimeout(None)
            keep_alive(connection)
            return connection


def keep_alive(connection):
    """Notice within a minute that the other machine has gone without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


def send(connection, message):
    connection.sendall(json.dumps(message).encode() + b"\n")


def read(lines):
    """Return the next message; an empty one where the other side has gone."""
    with suppress(OSError, ValueError):
        return json.loads(lines.readline())
    return {}


if __name__ == "__main__":
    main()
