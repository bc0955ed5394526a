#!/usr/bin/env bash
# train: what one node runs (mpi). Rendered by clusterkit 0.1.0.
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

cat >"$CK_TMP"/mpi_launch.py <<'CK_FILE'
"""Start the ranks of a job under MPI: launch.py --processes N [OPTIONS] COMMAND...

Runs once on every node of a job, with clusterkit's CK_* variables in its environment. The first
node runs mpirun, of Open MPI, MPICH or Intel MPI, whichever is there; it starts its daemons on the
nodes by mpi_nodes.py, which needs no SSH. With `--launcher srun` this runs on the first node alone,
and Slurm starts the ranks. Each rank starts through mpi_rank.sh. Needs Python's own library.
"""

import argparse
import fcntl
import ipaddress
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import mpi_nodes

PROGRAMS = {
    "openmpi": ("mpirun.openmpi", "mpirun", "mpiexec"),
    "mpich": ("mpirun.mpich", "mpiexec.hydra", "mpirun", "mpiexec"),
    "intel": ("mpiexec.hydra", "mpirun"),
}
ANY = ("mpirun", "mpiexec", "mpiexec.hydra", "mpirun.openmpi", "mpirun.mpich")
SAYS = {"openmpi": r"\((?:Open MPI|OpenRTE)\) (\d+)", "intel": r"Intel\(R\) MPI", "mpich": r"HYDRA"}
PMI = {"openmpi": ("pmix", "pmi2"), "mpich": ("pmi2", "pmix"), "intel": ("pmi2", "pmix")}
NOT_FOUND = 127
LOOK_EVERY_S = 0.5
OPEN_MPI_ENDS_S = 15
"""A second SIGTERM breaks it, so it is left to itself unless something hangs."""
HYDRA_ENDS_S = 1
"""It does not end ranks because another one fails that has not called MPI."""
KILL_S = 3
"""How long Open MPI lets ranks tidy up."""
ADDRESS_AND_MASK = (0x8915, 0x891B)
"""SIOCGIFADDR and SIOCGIFNETMASK, netdevice(7)."""


def main():
    options = parse()
    environment = {"CK_MPI_PYTHON": sys.executable}
    if os.geteuid() == 0:
        # Open MPI warns root, who may harm the machine. Whoever gives jobs to nodes as root knows.
        for name in ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"):
            environment |= {name: "1", f"{name}_CONFIRM": "1"}
    os.environ.update(environment)
    # MPI's programs pass notices on to every rank; whoever sends them has sent them to the ranks.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
    if options.launcher == "srun":
        sys.exit(run(*over_srun(options)))
    prepare_ranks(options.command)
    if os.environ["CK_NODE_RANK"] != "0":
        sys.exit(mpi_nodes.Node().run())
    head = mpi_nodes.Head()
    try:
        program, flavour, version = find_mpirun(options)
        words, more = over_mpirun(options, program, flavour, version)
        patience_s = OPEN_MPI_ENDS_S if flavour == "openmpi" else HYDRA_ENDS_S
        code = run(words, more, head, patience_s)
    except LookupError as error:
        print(f"clusterkit: {error.args[0]}", file=sys.stderr, flush=True)
        code = NOT_FOUND
    head.end(code)
    sys.exit(code)


def parse():
    parser = argparse.ArgumentParser(description="start the ranks of a job under MPI")
    parser.add_argument("--processes", type=int, required=True, help="on all nodes together")
    parser.add_argument("--launcher", choices=("mpirun", "srun"), default="mpirun")
    parser.add_argument("--flavour", choices=tuple(PROGRAMS))
    parser.add_argument("--mpirun", help="the program, where it has another name")
    parser.add_argument("--map-by", default="slot")
    parser.add_argument("--bind-to", default="none")
    parser.add_argument("--pmi", help="what srun is to offer its ranks")
    parser.add_argument("--srun-arg", action="append", default=[])
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args()


