"""Read a text of any known format, or the environment of a process: settings, and what it runs.

What is filled in before a text is used is hidden first: Jinja, Helm, `${...}` in YAML or HCL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from clusterkit.core.data import read_table
from clusterkit.preflight.env_lint.setting import Format, Mistake, Setting, Source, Trait
from clusterkit.preflight.env_lint.variables import Kind, concerns_us, find_variable, meant

_PAIR = re.compile(r"\s*(export\s+)?([A-Za-z_]\w*)\s*=(.*)")
_NAMED = re.compile(
    r"^[ \t]*(?:-[ \t]+)?[\"']?(?:export\s+)?([A-Za-z_]\w*)[\"']?(=|:)", re.MULTILINE
)
_TEMPLATE = re.compile(r"\.(?:j2|jinja2?|tpl|tftpl|tmpl|gotmpl|template|erb|in)$")
_BY_NAME = tuple(
    (re.compile(row["name"]), Format(row["format"])) for row in read_table(__file__, "formats.tsv")
)
_SECTION = re.compile(r"^\[[\w.\"'-]+\]\s*$", re.MULTILINE)
_SHELL_SIGN = re.compile(
    r"^\s*(?:#!.*\bsh\b|#!.*bash|export\s|set\s|source\s|\.\s|if\b|for\b|srun\b|mpirun\b|#SBATCH)"
    r"|\$\(|\\\s*$|&&|^[A-Za-z_]\w*=\S*[ \t]+(?:[a-z./]|[A-Z_]+=)|\s-x\s",
    re.MULTILINE,
)

_EXPRESSION = re.compile(
    r"\$?\{\{(?:[^{}\n]|\{[^{}\n]*\})*\}\}"  # no line end: a shell has {{ and }} of its own
    r"|\{\{-?\s?/\*[^*]*\*/\s?-?\}\}|\{%[-+]?\s[^{}]{0,2000}?%\}|\{#-?\s[^#]*#\}"
    r"|<%[^%<\n]*+(?:(?:%(?!>)|<(?!%))[^%<\n]*+)*%>"
)
_HIDDEN = "\ue000"
"""A private character of Unicode: YAML allows it, and no value has it."""
_FILLED = {
    Format.YAML: re.compile(r"\$[\w{(]"),
    Format.TOML: re.compile(r"[$%]\{"),
}
"""What Kubernetes, compose, envsubst and Terraform put values in for."""


def read_source(text: str, name: str, as_format: Format | None = None) -> Source:
    """Return the settings of a text; its format is told from its name and its content."""
    plain = _hidden(text)
    source = _read(plain, name, as_format or guess_format(plain, name))
    return _with_context(replace(source, settings=tuple(_without_filled(source.settings))), text)


def _read(text: str, name: str, found: Format) -> Source:
    if found is Format.SHELL:
        from clusterkit.preflight.env_lint.script import read_script  # noqa: PLC0415 - nodes have none

        return read_script(_without_comments(text) if _is_dockerfile(text) else text, name)
    if found is Format.YAML:
        from clusterkit.preflight.env_lint.yaml_text import read_yaml  # noqa: PLC0415 - loads a YAML parser

        settings, notes = read_yaml(text, name)
        return Source(name=name, format=found, settings=settings, notes=notes)
    return Source(name=name, format=found, settings=tuple(_pairs(text, name, found)))


def from_environment(variables: Mapping[str, str], name: str = "environment") -> Source:
    """Return the settings of a process, or of any other mapping that nobody expands."""
    settings = tuple(
        Setting(name=key, value=value, source=name)
        for key, value in variables.items()
        if concerns_us(key)
    )
    return Source(name=name, format=Format.ENVIRONMENT, settings=settings)


def guess_format(text: str, name: str = "") -> Format:
    """Return the format of a text: `nccl.conf` by its name, else a script if it looks like one.

    The output of `env` is an env file: its first line is NAME=VALUE, with no word before.
    """
    made = _TEMPLATE.sub("", name)
    named = next((found for pattern, found in _BY_NAME if pattern.search(made)), None)
    before = {sign for variable, sign in _NAMED.findall(text) if concerns_us(variable)}
    if named is not None or before == {":"}:
        return named or Format.YAML
    if _is_toml(text):
        return Format.TOML
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if lines and sum(bool(_PAIR.match(line)) for line in lines) < len(lines) / 2:
        return Format.SHELL
    is_env_output = bool(re.search(r"^(?:PATH|HOME|PWD)=/", text, re.MULTILINE))
    if is_env_output and not re.search(r"^(?:#!|export\s)", text, re.MULTILINE):
        return Format.ENV_FILE
    return Format.SHELL if _SHELL_SIGN.search(text) else Format.ENV_FILE


def _is_toml(text: str) -> bool:
    """Tell whether our variables stand in sections, or each before ` = ` and a quoted value."""
    pairs = [found for line in text.splitlines() if (found := _PAIR.fullmatch(line))]
    ours = [found for found in pairs if concerns_us(found[2]) and not found[1]]
    apart = all(re.match(r"\s+(['\"]).*\1\s*(?:#.*)?$", found[3]) for found in ours)
    return bool(ours) and (apart or _SECTION.search(text) is not None)


def _pairs(text: str, source: str, text_format: Format) -> Iterator[Setting]:
    blocks = [0]
    for number, line in enumerate(text.split("\n"), start=1):
        if text_format is Format.TOML:
            _follow(blocks, line, number)
        match = _PAIR.fullmatch(line)
        if match is None or line.lstrip().startswith("#") or not concerns_us(match[2]):
            continue
        value = match[3] if text_format is Format.CONF else match[3].rstrip("\r")
        if text_format in {Format.PAM, Format.TOML}:
            # Linux-PAM, pam_env.c, _parse_env_file.
            value = value.partition("#")[0].strip()
            value = re.sub(r"^(['\"])(.*)\1$", r"\2", value)
        yield Setting(
            name=match[2],
            value=value,
            source=source,
            line=number,
            format=text_format,
            mistakes=tuple(_mistakes(line, match[1], match[2], value, text_format)),
            branch=((0, blocks[-1]),) if blocks[-1] else (),
        )


def _follow(blocks: list[int], line: str, number: int) -> None:
    """Keep `blocks`, the first lines of the sections and braces that are open, up to `line`.

    Variables of two of them need not be set in one process.
    """
    if _SECTION.match(line):
        blocks[:] = [0, number]
    elif re.search(r"[{]\s*$", line):
        blocks.append(number)
    elif re.match(r"\s*[}]", line) and len(blocks) > 1:
        blocks.pop()


def _mistakes(
    line: str, export: str | None, name: str, value: str, text_format: Format
) -> Iterator[Mistake]:
    if text_format is Format.TOML:
        return
    if text_format is Format.PAM:
        if re.search(rf"{re.escape(name)}\s+=", line):
            yield Mistake.SPACED
        if "$" in value or value.startswith("~/"):
            yield Mistake.UNEXPANDED
        return
    if export:
        yield Mistake.EXPORT_KEPT
    if re.search(rf"{re.escape(name)}\s+=", line) or line[:1].isspace() or value[:1].isspace():
        yield Mistake.SPACED
    if re.fullmatch(r"\s*(['\"]).*\1\s*", value):
        yield Mistake.QUOTES_KEPT
    if re.search(r"\s#", value):
        yield Mistake.COMMENT_KEPT
    if "$" in value or value.strip("'\" ").startswith("~/"):
        yield Mistake.UNEXPANDED


def _hidden(text: str) -> str:
    """Return a text with each template expression as a stand-in; no line gets another number."""
    if "{{" not in text and "{%" not in text and "<%" not in text:
        return text
    hidden = _EXPRESSION.sub(lambda found: re.sub(r"[^\n]", _HIDDEN, found[0]), text)
    # A line of expressions only is one of the template, and none of what it makes.
    return re.sub(rf"(?m)^[ \t]*{_HIDDEN}[{_HIDDEN} \t]*$", "", hidden)


def _without_filled(settings: Iterable[Setting]) -> Iterator[Setting]:
    """Yield the settings; a value that is filled in later is nobody's yet."""
    for setting in settings:
        value = setting.value or ""
        filled = _FILLED.get(setting.format)
        if _HIDDEN in setting.name:
            continue
        if _HIDDEN in value or (filled is not None and filled.search(value)):
            mistakes = tuple(m for m in setting.mistakes if m is not Mistake.UNEXPANDED)
            yield replace(setting, value=None, mistakes=mistakes)
        else:
            yield setting


