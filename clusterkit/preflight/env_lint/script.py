"""Read the settings of a shell script: what it exports, and what it gives to one command."""

from __future__ import annotations

import dataclasses
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from clusterkit.preflight.env_lint.setting import Format, Mistake, Setting, Source
from clusterkit.preflight.env_lint.variables import concerns_us

_SEPARATORS = "\n;&|()"
_GAP = re.compile(r"(?:[ \t]|\\\n|#[^\n]*)*+")
_HEREDOC = re.compile(r"<<(?!<)(-?)[ \t]*(['\"\\]?)([A-Za-z_][\w.-]*)['\"]?")
_DEFAULT = re.compile(r"\$\{[A-Za-z_]\w*:?-([^${}`\"']+)\}")
_EXPANSION = re.compile(r"\$(?:\w+|[@*#?$!-])?")


def _parts(within: str, end: str) -> re.Pattern[str]:
    """Return what finds the parts of a word; `within` may stand in quotes, which end at `end`."""
    # (?>(?:...)*) and not (?:...)*+, which in Python 3.11.2 (Debian 12) takes the quote as well
    return re.compile(
        rf"(?P<plain>[^ \t\n;&|()'\"\\$`]+)|\\(?P<escaped>[\s\S]?)"
        rf"|(?P<opened>'(?P<single>(?>(?:(?!'){within})*))"
        rf"|\"(?P<double>(?>(?:\\{within}|(?![\"\\]){within}|\\)*))"
        rf"|`(?>(?:(?!`){within})*))(?P<closed>['\"`]|{end})"
    )