def run(words, more, head=None, patience_s=0):
    """Run mpirun or srun to its end; return the exit code of the job as a shell gives it.

    After `patience_s` it is told to end where a rank has failed and the others go on.
    """
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, **more)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    failed_at = None
    while process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_EVERY_S)
        if head is None or head.failed is None:
            continue
        failed_at = failed_at or time.monotonic()
        if time.monotonic() - failed_at >= patience_s:
            process.terminate()
            break
    code = process.wait()
    return (head and head.failed) or (code if code >= 0 else 128 - code)


def prepare_ranks(command):
    """Write down for the ranks of this node what they run, and where."""
    tmp = Path(os.environ["CK_TMP"])
    before = os.environ.get("TMPDIR", "/tmp")
    lines = [
        f"cd {shlex.quote(os.getcwd())} || exit",  # noqa: PTH109
        f"PATH={shlex.quote(os.environ['PATH'])}",  # Open MPI puts its own folder first
        f"TMPDIR={shlex.quote(before)}",
        f"set -- {shlex.join(command)}",
    ]
    (tmp / "mpi_command.sh").write_text("\n".join(lines) + "\n", encoding="utf-8")
    # Where MPI keeps its own files; a folder of the node's own, that goes with the job.
    os.environ["TMPDIR"] = str(tmp)
    os.environ["CK_MPI_OUTPUT"] = f"/proc/{os.getpid()}/fd"
    for output in (1, 2):  # ranks open it anew: in a file, nobody is to write over the others
        fcntl.fcntl(output, fcntl.F_SETFL, fcntl.fcntl(output, fcntl.F_GETFL) | os.O_APPEND)


def shares(processes):
    """Return how many ranks each node has: the first nodes are filled first."""
    left = min(processes, sum(int(count) for count in os.environ["CK_SLOTS"].split()))
    found = []
    for slots in os.environ["CK_SLOTS"].split():
        found.append(min(int(slots), left))
        left -= found[-1]
    return found


# mpirun


def find_mpirun(options):
    """Return the program, whose it is, and its version.

    Raises:
        LookupError: with what to do.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    names = (options.mpirun,) if options.mpirun else PROGRAMS.get(options.flavour, ANY)
    for name in names:
        program = shutil.which(name, path=path)
        if program is None:
            continue
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        for flavour, pattern in SAYS.items():
            match = re.search(pattern, done.stdout + done.stderr)
            if match and options.flavour in {None, flavour}:
                return program, flavour, int(match[1]) if match.groups() else 0
    wanted = {"openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI"}.get(options.flavour)
    raise LookupError(
        f"no {' or '.join(names)} of {wanted or 'Open MPI, MPICH or Intel MPI'} on "
        f"{os.environ['CK_NODE_NAME']}: install it (openmpi-bin), load the site's module "
        "(modules: in the cluster's configuration), or let Slurm start the ranks: "
        "--set mpi.launcher=srun"
    )


def over_mpirun(options, program, flavour, version):
    """Return the command of mpirun, and how to run it."""
    parts = shares(options.processes)
    hosts = [(n, count) for n, count in zip(os.environ["CK_NODES"].split(), parts, strict=True)]
    form = "{} slots={}\n" if flavour == "openmpi" else "{}:{}\n"
    text = "".join(form.format(name, count) for name, count in hosts if count)
    tmp = Path(os.environ["CK_TMP"])
    (tmp / "mpi_hostfile").write_text(text, encoding="utf-8")
    if flavour == "openmpi":
        words, environment = open_mpi(options, version, len(hosts))
    else:
        words, environment = hydra(options, flavour)
    rank = ["sh", "-c", '. "$CK_TMP/mpi_rank.sh"']
    words = [program, *words, "-np", str(sum(parts)), *rank]
    # Names of files are relative to this folder, whatever stands in its own name.
    return words, {"cwd": tmp, "env": {**environment, **os.environ}}


def open_mpi(options, version, nodes):
    """Return words and variables for Open MPI 4, or for PRRTE, which starts the ranks since 5."""
    prefix, rsh = ("OMPI_MCA", "rsh") if version < 5 else ("PRTE_MCA", "ssh")
    ours = {
        # Slurm's own ways, which would start daemons by srun, and count tasks instead of slots.
        "plm": rsh,
        "ras": "^slurm",
        f"plm_{rsh}_agent": "sh mpi_agent.sh",
        f"plm_{rsh}_no_tree_spawn": "1",
        f"plm_{rsh}_num_concurrent": str(max(nodes, 1)),
        ("orte" if version < 5 else "prte") + "_leave_session_attached": "1",
        "odls_base_sigkill_timeout": str(KILL_S),
        # Every daemon would; whoever sends one of those sends it to the ranks.
        "ess_base_forward_signals": "none",
    }
    environment = {f"{prefix}_{name}": value for name, value in ours.items()}
    networks = networks_of(os.environ.get("GLOO_SOCKET_IFNAME", ""))
    if networks:
        # Otherwise it tries all interfaces but the loopback. Names may differ between nodes.
        environment |= {"OMPI_MCA_btl_tcp_if_include": networks}
        environment |= {"OMPI_MCA_oob_tcp_if_include": networks} if version < 5 else {}
        environment |= {"PRTE_MCA_prte_if_include": networks} if version >= 5 else {}
    words = ["--hostfile", "mpi_hostfile", "--wdir", "/"]
    return [*words, "--map-by", options.map_by, "--bind-to", options.bind_to], environment


def networks_of(interfaces):
    """Return the networks of interfaces of this node, as `10.0.0.5/24,...`."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for name in filter(None, interfaces.split(",")):
            request = struct.pack("256s", name.encode())
            with suppress(OSError):  # of IPv6 alone, or not there
                parts = [fcntl.ioctl(any_socket, what, request)[20:24] for what in ADDRESS_AND_MASK]
                address, mask = (socket.inet_ntoa(part) for part in parts)
                found.append(str(ipaddress.IPv4Interface(f"{address}/{mask}")))
    return ",".join(found)