def _without_comments(text: str) -> str:
    """Return a Dockerfile whose comments between continued lines end no instruction.

    Source: Dockerfile reference, "Format": such lines are removed before it is read.
    """
    lines = text.split("\n")
    for index in range(1, len(lines)):
        if lines[index - 1].rstrip().endswith("\\") and lines[index].lstrip(" \t").startswith("#"):
            lines[index] = "\\"
    return "\n".join(lines)


_PERF = re.compile(
    r"\$\{\w+\}_perf\b|\b(?:all_reduce|all_gather|reduce_scatter|alltoall|broadcast|reduce|gather|scatter|sendrecv)"
    r"_perf(?:_mpi)?\b"
)
_TRAINS = re.compile(
    r"\b(?:torchrun|torch\.distributed|deepspeed|accelerate|horovodrun|run_and_time)\b"
    r"|(?:train|tune|sft)\w{0,60}\.py\b"
)
_TRAITS = {
    Trait(row["trait"]): re.compile(row["pattern"], re.MULTILINE)
    for row in read_table(__file__, "traits.tsv")
}
_DOCKERFILE = re.compile(r"^FROM\s+[\w$.{]", re.MULTILINE)
_SHOWS = re.compile(r"\s*(?:echo\b|printf\b|#|//)")


def _is_dockerfile(text: str) -> bool:
    return _DOCKERFILE.search(text) is not None


