"""`clusterkit lint-env`: what is wrong with the NCCL variables of a script, a file or a shell."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.frame.main import EXIT_FINDINGS
from clusterkit.config.document import read_text
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.core.findings import Verdict
from clusterkit.core.text import wrapped
from clusterkit.preflight.env_lint.setting import Format, Source
from clusterkit.preflight.env_lint.sources import from_environment, read_source

if TYPE_CHECKING:
    from clusterkit.preflight.env_lint.lint import LintFinding

_COLOURS = {Verdict.FAIL: "red", Verdict.WARN: "yellow", Verdict.PASS: "green"}
_LOUD = frozenset({Verdict.WARN, Verdict.FAIL})
_LONGEST_VALUE = 40


@explained
def lint_env(
    file: str | None = None,
    as_: str | None = None,
    allow: list[str] | None = None,
    cluster: str | None = None,
    verbose: bool = False,
    json: JsonFlag = False,
) -> None:
    """Lint NCCL, RCCL, UCX, Gloo and PyTorch variables.

    Without FILE: the environment of this shell, ~/.nccl.conf and /etc/nccl.conf.

    Exit code 1 if there is a warning or a failure. `clusterkit explain ID` explains a finding.
    """
    from clusterkit.config.load import load_settings
    from clusterkit.preflight.env_lint.lint import lint

    sources = _sources(file, as_)
    of_site = load_settings(cluster=cluster).cluster(cluster).allowed_env
    findings = lint(sources, allowed=(*(allow or ()), *of_site))
    if json:
        notes = [f"{source.name}: {note}" for source in sources for note in source.notes]
        console.json_document({"findings": findings, "notes": notes})
    else:
        _print(findings, sources, verbose=verbose)
    if any(finding.verdict in _LOUD for finding in findings):
        raise typer.Exit(EXIT_FINDINGS)


def _sources(file: str | None, as_: str | None) -> tuple[Source, ...]:
    text_format = _format(as_)
    if file is None:
        if text_format is not None:
            raise UserError("--as is for a FILE", hint="name one, or - for stdin")
        return _here()
    source = "<stdin>" if file == "-" else file
    path = Path("/dev/stdin" if file == "-" else file)
    text = read_text(path, source=source, keep_line_ends=True)
    return (read_source(text, source, text_format),)


def _format(word: str | None) -> Format | None:
    choices = [f.value for f in Format if f is not Format.ENVIRONMENT]
    if word is not None and word not in choices:
        raise UserError(f"there is no format {word!r}", hint=choices_hint(word, choices))
    return Format(word) if word is not None else None


def _here() -> tuple[Source, ...]:
    """Return what NCCL would see in a process started here, in the order that it looks."""
    own = os.environ.get("NCCL_CONF_FILE") or "~/.nccl.conf"
    paths = {name: Path(name).expanduser() for name in (own, "/etc/nccl.conf")}
    return (
        from_environment(os.environ),
        *(
            read_source(read_text(path, source=name, keep_line_ends=True), name, Format.CONF)
            for name, path in paths.items()
            if path.is_file()
        ),
    )


def _print(findings: Sequence[LintFinding], sources: Sequence[Source], *, verbose: bool) -> None:
    for source in sources:
        for note in source.notes:
            console.warn(f"{source.name}: {note}")
    shown = [f for f in findings if verbose or f.verdict in _LOUD]
    for finding in shown:
        where = finding.source + (f":{finding.line}" if finding.line else "")
        verdict = console.coloured(finding.verdict, _COLOURS[finding.verdict])
        console.say(f"{where}: {finding.id} {verdict} {finding.name}={_shown(finding.value)}")
        console.say(*wrapped(finding.summary, "    ", "    "))
        console.say(*wrapped(finding.hint or "", "    hint: ", " " * 10))
    if shown:
        console.say("")
    console.say(_counted(findings, sources, hidden=len(findings) - len(shown)))


def _shown(value: str | None) -> str:
    if value is None:
        return "..."
    printable = "".join(char if char.isprintable() else "?" for char in value)
    cut = len(printable) > _LONGEST_VALUE
    return printable[: _LONGEST_VALUE - 3] + "..." if cut else printable


def _counted(findings: Sequence[LintFinding], sources: Sequence[Source], *, hidden: int) -> str:
    settings = sum(len(source.settings) for source in sources)
    if not settings:
        return _nothing_in(sources)
    counts = [(sum(f.verdict is v for f in findings), v) for v in (Verdict.FAIL, Verdict.WARN)]
    counted = ", ".join(f"{number} {verdict}" for number, verdict in counts if number)
    more = f"; {hidden} only worth knowing (--verbose)" if hidden else ""
    variables = "1 variable" if settings == 1 else f"{settings} variables"
    return f"{variables} looked at: {counted or 'nothing wrong'}{more}"


def _nothing_in(sources: Sequence[Source]) -> str:
    source = sources[0]
    if source.format is Format.ENVIRONMENT:
        return "no such variable is set here, nor in a nccl.conf"
    others = "|".join(f for f in Format if f not in {Format.ENVIRONMENT, source.format})
    return (
        f"no such variable found in {source.name}; it was read as {source.format} (--as {others})"
    )