def hydra(options, flavour):
    """Return words and variables for MPICH and Intel MPI."""
    words = ["-f", "mpi_hostfile", "-genvnone", "-wdir", "/"]
    if flavour == "intel":
        words += ["-bootstrap", "rsh", "-bootstrap-exec", "/bin/sh"]
        environment = {"I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "mpi_agent.sh"}
        environment |= {"I_MPI_PIN": "0"} if options.bind_to == "none" else {}
        return words, environment
    environment = {"HYDRA_LAUNCHER_EXTRA_ARGS": "mpi_agent.sh"}
    words += ["-rmk", "user", "-launcher", "rsh", "-launcher-exec", "/bin/sh"]
    if options.bind_to != "none":
        words += ["-bind-to", options.bind_to]
        words += ["-map-by", options.map_by] if options.map_by != "slot" else []
    return words, environment


# srun


def over_srun(options):
    """Return the command of srun, which starts a task for each rank, and how to run it."""
    parts = shares(options.processes)
    nodes = os.environ["CK_NODES"].split()
    tasks = Path(os.environ["CK_TMP"], "mpi_tasks")
    lines = [f"{name}\n" * count for name, count in zip(nodes, parts, strict=True)]
    tasks.write_text("".join(lines), encoding="utf-8")
    cpus = os.environ.get("SLURM_CPUS_PER_TASK")
    words = [
        "srun",
        f"--mpi={options.pmi or offered(options)}",
        f"--ntasks={sum(parts)}",
        f"--nodes={sum(1 for count in parts if count)}",
        # Exactly as planned, with uneven nodes as well: a line for each rank in SLURM_HOSTFILE.
        "--distribution=arbitrary",
        "--kill-on-bad-exit=1",
        "--unbuffered",
        "--export=ALL",
        # srun inherits sbatch's in some releases only (not in 22.05).
        *([f"--cpus-per-task={cpus}"] if cpus else []),
        *options.srun_arg,
        "sh",
        "-c",
        Path(os.environ["CK_TMP"], "mpi_rank.sh").read_text(encoding="utf-8"),
        "rank",
        *options.command,
    ]
    told = {"SLURM_HOSTFILE": str(tasks), "CK_MPI_SHARES": " ".join(str(part) for part in parts)}
    environment = os.environ | told
    environment.pop("SLURM_NTASKS_PER_NODE", None)  # the job's, which the layout need not have
    return words, {"env": environment}


def offered(options):
    """Return what this Slurm offers to ranks, of what their MPI understands."""
    done = subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True, check=False)
    there = set((done.stdout + done.stderr).split())
    try:
        flavour = options.flavour or find_mpirun(options)[1]
    except LookupError:
        flavour = "openmpi"
    for name in PMI[flavour]:
        if name in there:
            return name
    sys.exit(
        f"clusterkit: this Slurm offers none of {' '.join(PMI[flavour])} (srun --mpi=list): "
        "leave --set mpi.launcher=srun out, and mpirun starts the ranks"
    )


