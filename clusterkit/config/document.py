"""A YAML text as plain values that remember where each of them stands.

Scalars keep the text that the user wrote, whatever YAML 1.1 makes of it: `time: 1:30:00` would
otherwise be the number 5400, `NCCL_X: yes` the value True and `account: 0123` the number 83. The
schema alone decides what a value is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import yaml

from clusterkit.core import ownership
from clusterkit.core.errors import Position, Problem, UserError

KeyPath = tuple[str | int, ...]
Value = str | None | list["Value"] | dict[str, "Value"]

_NOWHERE = ("", 0, 0)

MAX_VALUES = 20_000
"""More than any real file holds; stops aliases that multiply without end."""

LARGEST = 1 << 20
"""Bytes of a YAML text that is read; PyYAML takes seconds for that."""

_TAG = "tag:yaml.org,2002:"
_MERGE = _TAG + "merge"
_KNOWN_TAGS = frozenset(
    _TAG + name
    for name in ("str", "int", "float", "bool", "null", "timestamp", "map", "seq", "merge", "value")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed text: its values, and the line and column (from 1) of each key and value."""

    source: str
    """The file as messages name it."""
    text: str
    data: Value = None
    keys: Mapping[KeyPath, tuple[int, int]] = field(default_factory=dict)
    values: Mapping[KeyPath, tuple[int, int]] = field(default_factory=dict)

    def key_position(self, path: KeyPath) -> Position:
        """Return where the key of `path` stands; for the item of a list, where its value does."""
        return self._position(path, self.keys)

    def value_position(self, path: KeyPath) -> Position:
        """Return where the value of `path`, or the nearest that encloses it, stands."""
        return self._position(path, self.values)

    def at(self, line: int, column: int) -> Position:
        """Return the position of a line and column, both from 1."""
        return position_in(self.source, self.text, line, column)

    def _position(self, path: KeyPath, places: Mapping[KeyPath, tuple[int, int]]) -> Position:
        while path:
            place = places.get(path) or self.values.get(path)
            if place is not None:
                return self.at(*place)
            path = path[:-1]
        return Position(source=self.source)


def dotted(path: KeyPath) -> str:
    """Return a path as messages spell it: `clusters.a100.partition`."""
    return ".".join(str(part) for part in path)


