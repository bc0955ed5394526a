#!/usr/bin/env bash
# train: what one node runs (ray). Rendered by clusterkit 0.1.0.
# Inside an allocation everything it needs is in the environment. By hand, on each host:
#   CK_NODES="host1 host2" CK_NODE_RANK=0 bash node.sh     # and CK_NODE_RANK=1 on host2
# On several hosts also, the same on each:  export CK_TOKEN=...     # made by `openssl rand -hex 16`
# shellcheck disable=SC1003,SC2016,SC2054 # values are literal: so are their dollars, commas, backslashes
set -euo pipefail
# A signal ahead of the time limit (USR1, USR2) is for training scripts that handle it; for all
# the others, launchers included, it must not be deadly. An ignored signal stays ignored in children.
trap '' USR1 USR2
umask u=rwx # whatever others may: the owner can use what is written below

[[ -n ${CK_NODES:-} ]] || CK_NODES=localhost
[[ -n ${CK_SLOTS:-} ]] || CK_SLOTS=4
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

cat >"$CK_TMP"/ray_launch.py <<'CK_FILE'
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
"""How long after the loss of a node the job goes on, for clusterkit to end it with its name."""
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
                told = ", ".join(f"{name} ({self.state(name)})" for name in missing)
                return f"after {self.options.start_timeout} s Ray lacks nodes: {told}"
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
CK_FILE

cat >"$CK_TMP"/clusterkit_member.py <<'CK_FILE'
"""A node that joins the Ray of the first one, and leaves with it; what ray_launch.py runs there."""

import os
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import clusterkit_peers
import clusterkit_ray

BEAT_S = 2
HEAD_SILENCE_S = 20
"""Later than clusterkit itself misses the first node, so that it is blamed, not who misses it."""
OTHERS_TELL_S = 2
"""How long who has lost the first node waits, for that one's own failure to come first."""


def say(words):
    print(f"clusterkit: {words}", flush=True)


def fail(words):
    sys.exit(f"clusterkit: error: {words}")


def send(line, message):
    with suppress(OSError):  # whoever reads from it notices as well
        line.send(message)


class Member:
    """A node that joins the cluster of the first one, and leaves with it."""

    def __init__(self, options):
        self.options = options
        self.ray: Any = None
        self.told: dict[str, Any] = {}
        self.line: Any = None

    def run(self):
        """Do what the head says until it says that this is the end; return the exit code."""
        name, joined = os.environ["CK_NODE_NAME"], False
        head = os.environ["CK_HEAD_ADDR"], int(os.environ["CK_PORT"]) + 1
        member = clusterkit_peers.member_of_job("ray")
        try:
            self.line = clusterkit_peers.connect_within(self.options.start_timeout, head, member)
        except OSError as error:
            fail(f"{name}: {error}")
        threading.Thread(target=self.listen, daemon=True).start()
        beat_at = 0.0
        while "end" not in self.told:
            if "gone" in self.told:
                say(f"{name} no longer hears the first node")
                time.sleep(OTHERS_TELL_S)
                return 1
            if "join" in self.told and self.ray is None:
                self.ray = clusterkit_ray.Ray(self.options.ray)
            if self.ray and self.ray.ended():
                say(f"Ray has ended on {name}:\n{self.ray.last_words()}")
                return 1
            if self.ray and self.ray.up.is_set() and not joined:
                joined = True
                send(self.line, {"joined": True})
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + BEAT_S
                send(self.line, {})
            time.sleep(0.1)
        return self.told["end"]

    def listen(self):
        """Note what the head says, until it has gone."""
        with suppress(OSError):
            for message in self.line.messages(HEAD_SILENCE_S):
                if "end" in message:
                    self.told["end"] = clusterkit_peers.whole(message, "end", 0, 1)
                self.told |= dict.fromkeys(message.keys() & {"join"}, True)
        self.told["gone"] = True

    def end(self):
        """End the Ray of this node; the head waits for who is to blame, and not for others."""
        if self.ray and self.told.get("end"):
            self.ray.end()
        if self.line:
            self.line.end()
        if self.ray:
            self.ray.end()
CK_FILE

