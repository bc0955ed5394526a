"""Job files: `submit --job FILE`, the flags of a job as the keys of a YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, create_model

from clusterkit.config import fields, sources
from clusterkit.config.document import Document, in_order, parse_document, read_own_text
from clusterkit.config.validate import foreign_hint, validate
from clusterkit.core import shell
from clusterkit.core.errors import Position, Problem, UserError
from clusterkit.launch.option_rows import Row
from clusterkit.launch.options import job_options


def _key(row: Row) -> Any:
    """Return the type of a key, with what the reference says of it."""
    option = row.option
    kind = getattr(fields, option.kind or ("Count" if row.plain else "Text"))
    text = option.help.removesuffix("; repeatable.").removesuffix(".")
    description = " ".join(filter(None, (f"{text}.", option.in_file)))
    return kind | None, Field(default=None, description=description, examples=[option.example])


JobFile: Any = create_model(
    "JobFile",
    __config__=ConfigDict(extra="forbid", frozen=True, defer_build=True),
    __doc__="A job as a file gives it; flags beat it, so every key may be missing.\n\n"
    "Keys are the names of the flags, with hyphens or underscores. Top-level keys that begin with "
    "`x-` are left to the user.",
    **{name: _key(row) for name, row in job_options().items() if row.option.example},
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
    hint = f"if you trust it, submit a copy of your own: cp {shell.quote(str(path))} my-job"
    text = read_own_text(path, source=source, use="submit what it says", hint=hint)
    document = parse_document(text, source=source, hyphens=True)
    if document.data is None:
        hint = "write the flags of a job as keys, such as `nodes: 2`"
        raise UserError(f"{source} is empty", hint=hint)
    values, problems = _read(document)
    if problems:
        raise UserError(problems=in_order(problems))
    return GivenJob(values=values, document=document)


def _read(document: Document) -> tuple[Mapping[str, Any], tuple[Problem, ...]]:
    """Return the values that a document gives, and what is wrong with it."""
    model, problems = validate(
        document,
        JobFile,
        {1: JobFile.model_fields},
        meant=lambda path: foreign_hint(str(path[-1]), "job") if len(path) == 1 else None,
    )
    given = {key: getattr(model, key) for key in JobFile.model_fields}
    return {key: value for key, value in given.items() if value is not None}, problems


def checked_values(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of a job that come from Python, as a file with these texts would give them.

    Raises:
        UserError: with every problem of them.
    """
    found, problems = _read(Document(source="the arguments", text="", data=dict(values)))
    if problems:
        raise UserError(problems=[replace(problem, position=None) for problem in problems])
    return found