def position_in(source: str, text: str, line: int, column: int | None) -> Position:
    """Return a position whose source line is safe to print on a terminal."""
    lines = text.split("\n")
    shown = lines[line - 1].rstrip("\r") if line <= len(lines) else ""
    printable = "".join(c if c.isprintable() else " " if c == "\t" else "\ufffd" for c in shown)
    return Position(source=source, line=line, column=column, text=printable)


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems without repetition, in the order of their places."""

    def place(problem: Problem) -> tuple[str, int, int]:
        position = problem.position
        return (position.source, position.line or 0, position.column or 0) if position else _NOWHERE

    return tuple(sorted(dict.fromkeys(problems), key=place))


def read_text(
    path: Path,
    *,
    source: str | None = None,
    most: int = ownership.LARGEST,
    keep_line_ends: bool = False,
) -> str:
    """Return the text of a file that is data to look at, or that the user named outright.

    The line ends of Windows become those of Unix, unless they are to be looked at, too.

    Raises:
        UserError: it cannot be read, holds more than `most` bytes, or is not UTF-8.
    """
    text = _decoded(lambda: ownership.read_any(path, most=most), source or str(path))
    return text if keep_line_ends else text.replace("\r\n", "\n")


def read_own_text(
    path: Path,
    *,
    use: str,
    hint: str,
    source: str | None = None,
    trusted: Collection[int] = frozenset(),
    most: int = LARGEST,
) -> str:
    """Return the text of a file that is acted on, and so has to be the user's own, or root's.

    Args:
        path: The file.
        use: What would be done, such as `read a configuration from it`.
        hint: How to trust it, where it belongs to somebody else.
        source: What messages call it.
        trusted: Ids of users who are trusted as well.
        most: Bytes that it may hold.

    Raises:
        UserError: somebody else can write it, or as `read_text`.
    """
    read = partial(ownership.read_own, path, use=use, hint=hint, trusted=trusted, most=most)
    return _decoded(read, source or str(path)).replace("\r\n", "\n")


def _decoded(read: Callable[[], bytes], name: str) -> str:
    try:
        raw = read()
    except OSError as error:
        why = error.strerror or error
        hint = "check the path and its permissions"
        raise UserError(f"cannot read {name}: {why}", hint=hint) from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"byte 0x{raw[error.start]:02x} is not UTF-8",
            position=Position(source=name, line=line),
            hint="save the file as UTF-8",
        ) from error


def parse_document(
    text: str, *, source: str, hyphens: bool = False, language: str = "YAML"
) -> Document:
    """Parse a YAML text; an empty one gives `data=None`.

    `hyphens` takes top-level keys spelt like flags (`gpus-per-node`) for the same with
    underscores. `language` is what messages call it: JSON is YAML as well.

    Raises:
        UserError: it is not valid YAML, or says something twice.
    """
    root = _compose(text, source, language)
    if root is None:
        return Document(source=source, text=text)
    builder = _Builder(Document(source=source, text=text), hyphens=hyphens)
    data = builder.build(root, ())
    if builder.problems:
        raise UserError(problems=builder.problems)
    return Document(source=source, text=text, data=data, keys=builder.keys, values=builder.values)


def _compose(text: str, source: str, language: str) -> yaml.Node | None:
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark, position, line = error.problem_mark or error.context_mark, Position(source=source), ""
        if mark is not None:
            position = position_in(source, text, mark.line + 1, mark.column + 1)
            line = text.split("\n")[mark.line] if position.text else ""
        what = error.problem or error.context or "it cannot be read"
        message = f"this is not valid {language}: {what.removeprefix('but ')}"
        raise UserError(message, position=position, hint=_syntax_hint(what, line)) from error
    except yaml.reader.ReaderError as error:
        line_number = text.count("\n", 0, error.position) + 1
        raise UserError(
            f"character #x{ord(text[error.position]):04x} is not allowed in YAML",
            position=position_in(source, text, line_number, None),
            hint='write it as an escape inside double quotes, such as "\\x07"',
        ) from error
    except RecursionError as error:
        raise UserError("values are nested too deeply", position=Position(source=source)) from error
    except (ValueError, OverflowError) as error:
        # PyYAML lets these out for escapes such as "\UFFFFFFFF" and for endless numbers.
        raise UserError(
            f"this is not valid {language}: {error}",
            position=Position(source=source),
            hint="look for an escape (\\U...) that is not a character",
        ) from error
    return root


def _syntax_hint(what: str, line: str) -> str:
    if "\\t" in what or "\t" in line[: len(line) - len(line.lstrip())]:
        return "indent with spaces; YAML allows no tabs there"
    if "mapping values are not allowed" in what:
        return "quote a value that contains ': ', or check the indentation"
    if "another document" in what:
        return "a file holds one document: remove the '---' between two"
    if "alias" in what:
        return "quote a value that starts with '*'"
    return "check the indentation, the quotes and the brackets at and above this place"


class _Builder:
    """Turns the nodes of one document into plain values and notes where they stand."""

    def __init__(self, document: Document, *, hyphens: bool) -> None:
        self.document = document
        self.hyphens = hyphens
        self.keys: dict[KeyPath, tuple[int, int]] = {}
        self.values: dict[KeyPath, tuple[int, int]] = {}
        self.problems: list[Problem] = []
        self._open: set[int] = set()

    def build(self, node: yaml.Node, path: KeyPath) -> Value:
        """Return the value of `node`, which stands at `path`."""
        self.values[path] = _place(node)
        if len(self.values) > MAX_VALUES:
            position = self.document.at(*_place(node))
            message = f"more than {MAX_VALUES} values; aliases (*name) multiply them"
            raise UserError(message, position=position)
        if node.tag not in _KNOWN_TAGS:
            tag = node.tag.replace(_TAG, "!!")
            self._problem(f"tag {tag!r} is not allowed", path, node, "remove the tag")
            return None
        if isinstance(node, yaml.ScalarNode):
            return None if node.tag == _TAG + "null" else str(node.value)
        if id(node) in self._open:
            self._problem("a value contains itself through its alias", path, node, None)
            return None
        self._open.add(id(node))
        value: Value
        if isinstance(node, yaml.SequenceNode):
            value = [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        else:
            value = self._mapping(node, path)
        self._open.discard(id(node))
        return value

    def _mapping(self, node: yaml.Node, path: KeyPath) -> dict[str, Value]:
        result: dict[str, Value] = {}
        own = [pair for pair in node.value if pair[0].tag != _MERGE]
        for number, (key_node, value_node) in enumerate((*own, *self._merged(node, path))):
            if not isinstance(key_node, yaml.ScalarNode):
                hint = "quote it if it has brackets"
                self._problem("a key must be a plain word", path, key_node, hint)
                continue
            key = str(key_node.value)
            key = key.replace("-", "_") if self.hyphens and not path else key
            here = (*path, key)
            if key not in result:
                self.keys[here] = _place(key_node)
                result[key] = self.build(value_node, here)
            elif number < len(own):  # what is merged in gives way to what stands here
                message = f"key {key!r} is already given in line {self.keys[here][0]}"
                self._problem(message, here, key_node, "remove one of the two")
        return result

    def _merged(self, node: yaml.Node, path: KeyPath) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """Yield the pairs that `<<: *name` brings in; earlier ones win, as YAML has it."""
        for key_node, value_node in node.value:
            if key_node.tag != _MERGE:
                continue
            parts = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            for part in parts:
                if not isinstance(part, yaml.MappingNode):
                    hint = "write <<: *name, with &name before"
                    self._problem("'<<' takes a mapping", path, key_node, hint)
                    continue
                # One level deep: pairs that the named mapping merges in itself are left out,
                # which also keeps a mapping that merges itself from running for ever.
                yield from (pair for pair in part.value if pair[0].tag != _MERGE)

    def _problem(self, message: str, path: KeyPath, node: yaml.Node, hint: str | None) -> None:
        position, key = self.document.at(*_place(node)), dotted(path) or None
        self.problems.append(Problem(message=message, key=key, position=position, hint=hint))


def _place(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1
