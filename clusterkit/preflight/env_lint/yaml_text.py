"""Read the variables of a YAML text: of compose, Kubernetes, SkyPilot, clusterkit and their kin.

Known are `NAME: VALUE`, items `NAME=VALUE` of a list, `name: NAME` beside `value: VALUE`, and
shell scripts in block scalars (`|`), and files of any known format that are written somewhere.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml

from clusterkit.preflight.env_lint.setting import Branch, Format, Mistake, Setting
from clusterkit.preflight.env_lint.sources import guess_format, read_source
from clusterkit.preflight.env_lint.variables import concerns_us

_PAIR = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PATHS = ("path", "dest", "destination", "target", "filename")
_CONTENTS = ("content", "contents", "block", "line")
_COMMANDS = re.compile(r"(?:.*_)?(?:command|cmd|args|run|script|entrypoint|setup)s?", re.IGNORECASE)
_NULL = "tag:yaml.org,2002:null"


def read_yaml(text: str, source: str) -> tuple[tuple[Setting, ...], tuple[str, ...]]:
    """Return the settings of a text, and what is to be said of what could not be read."""
    reader = _Reader(text=text, source=source)
    try:
        for node in yaml.compose_all(text, Loader=yaml.SafeLoader):
            reader.read(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {reader.line(mark.index)}" if mark else "the text"
        return tuple(reader.found), (
            f"{where} is not valid YAML: {error.problem}; nothing after it is read",
        )
    except (yaml.YAMLError, RecursionError):
        return tuple(reader.found), ("the text is not valid YAML",)
    return tuple(reader.found), ()


@dataclass(slots=True)
class _Reader:
    text: str
    source: str
    found: list[Setting] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    """Nodes that were read: aliases lead to them again, or back into themselves."""

    def line(self, index: int) -> int:
        # YAML has more line ends than editors have.
        return self.text.count("\n", 0, index) + 1

    def read(self, node: yaml.Node | None) -> None:
        if node is None or id(node) in self.seen:
            return
        self.seen.add(id(node))
        # Variables of two mappings need not be set in one process.
        branch = ((0, len(self.seen)),)
        if isinstance(node, yaml.MappingNode):
            self._mapping(node, branch)
        elif isinstance(node, yaml.SequenceNode):
            for item in node.value:
                pair = isinstance(item, yaml.ScalarNode) and _PAIR.fullmatch(item.value)
                if pair and item.style != "|":
                    self._add(pair[1], pair[2], item, branch)
                elif isinstance(item, yaml.ScalarNode) and item.style != "|":
                    self._command(item, branch)
                else:
                    self.read(item)
        elif isinstance(node, yaml.ScalarNode) and node.style == "|":
            self._text(node, branch, Format.SHELL)

    def _mapping(self, node: yaml.MappingNode, branch: Branch) -> None:
        pairs = {
            key.value: item
            for key, item in node.value
            if isinstance(key, yaml.ScalarNode) and isinstance(item, yaml.ScalarNode)
        }
        if self._file(pairs, branch):
            return
        name, value = pairs.get("name"), pairs.get("value")
        if name is not None and value is not None:
            self._add(name.value, value.value, name, branch)
        for key, item in node.value:
            if isinstance(item, yaml.ScalarNode) and item.style == "|" and "." in str(key.value):
                # A file of a ConfigMap, by its name.
                self._text(item, branch, guess_format(item.value, str(key.value)))
            elif not isinstance(item, yaml.ScalarNode) or item.style == "|":
                self.read(item)
            elif _COMMANDS.fullmatch(str(key.value)):
                self._command(item, branch)
            elif (
                isinstance(key, yaml.ScalarNode)
                and item.tag != _NULL
                and key.value == key.value.upper()  # else a key of some program's configuration
            ):
                self._add(key.value, item.value, key, branch)

    def _file(self, pairs: Mapping[str, yaml.ScalarNode], branch: Branch) -> bool:
        """Read the content of a file, as cloud-init and Ansible write it, by what reads the file.

        Returns whether it was one.
        """
        path = next((p for k in _PATHS if k in pairs and "/" in (p := pairs[k].value)), None)
        content = next((pairs[key] for key in _CONTENTS if key in pairs), None)
        if path is None or content is None:
            return False
        self._text(content, branch, guess_format(content.value, path))
        return True

    def _command(self, node: yaml.ScalarNode, branch: Branch) -> None:
        """Read a command that stands in quotes, is folded or is plain: for what it passes on."""
        if re.search(r"\s", node.value.strip()):
            line = self.line(node.start_mark.index)
            for setting in read_source(node.value, self.source, Format.SHELL).settings:
                if Mistake.NOT_EXPORTED not in setting.mistakes:
                    arms = (*branch, *setting.branch)
                    self.found.append(dataclasses.replace(setting, line=line, branch=arms))

    def _text(self, node: yaml.ScalarNode, branch: Branch, text_format: Format) -> None:
        above = self.line(node.start_mark.index) - (node.style not in {"|", ">"})
        last = self.text.count("\n") + 1
        for setting in read_source(node.value, self.source, text_format).settings:
            line = min(above + (setting.line or 1), last)
            self.found.append(
                dataclasses.replace(setting, line=line, branch=(*branch, *setting.branch))
            )

    def _add(self, name: str, value: str, node: yaml.Node, branch: Branch) -> None:
        if concerns_us(name):
            self.found.append(
                Setting(
                    name=name,
                    value=value,
                    source=self.source,
                    line=self.line(node.start_mark.index),
                    format=Format.YAML,
                    branch=branch,
                )
            )
