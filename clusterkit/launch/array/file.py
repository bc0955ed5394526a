"""Files that list the elements of a sweep: YAML, JSON or CSV, one job for each entry."""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from clusterkit.config import sources
from clusterkit.config.document import (
    Document,
    Value,
    in_order,
    parse_document,
    position_in,
    read_own_text,
)
from clusterkit.core import shell
from clusterkit.core.errors import Problem, UserError
from clusterkit.launch.array.spec import FORMS, KEY, Sweep, numbered, parse_spec

_KEY_HINT = "letters, digits, _ and -, as in the {key} that it stands for"


def read_sweep(text: str, *, cwd: Path | None = None) -> Sweep:
    """Return the sweep that `--array` names: a file, or a spec.

    Raises:
        UserError: there is no such file, or what it says is wrong.
    """
    folder = cwd or Path.cwd()
    path = folder / Path(text).expanduser()
    try:
        there, folder_there = path.is_file(), path.is_dir()
    except OSError:  # a spec may be longer than any name
        there = folder_there = False
    if there:
        return load_sweep_file(path, cwd=folder)
    if "=" in text:
        return parse_spec(text)
    why = "a folder, not a file" if folder_there else "no such file, and no values of a key"
    raise UserError(f"--array {text}: {why}", hint=FORMS)


def load_sweep_file(path: Path, *, cwd: Path) -> Sweep:
    """Return the sweep of a file: a list of mappings, or a table with a line of keys on top.

    Raises:
        UserError: with the place of every mistake.
    """
    source = sources.display(path.absolute(), cwd)
    hint = f"if you trust it, submit a copy of your own: cp {shell.quote(str(path))} my-jobs"
    text = read_own_text(path, source=source, use="submit the jobs that it lists", hint=hint)
    rows = _table(text, source) if path.suffix.lower() == ".csv" else _list(path, text, source)
    if not rows:
        hint = "one entry for each job, such as {lr: 1e-3}"
        raise UserError(f"{source} lists no jobs", hint=hint)
    return numbered(rows, source=source)


def _list(path: Path, text: str, source: str) -> list[Mapping[str, str]]:
    # JSON may be indented by tabs, which YAML refuses; inside a JSON text there is none.
    language = "JSON" if path.suffix.lower() == ".json" else "YAML"
    yaml = text.expandtabs() if language == "JSON" else text
    document = parse_document(yaml, source=source, language=language)
    if not isinstance(document.data, list):
        raise UserError(
            f"{source} is not a list of jobs",
            hint="one entry for each job, such as `- {lr: 1e-3, seed: 0}`; "
            "for all combinations: --array 'lr=1e-3,1e-4;seed=0-3'",
        )
    wrong = [_wrong(document, index, row) for index, row in enumerate(document.data)]
    if problems := in_order(itertools.chain.from_iterable(wrong)):
        raise UserError(problems=problems)
    return cast(list[Mapping[str, str]], document.data)


def _wrong(document: Document, index: int, row: Value) -> Iterator[Problem]:
    """Yield what is wrong with an entry of a list."""
    if not isinstance(row, dict) or not row:
        position = document.value_position((index,))
        yield Problem(message="a job is a mapping", hint="{lr: 1e-3, seed: 0}", position=position)
        return
    for key, value in row.items():
        if not KEY.fullmatch(key):
            position = document.key_position((index, key))
            yield Problem(message=f"invalid key {key!r}", hint=_KEY_HINT, position=position)
        elif not isinstance(value, str):
            position = document.value_position((index, key))
            hint = 'write one text or number, "" for an empty one'
            yield Problem(message=f"{key} has no single value", hint=hint, position=position)


def _table(text: str, source: str) -> list[Mapping[str, str]]:
    reader = csv.reader(text.splitlines(keepends=True), skipinitialspace=True, strict=True)
    try:
        lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except csv.Error as error:
        position = position_in(source, text, max(1, reader.line_num), None)
        raise UserError(f"invalid CSV: {error}", position=position) from error
    if not lines:
        return []
    (number, keys), *rows = lines
    wrong = []
    for key, times in Counter(keys).items():
        if not KEY.fullmatch(key):
            wrong.append(
                (number, f"invalid key {key!r}", f"the first line names the keys: {_KEY_HINT}")
            )
        elif times > 1:
            wrong.append((number, f"{key} stands twice", "one column for each key"))
    hint = "a value with a comma stands in double quotes"
    wrong += [
        (line, f"{len(row)} values for {len(keys)} keys", hint)
        for line, row in rows
        if len(row) != len(keys)
    ]
    if wrong:
        raise UserError(
            problems=[
                Problem(message=what, hint=hint, position=position_in(source, text, line, None))
                for line, what, hint in wrong
            ]
        )
    return [dict(zip(keys, row, strict=True)) for _, row in rows]