if __name__ == "__main__":
    main()
CK_FILE

cat >"$CK_TMP"/mpi_nodes.py <<'CK_FILE'
"""Let mpirun start its daemons without SSH: each node has called the first one, and waits for them.

mpirun starts a daemon on each node (orted, prted, hydra_pmi_proxy) through a program that it calls
like ssh, with a host and a command. Ours is this file as a program, in the folder of the job on the
first node: it hands the command to `Head` there by agent.sock, and waits until it has ended. Each
node keeps a connection (`Node`) to CK_PORT + 1 of the first node, gets the command, and runs it as
a child of its own. clusterkit_peers.py sees to it that nobody else gives or takes commands there.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import clusterkit_peers

SOCKET = "agent.sock"
START_S = 600
GRACE_S = 5
"""How long a daemon has to end by itself: below the 8 s after which a node's worker kills."""
MOST = 1 << 20
"""Characters of a command."""
LOST = 255
"""As ssh's own for a connection that broke."""


def send(connection, **message):
    """Send a message; nothing where the other side has gone, which whoever reads notices."""
    with suppress(OSError):
        connection.send(message)


class Daemons:
    """The commands that run on this node for mpirun."""

    def __init__(self):
        self.running = []

    def run(self, command):
        """Run a command to its end; return its exit code."""
        daemon = subprocess.Popen(
            ["sh", "-c", command],
            cwd=os.environ["CK_TMP"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.running.append(daemon)
        code = daemon.wait()
        return code if code >= 0 else 128 - code

    def end(self):
        """End what does not end by itself."""
        deadline = time.monotonic() + GRACE_S
        for signum in (None, signal.SIGTERM, signal.SIGKILL):
            for daemon in self.running:
                if signum is not None and daemon.poll() is None:
                    with suppress(ProcessLookupError):
                        os.killpg(daemon.pid, signum)
                with suppress(subprocess.TimeoutExpired):
                    daemon.wait(max(0.2, deadline - time.monotonic()))


def tell_failures(tell):
    """Call `tell` with the exit code of each rank of this node that fails; see mpi_rank.sh."""
    path = os.path.join(os.environ["CK_TMP"], "mpi_failed")  # noqa: PTH118
    os.mkfifo(path, 0o600)

    def listen():
        # As if to write as well, so that there is no end while no rank writes.
        with os.fdopen(os.open(path, os.O_RDWR), encoding="ascii") as codes:
            for line in codes:
                tell(int(line))

    threading.Thread(target=listen, daemon=True).start()


# What the first node does


class Head:
    """The first node, to which all others come."""

    def __init__(self):
        self.failed = None
        """The exit code of the first rank that was heard to fail."""
        self.nodes = os.environ["CK_NODES"].split()
        self.others = set(self.nodes) - {os.environ["CK_NODE_NAME"]}
        self.came = set()
        self.lines = {}
        self.codes = {}
        self.changed = threading.Condition()
        self.daemons = Daemons()
        tell_failures(self.fail)
        if self.others:
            self.listen()
        threading.Thread(target=self.serve_agents, args=(agents(),), daemon=True).start()

    def listen(self):
        """Serve the other nodes."""
        member, port = clusterkit_peers.member_of_job("mpi"), int(os.environ["CK_PORT"]) + 1
        try:
            self.listener = clusterkit_peers.Listener(("", port), member, self.serve_node)
        except OSError as error:
            sys.exit(f"clusterkit: error: port {port} of the first node: {error.strerror}")

    def serve_node(self, line):
        """Know a node for as long as it is there."""
        name = self.nodes[line.rank]
        with self.changed:
            if name not in self.others - self.came:
                return
            self.came.add(name)
            self.lines[name] = line
            self.changed.notify_all()
        try:
            for message in line.messages():
                self.note(name, message)
        except clusterkit_peers.PeerError as error:
            print(f"clusterkit: {name} {error}", flush=True)
        finally:
            with self.changed:
                del self.lines[name]
                self.changed.notify_all()

    def note(self, name, message):
        """Note what a node says: that a rank has failed, or how a command has ended."""
        if "failed" in message:
            self.fail(clusterkit_peers.whole(message, "failed", 1, 255))
            return
        number, code = clusterkit_peers.text(message, "ended", 64), message.get("code")
        with self.changed:
            if (name, number) in self.codes:
                self.codes[name, number] = code if code in range(256) else LOST
                self.changed.notify_all()

    def fail(self, code):
        """Note that a rank has failed."""
        self.failed = self.failed or code

    def serve_agents(self, server):
        """Serve each agent by a thread of its own."""
        while True:
            try:
                connection, _ = server.accept()
                threading.Thread(target=self.serve_agent, args=(connection,), daemon=True).start()
            except (OSError, RuntimeError) as error:  # for want of descriptors or threads
                print(f"clusterkit: mpirun has to wait: {error}", file=sys.stderr, flush=True)
                time.sleep(1)

    def serve_agent(self, connection):
        """Have the command of an agent run, and tell it the exit code."""
        with connection, connection.makefile("r") as lines, suppress(OSError, ValueError, KeyError):
            asked = json.loads(lines.readline())
            code = self.run_on(asked["host"], asked["command"], asked["id"])
            connection.sendall(f"{code}\n".encode())

    def run_on(self, name, command, number):
        """Run a command on a node, for as long as that is there; return its exit code."""
        if name in {os.environ["CK_NODE_NAME"], "localhost"}:
            return self.daemons.run(command)
        with self.changed:
            if not self.changed.wait_for(lambda: name in self.lines, START_S):
                refused = f" ({self.listener.refused})" if self.listener.refused else ""
                print(f"clusterkit: {name} has not come within {START_S} s{refused}", flush=True)
                return LOST
            line, key = self.lines[name], (name, number)
            self.codes[key] = None
        send(line, run=number, command=command)
        with self.changed:
            self.changed.wait_for(lambda: self.codes[key] is not None or name not in self.lines)
            code = self.codes.pop(key)
            return LOST if code is None else code

    def end(self, code):
        """Let every node end with this exit code."""
        with self.changed:
            self.changed.wait_for(lambda: self.came == self.others, GRACE_S)
            lines = list(self.lines.values())
        for line in lines:
            send(line, end=code)
        with self.changed:
            self.changed.wait_for(lambda: not self.lines, 2 * GRACE_S)
        self.daemons.end()


# What every other node does


class Node:
    """A node that does what the first one says."""

    def __init__(self):
        self.daemons = Daemons()
        signal.signal(signal.SIGTERM, self.heed)

    def run(self):
        """Run what comes until the end is told; return the exit code."""
        head = os.environ["CK_HEAD_ADDR"], int(os.environ["CK_PORT"]) + 1
        member = clusterkit_peers.member_of_job("mpi")
        try:
            line = clusterkit_peers.connect_within(START_S, head, member)
            return self.follow(line)
        except clusterkit_peers.PeerError as error:
            print(f"clusterkit: {error}", flush=True)
            return 1
        finally:
            self.daemons.end()

    def follow(self, line):
        """Run what the first node says, until it says how the job has ended."""
        tell_failures(lambda code: send(line, failed=code))
        for message in line.messages():
            if "end" in message:
                return clusterkit_peers.whole(message, "end", 0, 255)
            number = clusterkit_peers.text(message, "run", 64)
            words = (line, number, clusterkit_peers.text(message, "command", MOST))
            threading.Thread(target=self.start, args=words, daemon=True).start()
        name = os.environ["CK_NODE_NAME"]
        raise clusterkit_peers.PeerError(f"{name} no longer hears the first node: {line.fault}")

    def start(self, line, number, command):
        """Run a command, and tell how it has ended."""
        send(line, ended=number, code=self.daemons.run(command))

    def heed(self, *_):
        """End, but let the first node end the ranks in order where it does; on SIGTERM."""
        self.daemons.end()
        os._exit(128 + signal.SIGTERM)


def agents():
    """Return a socket for the agents of this user alone."""
    server = socket.socket(socket.AF_UNIX)
    here = os.getcwd()  # noqa: PTH109 - a socket's name must be short: it is a relative one
    os.chdir(os.environ["CK_TMP"])
    server.bind(SOCKET)
    os.chmod(SOCKET, 0o600)  # noqa: PTH101 - nobody can connect before it listens
    os.chdir(here)
    server.listen(socket.SOMAXCONN)
    return server


# What mpirun calls in place of ssh


def ask(words):
    while words[0].startswith("-"):
        words = words[1:]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(SOCKET)
        asked = {"host": words[0], "command": " ".join(words[1:]), "id": secrets.token_hex(8)}
        connection.sendall(json.dumps(asked).encode() + b"\n")
        answer = connection.makefile("r").readline().strip()
    return int(answer) if answer else LOST


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1:]))
CK_FILE

