"""The run folder: one folder per submitted job, the only thing its parts share.

Everything about a job is a small file here, written atomically, so that the client, the nodes and
a later shell need no service between them. A person can read it and run the job again by hand.
"""

from __future__ import annotations

import json
import re
import secrets
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from clusterkit.core import files, ownership, reading
from clusterkit.core.bounds import ArrayId, Attempt, Count, JobId, Moment, Seconds, Within
from clusterkit.core.errors import UserError
from clusterkit.core.model import (
    HANG_AFTER_S,
    ClusterKind,
    ClusterSpec,
    JobStatus,
    OnHang,
    RequeueOn,
    ShareRuns,
)
from clusterkit.core.ownership import Foreign
from clusterkit.core.records import record_of
from clusterkit.core.shell import Secret
from clusterkit.executors.run.dependencies import Dependency

SCHEMA = 1

PREFLIGHT = "preflight.json"
"""What preflight found before the job was handed over; absent where it had nothing to ask."""

NODE_CHECKS = "node-checks.json"
RESTART = "restart-"
"""What the names of such files begin with: Slurm's script counts them."""
_AWAY = "away-"
KEY_LENGTH = 6
_RUN_ID = re.compile(rf"(?P<name>.+)-(?P<when>\d{{8}}-\d{{6}})-(?P<key>[0-9a-f]{{{KEY_LENGTH}}})")
_ATTEMPTS_AT_A_NAME = 20
_ACTED_ON = frozenset({
    "plan.json", "submission.json", "state.json", "controller.json", "ended.json", "ssh.json",
    "mirror.json", "sync.json", "job.sbatch", "secrets.env", "shell.json", "held", "cancelled",
    "starting.lock", "told-slurm.json", "left-out", "handing.json",
    "submitit", "logs", "nodes", "failures", "keepers", "ends",
})  # fmt: skip
"""What clients do something with; not what the training keeps in `results`."""
_SHOWN = {ShareRuns.NONE: 0o700, ShareRuns.GROUP: 0o750, ShareRuns.ALL: 0o755}
"""Permissions of the folders of logs and states; files in them follow."""


