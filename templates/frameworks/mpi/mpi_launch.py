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
    # In the jobs of Slurm since 23.11 they are for its own srun: --external-launcher.
    for arguments in ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", "HYDRA_LAUNCHER_EXTRA_ARGS"):
        os.environ[arguments] = "mpi_agent.sh"
    if flavour == "intel":
        words += ["-bootstrap", "rsh", "-bootstrap-exec", "/bin/sh"]
        return words, {"I_MPI_PIN": "0"} if options.bind_to == "none" else {}
    words += ["-rmk", "user", "-launcher", "rsh", "-launcher-exec", "/bin/sh"]
    if options.bind_to != "none":
        words += ["-bind-to", options.bind_to]
        words += ["-map-by", options.map_by] if options.map_by != "slot" else []
    return words, {}


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
        # Exactly as planned, with uneven nodes as well: a line for each rank in SLURM_HOSTFILE.
        # Without --nodes, which srun refuses beside it since 23.11.
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
    variables = {
        "SLURM_HOSTFILE": str(tasks),
        "CK_MPI_SHARES": " ".join(str(part) for part in parts),
    }
    environment = os.environ | variables
    for jobs_own in ("SLURM_NTASKS_PER_NODE", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
        environment.pop(jobs_own, None)  # which the layout need not have
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
