"""Run a Ray cluster on the nodes of a job, and a program on it: launch.py OPTIONS COMMAND...

Runs once on every node of a job, with clusterkit's CK_* variables in its environment. The first
node starts the head of the cluster and tells the others when to join; once they have, it runs the
command, the driver, with RAY_ADDRESS. With the driver the cluster ends, on all nodes. The nodes
talk over one connection each to CK_PORT + 1 (clusterkit_peers.py). Of more nodes than --min-nodes
some may come late, or be lost; the log of the first node tells who is there, and so does the file
CK_ROUNDS, where that is set, a JSON line each time. Needs Ray, and the files beside it.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import clusterkit_peers
import clusterkit_ray
from clusterkit_member import BEAT_S, Member, fail, say, send

GATHER_S = 10
"""How long more nodes than the fewest are waited for, once those are there."""
SILENCE_S = 10
BLAME_S = 20
"""How long after the loss of a node the job continues, for clusterkit to end it with its name."""
OTHERS_TELL_S = 2
"""How long after the driver has failed a lost node may show that it was that one's doing."""
GRACE_S = 3
BLAMED_LEAVES_S = 10
TELLS_OF_FAILURE = "clusterkit_train.Failure"


def main():
    parser = argparse.ArgumentParser(description="run a Ray cluster, and a program on it")
    parser.add_argument("--min-nodes", type=int, required=True)
    parser.add_argument("--start-timeout", type=int, default=600, help="in seconds, of all nodes")
    parser.add_argument("--ray", action="append", default=[], help="for `ray start`")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if find_spec("ray") is None:
        python, name = sys.executable, os.environ["CK_NODE_NAME"]
        sys.exit(f"clusterkit: no Ray on {name}: {python} -m pip install 'ray[train]'")
    signal.signal(signal.SIGTERM, leave)
    node = Head(options) if clusterkit_ray.is_head() else Member(options)
    try:
        code = node.run()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        node.end()
    sys.exit(code)


def leave(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)


class Other:
    """Another node as the head sees it: `state` is how far it has come."""

    def __init__(self, line):
        self.line = line
        self.state = "its Ray is starting"


