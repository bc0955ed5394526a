"""Job files: `submit --job FILE`, the flags of a job as the keys of a YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from clusterkit.config import fields, sources
from clusterkit.config.document import Document, in_order, parse_document, read_own_text
from clusterkit.config.validate import validate
from clusterkit.core import shell
from clusterkit.core.errors import Position, UserError
from clusterkit.core.model import ContainerRuntime


def _key(description: str, example: str) -> Any:
    return Field(default=None, description=description, examples=[example])


def _one_text(hint: str) -> BeforeValidator:
    """Refuse a list or a mapping where its elements would go into one text."""

    def refuse(value: Any) -> Any:
        if isinstance(value, list | dict):
            what = "a list" if isinstance(value, list) else "a mapping"
            raise fields.ValueProblemError(f"one text is wanted, not {what}", hint)
        return value

    return BeforeValidator(refuse)


class JobFile(BaseModel):
    """A job as a file gives it; flags beat it, so every key may be missing.

    Keys are the names of the flags, with hyphens or underscores. Top-level keys that begin with
    `x-` are left to the user.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    cluster: fields.Text | None = _key("Cluster to run on.", "a100")
    framework: fields.Text | None = _key("What starts the processes.", "torchrun")
    script: fields.Text | None = _key(
        "Training script; a relative path counts from the folder you submit from.", "train.py"
    )
    args: fields.Words | None = _key(
        "Arguments of the script: one text, split like a shell line but with nothing expanded, "
        "or a list of words.",
        "--lr 3e-4 --epochs 2",
    )
    nodes: fields.NodeCount | None = _key("Number of nodes, or MIN:MAX.", "4")
    gpus_per_node: fields.Slots | None = _key("Slots of each node: one number, or one a node.", "8")
    processes: fields.Count | None = _key("Total number of ranks, where less than slots.", "6")
    time: fields.TimeLimit | None = _key("Time limit.", "4:00:00")
    name: fields.Text | None = _key("Name of the job.", "llama-7b")
    image: fields.Text | None = _key("Image to run in.", "clusterkit/torch:cuda")
    container: ContainerRuntime | None = _key("What starts the image.", "apptainer")
    mount: fields.Mounts | None = _key("What the container sees.", "[/data:/data:ro]")
    env: fields.Environment | None = _key("Environment of every process.", "{NCCL_DEBUG: WARN}")
    secret: fields.VariableNames | None = _key(
        "Variables of your shell that the job gets unseen.", "[WANDB_API_KEY]"
    )
    exclude: fields.Hostlist | None = _key("Nodes to stay away from.", "n[3,7]")
    sync: fields.Text | None = _key("Folder to copy to nodes that share none with you.", ".")
    sync_limit: fields.Count | None = _key("How much may be copied to each node, in MiB.", "500")
    set: fields.Settings | None = _key(
        "Options of sbatch and of the launcher: `sbatch.KEY` or `FRAMEWORK.KEY`.",
        "{sbatch.nice: 100}",
    )
    array: Annotated[fields.Text | None, _one_text("array: 'x=1,2', or the name of a file")] = _key(
        "One job for each combination of these values, or for each entry of this file.",
        "lr=1e-3,1e-4;seed=0-3",
    )
    at_once: fields.Count | None = _key("How many jobs of the array run at once.", "2")
    elements: Annotated[fields.Text | None, _one_text("elements: 0-1")] = _key(
        "The jobs of the array to submit, by number.", "0,4-7"
    )
    after: fields.Texts | None = _key(
        "Jobs that have to end first: JOB, JOB:any or JOB:fail.", "[latest]"
    )
    preflight: Literal["auto", "full", "off"] | None = _key("Which checks come first.", "full")
    requeue: fields.CountOrZero | None = _key(
        "How often the job may start again after what was not its own doing.", "3"
    )
    spares: fields.CountOrZero | None = _key("Nodes at hand for those that fail.", "1")
    ds_preset: fields.Text | None = _key("DeepSpeed configuration to render.", "zero3")
    ps: fields.CountOrZero | None = _key(
        "Parameter servers among the processes; short for `tensorflow.ps` in `set`.", "1"
    )
    tp: fields.Count | None = _key("Tensor-parallel ranks, for the script: TP_SIZE.", "8")
    pp: fields.Count | None = _key("Pipeline stages, for the script: PP_SIZE.", "2")
    cp: fields.Count | None = _key("Context-parallel ranks, for the script: CP_SIZE.", "2")
    ep: fields.Count | None = _key("Expert-parallel ranks, for the script: EP_SIZE.", "4")
    topology: fields.Text | None = _key(
        "What tells which ssh hosts are near each other: a topology of Slurm, or a bundle.",
        "topology.txt",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenJob:
    """What a job file says, and where."""

    values: Mapping[str, Any]
    """The keys that are given, spelt with underscores."""
    document: Document

    def position(self, key: str) -> Position | None:
        """Return where a key has its value, or an item such as `set.sbatch.nice` its name."""
        top, dot, item = key.partition(".")
        if top not in self.values or (dot and item not in self.values[top]):
            return None
        return (
            self.document.key_position((top, item)) if dot else self.document.value_position((top,))
        )


def load_job_file(path: Path, *, cwd: Path | None = None) -> GivenJob:
    """Return what a job file says.

    `nodes`, `gpus_per_node` and `exclude` stay texts in the form of their flags; `args` and
    `secret` are tuples, `env` and `set` mappings.

    Raises:
        UserError: with every problem of the file.
    """
    source = sources.display(path.absolute(), cwd or Path.cwd())
    document = parse_document(
        read_own_text(
            path,
            source=source,
            use="submit what it says",
            hint=f"if you trust it, submit a copy of your own: cp {shell.quote(str(path))} my-job",
        ),
        source=source,
        hyphens=True,
    )
    if document.data is None:
        raise UserError(
            f"{source} is empty", hint="write the flags of a job as keys, such as `nodes: 2`"
        )
    model, problems = validate(document, JobFile, {1: JobFile.model_fields})
    if problems:
        raise UserError(problems=in_order(problems))
    given = {key: getattr(model, key) for key in JobFile.model_fields}
    values = {key: value for key, value in given.items() if value is not None}
    return GivenJob(values=values, document=document)


def checked_values(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of a job that come from Python, as a file with these texts would give them.

    Raises:
        UserError: with every problem of them.
    """
    document = Document(source="the arguments", text="", data=dict(values))
    model, problems = validate(document, JobFile, {1: JobFile.model_fields})
    if problems:
        raise UserError(problems=[replace(problem, position=None) for problem in problems])
    found = {key: getattr(model, key) for key in values}
    return {key: value for key, value in found.items() if value is not None}