cat >"$CK_TMP"/mpi_agent.sh <<'CK_FILE'
#!/bin/sh
# What mpirun calls in place of ssh, in the folder where this file is: agent.sh HOST COMMAND...
trap '' USR1 USR2 # notices for training scripts, which Slurm sends to every process
exec "$CK_MPI_PYTHON" -u mpi_nodes.py "$@"
CK_FILE

cat >"$CK_TMP"/mpi_rank.sh <<'CK_FILE'
#!/bin/sh
# Starts one rank under mpirun or srun: rank.sh COMMAND...
# MPI has told it who it is, and it tells torch.distributed. Under mpirun the command of this node
# stands in mpi_command.sh beside this file, and what it prints goes to the log of this node and not
# through MPI to that of the first one.
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${PMIX_RANK:-$SLURM_PROCID}}}
world=${OMPI_COMM_WORLD_SIZE:-${PMI_SIZE:-${SLURM_STEP_NUM_TASKS:-}}}
local=${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-$SLURM_LOCALID}}
local_world=${OMPI_COMM_WORLD_LOCAL_SIZE:-${MPI_LOCALNRANKS:-}}
message='' told_on=$CK_NODE_NAME
if [ -n "${CK_MPI_SHARES:-}" ]; then # srun has started it, with the environment of the first node
  CK_NODE_RANK=$SLURM_NODEID
  CK_NODE_NAME=$(echo "$CK_NODES" | cut -d ' ' -f "$((SLURM_NODEID + 1))")
  local_world=$(echo "$CK_MPI_SHARES" | cut -d ' ' -f "$((SLURM_NODEID + 1))")
  # The first node has all output, and the job's result: it tells of ranks elsewhere too.
  message="on $CK_NODE_NAME, started by srun"
  export CK_NODE_RANK CK_NODE_NAME
