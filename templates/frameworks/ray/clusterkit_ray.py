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
    """The processes of this node: `up` once they have joined, `last_lines` what they said last."""

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
        self.last_lines: collections.deque[str] = collections.deque(maxlen=40)
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
            self.last_lines.append(line.rstrip())
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
        found = [*self.last_lines]
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


def memory_bytes(root=Path("/")):
    """Return how much memory the job may use here: what is free, Slurm's limit, the cgroups'."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    free = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    limits = [int(free) << 10]
    if os.environ.get("SLURM_MEM_PER_NODE", "0").isdigit():
        limits.append(int(os.environ.get("SLURM_MEM_PER_NODE", "0")) << 20)
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        mount, name = root / "sys/fs/cgroup", "memory.max"
        if controllers:
            mount, name = mount / "memory", "memory.limit_in_bytes"
        if not controllers or "memory" in controllers.split(","):
            group = mount / path.lstrip("/")
            for folder in (group, *group.parents):  # Slurm limits the job and its steps, no task
                with suppress(OSError, ValueError):  # no limit: "max", or no such file
                    limits.append(int((folder / name).read_text()))
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