cat >"$CK_TMP"/clusterkit_ray.py <<'CK_FILE'
"""The Ray of one node of a job, beside whatever other Ray there is on the machine.

`ray start --block` runs as a child, with ports of the job and a folder of its own, and is ended by
a signal: `ray stop` would end every Ray that the user has there. Needs a Ray whose nodes may each
have a folder of their own (2.60 is tested; those of 2025 would take the head's).
"""

import collections
import hmac
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import clusterkit_tree

PORTS = {
    "node-manager-port": 2,
    "object-manager-port": 3,
    "runtime-env-agent-port": 4,
    "dashboard-agent-listen-port": 5,
    "dashboard-agent-grpc-port": 6,
    "metrics-export-port": 7,
}
"""Of the ten ports of the job. 0 is the head's own, 1 where the nodes meet, 9 clusterkit's."""
CLIENT_PORT = 8
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_worker_niceness": "0",  # ranks yield to nothing else on a node that is theirs
    "RAY_COLOR_PREFIX": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # what ranks print would come twice
    # Ray itself would take a minute to give up a node whose network is silent.
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "5",
}
STARTED = "Ray runtime started"
TRIES = 5
HASTY_S = 15
"""What fails sooner than that is not slow, but wrong."""
GRACE_S = 2
LONGEST_SOCKET = len("/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store_1")
LONGEST_PATH = 107
"""Bytes of the path of a Unix socket (unix(7))."""
LEAST_STORE = 256 << 20
MEMORY_SHARE = 0.3
"""Ray's own share for objects, here of what the job may use."""
SHM_SHARE = 0.8