else
  # shellcheck disable=SC1091 # written where the job runs
  . "$CK_TMP/mpi_command.sh"
  if (: >>"$CK_MPI_OUTPUT/1" 2>>"$CK_MPI_OUTPUT/2") 2>/dev/null; then
    exec >>"$CK_MPI_OUTPUT/1" 2>>"$CK_MPI_OUTPUT/2"
  fi
fi
if [ -n "${CK_NODE_ADDR:-}" ]; then
  # Several nodes are this one machine, whose name Open MPI gives to what its ranks share.
  export OMPI_MCA_btl_vader_backing_directory="$CK_TMP" OMPI_MCA_btl_sm_backing_directory="$CK_TMP"
fi
RANK=$rank WORLD_SIZE=$world LOCAL_RANK=$local LOCAL_WORLD_SIZE=$local_world
NODE_RANK=$CK_NODE_RANK MASTER_ADDR=$CK_HEAD_ADDR MASTER_PORT=$CK_PORT
JAX_COORDINATOR_ADDRESS=$CK_HEAD_ADDR:$CK_PORT
export RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT
export JAX_COORDINATOR_ADDRESS
if [ -n "${SLURM_JOB_ID:-}" ]; then # as srun with a task for each rank sets them
  SLURM_PROCID=$rank SLURM_LOCALID=$local SLURM_NODEID=$CK_NODE_RANK SLURM_NNODES=$CK_NNODES
  SLURM_NTASKS=$world SLURM_NPROCS=$world SLURM_STEP_NUM_TASKS=$world
  SLURM_NTASKS_PER_NODE=$local_world
  export SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NNODES SLURM_NTASKS SLURM_NPROCS
  export SLURM_STEP_NUM_TASKS SLURM_NTASKS_PER_NODE
