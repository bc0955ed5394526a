"""Find every regular expression of the project, and how each is used."""

from __future__ import annotations

import ast
import importlib
import re
from collections import ChainMap, Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeGuard

from clusterkit.observe.diagnose.rules import own_rules

ROOT = Path(__file__).resolve().parents[2]
_USES = {
    **{name: name for name in ("match", "fullmatch", "search")},
    **dict.fromkeys(("finditer", "findall", "split", "sub", "subn"), "finditer"),
}
TABLES = {
    "clusterkit/core/bounds.py": (),
    "clusterkit/core/records.py": (),
    "clusterkit/preflight/env_lint/sources.py": (),
    "clusterkit/observe/diagnose/lines.py": (),
    "clusterkit/observe/diagnose/rules.py": (),
    "bench/accuracy/notation.py": ("_ZERO_NAMES", "_FSDP_NAMES"),
    "bench/accuracy/units.py": ("_FORMS",),
    "clusterkit/images/engine.py": (),
    "clusterkit/executors/slurm/pending.py": (),
    "clusterkit/executors/slurm/refusals.py": (),
    "clusterkit/images/build.py": (),
    "templates/frameworks/mpi/mpi_launch.py": ("SAYS",),
}
"""Files that search for what stands in a table: names of those that hold texts and no patterns."""
_ALIKE = "x"
"""What stands for a value that only a run knows: it goes through `re.escape` mostly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One regular expression."""

    place: str
    pattern: re.Pattern[Any]
    uses: frozenset[str]
    known: bool = True
    """Whether the pattern itself could be read, and not only where it is used."""


def of_rules() -> Iterator[Found]:
    """Yield those of the rules of `diagnose`."""
    for rule in own_rules():
        around = (*rule.near, *rule.frame, *rule.trace, *rule.ends)
        for pattern in (*rule.patterns, *rule.unless, *rule.unless_next, *rule.resets, *around):
            yield Found(place=rule.id, pattern=pattern.compiled, uses=frozenset({"search"}))


def of_files() -> Iterator[Found]:
    """Yield those that stand in Python files, as constants or where they are used."""
    for folder in ("clusterkit", "templates", "images", "bench/accuracy"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "import re\n" in text or "Matching(" in text:
                yield from _of_file(path, ast.parse(text))


def _of_file(path: Path, tree: ast.Module) -> Iterator[Found]:
    place = str(path.relative_to(ROOT))
    names = _names(path, tree)
    uses = _uses_of_names(tree)
    seen: set[re.Pattern[Any]] = set()
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            name = target.id if isinstance(target, ast.Name) else ""
            for pattern in _patterns_in(names.get(name)):
                seen.add(pattern)
                yield Found(
                    place=f"{place}: {name}",
                    pattern=pattern,
                    uses=uses.get(name) or frozenset({"search", "match", "fullmatch"}),
                )
    for text in _texts_in([names[name] for name in TABLES.get(place, ())]):
        yield Found(place=place, pattern=re.compile(text), uses=frozenset({"search"}))
    for node in ast.walk(tree):
        if _is_matching(node):
            text = eval(compile(ast.Expression(node.args[0]), place, "eval"), dict(names))
            yield Found(
                place=f"{place}:{node.lineno}",
                pattern=re.compile(text),
                uses=frozenset({"fullmatch"}),
            )
        if not (isinstance(node, ast.Call) and _is_re(node.func)):
            continue
        assert isinstance(node.func, ast.Attribute)
        if node.func.attr == "escape":
            continue
        written = _evaluated(node, names)
        if written not in seen:
            yield Found(
                place=f"{place}:{node.lineno}",
                pattern=re.compile(_ALIKE) if written is None else written,
                uses=frozenset({_USES.get(node.func.attr, "search")}),
                known=written is not None,
            )


def _names(path: Path, tree: ast.Module) -> Mapping[str, Any]:
    if path.is_relative_to(ROOT / "clusterkit") or path.is_relative_to(ROOT / "bench"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        return vars(importlib.import_module(name))
    names: dict[str, Any] = {"re": re}
    for statement in tree.body:  # these are no modules of ours, and some need what nodes have
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            code = compile(ast.Expression(statement.value), str(path), "eval")
            try:
                names[statement.targets[0].id] = eval(code, dict(names))
            except (NameError, AttributeError):
                continue
    return names


def _uses_of_names(tree: ast.Module) -> Mapping[str, frozenset[str]]:
    """Return how the patterns of each name are used; not where that cannot be told."""
    uses: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.attr in _USES
        ):
            uses.setdefault(node.value.id, set()).add(_USES[node.attr])
    of_items = {
        name: set().union(*(uses[item] for item in each)) for name, each in _loops(tree, uses)
    }
    return {name: frozenset(found) for name, found in (of_items | uses).items()}


def _loops(tree: ast.Module, known: Container[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each private name that is used in loops over it alone, with the names of its items."""
    items: dict[str, list[str]] = {}
    loaded: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            loaded[node.id] += 1
        if isinstance(node, ast.For | ast.comprehension) and isinstance(node.iter, ast.Name):
            item = node.target.id if isinstance(node.target, ast.Name) else ""
            items.setdefault(node.iter.id, []).append(item)
    for name, each in items.items():
        if name.startswith("_") and len(each) == loaded[name] and all(i in known for i in each):
            yield name, each


def _patterns_in(value: Any) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, Mapping):
        for item in (*value, *value.values()):
            yield from _patterns_in(item)
    elif isinstance(value, tuple | list | set | frozenset):
        for item in value:
            yield from _patterns_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _patterns_in(getattr(value, field.name))


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in (*value, *value.values()):
            yield from _texts_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _texts_in(item)


def _is_matching(node: ast.AST) -> TypeGuard[ast.Call]:
    """Tell whether a call makes a bound of `clusterkit.core.bounds` from a regular expression."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Matching"
    )


def _is_re(func: ast.expr) -> bool:
    return (
        isinstance(func, ast.Attribute)
        and isinstance(func.value, ast.Name)
        and func.value.id == "re"
    )


class _Alike(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        if name in __builtins__:  # type: ignore[operator]
            raise KeyError(name)
        return _Stand()


class _Stand(str):
    """Stands for any value: each attribute, item and call of it is one as well."""

    def __new__(cls) -> _Stand:
        return super().__new__(cls, _ALIKE)

    def __getattribute__(self, name: str) -> Any:
        return _Stand() if not name.startswith("__") else super().__getattribute__(name)

    def __call__(self, *_: Any) -> _Stand:
        return _Stand()

    def __getitem__(self, _: Any) -> _Stand:
        return _Stand()


def _evaluated(call: ast.Call, names: Mapping[str, Any]) -> re.Pattern[Any] | None:
    """Return the pattern of a call of the module `re`; None where only a run knows it."""
    assert isinstance(call.func, ast.Attribute)
    place = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(call.func.attr, 2)
    flags = [word.value for word in call.keywords if word.arg == "flags"] or call.args[place:]
    values = []
    for expression in (call.args[0], *flags[:1]):
        if isinstance(expression, ast.Name) and expression.id not in names:
            return None
        code = compile(ast.Expression(expression), "pattern", "eval")
        try:
            values.append(eval(code, {}, ChainMap(dict(names), _Alike())))
        except TypeError:  # bytes that only a run knows
            return None
    return None if isinstance(values[0], _Stand) else re.compile(*values)