def _with_context(source: Source, text: str) -> Source:
    """Return a source with what the whole of its text tells."""
    settings = [_marked_own(setting, text) for setting in source.settings]
    # Docker takes the carriage returns of its own files away.
    if source.format in {Format.SHELL, Format.CONF} and not _is_dockerfile(text):
        lines = text.split("\n")
        ends = ((n, s) for n, s in enumerate(settings) if s.line and lines[s.line - 1][-1:] == "\r")
        for index, setting in islice(ends, 1):
            mistakes = (*setting.mistakes, Mistake.CARRIAGE_RETURN)
            settings[index] = replace(setting, mistakes=mistakes)
    return replace(
        source, settings=tuple(settings), traits=tuple(_traits(f"{text}\n# {source.name}"))
    )


def _traits(text: str) -> Iterator[Trait]:
    if _PERF.search(text) and not _TRAINS.search(text):
        yield Trait.MEASURES
    yield from (trait for trait, sign in _TRAITS.items() if sign.search(text))


def _marked_own(setting: Setting, text: str) -> Setting:
    variable = find_variable(setting.name)
    if variable is not None and variable.kind is not Kind.TYPO:
        return setting
    # `NAME=${NAME:-VALUE}` is how a script takes an option, and how a misspelt name is copied, too.
    takes = re.search(rf"\$\{{{setting.name}:?-", text) and meant(setting.name) is None
    own = takes or _reads(text, setting.name)
    return replace(setting, mistakes=(Mistake.OWN,)) if own else setting


def _reads(text: str, name: str) -> bool:
    """Tell whether a text uses a variable: not only to show it, or to pass it on as it is."""
    used = re.compile(
        rf"(?<!\b{name}=)(?<!\b{name}=[\"'])\$\{{?{name}\b|\$\{{[#!]{name}\b"
        rf"|(?:environ(?:\.\w+)?|getenv|env)\s*[\[(]\s*[\"']{name}[\"']"
    )
    return any(
        used.search(line) for line in text.splitlines() if name in line and not _SHOWS.match(line)
    )
