"""Read the settings of a shell script: what it exports, and what it gives to one command."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field

from clusterkit.preflight.env_lint.setting import Format, Mistake, Setting, Source
from clusterkit.preflight.env_lint.shell_lexer import Command, Word, split_commands
from clusterkit.preflight.env_lint.variables import concerns_us

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