class Ray:
    """The processes of this node: `up` once they have joined, `said` what they said last."""

    def __init__(self, options):
        clusterkit_tree.adopt_orphans()
        self.options = options
        self.up = threading.Event()
        self.tries = TRIES
        self.start()

    def start(self):
        """Start it, in a new folder."""
        self.tries -= 1
        self.began = time.monotonic()
        self.folder = folder()
        self.said: collections.deque[str] = collections.deque(maxlen=40)
        self.process = subprocess.Popen(
            [*command(self.folder), *self.options],
            env=variables(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        threading.Thread(target=self.listen, args=(self.process.stdout,), daemon=True).start()

    def listen(self, lines):
        """Keep what Ray says: its advice on how to connect and stop is not for this job."""
        for line in lines:
            self.said.append(line.rstrip())
            if STARTED in line:
                self.up.set()

    def ended(self):
        """Tell whether it is gone; of those that it consists of, each ends all.

        On a busy machine its parts give each other up after 15 s: then it is started again.
        """
        if self.process.poll() is None:
            return False
        if self.up.is_set() or not self.tries or time.monotonic() - self.began < HASTY_S:
            return True
        print(f"clusterkit: Ray is slow to start on {os.environ['CK_NODE_NAME']}", flush=True)
        self.end()
        self.start()
        return False

    def last_words(self):
        """Return what it said last, and what stands in the logs that go with its folder."""
        found = [*self.said]
        for name in ("gcs_server", "raylet"):
            with suppress(OSError):
                log = Path(self.folder, "session_latest", "logs", f"{name}.err")
                found += log.read_text(errors="replace").splitlines()[-10:]
        return "\n".join(found)

    def end(self):
        """End all processes below this one, and remove their folder."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE_S)
        clusterkit_tree.kill_descendants()
        shutil.rmtree(self.folder, ignore_errors=True)


def command(own_folder):
    """Return the words that start Ray on this node: as the head, or to join the one there."""
    slots = os.environ["CK_SLOTS"].split()
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
    words += ["--disable-usage-stats", f"--temp-dir={own_folder}"]
    words += [f"--node-ip-address={own_address()}", f"--node-name={os.environ['CK_NODE_NAME']}"]
    words += [f"--num-cpus={slots[int(os.environ['CK_NODE_RANK'])]}", *memory_words(own_folder)]
    words += [f"--{name}={port}" for name, port in ports().items()]
    if not is_head():
        return [*words, f"--address={head_address()}"]
    first = int(os.environ["CK_PORT"])
    words += ["--head", f"--port={first}", "--include-dashboard=false"]
    if find_spec("grpc") is not None:  # or Ray has no server for clients, and no such option
        words.append(f"--ray-client-server-port={first + CLIENT_PORT}")
    return words


def is_head():
    return os.environ["CK_NODE_RANK"] == "0"


def on_one_machine():
    """Tell whether all nodes are on this machine, each with a loopback address."""
    return "CK_NODE_ADDR" in os.environ


def own_address():
    """Return the address of this node as the others see it.

    Ray replaces 127.0.0.1 by what it takes for the address of the machine, so nodes on one machine
    count from 127.0.0.2. A head may know its own name as loopback (Debian: 127.0.1.1), and is
    then reached from where the second node is.
    """
    if on_one_machine():
        return f"127.0.0.{int(os.environ['CK_NODE_RANK']) + 2}"
    nodes, head = os.environ["CK_NODES"].split(), os.environ["CK_HEAD_ADDR"]
    address = socket.gethostbyname(head)
    if is_head() and not address.startswith("127."):
        return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Sends nothing: the kernel says from which address it would.
        probe.connect((nodes[1] if is_head() and len(nodes) > 1 else address, 9))
        found = probe.getsockname()[0]
    return "127.0.0.2" if found == "127.0.0.1" else found


def head_address():
    """Return where the head's Ray is, for who joins it and for the driver."""
    if is_head():
        host = own_address()
    elif on_one_machine():
        host = "127.0.0.2"
    else:
        host = socket.gethostbyname(os.environ["CK_HEAD_ADDR"])
    return f"{host}:{os.environ['CK_PORT']}"


def ports():
    """Return the port of each listener; those of workers the kernel chooses, as free ones."""
    first = int(os.environ["CK_PORT"])
    # Other nodes on the same machine have no ports of their own.
    shared = on_one_machine() and not is_head()
    found = {name: 0 if shared else first + place for name, place in PORTS.items()}
    return {**found, "min-worker-port": 0, "max-worker-port": 0}


def folder():
    """Return a new folder that nobody else reads, with a path short enough for sockets."""
    inside = Path(os.environ["CK_TMP"], "ray")
    if len(os.fsencode(inside)) + LONGEST_SOCKET <= LONGEST_PATH:
        inside.mkdir(mode=0o700)
        return inside
    return Path(tempfile.mkdtemp(prefix="ck-ray-", dir="/tmp"))


def memory_words(own_folder):
    """Return how much memory objects may take, and where, if /dev/shm is too small for them."""
    share = int(os.environ["CK_NNODES"]) if on_one_machine() else 1
    wanted = max(LEAST_STORE, int(MEMORY_SHARE * memory_bytes() / share))
    room = 0
    with suppress(OSError):  # there may be none
        found = os.statvfs("/dev/shm")
        room = int(SHM_SHARE * found.f_bavail * found.f_frsize / share)
    if room >= LEAST_STORE:
        return [f"--object-store-memory={min(wanted, room)}"]
    print(
        f"clusterkit: /dev/shm of {os.environ['CK_NODE_NAME']} has room for {room >> 20} MiB: Ray "
        f"keeps its objects in {own_folder}, which is slower",
        flush=True,
    )
    return [f"--object-store-memory={LEAST_STORE}", f"--plasma-directory={own_folder}"]


def memory_bytes():
    """Return how much memory the job may use here: what is free, Slurm's limit, the cgroup's."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    limits = [int(free) << 10]
    if os.environ.get("SLURM_MEM_PER_NODE", "0").isdigit():
        limits.append(int(os.environ.get("SLURM_MEM_PER_NODE", "0")) << 20)
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        with suppress(OSError, ValueError):  # no limit: "max", or no such file
            if not controllers:
                limits.append(int(Path(f"/sys/fs/cgroup{path}/memory.max").read_text()))
            elif "memory" in controllers.split(","):
                file = Path(f"/sys/fs/cgroup/memory{path}/memory.limit_in_bytes")
                limits.append(int(file.read_text()))
    return min(limit for limit in limits if limit)


def variables():
    """Return the environment of Ray and of the driver: its address, and its token.

    Without an address, some parts of Ray look for any Ray on the machine. Without a token, whoever
    reaches the ports can run programs as its user.
    """
    found = {**SETTINGS, **os.environ, "RAY_ADDRESS": head_address()}
    # For sitecustomize.py, and for what Ray Train is told to load.
    found["PYTHONPATH"] = os.pathsep.join(
        filter(None, (os.environ["CK_TMP"], found.get("PYTHONPATH")))
    )
    if "RAY_AUTH_MODE" not in found:
        token = hmac.new(os.environ["CK_TOKEN"].encode(), b"ray", "sha256").hexdigest()
        found |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    return found


def warn_of_strangers():
    """Say where this Ray lets everybody in: older ones know no tokens."""
    found = find_spec("ray")  # to import it would take seconds
    package = Path((found and found.origin) or "").parent
    if not (package / "_private" / "authentication").is_dir():
        first = os.environ["CK_PORT"]
        print(
            f"clusterkit: this Ray knows no tokens: whoever reaches its ports (from {first} on, of "
            "every node) can run programs as you. Install Ray 2.52 or later",
            file=sys.stderr,
            flush=True,
        )
CK_FILE

cat >"$CK_TMP"/clusterkit_train.py <<'CK_FILE'
"""Tell which worker of Ray Train ended the training, by clusterkit_failure.py.

Ray Train loads this by RAY_TRAIN_CALLBACKS, and runs it in its controller, on the first node.
"""

import re

import clusterkit_failure
import ray

try:
    from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback
except ImportError:  # in another release it may be elsewhere; then nothing is told
    from ray.train.v2.api.callback import RayTrainCallback

    class ControllerCallback(RayTrainCallback):  # type: ignore[no-redef]
        """Called by nobody."""

    class WorkerGroupCallback(RayTrainCallback):  # type: ignore[no-redef]
        """Called by nobody."""


LOST_ANOTHER = re.compile("closed by peer|reset by peer|[Gg]loo|NCCL|[Tt]imed? ?out")
"""In what ranks say that have only lost another one (torch.distributed)."""


class Failure(ControllerCallback, WorkerGroupCallback):
    """Knows where each rank is, and is asked when all is over."""

    def __init__(self):
        self.places = {}

    def after_worker_group_training_start(self, worker_group):
        """Note the node and the local rank of each rank."""
        names = {node["NodeManagerAddress"]: node["NodeName"] for node in ray.nodes()}
        self.places = {
            worker.distributed_context.world_rank: (
                names.get(worker.metadata.node_ip),
                worker.distributed_context.local_rank,
            )
            for worker in worker_group.get_workers()
        }

    def after_controller_finish(self, result):
        """Tell of the rank that failed, if the training has ended with that."""
        failures = getattr(result.error, "worker_failures", {})
        ranks = [rank for rank in failures if self.places.get(rank, (None,))[0]]
        if not ranks:
            return
        rank = min(ranks, key=lambda rank: (only_lost_another(failures[rank]), rank))
        (node, local_rank), failure = self.places[rank], failures[rank]
        message = f"{type(failure).__name__}: {failure}"
        clusterkit_failure.tell(node, rank, 1, local_rank=local_rank, message=message)


def only_lost_another(failure):
    return isinstance(failure, RuntimeError) and bool(LOST_ANOTHER.search(str(failure)))
CK_FILE

cat >"$CK_TMP"/sitecustomize.py <<'CK_FILE'
"""Keep Ray Train from asking for the dashboard that a job has not, and from saying so every second.

Any Python of the job's Ray loads this first, by PYTHONPATH; a site's own file of this name as well.
"""

import importlib.util
import logging
import sys
from importlib.machinery import PathFinder
from pathlib import Path

CLEANER = "ray.train.v2._internal.execution.controller.placement_group_cleaner"

logging.getLogger(CLEANER).setLevel(logging.ERROR)
here = str(Path(__file__).parent)
spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if entry != here])
if spec is not None and spec.loader is not None:
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
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
  "${CK_TMP}"/ray_launch.py
  --min-nodes=1
  --start-timeout=600
  --ray=--num-cpus=8
  '--ray=--resources={"a": 1}'
  python3
  -u
  train.py
)
export NCCL_SOCKET_IFNAME=lo
export GLOO_SOCKET_IFNAME=lo
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