_PARTS = _parts(r"[\s\S]", r"\Z")
_PARTS_BY_LINE = _parts(r"[^\n]", r"(?=\n)|\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word, with its quotes taken away."""

    text: str
    line: int
    known: bool = True
    """False where the text depends on an expansion."""
    quoted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The words up to a separator or the end of the line."""

    words: tuple[Word, ...]
    last_line: int
    """Another one than that of the first word where lines are continued."""
    end: str = "\n"
    """What ended it: a line end or one of `;&|()`."""


def split_commands(text: str) -> tuple[tuple[Command, ...], int | None]:
    """Return the commands of a script in order, those inside `( )` and after `&&` as well.

    Quotes, escapes, comments, continued lines, here-documents (their bodies are passed over),
    `$( )`, separators, as far as a lint needs them: what it cannot follow becomes a word of unknown
    value. Source: POSIX.1-2017, Shell Command Language, 2.2 (quoting) and 2.3 (tokens).

    Beside them, the first line that opens a quote or a bracket which nothing closes, if any. Such
    a script is read as if each ended in its line: else one quote would hide all that follows.
    """
    text = text.replace("\r\n", "\n")
    scanner = _Scanner(text)
    commands = tuple(scanner.commands())
    if scanner.unclosed is not None:
        scanner = _Scanner(text, by_line=True)
        commands = tuple(scanner.commands())
    return commands, scanner.unclosed


class _Scanner:
    def __init__(self, text: str, *, by_line: bool = False) -> None:
        self.text = text
        self.by_line = by_line
        self.unclosed: int | None = None
        self.ends = [found.start() for found in re.finditer("\n", text)]

    def commands(self) -> Iterator[Command]:
        words: list[Word] = []
        pending: list[re.Match[str]] = []  # here-documents that begin on this line
        at = self._past_gap(0)
        while at < len(self.text):
            char = self.text[at]
            if char in _SEPARATORS:
                if words:
                    yield Command(words=tuple(words), last_line=self._line(at), end=char)
                words = []
                at += 1
                if char == "\n":
                    at = self._past_heredocs(pending, at)
                    pending = []
            elif heredoc := _HEREDOC.match(self.text, at):
                pending.append(heredoc)
                at = heredoc.end()
            else:
                word, at = self._word(at)
                words.append(word)
            at = self._past_gap(at)
        if words:
            yield Command(words=tuple(words), last_line=self._line(len(self.text)))

    def _line(self, at: int) -> int:
        return bisect_left(self.ends, at) + 1

    def _past_gap(self, at: int) -> int:
        gap = _GAP.match(self.text, at)
        return gap.end() if gap else at

    def _past_heredocs(self, pending: list[re.Match[str]], at: int) -> int:
        for heredoc in pending:
            tabs = r"\t*" if heredoc[1] else ""
            end = re.compile(rf"^{tabs}{re.escape(heredoc[3])}$", re.MULTILINE)
            found = end.search(self.text, at)
            at = found.end() + 1 if found else len(self.text)
        return at

    def _word(self, at: int) -> tuple[Word, int]:
        """Return the word at a place, and where it ends."""
        line, texts, known, quoted = self._line(at), [], True, False
        pattern = _PARTS_BY_LINE if self.by_line else _PARTS
        while at < len(self.text) and self.text[at] not in " \t" + _SEPARATORS:
            part = pattern.match(self.text, at)
            if part and not part["closed"] and part["opened"]:
                self._left_open(at)
            start, at = at, part.end() if part else self._past_expansion(at)
            if part and part["plain"]:
                texts.append(part["plain"])
            elif part and part["escaped"] is not None:
                texts.append(part["escaped"].strip("\n"))
            elif part and part["single"] is not None:
                texts.append(part["single"])
                quoted = True
            else:
                double = part["double"] if part else None
                quoted = quoted or double is not None
                whole = self.text[start:at] if double is None else double
                plain = whole if double is None else whole.replace("\\\n", "").replace('\\"', '"')
                text, sure = _expanded(plain)
                texts.append(text)
                known = known and sure
        return Word(text="".join(texts), line=line, known=known, quoted=quoted), at

    def _left_open(self, at: int) -> None:
        self.unclosed = self.unclosed or self._line(at)

    def _past_expansion(self, start: int) -> int:
        """Return where `$NAME`, `${...}` or `$(...)` ends."""
        bracket = self.text[start + 1 : start + 2]
        if bracket not in {"(", "{"}:
            simple = _EXPANSION.match(self.text, start)
            return simple.end() if simple else start + 1
        limit = self.text.find("\n", start) if self.by_line else -1
        limit = len(self.text) if limit < 0 else limit
        depth, closing = 0, ")" if bracket == "(" else "}"
        for found in re.compile(f"[{bracket}{closing}]").finditer(self.text, start, limit):
            depth += 1 if found[0] == bracket else -1
            if depth == 0:
                return found.end()
        self._left_open(start)
        return limit


def _expanded(text: str) -> tuple[str, bool]:
    """Return `text` with `${NAME:-VALUE}` as VALUE, and whether no other expansion is left."""
    plain = _DEFAULT.sub(r"\1", text)
    return plain, "`" not in plain and not re.search(r"\$[\w{(@*#?$!-]", plain)


_NAME = r"[A-Za-z_]\w*"
_ASSIGNMENT = re.compile(rf"({_NAME})\+?=(.*)", re.DOTALL)
_PASSED = re.compile(rf"(?:-x|-e|--env=|--x=)?({_NAME})=(.*)", re.DOTALL)
_SBATCH_EXPORT = re.compile(r"^#SBATCH\s.*?--export[= ](\S+)", re.MULTILINE)
_BEFORE_COMMANDS = frozenset({"if", "then", "else", "elif", "do", "while", "until", "!", "{"})
_EXPORTING = frozenset({"export", "declare", "typeset", "readonly", "local"})
_ONLY_TEXT = frozenset(
    {"echo", "printf", "grep", "egrep", "sed", "awk", "test", "[", "[[", "unset", "read", "cat"}
)
_PAIRS = frozenset({"-genv", "-env", "--setenv"})  # Hydra: -genv NAME VALUE; bubblewrap
_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
_HOLDS_COMMAND = re.compile(r"cmd|command|launch|run|prefix|env|arg|opt|flag|mpi", re.IGNORECASE)
"""How variables are called whose value is run, or is put into a command."""


def read_script(text: str, source: str) -> Source:
    """Return the settings of a script, in order; what it writes into here-documents is not."""
    reader = _Reader(source=source)
    commands, unclosed = split_commands(text)
    for command in commands:
        reader.read(command)
    for match in _SBATCH_EXPORT.finditer(text):
        reader.add_export_list(match[1], line=text.count("\n", 0, match.start()) + 1)
    found = [reader.exported_later(setting, text) for setting in reader.found]
    note = f"line {unclosed}: no end of a quote or a bracket is found; taken to end in its line"
    return Source(
        name=source,
        format=Format.SHELL,
        settings=tuple(sorted(found, key=lambda setting: setting.line or 0)),
        notes=() if unclosed is None else (note,),
    )


@dataclass(slots=True)
class _Reader:
    source: str
    found: list[Setting] = field(default_factory=list)
    exported: set[str] = field(default_factory=set)
    blocks: list[tuple[int, int]] = field(default_factory=list)
    case_blocks: set[int] = field(default_factory=set)
    opened: int = 0
    export_all: bool = False
    chain_until: int = -1
    """Last line of an `export` over several lines; what follows it may have been meant too."""

    def read(self, command: Command) -> None:
        if command.end == ")" and self.blocks and self.blocks[-1][0] in self.case_blocks:
            self._next_arm()  # the pattern of an arm
            return
        words = self._past_keywords(command.words)
        if not words:
            return
        head = words[0].text
        if head == "ARG":  # of a Dockerfile: known while it is built only
            return
        if head in _EXPORTING:
            self._export(words, command)
        elif head in {"setenv", "ENV"} and len(words) > 2 and "=" not in words[1].text:
            # csh, modules and Dockerfiles
            self._add(words[2], words[2].text, name=words[1].text)
        elif head == "set":
            self._set(words[1:])
        elif (
            head not in _ONLY_TEXT
            and re.fullmatch(_NAME, head)
            and len(words) > 1
            and words[1].text.startswith("=")
        ):
            self._add(words[0], "".join(w.text for w in words[1:3]).lstrip("="), Mistake.SPACED)
        else:
            self._command(words, command)

    def _past_keywords(self, words: tuple[Word, ...]) -> tuple[Word, ...]:
        while words and not words[0].quoted:
            head = words[0].text
            if head in {"if", "case"}:
                self.opened += 1
                self.blocks.append((self.opened, 0))
                if head == "case":
                    self.case_blocks.add(self.opened)
                    return ()
            elif head in {"fi", "esac", "endif"}:
                if self.blocks:
                    self.blocks.pop()
            elif head in {"else", "elif"}:
                self._next_arm()
            if head not in _BEFORE_COMMANDS:
                break
            words = words[1:]
        return words

    def _next_arm(self) -> None:
        if self.blocks:
            block, arm = self.blocks[-1]
            self.blocks[-1] = (block, arm + 1)

    def _set(self, given: tuple[Word, ...]) -> None:
        words = [word.text for word in given]
        options = [word for word in words if word.startswith("-")]
        rest = given[len(options) :]
        if len(rest) > 1 and any("x" in option for option in options):  # fish
            self._add(rest[1], rest[1].text, name=rest[0].text)
            return
        for word in words:
            if word in {"-a", "allexport"} or (word.startswith("-") and "a" in word[1:]):
                self.export_all = "+o" not in words
            elif word.startswith("+") and "a" in word:
                self.export_all = False

    def _export(self, words: tuple[Word, ...], command: Command) -> None:
        options = [word.text for word in words[1:] if word.text.startswith("-")]
        exports = words[0].text == "export" or any("x" in option for option in options)
        rest = [word for word in words[1:] if not word.text.startswith("-")]
        if exports and (command.last_line > command.words[0].line or any(_blank(w) for w in rest)):
            self.chain_until = command.last_line
        for index, word in enumerate(rest):
            after = rest[index + 1] if index + 1 < len(rest) else None
            assigned = _ASSIGNMENT.fullmatch(word.text)
            name = assigned[1] if assigned else word.text
            if exports:
                self.exported.add(name)
            if after is not None and self._split_assignment(word, after):
                meant = "".join(w.text for w in rest[index + 1 : index + 3]).removeprefix("=")
                self._add(word, meant, Mistake.SPACED, name=name)
            elif assigned:
                mistakes = () if exports or self.export_all else (Mistake.NOT_EXPORTED,)
                self._add(word, assigned[2], *mistakes, name=name)

    def _split_assignment(self, word: Word, after: Word) -> bool:
        if after.text.startswith("="):
            return "=" not in word.text
        return (
            word.text.endswith("=")
            and not word.quoted
            and not _blank(after)
            and not re.fullmatch(rf"{_NAME}(=.*)?", after.text, re.DOTALL)
        )

    def _command(self, words: tuple[Word, ...], command: Command) -> None:
        prefix = 0
        while prefix < len(words) and _ASSIGNMENT.fullmatch(words[prefix].text):
            prefix += 1
        mistakes: tuple[Mistake, ...] = ()
        if prefix == len(words) and not self.export_all:
            follows = command.words[0].line == self.chain_until + 1
            mistakes = (Mistake.CHAIN_ENDED,) if follows else (Mistake.NOT_EXPORTED,)
            self.chain_until = command.last_line if follows else -1
        for word in words[:prefix]:
            name, _, value = word.text.partition("=")
            self._add(word, value, *mistakes, name=name.removesuffix("+"))
            if word.quoted and _HOLDS_COMMAND.search(name) and not concerns_us(name):
                self._inner(word, value)
        if prefix < len(words) and words[prefix].text not in _ONLY_TEXT:
            self._passed_on(words[prefix:])

    def _inner(self, word: Word, text: str, mistakes: tuple[Mistake, ...] | None = ()) -> None:
        """Read a script inside a word: `CMD="NAME=VALUE python"`, `bash -c "export NAME=VALUE"`.

        `mistakes` are those of what it sets; None leaves them as they are.
        """
        if "=" not in text or not re.search(r"\s", text.strip()):
            return
        for one in read_script(text, self.source).settings:
            line = word.line + (one.line or 1) - 1
            kept = one.mistakes if mistakes is None else mistakes
            here = dataclasses.replace(one, line=line, mistakes=kept, branch=tuple(self.blocks))
            self.found.append(here)

    def _passed_on(self, words: tuple[Word, ...]) -> None:
        shell = next((n for n, w in enumerate(words) if w.text.rpartition("/")[2] in _SHELLS), -1)
        for index, word in enumerate(words):
            if 0 <= shell < index and re.fullmatch(r"-\w*c", words[index - 1].text):
                self._inner(word, word.text, None)
            elif word.text.startswith("--export="):
                self.add_export_list(word.text.removeprefix("--export="), line=word.line)
            elif word.text in _PAIRS and index + 2 < len(words):
                self._add(words[index + 2], words[index + 2].text, name=words[index + 1].text)
            elif words[index - 1].text == "--env" or word.text.startswith("--env="):
                # Of Apptainer and torchx, with commas between.
                for part in re.split(rf",(?={_NAME}=)", word.text):
                    if match := _PASSED.fullmatch(part):
                        self._add(word, match[2], name=match[1])
            elif match := _PASSED.fullmatch(word.text):
                self._add(word, match[2], name=match[1])

    def add_export_list(self, text: str, *, line: int) -> None:
        """Add what Slurm's `--export=ALL,NAME=VALUE,...` sets."""
        for part in text.strip("'\"").split(","):
            name, equals, value = part.partition("=")
            if equals:
                known = "$" not in value and "`" not in value
                self._add(Word(text=value, line=line, known=known), value, name=name)

    def _add(self, word: Word, value: str, *mistakes: Mistake, name: str | None = None) -> None:
        name = name if name is not None else word.text
        if not concerns_us(name):
            return
        if word.quoted and value.startswith("~/"):
            mistakes = (*mistakes, Mistake.UNEXPANDED)
        self.found.append(
            Setting(
                name=name,
                value=value if word.known else None,
                source=self.source,
                line=word.line,
                format=Format.SHELL,
                mistakes=mistakes,
                branch=tuple(self.blocks),
            )
        )

    def exported_later(self, setting: Setting, text: str) -> Setting:
        """Return `setting` without the charge that nobody exports it, where somebody does."""
        if not {Mistake.NOT_EXPORTED, Mistake.CHAIN_ENDED} & set(setting.mistakes):
            return setting
        name = re.escape(setting.name)
        used = re.search(rf"\$\{{?{name}\b", text)
        # `for name in NCCL_DEBUG NCCL_ALGO; do ... "${!name}"`
        listed = "${!" in text and re.search(rf"(?<![\w$=]){name}(?![\w=])", text)
        if setting.name in self.exported or used or listed:
            return dataclasses.replace(setting, mistakes=())
        return setting


def _blank(word: Word) -> bool:
    return not word.text.strip()
