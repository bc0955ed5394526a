"""Start Horovod ranks that may be lost, on gloo and without SSH: elastic.py OPTIONS COMMAND...

Runs once on every node of a job, with clusterkit's CK_* variables in its environment. The first
node runs Horovod's own elastic driver (horovod/runner/elastic/driver.py, 0.28.1), which asks it
which hosts are left: from memory, as a script would cost a Python each second. On each node, the
first one included, an agent starts and ends ranks as the driver says, over one connection to
CK_PORT + 1 (clusterkit_peers.py): which slot, and nothing else, because the command is the node's
own. The log of the first node tells who trains; so does the file CK_ROUNDS, where that is set, a
JSON line each time. Needs nothing but horovod, and the files beside it.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import horovod_rendezvous
from clusterkit_peers import PeerError, connect_within, member_of_job, text, whole
from horovod.runner.elastic.discovery import FixedHosts
from horovod.runner.elastic.driver import ElasticDriver
from horovod.runner.elastic.rendezvous import create_rendezvous_handler
from horovod.runner.gloo_run import create_slot_env_vars

START_S = 600
GATHER_S = 20
"""How long more nodes than the fewest are waited for at the start."""
GATHER_AGAIN_S = 120
"""How long a loss that leaves too few slots is waited out; a blacklisted host may come back."""
BEAT_S = 2
SILENCE_S = 10
HEAD_SILENCE_S = 20
"""Later than keepers over ssh miss the first node, so that it is blamed and not who misses it."""
LEAVE_S = 15
"""How long ranks have to leave by themselves after the first has finished."""
GRACE_S = 5
COOLDOWN_S = (5, 300)
"""A host whose rank has failed is left out for a while, longer each time."""
LOST = 255
SLOT = re.compile(r"HOROVOD_[A-Z_]{1,40}")


def main():
    parser = argparse.ArgumentParser(description="start Horovod ranks that may be lost")
    parser.add_argument("--min-nodes", type=int, required=True)
    parser.add_argument("--min-processes", type=int, required=True)
    parser.add_argument("--reset-limit", type=int, help="how often the ranks may begin anew")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    rendezvous = None
    if os.environ["CK_NODE_RANK"] == "0":
        server, rendezvous = Server(), Rendezvous()
        threading.Thread(target=drive, args=(options, server, rendezvous), daemon=True).start()
    agent = Agent(options.command, rendezvous)
    signal.signal(signal.SIGTERM, lambda *_: agent.terminate())
    sys.exit(agent.run())


def slots_of_nodes():
    slots = [int(count) for count in os.environ["CK_SLOTS"].split()]
    return dict(zip(os.environ["CK_NODES"].split(), slots, strict=True))


def say(words):
    print(f"clusterkit: {words}", flush=True)


def send(connection, **message):
    with suppress(OSError):  # the other side has gone, which whoever reads notices
        connection.send(message)


# What an agent does, on every node


class Agent:
    """The ranks of this node, as the driver wants them."""

    def __init__(self, command, rendezvous):
        self.command = command
        self.rendezvous = rendezvous
        self.ranks = {}
        self.door = None
        head = os.environ["CK_HEAD_ADDR"], int(os.environ["CK_PORT"]) + 1
        try:
            self.connection = connect_within(START_S, head, member_of_job("horovod"))
        except PeerError as error:
            sys.exit(f"clusterkit: no driver: {error}")

    def run(self):
        """Do what the driver says until it says how the job has ended."""
        threading.Thread(target=self.beat, daemon=True).start()
        fault = None
        try:
            for message in self.connection.messages(HEAD_SILENCE_S):
                if "end" in message:
                    return whole(message, "end", 0, 255)
                if "start" in message:
                    self.start(slot_of(message["start"]))
                if "stop" in message:
                    self.end_ranks(text(message, "stop"))
        except PeerError as error:
            fault = str(error)
        finally:
            self.end_ranks()
        say(
            f"{os.environ['CK_NODE_NAME']} no longer hears the first node: "
            f"{fault or self.connection.fault}"
        )
        return 1

    def start(self, slot):
        """Start the rank of a slot; its end is told to the driver."""
        if self.rendezvous is None:
            self.door = self.door or horovod_rendezvous.Door()
        server = self.door or self.rendezvous.server
        environment = {
            **os.environ,
            **slot,
            **horovod_rendezvous.variables(server.server_port),
            "HOROVOD_ELASTIC": "1",
        }
        rank = subprocess.Popen(self.command, env=environment)
        self.ranks[slot["HOROVOD_LOCAL_RANK"]] = rank
        arguments = (slot["HOROVOD_LOCAL_RANK"], rank)
        threading.Thread(target=self.tell_end, args=arguments, daemon=True).start()

    def tell_end(self, local_rank, rank):
        """Wait for a rank, and tell the driver its exit code."""
        code = rank.wait()
        send(self.connection, ended=local_rank, code=code if code >= 0 else 128 - code)

    def beat(self):
        """Let the driver know again and again that this node is there."""
        while True:
            send(self.connection)
            time.sleep(BEAT_S)

    def terminate(self):
        """End the ranks and this process; on SIGTERM."""
        self.end_ranks()
        os._exit(128 + signal.SIGTERM)

    def end_ranks(self, only=None):
        """End all ranks, or that of one slot."""
        ranks = [rank for slot, rank in list(self.ranks.items()) if only in (None, slot)]
        for rank in ranks:
            rank.terminate()
        deadline = time.monotonic() + GRACE_S
        for rank in ranks:
            with suppress(subprocess.TimeoutExpired):
                rank.wait(max(0, deadline - time.monotonic()))
            rank.kill()


def slot_of(given):
    """Return the variables by which a rank knows its slot."""
    if not isinstance(given, dict) or not {"HOROVOD_LOCAL_RANK"} <= given.keys():
        raise PeerError("names no slot")
    if not all(SLOT.fullmatch(name) for name in given):
        raise PeerError("names what is not a variable of a slot")
    return {name: text(given, name, 1000) for name in given}


# What the first node does besides


class Node:
    """An agent as the driver sees it."""

    def __init__(self, name, connection):
        self.name = name
        self.connection = connection
        self.codes = {}
        self.lost = threading.Event()

    def listen(self):
        """Note what the agent says, until it has gone."""
        try:
            for message in self.connection.messages(SILENCE_S):
                if "ended" in message:
                    self.codes[text(message, "ended", 16)] = whole(message, "code", 0, 255)
        finally:
            self.lost.set()


class Server:
    """The agents that are there, and the hosts of them that the driver may use."""

    def __init__(self):
        self.nodes, self.hosts = {}, FixedHosts({})
        self.lock = threading.Lock()
        self.slots = slots_of_nodes()
        self.ending = False
        port = int(os.environ["CK_PORT"]) + 1
        self.listener = horovod_rendezvous.listen(port, "horovod", self.serve)
        threading.Thread(target=self.beat, daemon=True).start()

    def serve(self, connection):
        """Keep one agent on the list for as long as it is heard."""
        name = list(self.slots)[connection.rank]
        with self.lock:
            if name in self.nodes:
                return
            node = self.nodes[name] = Node(name, connection)
        fault = ""
        try:
            node.listen()
        except PeerError as error:
            fault = f": it {error}"
        finally:
            del self.nodes[name]
        if not self.ending:
            say(f"lost {name}{fault}")
            self.publish()

    def beat(self):
        """Let the agents know again and again that the driver is there."""
        while True:
            self.tell_all()
            time.sleep(BEAT_S)

    def tell_all(self, **message):
        """Send a message to every agent."""
        for node in list(self.nodes.values()):
            send(node.connection, **message)

    def gather(self, fewest):
        """Wait for all agents, or for enough of them."""
        give_up, enough_at = time.monotonic() + START_S, None
        while len(self.nodes) < len(self.slots):
            now = time.monotonic()
            if len(self.nodes) >= fewest:
                enough_at = enough_at or now
                if now - enough_at >= GATHER_S:
                    return
            elif now > give_up:
                self.end(1, f"{len(self.nodes)} nodes are there, and {fewest} are needed")
            time.sleep(0.1)

    def publish(self, only=None):
        """Let the driver use the hosts whose agents are there."""
        names = [name for name in self.slots if name in self.nodes and only in (None, name)]
        self.hosts.set({name: self.slots[name] for name in names})

    def run_rank(self, slot, events):
        """Start a rank and return its exit code, and when; what ElasticDriver asks for."""
        finished, left_out = events
        node, local_rank = self.nodes.get(slot.hostname), str(slot.local_rank)
        if node is None:
            return LOST, time.time()
        node.codes.pop(local_rank, None)
        send(node.connection, start=create_slot_env_vars(slot))
        finished_at, stopped = None, False
        while local_rank not in node.codes:
            if node.lost.wait(0.1):
                return LOST, time.time()
            if finished.is_set():
                finished_at = finished_at or time.monotonic()
            late = finished_at is not None and time.monotonic() - finished_at >= LEAVE_S
            if (late or left_out.is_set()) and not stopped:
                stopped = True
                send(node.connection, stop=local_rank)
        return node.codes[local_rank], time.time()

    def end(self, code, why=None):
        """End the job on all nodes, this one included; does not return."""
        if why:
            say(why)
        self.ending = True
        own = self.nodes.get(os.environ["CK_NODE_NAME"])
        others = [node for node in list(self.nodes.values()) if node is not own]
        for node in others:
            send(node.connection, end=code)
        # This node's own agent ends the process, and with it the connections of the others.
        deadline = time.monotonic() + 2 * GRACE_S
        for node in others:
            node.lost.wait(max(0, deadline - time.monotonic()))
        self.tell_all(end=code)
        time.sleep(START_S)


class Rendezvous:
    """Horovod's rendezvous server, as the driver handles it."""

    def start(self, handler):
        """Begin to answer."""
        self.server = horovod_rendezvous.Rendezvous(handler)

    def init(self, assignments):
        """Take over which ranks there are."""
        self.server.init(assignments)

    def stop(self):
        """Stop answering."""
        self.server.shutdown()