class Head:
    """The first node: it gathers the others, runs the driver, and ends the cluster."""

    def __init__(self, options):
        self.options = options
        self.names = os.environ["CK_NODES"].split()
        self.others = {}
        self.lost = set()
        self.shown = None
        self.ready = threading.Event()
        self.ending = False
        self.driver: Any = None
        self.ray: Any = None

    @property
    def elastic(self):
        """Whether nodes may be lost."""
        return self.options.min_nodes < len(self.names)

    def run(self):
        """Run the driver on a cluster that is complete; return the exit code of the job."""
        if len(self.names) > 1:
            # The nodes of a local job have loopback addresses of their own.
            address = os.environ.get("CK_NODE_ADDR", ""), int(os.environ["CK_PORT"]) + 1
            try:
                member = clusterkit_peers.member_of_job("ray")
                self.listener = clusterkit_peers.Listener(address, member, self.serve)
            except OSError as error:
                fail(f"port {address[1]} of {self.names[0]}: {error.strerror}")
        clusterkit_ray.warn_of_strangers()
        self.ray = clusterkit_ray.Ray(self.options.ray)
        why = self.gather() or self.drive()
        if why is None:
            return self.exit_code()
        say(why)
        if self.lost:
            time.sleep(BLAME_S)
        return 1

    def gather(self):
        """Wait for the nodes; return what is wrong, if they do not all come."""
        deadline, enough_at = time.monotonic() + self.options.start_timeout, None
        while True:
            now = time.monotonic()
            if self.ray.up.is_set():
                self.ready.set()
            missing = [name for name in self.names if name not in self.members()]
            if not missing:
                return None
            if why := self.wrong():
                return why
            if len(self.names) - len(missing) >= self.options.min_nodes:
                enough_at = enough_at or now
                if now - enough_at >= GATHER_S:
                    return None
            elif now > deadline:
                states = ", ".join(f"{name} ({self.state(name)})" for name in missing)
                return f"after {self.options.start_timeout} s Ray lacks nodes: {states}"
            time.sleep(0.1)

    def members(self):
        """Return the nodes of which Ray has one, in rank order."""
        joined = {name for name, other in list(self.others.items()) if other.state == "joined"}
        if self.ray.up.is_set():
            joined.add(self.names[0])
        return [name for name in self.names if name in joined]

    def state(self, name):
        """Return why a node is missing."""
        if name == self.names[0]:
            return "its Ray is starting"
        return self.others[name].state if name in self.others else "nothing was heard of it"

    def wrong(self):
        """Return what makes it impossible to go on; None where nothing does."""
        if self.ray.ended():
            return f"Ray has ended on {self.names[0]}, the first node:\n{self.ray.last_words()}"
        if self.lost and not self.elastic:
            return f"the job cannot go on without {' '.join(sorted(self.lost))}"
        if len(self.names) - len(self.lost) < self.options.min_nodes:
            return f"fewer than {self.options.min_nodes} nodes are left of {' '.join(self.names)}"
        return None

    def drive(self):
        """Run the driver to its end; return what ended it before."""
        environment = clusterkit_ray.variables()
        callbacks = filter(None, (environment.get("RAY_TRAIN_CALLBACKS"), TELLS_OF_FAILURE))
        environment["RAY_TRAIN_CALLBACKS"] = ",".join(callbacks)
        self.show()
        self.driver = subprocess.Popen(self.options.command, env=environment)
        while self.drives():
            if why := self.wrong():
                return why
            self.show()
            time.sleep(0.1)
        deadline = time.monotonic() + (OTHERS_TELL_S if self.driver.returncode else 0)
        while time.monotonic() < deadline:
            if why := self.wrong():
                return why
            time.sleep(0.1)
        return None

    def drives(self):
        """Tell whether the driver runs."""
        return self.driver is not None and self.driver.poll() is None

    def exit_code(self):
        """Return how the driver ended, as a shell gives it."""
        code = self.driver.returncode
        return code if code >= 0 else 128 - code

    def show(self):
        """Say who is there, if that has changed."""
        names = self.members()
        if names == self.shown:
            return
        self.shown = names
        say(f"Ray on {len(names)} nodes: {' '.join(names)}")
        if self.elastic and os.environ.get("CK_ROUNDS"):
            # Inside an image the run folder may not be there.
            with suppress(OSError), Path(os.environ["CK_ROUNDS"]).open("a") as out:
                out.write(json.dumps({"nodes": names}) + "\n")

    def serve(self, line):
        """Keep one node for as long as it is heard, unless it was there before."""
        name = self.names[line.rank]
        if line.rank == 0 or name in self.others or name in self.lost:
            return
        self.others[name] = Other(line)
        threading.Thread(target=self.tell, args=(name, line), daemon=True).start()
        for message in line.messages(SILENCE_S):
            if "joined" in message:
                self.others[name].state = "joined"
        del self.others[name]
        if not self.ending:
            self.lost.add(name)
            say(f"lost {name}")

    def tell(self, name, line):
        """Let a node know when to join, and again and again that the head is there."""
        while name in self.others:
            ready = self.ready.wait(BEAT_S)
            send(line, {"join": True} if ready else {})
            time.sleep(BEAT_S if ready else 0)

    def blamed(self):
        """Return the node whose rank ended the training, if the driver has failed and told."""
        if self.driver is None or not self.driver.returncode:
            return None
        with suppress(KeyError, OSError, ValueError):
            return json.loads(Path(os.environ["CK_FAILURE"]).read_text(encoding="utf-8"))["node"]
        return None

    def end(self):
        """End the driver and the Ray of all nodes."""
        self.ending, blamed = True, self.blamed()
        for name, other in list(self.others.items()):
            send(other.line, {"end": int(name == blamed)})
        if self.drives():
            self.driver.terminate()
        # Who goes first might take the word with it that this is the end, or the blame.
        awaited = blamed in self.others
        deadline = time.monotonic() + (BLAMED_LEAVES_S if awaited else GRACE_S)
        while time.monotonic() < deadline and (self.others or self.drives()):
            time.sleep(0.05)
        if awaited:
            time.sleep(1)  # its result is written after that
        if self.ray:
            self.ray.end()


if __name__ == "__main__":
    main()