fi
# Notices of the time limit are for scripts that handle them. Hydra hands down that they are blocked
# for itself: bits 9 and 11.
trap '' USR1 USR2
blocked=$(sed -n 's/^SigBlk:[[:space:]]*/0x/p' /proc/self/status 2>/dev/null)
if [ $((${blocked:-0} & 0xa00)) != 0 ]; then
  set -- "$CK_MPI_PYTHON" -c 'import os, signal, sys
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1, signal.SIGUSR2})
os.execvp(sys.argv[1], sys.argv[1:])' "$@"
fi
"$@" <&0 &
child=$!
trap 'kill -TERM "$child" 2>/dev/null || true' TERM INT
status=0
wait "$child" 2>/dev/null || status=$?
while kill -0 "$child" 2>/dev/null; do # a signal came, and has been passed on
  status=0
  wait "$child" 2>/dev/null || status=$?
done
umask 077 # as all of a run
# MPI knows exit codes of its own; who links its word to the name of all is first, as a link
# replaces nothing.
if [ "$status" != 0 ] && [ -n "${CK_FAILURE:-}" ]; then
  # How far the output had come, so that what others say who fail next is not taken for its own.
  log=$(stat -L -c '{"inode": %i, "size": %s}' /dev/fd/3 3>&2 2>/dev/null) || log=null
  draft=$CK_FAILURE.$RANK
  {
    printf '{"node": "%s", "rank": %d, "local_rank": %d, "exit_code": %d, "message": "%s", "log": %s}\n' \
      "$told_on" "$RANK" "$LOCAL_RANK" "$status" "$message" "$log" >"$draft" &&
      ln "$draft" "$CK_FAILURE"
    rm -f "$draft"
  } 2>/dev/null
fi
if [ "$status" = 0 ] && [ -n "${CK_FAILURE:-}" ] && [ ! -e "$CK_FAILURE.ended" ]; then
  draft=$CK_FAILURE.$RANK # who waits for a rank that ended well fails in its place
  {
    printf '{"node": "%s", "rank": %d}\n' "$CK_NODE_NAME" "$RANK" >"$draft" &&
      ln "$draft" "$CK_FAILURE.ended"
    rm -f "$draft"
  } 2>/dev/null
fi
# Hydra would wait for the other ranks of the node: mpi_launch.py, which listens, has the job ended.
if [ "$status" != 0 ] && [ -p "$CK_TMP/mpi_failed" ]; then
  # Opened to read as well, as whoever listens may have ended, and would be waited for.
  { echo "$status" 1<>"$CK_TMP/mpi_failed"; } 2>/dev/null
fi
exit "$status"
CK_FILE

cat >"$CK_TMP"/clusterkit_peers.py <<'CK_FILE'
(clusterkit/core/peers.py)
CK_FILE

[[ -n ${CK_WORKDIR:-} ]] || CK_WORKDIR='/home/ada/my project'
cd "$CK_WORKDIR"
ck_command=(
  python3
  -u
  "${CK_TMP}"/mpi_launch.py
  --processes=7
  python3
  -u
  train.py
  --text
  'it'"'"'s "a" $b `c`'
  'new
line'
  ''
  '--glob=*'
  'ü ✓'
  'a,b;c&d|e'
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
