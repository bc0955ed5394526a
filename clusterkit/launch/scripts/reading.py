"""Read a script as Python does, for what it calls and reads in any case.

A call behind a condition, or of a package whose import may fail, is no such call: a script with one
knows several frameworks, and which it uses is decided elsewhere.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterkit.core.data import read_table
from clusterkit.core.errors import Position, Problem
from clusterkit.core.model import LaunchPlan, ScriptKind

WORDS = {row["set"]: frozenset(row["words"].split()) for row in read_table(__file__, "words.tsv")}
_MOST_BYTES = 1 << 20
_LEAVES = (ast.Return, ast.Break, ast.Continue)
_MOVES = frozenset({"cuda", "to"})
_MAY_FAIL = frozenset({"ImportError", "ModuleNotFoundError", "Exception"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a script calls or reads in any case, by its full name."""

    name: str
    line: int
    called: bool
    given: frozenset[str] = frozenset()
    """Names of the keyword arguments; `*` for others."""
    texts: frozenset[str] = frozenset()
    """Arguments that are plain texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What is known of a script."""

    text: str
    uses: tuple[Use, ...]
    imports: frozenset[str]
    """Top-level packages that it imports anywhere, under whatever condition."""
    relative: bool = False
    """Whether it imports modules beside it by their dots as well."""


def read_script(text: str) -> Script:
    """Return what is known of a script.

    Raises:
        SyntaxError: it is written for another Python, or for none.
        ValueError, RecursionError, MemoryError: it is not a text that Python reads.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # the job itself will tell of those
        tree = ast.parse(text)
    certain = tuple(_certain(tree.body))
    return Script(
        text=text,
        uses=tuple(_uses(certain)),
        imports=frozenset(_imports(tree)),
        relative=any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree)),
    )


def script_of(plan: LaunchPlan) -> Script | None:
    """Return what is known of the script of a plan; None where it is not here, or not Python."""
    name = plan.script
    if plan.script_kind is ScriptKind.MODULE:
        name = f"{name.replace('.', '/')}.py"
    return read_path(plan.workdir, name) if plan.script_kind.is_python else None


def read_path(workdir: str, name: str, *, unchanged_since: float | None = None) -> Script | None:
    """Return what is known of a script; None where it is not here, not Python, or another now."""
    path = Path(workdir, name)
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        if unchanged_since is not None and path.stat().st_mtime > unchanged_since:
            return None
        return read_script(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # Python calls brackets in brackets, hundreds of them, a lack of memory


def problem_at(
    text: str, plan: LaunchPlan, line: int, what: str, hint: str, otherwise: str
) -> Problem:
    """Return a problem with a line of a script: what it does, and what would come of that."""
    text = text.splitlines()[line - 1].strip()
    return Problem(
        message=f"{what}:\n  {otherwise}",
        hint=hint,
        position=Position(source=plan.script, line=line, text=text),
    )


def _certain(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that no condition guards, those inside of functions as well."""
    for statement in body:
        match statement:
            case ast.If(test=test):
                if "'__name__'" in ast.dump(test):
                    yield from _certain(statement.body)
                elif any(isinstance(node, _LEAVES) for node in ast.walk(statement)):
                    return  # the rest is for some ranks, or for some flags
            case ast.Try(body=inner, handlers=handlers, finalbody=last):
                if not any(_may_fail(handler) for handler in handlers):
                    yield from _certain(inner)
                yield from _certain(last)
            case ast.With(body=inner) | ast.AsyncWith(body=inner) | ast.For(body=inner):
                yield statement
                yield from _certain(inner)
            case ast.FunctionDef(body=inner) | ast.AsyncFunctionDef(body=inner):
                yield from _certain(inner)
            case ast.While() | ast.Match() | ast.TryStar() | ast.ClassDef():
                continue
            case _:
                yield statement


def _may_fail(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    return any(isinstance(n, ast.Name) and n.id in _MAY_FAIL for n in ast.walk(handler.type))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (name.name.partition(".")[0] for name in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]


def _uses(statements: Sequence[ast.stmt]) -> Iterator[Use]:
    names = _names(statements)
    for statement in statements:
        for node in _computed(statement):
            match node:
                case ast.Call(func=function) if name := _called(function, names):
                    given = {keyword.arg or "*" for keyword in node.keywords}
                    given |= {"*"} if node.args else set()
                    yield Use(
                        name=name,
                        line=node.lineno,
                        called=True,
                        given=frozenset(given),
                        texts=frozenset(_texts(node)),
                    )
                case ast.Assign(
                    targets=[ast.Subscript(value=value, slice=ast.Constant(value=key))],
                    value=ast.Constant(value=str(text)),
                ) if isinstance(key, str) and (name := _dotted(value, names)):
                    texts = frozenset((text,))
                    yield Use(name=f"{name}.{key}", line=node.lineno, called=False, texts=texts)
                case ast.Attribute() if name := _dotted(node, names):
                    yield Use(name=name, line=node.lineno, called=False)


def _called(function: ast.expr, names: Mapping[str, str]) -> str | None:
    """Return the full name of what is called; `?.NAME` for what moves anything to a device."""
    name = _dotted(function, names)
    if name is None and isinstance(function, ast.Attribute) and function.attr in _MOVES:
        return f"?.{function.attr}"
    return name


def _texts(call: ast.Call) -> Iterator[str]:
    for value in (*call.args, *(keyword.value for keyword in call.keywords)):
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value


def _names(statements: Sequence[ast.stmt]) -> Mapping[str, str]:
    """Return what the names stand for that imports bind, and `comm = MPI.COMM_WORLD`."""
    names: dict[str, str] = {}
    for statement in statements:
        match statement:
            case ast.Import(names=imported):
                for name in imported:
                    top = name.name.partition(".")[0]
                    names |= {name.asname: name.name} if name.asname else {top: top}
            case ast.ImportFrom(module=str(module), names=imported, level=0):
                names |= {name.asname or name.name: f"{module}.{name.name}" for name in imported}
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute() as value):
                if meant := _dotted(value, names):
                    names[name] = meant
    return names


def _computed(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield what a statement computes in any case: no blocks in it, branches or lambdas."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop(0)
        yield node
        perhaps = ast.stmt | ast.IfExp | ast.BoolOp | ast.Lambda
        waiting += [n for n in ast.iter_child_nodes(node) if not isinstance(n, perhaps)]


def _dotted(node: ast.expr, names: Mapping[str, str]) -> str | None:
    """Return the full name of `node`, such as `horovod.torch.init`; None where no import gives it.

    A call in between stands for what it returns: `SparkSession.builder.appName("x").getOrCreate`.
    """
    match node:
        case ast.Name(id=name):
            return names.get(name)
        case ast.Attribute(value=value, attr=attribute):
            before = _dotted(value, names)
            return f"{before}.{attribute}" if before else None
        case ast.Call(func=function):
            return _dotted(function, names)
        case _:
            return None