class Driver(ElasticDriver):
    """Horovod's driver, which tells who trains together."""

    def _update_host_assignments(self, current_hosts):
        pending = super()._update_host_assignments(current_hosts)
        names = [name for name in os.environ["CK_NODES"].split() if name in self.host_assignments]
        say(f"{len(names)} nodes: {' '.join(names)}")
        if os.environ.get("CK_ROUNDS"):
            # Inside an image the run folder may not be there.
            with suppress(OSError), Path(os.environ["CK_ROUNDS"]).open("a") as out:
                out.write(json.dumps({"nodes": names}) + "\n")
        return pending


def drive(options, server, rendezvous):
    server.gather(options.min_nodes)
    head = os.environ["CK_NODE_NAME"]
    server.publish(only=head)
    driver = Driver(
        rendezvous,
        server.hosts,
        options.min_processes,
        sum(server.slots.values()),
        timeout=int(os.environ.get("HOROVOD_ELASTIC_TIMEOUT", GATHER_AGAIN_S)),
        reset_limit=options.reset_limit,
        cooldown_range=COOLDOWN_S,
    )
    rendezvous.start(create_rendezvous_handler(driver))
    try:
        # The host that is known first keeps rank 0, and with it what is told of the training.
        driver.wait_for_available_slots(server.slots[head])
        server.publish()
        there = sum(server.slots[name] for name in list(server.nodes))
        driver.wait_for_available_slots(min(there, options.min_processes))
        driver.start(there, server.run_rank)
    except Exception as error:  # noqa: BLE001 - of any kind that Horovod may raise
        server.end(1, str(error))
    results = driver.get_results()
    codes = [code for code, _ in sorted(results.worker_results.values(), key=lambda it: it[1])]
    failed = next((code for code in codes if code), None if codes else 1)
    driver.finished() or driver.stop()
    server.end(failed or 0, results.error_message or (failed and "too few ranks are left"))


if __name__ == "__main__":
    main()
