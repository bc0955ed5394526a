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
            late = [name if name in server.there else f"{name} (not heard of)" for name in missing]
            fail(f"no Spark worker has come within {START_S} s from {', '.join(late)}")


def workers_of(spark, port):
    """Return what the master says of its workers; None while it does not answer."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    page = f"http://{spark.address}:{port}/json/"
    query = urllib.request.Request(page, headers=spark_node.page_pass())
    with suppress(OSError, ValueError), direct.open(query, timeout=5) as answer:
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
    received: dict[str, str] = {}
    threading.Thread(target=listen, args=(line, received), daemon=True).start()
    beat_at = 0.0
    while "end" not in received:
        # The first node's word counts more than a worker that has lost its master.
        if "gone" in received:
            lost_head()
        if "master" in received and "worker" not in spark.children:
            spark.start_worker(received["master"])
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


def listen(line, received):
    """Note what the first node says, until it has gone."""
    with suppress(OSError):
        while True:
            message = line.receive(SILENCE_S if "master" in received else START_S)
            if "master" in message:
                received["master"] = clusterkit_peers.text(message, "master", 256)
            if "end" in message:
                received["end"] = True
    received["gone"] = True


def lost_head():
    say(f"lost the first node, {os.environ['CK_NODES'].split()[0]}")
    time.sleep(OTHERS_TELL_S)
    sys.exit(1)


if __name__ == "__main__":
    main()