class _Place:
    """A file or folder that every run has under the same name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: RunFolder, _: type[RunFolder]) -> Path:
        return run.path / self.name


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where each file of a run stands."""

    path: Path

    plan = _Place("plan.json")
    """The launch plan as JSON."""
    submission = _Place("submission.json")
    """What was submitted where, and the job id once it is known."""
    handing = _Place("handing.json")
    """Who hands the job over, and how far that has come."""
    script = _Place("node.sh")
    """What each node runs."""
    sbatch = _Place("job.sbatch")
    """What Slurm is given, word for word; absent elsewhere."""
    secrets = _Place("secrets.env")
    """Secret variables as JSON, readable by the owner only; absent where there are none."""
    node_checks = _Place(NODE_CHECKS)
    """What each node checks before it starts its command; absent where it checks nothing."""
    submitit = _Place("submitit")
    """Folder of submitit: the pickled task, its results, the workers' own logs."""
    logs = _Place("logs")
    """Folder of the training output, one file per node."""
    results = _Place("results")
    """Folder of what the training itself wants kept: `CK_RESULTS` on the nodes."""
    nodes = _Place("nodes")
    """Folder of the node results."""
    failures = _Place("failures")
    """Folder of first failures, one file an attempt: small, because every node looks at it."""
    state = _Place("state.json")
    """The final state, once it is known."""
    cancelled = _Place("cancelled")
    """Present once someone asked for the end of the job."""
    queued = _Place("held")
    """Present as long as nothing of a job was started that has to wait for a client."""
    shell = _Place("shell.json")
    """The environment of the shell that submitted a held job; its owner alone may read it."""
    starting = _Place("starting.lock")
    """Locked by the one client that starts a job which has to wait, or start again."""
    told_slurm = _Place("told-slurm.json")
    """What Slurm was told of a job that waits to start again."""
    left_out = _Place("left-out")
    """Nodes that later attempts do not use, one per line; absent where there are none."""
    controller = _Place("controller.json")
    """The process that controls a local job."""
    agents = _Place("keepers")
    """Folder of the processes that keep a job's nodes over ssh, one file per node."""
    vitals = _Place("vitals")
    """Folder of what the GPUs of each node did, of nodes that have some."""
    ends = _Place("ends")
    """Folder of what node agents write last, one file per node."""
    notified = _Place("notified.json")
    """Who was told that the job has ended, and how that went; absent where nobody was to be."""
    ended = _Place("ended.json")
    """How a local job ended, in the words of its controller."""
    for_others = _Place("code-for-others")
    """Folder of the code as the first job of an array got it, until the last has been handed over;
    in its own copy that job may write as soon as it runs."""

    @property
    def run_id(self) -> str:
        """The name of the folder: job name, time of submission, six random hex digits."""
        return self.path.name

    @property
    def key(self) -> str:
        """The six hex digits at the end of the run id."""
        return self.run_id[-KEY_LENGTH:]

    @property
    def foreign(self) -> Foreign | None:
        """Why this run is somebody else's, and only its files may be read; None where it is ours.

        It is ours where nobody but its user (or root) can have written what clients act on, and
        nobody can put another folder in its place. A folder that is missing is nobody's.
        """
        try:
            return ownership.find_foreign_in(self.path, _ACTED_ON & reading.names_in(self.path))
        except OSError:
            return None

    def require_own(self, use: str) -> None:
        """Refuse to act on a run of somebody else.

        Args:
            use: What would be done, such as `end this job`.

        Raises:
            UserError: it is somebody else's; says whose.
        """
        found = self.foreign
        if found is not None:
            only_read = "its files can be read: clusterkit status, logs, diagnose"
            raise ownership.refusal(found, use=use, hint=only_read if found.of_another else None)

    def rank_failure(self, attempt: int) -> Path:
        """Return the file in which launchers tell which rank failed first in an attempt."""
        return self.failures / f"rank-{attempt}.json"

    def requeued(self, attempt: int) -> Path:
        """Return what says why an attempt was ended for the next one, where nodes decide that."""
        return self.path / f"again-{attempt}.json"

    def restarted(self, attempt: int) -> Path:
        """Return what says why an attempt is followed by one on the nodes that the job has."""
        return self.path / f"{RESTART}{attempt}.json"

    def away(self, allocation: str) -> Path:
        """Return the file of the nodes of an allocation that a restart leaves out, one per line."""
        return self.path / f"{_AWAY}{allocation}"

    @property
    def has_left_nodes(self) -> bool:
        """Whether a restart has left nodes of an allocation out."""
        return any(name.startswith(_AWAY) for name in listed(self.path))

    def notice(self, attempt: int) -> Path:
        """Return what says which node of an attempt its cloud is about to take."""
        return self.path / f"notice-{attempt}.json"

    def usr2(self, attempt: int) -> Path:
        """Return what is there once Slurm has sent SIGUSR2 to the batch script of an attempt."""
        return self.path / f"usr2-{attempt}"

    def notified_of_hang(self, attempt: int) -> Path:
        """Return what is there once somebody tells people that an attempt hangs."""
        return self.path / f"notified-hang-{attempt}.json"

    def network(self, attempt: int) -> Path:
        """Return what was found of the network between the nodes, where an attempt measures it."""
        return self.path / f"network-{attempt}.json"

    def timeout(self, attempt: int) -> Path:
        """Return what is there once an attempt was ended at its time limit, by its supervisor."""
        return self.path / f"timeout-{attempt}"

    def agent(self, node_rank: int) -> Path:
        """Return the file of the process that keeps one node."""
        return self.agents / f"{node_rank}.json"

    def heartbeat(self, node_rank: int) -> Path:
        """Return the file that the node agent of one node touches as long as it lives."""
        return self.agents / f"{node_rank}.heartbeat"

    def end(self, node_rank: int) -> Path:
        """Return the file of how the node agent of one node has ended."""
        return self.ends / f"{node_rank}.json"

    def log(self, node_rank: int) -> Path:
        """Return the file of the training output of one node."""
        return self.logs / f"node-{node_rank}.log"

    def result(self, node_rank: int, attempt: int = 0) -> Path:
        """Return the file of the result of one node in one attempt."""
        return self.nodes / f"node-{node_rank}-attempt-{attempt}.json"

    def samples(self, node_rank: int, attempt: int) -> Path:
        """Return the file of how busy the GPUs of one node were, a JSON line now and then."""
        return self.vitals / f"gpus-{node_rank}-{attempt}.jsonl"

    def idle(self, node_rank: int, attempt: int) -> Path:
        """Return what is there while the GPUs of one node have been idle for too long."""
        return self.vitals / f"idle-{node_rank}-{attempt}"

    def rounds(self, attempt: int) -> Path:
        """Return the file of who trained together in an elastic attempt, a JSON line each time."""
        return self.nodes / f"rounds-{attempt}.jsonl"

    def marker(self, node_rank: int | None = None) -> str:
        """Return what marks the processes of one node; without a rank, what all begin with."""
        return f"{self.run_id}:" + ("" if node_rank is None else str(node_rank))


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What stands in `submission.json`."""

    run_id: str
    name: str
    cluster: str
    kind: ClusterKind
    framework: str
    nodes: Count
    tasks: Count
    """How many nodes get a worker: all (MIN of an elastic job), or the first alone with `once`."""
    slots: Annotated[int, Within(0, 10_000_000)] = 0
    """GPUs of all nodes together, or CPU processes where there are none; 0 where unknown."""
    submitted_at: Moment
    """Seconds since the epoch."""
    command_line: tuple[str, ...] = ()
    time_limit_s: Seconds | None = None
    notice_s: Seconds = 0
    """How long before its time limit Slurm announces that."""
    requeue: Attempt = 0
    """How often the job may start again after what was not its own doing."""
    restarts: Attempt = 0
    """How often after a failure it may on the nodes that it has, without a queue."""
    requeue_on: RequeueOn = RequeueOn.HARDWARE
    """After which failures of its command it may."""
    hang_after_s: Seconds = HANG_AFTER_S
    """For how long it may make no progress at least."""
    on_hang: OnHang = OnHang.REPORT
    """What is done where it makes none for longer than it may."""
    notices: bool = True
    """Whether its nodes ask their cloud whether it is about to take them."""
    resumes: bool = False
    """Whether a service may run a step that failed again, within the same start of the job."""
    spares: Count = 0
    """How many nodes may take the place of others then."""
    max_nodes: Count | None = None
    """Upper end of `--nodes MIN:MAX`; then `nodes` is what has to be left for the job to go on."""
    once: bool = False
    """Whether only the first node reports, because its command reaches the others itself (MPI)."""
    job_id: JobId | None = None
    """None until the scheduler has answered."""

    @property
    def dispensable(self) -> int:
        """How many of its nodes the job can lose for good: those that it has spares for."""
        return self.spares + (self.max_nodes - self.nodes if self.max_nodes else 0)

    @property
    def most_attempts(self) -> int:
        """How many attempts the job may have in all."""
        return 1 + self.requeue + self.restarts

    array: ArrayId | None = None
    """The array that it belongs to."""
    index: Attempt | None = None
    """Which job of its array it is, from 0."""
    values: Mapping[str, str] = field(default_factory=dict)
    """The values of its array that it got; none are known of runs of releases before."""
    after: tuple[Dependency, ...] = ()
    """The jobs that had not ended yet, and that it has to wait for."""

    @property
    def least(self) -> int | None:
        """The number of nodes that are enough for the job to go on; None where all are needed."""
        return self.nodes if self.max_nodes is not None else None


def only_read(run: RunFolder, foreign: Foreign) -> str:
    """Return in words that of a run of somebody else nothing was done but read its files."""
    what = "this run" if foreign.path == run.path else str(foreign.path)
    return f"{what} {foreign.reason}: only its files were read"


def place_of(cluster: ClusterSpec) -> Path:
    """Return the folder in which the run folders of a cluster are."""
    return Path(cluster.run_dir).expanduser().absolute()


def create(cluster: ClusterSpec, name: str, *, now: float | None = None) -> RunFolder:
    """Create a run folder that no other submission has, however many submit at this moment.

    What others may read of it follows from `share_runs` by the permissions of its folders.
    """
    shown = _SHOWN[cluster.share_runs]
    parent = place_of(cluster)
    moment = datetime.fromtimestamp(time.time() if now is None else now, tz=UTC).astimezone()
    # Slurm, shells and log files all get to see this name.
    safe = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:60] or "job"
    for _ in range(_ATTEMPTS_AT_A_NAME):
        path = parent / f"{safe}-{moment:%Y%m%d-%H%M%S}-{secrets.token_hex(KEY_LENGTH // 2)}"
        if files.create_folder(path, mode=shown):
            run = RunFolder(path)
            try:
                _require_own_place(run)
                files.create_folder(run.submitit)
                for folder in (run.logs, run.nodes, run.failures):
                    files.create_folder(folder, mode=shown)
            except BaseException:
                files.remove_tree(path)
                raise
            return run
    raise UserError(f"cannot find an unused name in {parent}", hint="try again")


def _require_own_place(run: RunFolder) -> None:
    """Refuse to start a job where somebody else could exchange its files."""
    found = run.foreign
    if found is not None:
        hint = "set `run_dir` to a folder of your own" if found.of_another else None
        raise ownership.refusal(found, use="start a job there", hint=hint)


def create_state_folder(run: RunFolder, folder: Path) -> None:
    """Create a folder that those may read for whom the run folder is."""
    with files.explained(run.path, "look at"):
        shown = stat.S_IMODE(run.path.stat().st_mode) & _SHOWN[ShareRuns.ALL]
    files.create_folder(folder, mode=shown)


def submitted_when(run_id: str) -> str:
    """Return the part of a run id that sorts by time; empty for a folder that is no run."""
    match = _RUN_ID.fullmatch(run_id)
    return match["when"] if match else ""


def write_submission(run: RunFolder, submission: Submission) -> None:
    """Write `submission.json`."""
    files.write_json(run.submission, {"schema": SCHEMA, **files.plain(submission)})


def read_submission(run: RunFolder) -> Submission | None:
    """Return what stands in `submission.json`; None where it is missing or unreadable."""
    return submission_of(files.read_json(run.submission))


def submission_of(document: Mapping[str, Any] | None) -> Submission | None:
    """Return the submission that a JSON object describes; None where it describes none."""
    return record_of(Submission, document)


def write_secrets(run: RunFolder, values: Mapping[str, Secret]) -> None:
    """Write the secret variables, readable by the owner only; nothing where there are none."""
    if values:
        revealed = {name: secret.reveal() for name, secret in values.items()}
        files.write_text(run.secrets, json.dumps(revealed), mode=files.PRIVATE)


def read_secrets(run: RunFolder) -> dict[str, str]:
    """Return the secret variables of a run."""
    kept = files.read_json(run.secrets, own=True) or {}
    return {str(name): str(value) for name, value in kept.items()}


def is_cancelled(run: RunFolder) -> bool:
    """Tell whether someone asked for the end of the job, on a node that asks again and again."""
    return run.cancelled.name in listed(run.path)


def is_removed(run: RunFolder) -> bool:
    """Tell whether the folder is certainly not there; a file server that stalls says neither."""
    try:
        run.path.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def listed(folder: Path) -> frozenset[str]:
    """Return the names in a folder, also of files that were not there a moment ago.

    Listing makes a network file system look again; opening a name that was missing may be answered
    from its cache for half a minute.
    """
    return reading.names_in(folder)


def write_state(run: RunFolder, submission: Submission, status: JobStatus) -> None:
    """Keep a final state, together with the submission, so that a listing reads one file."""
    document = {"schema": SCHEMA, **files.plain(submission), "status": files.plain(status)}
    files.write_json(run.state, document)
