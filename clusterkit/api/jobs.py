"""`submit` and `render`, and the handle of a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterkit.api.arguments import RenderOptions, given, html_table, several, takes, warn
from clusterkit.config.load import load_settings
from clusterkit.core.errors import UserError
from clusterkit.core.files import versioned
from clusterkit.core.model import LaunchPlan, RenderedFile
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.document import document_of, full_document_of, name_of
from clusterkit.jobs.find import find_run, run_roots
from clusterkit.jobs.logs import follow, read_logs
from clusterkit.jobs.state.load import load_job
from clusterkit.jobs.submit.preflight import SubmitCallbacks
from clusterkit.jobs.submit.request import JobRequest, read_request
from clusterkit.jobs.submit.submit import prepare, start
from clusterkit.jobs.watch import cancel, wait
from clusterkit.launch.options import JobOptions, SubmitOptions
from clusterkit.launch.render import check_kinds, write_files
from clusterkit.launch.render import render as render_files
from clusterkit.launch.scripts.kinds import script_warnings


@dataclass(frozen=True, slots=True)
class JobHandle:
    """A submitted job. Looking at it asks the cluster anew each time."""

    run: RunFolder

    @property
    def job_id(self) -> str:
        """What to call the job, also on the command line."""
        return name_of(load_job(self.run))

    @property
    def run_dir(self) -> Path:
        """The folder with all that belongs to the job."""
        return self.run.path

    @property
    def state(self) -> str:
        """Such as `running` or `succeeded`."""
        return load_job(self.run).status.state.value

    @property
    def document(self) -> dict[str, Any]:
        """What `clusterkit submit --json` prints of the job."""
        return versioned(document_of(load_job(self.run)))

    def status(self) -> dict[str, Any]:
        """Return what `clusterkit status JOB --json` prints: failure, attempts and network too."""
        return versioned(full_document_of(load_job(self.run)))

    def wait(self) -> dict[str, Any]:
        """Return what `clusterkit wait --json` prints, once the job is over.

        It did not succeed where `state` is not `succeeded`; nothing is raised then. Ctrl-C, or the
        stop button of a notebook, ends the waiting and not the job.
        """
        job = wait(self.run, on_problem=warn)
        return versioned(full_document_of(job))

    def logs(self, node: int | None = None, *, tail: int | None = None) -> str:
        """Return what the nodes have printed so far.

        Args:
            node: The number of one node in the job, instead of all.
            tail: How many of the last lines, instead of all.
        """
        return "".join(read_logs(self.run, node, tail=tail))

    def follow(self, node: int | None = None, *, tail: int | None = None) -> Iterator[str]:
        """Yield what the nodes print, some lines at a time, until the job is over.

        Args:
            node: The number of one node in the job, instead of all.
            tail: How many of the lines that were printed before, instead of all.
        """
        return follow(self.run, node, tail=tail)

    def cancel(self) -> dict[str, Any]:
        """End the job, wait until it is over, and return its document.

        Raises:
            RemoteError: its nodes, or its scheduler, cannot be asked.
        """
        return versioned(document_of(cancel(self.run)))

    def __repr__(self) -> str:
        """Show the job as a terminal or a log would."""
        job = load_job(self.run)
        return f"<job {name_of(job)} {job.status.state.value}, {self.run.path}>"

    def _repr_html_(self) -> str:
        job = load_job(self.run)
        rows: list[tuple[str, object]] = [
            ("job", name_of(job)),
            ("state", job.status.state.value),
            *((("why", job.status.reason),) if job.status.reason else ()),
            ("cluster", job.submission.cluster),
            ("nodes", job.submission.nodes),
            ("folder", self.run.path),
        ]
        return html_table(rows)


@dataclass(frozen=True, slots=True)
class Rendered:
    """The files of a job, as it would run."""

    plan: LaunchPlan
    files: tuple[RenderedFile, ...]

    @property
    def document(self) -> dict[str, Any]:
        """What `clusterkit render --json` prints."""
        return versioned({"plan": self.plan, "files": self.files})

    def __getitem__(self, name: str) -> str:
        """Return the text of one file.

        Raises:
            KeyError: the job has no file of that name.
        """
        texts = {file.name: file.text for file in self.files}
        if name not in texts:
            raise KeyError(f"no {name} among {', '.join(texts)}")
        return texts[name]

    def write(self, folder: str | Path) -> tuple[Path, ...]:
        """Write the files, as `clusterkit render --output` does.

        Args:
            folder: Where to; it is made where it is missing.
        """
        return tuple(write_files(self.files, Path(folder)))

    def __repr__(self) -> str:
        """Name the files."""
        return f"<{self.plan.name}: {', '.join(file.name for file in self.files)}>"


@takes(SubmitOptions)
def submit(options: SubmitOptions) -> JobHandle:
    """Run a training script on every node of a cluster, as `clusterkit submit` does.

    Arguments are the flags of the verb, and beat a job file (`job=`); `--name` is `name`, and
    `--gpus-per-node` is `gpus_per_node`. Arrays are for the command line.

    Raises:
        UserError: what is asked for is wrong, or preflight found something (then with `report`).
        RemoteError: the cluster refused, or did not answer.
    """
    provided = {
        "preflight": options.preflight,
        "exclude_unfit": options.exclude_unfit,
        "snapshot": options.snapshot,
        "force": options.force,
        "after": several(options.after),
    }
    prepared = prepare(_request(options, verb="submit", **provided))
    _warn_of_script(prepared.plan)
    _, run, _ = start(
        prepared, callbacks=SubmitCallbacks(warn=warn, note=warn, on_reply=lambda _: None)
    )
    return JobHandle(run)


@takes(RenderOptions)
def render(options: RenderOptions) -> Rendered:
    """Return the files that would run, as `clusterkit render` writes them.

    Arguments are those of `submit` that describe the job, and which of its files are wanted.

    Raises:
        UserError: what is asked for is wrong.
    """
    kinds = check_kinds(several(options.only))
    plan = _request(options, verb="render").plan()
    _warn_of_script(plan)
    return Rendered(plan=plan, files=tuple(render_files(plan, only=kinds, service=options.service)))


def find_job(word: str) -> JobHandle:
    """Return a job that was submitted before.

    Args:
        word: Its id, its name, its run folder, or `latest`.

    Raises:
        UserError: there is none, or several.
    """
    return JobHandle(find_run(word, run_roots(load_settings().clusters.values())))


def _request(options: JobOptions, *, verb: str, **more: Any) -> JobRequest:
    request = read_request(
        {**given(options), **{name: value for name, value in more.items() if value}},
        verb=verb,
        job=Path(options.job) if options.job is not None else None,
        warn=warn,
        source_kind="argument",
    )
    if request.sweep() is not None:
        raise UserError(
            f"{options.job} is an array, and a handle is of one job",
            hint=f"clusterkit {verb} --job {options.job}",
        )
    return request


def _warn_of_script(plan: LaunchPlan) -> None:
    for problem in script_warnings(plan):
        warn(str(problem))
