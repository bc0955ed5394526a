"""Run a verb on the login node of its cluster, where the cluster has `login` and we are elsewhere.

The same command line runs there, in the clusterkit there, with the cluster as it is configured
here but for `login`; its output, exit code, terminal and Ctrl-C are those of this process. What a
job runs is sent before, into a folder that no later submission changes. Nothing that comes back is
acted on, and a terminal gets no more of it than colours and movements of the cursor.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
import secrets
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from clusterkit.cli.frame import console
from clusterkit.cli.frame.main import ASKS_NOBODY, MARK, verb_of
from clusterkit.cli.frame.usage import own_words
from clusterkit.config import sources
from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.core.records import record_of
from clusterkit.core.text import harmless, size_in_words
from clusterkit.core.version import __version__

if TYPE_CHECKING:
    from clusterkit.config.settings import Settings
    from clusterkit.core.model import ClusterSpec
    from clusterkit.transport.login import LoginNode

_CONFIG_FILE = "--config-file"
_FLAGS = ("CONTAINER", "ENV", "EXCLUDE", "FRAMEWORK", "NAME", "NODES", "PREFLIGHT", "REQUEUE")
"""Variables of flags (`config/variables.tsv`), which count there as they do here."""
_WRITES = frozenset({
    "--html", "--plot", "--save", "--write-hostfile", "--write-excluded", "--prometheus",
    "--spool", "--output", "-o",
})  # fmt: skip
"""Flags that name what a verb writes: it is brought from there."""
_READ_BY_VERB = frozenset({"exec", "forward", "rerun", "shell"})
_LOCAL_JOB = re.compile(r"(local|ssh)-[0-9a-f]{6}")
_HOME = '"$HOME"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """A cluster that is used through its login node."""

    cluster: str
    login: str
    venv: str
    program: str
    """Where clusterkit is in that environment, as a word of a shell."""
    run_dir: str
    configuration: str
    """The text of the one for there."""

    @classmethod
    def of(cls, settings: Settings, spec: ClusterSpec) -> Relay:
        """Return the way to a cluster that has `login`."""
        from clusterkit.core.shell import quote_path

        return cls(
            cluster=spec.name,
            login=spec.login or "",
            venv=spec.venv,
            program=quote_path(f"{spec.venv}/bin/clusterkit"),
            run_dir=spec.run_dir,
            configuration=files.json_text(_document(settings, spec)),
        )

    def node(self) -> LoginNode:
        """Return the login node."""
        from clusterkit.transport.login import LoginNode

        return LoginNode(self.login)

    def script(
        self,
        words: Sequence[str],
        *,
        folder: str = _HOME,
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Return what bash runs there for a command line of clusterkit, in `folder` (a word)."""
        text = self.configuration
        name = f"{self.cluster}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.yaml"
        more = variables or {}
        missing = (
            f"error: {self.login}: there is no clusterkit in {self.venv}, nor on PATH\n"
            f"hint: clusterkit nodes prepare --cluster {self.cluster}\n"
        )
        write = f'printf %s {shlex.quote(text)} >"$c.$$" && mv "$c.$$" "$c"'
        lines = (
            f"ck={self.program}",
            '[ -x "$ck" ] || ck=$(command -v clusterkit) || {',
            f"printf %s {shlex.quote(missing)} >&2; exit 2; }}",
            f'd="$HOME"/.clusterkit/relay; c="$d"/{shlex.quote(name)}',
            '[ -O "$d" ] && [ -f "$c" ] || (',  # as for most commands, which start nothing for this
            f'umask 077; mkdir -p "$d" && [ -O "$d" ] && {write}',
            ") || exit 2",
            f"cd {folder} || exit 2",
            'export CLUSTERKIT_CONFIG_FILE="$c"',
            *(f"export {name}={shlex.quote(value)}" for name, value in more.items()),
            f"export {MARK}={shlex.quote(f'{__version__} {self.cluster}')}",
            f'exec "$ck" {shlex.join(words)}',
        )
        return "\n".join(lines)

    def place(self, folder: Path) -> str:
        """Return where the login node keeps what is sent of a folder of this user and machine."""
        from clusterkit.jobs.submit import provenance

        whose = f"{socket.gethostname()}:{os.getuid()}:{folder}"
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).strip("-.") or "folder"
        key = hashlib.sha256(whose.encode(errors="surrogateescape")).hexdigest()[:12]
        return f"{self.run_dir}/{provenance.SENT}/{name}-{key}"


def relayed(arguments: Sequence[str], kind: str) -> int | None:
    """Run a command line on a login node and return its exit code; None where it is to run here.

    `kind` says what of its verb is relayed (`verbs.tsv`).

    Raises:
        UserError: the configuration has errors, or what is to be sent cannot be.
        RemoteError: the login node cannot be reached, or the connection broke.
    """
    before, words = _parted(arguments)
    if kind not in {"yes", "code"} and not {*words[1:2]} & {*kind.split()}:
        return None
    if not sources.may_have("login", Path.cwd(), os.environ):
        return None
    given = _at_a_glance(words) if kind == "yes" else None
    found = None if given is None else _remembered(dict(given).get("--cluster"))
    if found is None:
        given = [*own_words(words[1:], _command_of(words[0]))]
        if ASKS_NOBODY & {flag for flag, _ in given}:
            return None
        found = _relay_of(words[0], given)
    if found is None or given is None:
        return None
    node, folder, inside = found.node(), "~/", ""
    node.open()
    if kind == "code":
        folder, inside, words = _send(found, node, words, given)
    where = f"{folder}/{inside}" if inside else folder
    debug = [word for word in before if word == "--debug"]
    code = _run(found, node, [*debug, *words], where, given)
    for flag, value in given:
        if flag in _WRITES and value:
            _bring(found, node, where, value)
    return code


def _at_a_glance(words: Sequence[str]) -> list[tuple[str, str]] | None:
    """Return which cluster a command line names; None where the verb itself has to read it.

    Verbs load what they need to be read only where that is needed: this is half of the time.
    """
    before = words[1 : words.index("--")] if "--" in words else words[1:]
    if words[0] in _READ_BY_VERB or any(_is_special(word) for word in before):
        return None
    for word, following in pairwise((*before, "")):
        name, equals, value = word.partition("=")
        if name in {"--cluster", "-c"}:
            return [("--cluster", value if equals else following)]
    return []


def _is_special(word: str) -> bool:
    """Tell whether a word may name what is written, or a job or a file that is here."""
    written = word.partition("=")[0] in _WRITES or (word[:2] in {"-c", "-o"} and len(word) > 2)
    return written or bool(_LOCAL_JOB.fullmatch(word)) or os.path.exists(word)  # noqa: PTH110


def relay_for(job: str) -> Relay | None:
    """Return the login node that knows a job; None where this machine does.

    Raises:
        UserError: the configuration has errors.
    """
    has_login = sources.may_have("login", Path.cwd(), os.environ)
    return _relay_of("fetch", [("", job)]) if has_login else None


def _parted(arguments: Sequence[str]) -> tuple[Sequence[str], list[str]]:
    """Return the words before the verb, and those from it on."""
    at = arguments.index(verb_of(arguments) or "")
    before = arguments[:at]
    for word, following in pairwise((*before, "")):
        if word.startswith(_CONFIG_FILE):
            os.environ["CLUSTERKIT_CONFIG_FILE"] = word.partition("=")[2] or following
    return before, [*arguments[at:]]


def _memo(cluster: str | None) -> Path | None:
    """Return where a `Relay` stands that was made from the same; None without a home."""
    home = sources.cache_folder(os.environ)
    configured = sources.configured(Path.cwd(), os.environ)
    variables = sorted(item for item in os.environ.items() if item[0].startswith(sources.PREFIX))
    made_of = repr((__version__, cluster, [*configured.items()], variables))
    key = hashlib.sha256(made_of.encode(errors="surrogateescape")).hexdigest()[:32]
    return None if home is None else home / "relay" / f"{key}.json"


def _remembered(cluster: str | None) -> Relay | None:
    path = _memo(cluster)
    return None if path is None else record_of(Relay, files.read_json(path, own=True))


def _command_of(verb: str) -> Any:
    from clusterkit.cli.frame.main import command_of

    return command_of(verb)


def _relay_of(verb: str, given: Sequence[tuple[str, str]]) -> Relay | None:
    from clusterkit.config.load import load_settings

    settings = load_settings()
    named = _cluster_named(given)
    spec = settings.cluster(named)
    if spec.login is not None and (memo := _memo(named)) is not None:
        with suppress(UserError):  # then it is made again each time
            files.create_folder(memo.parent)
            files.write_json(memo, asdict(Relay.of(settings, spec)))
    job = next((word for flag, word in given if not flag), None)
    if job is not None and verb not in {"submit", "bench", "nodes"}:
        if _LOCAL_JOB.fullmatch(job) or Path(job).exists():
            return None
        others = [one for one in settings.clusters.values() if one.login is not None]
        if spec.login is None and len(others) == 1 and not _is_known_here(job, settings):
            spec = others[0]
    return None if spec.login is None else Relay.of(settings, spec)


def _is_known_here(job: str, settings: Settings) -> bool:
    from clusterkit.jobs.find import find_runs, run_roots

    here = (one for one in settings.clusters.values() if one.login is None)
    try:
        find_runs(job, run_roots(here))
    except UserError:
        return False
    return True


def _cluster_named(given: Sequence[tuple[str, str]]) -> str | None:
    flags = dict(given)
    named = flags.get("--cluster") or flags.get("-c")
    if named is None and (file := flags.get("--job")):
        from clusterkit.launch.jobfile import load_job_file

        with suppress(UserError, OSError):  # the verb says what is wrong with it
            named = load_job_file(Path(file)).values.get("cluster")
    return named


def _document(settings: Settings, spec: ClusterSpec) -> dict[str, Any]:
    """Return the configuration for there: this cluster as it was given, without `login`."""
    prefix = f"clusters.{spec.name}."
    keys = {
        key.removeprefix(prefix).partition(".")[0]
        for key in settings.origins
        if key.startswith(prefix)
    }
    values = {key: files.plain(getattr(spec, key)) for key in sorted(keys - {"login", "venv"})}
    if "port_range" in values:
        values["port_range"] = "-".join(map(str, values["port_range"]))
    top = {"default_cluster": spec.name}
    if settings.default_framework is not None:
        top["default_framework"] = settings.default_framework
    return {**top, "clusters": {spec.name: values}}


def _send(
    relay: Relay, node: LoginNode, words: Sequence[str], given: Sequence[tuple[str, str]]
) -> tuple[str, str, list[str]]:
    """Send the code of a job.

    Returns:
        The folder there, where in it this one is, and the command line without `--sync`.
    """
    from clusterkit.core.model import SYNC_LIMIT_MIB
    from clusterkit.jobs.submit import provenance
    from clusterkit.jobs.submit.snapshot import root_of
    from clusterkit.transport.sync.deliver import PRIVATE, Place, deliver
    from clusterkit.transport.sync.manifest import read_manifest

    flags = dict(given)
    here = Path.cwd().resolve()
    named = flags.get("--sync")
    folder = Path(named).expanduser().resolve() if named else root_of(here)
    limit = flags.get("--sync-limit") or str(SYNC_LIMIT_MIB)
    if not limit.isascii() or not limit.isdigit():
        raise UserError(f"--sync-limit {limit}: not a whole number", hint="--sync-limit 500")
    manifest = read_manifest(folder, limit_mib=int(limit))
    place = relay.place(folder)
    copy = f"{place}/{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    helper = node.helper()
    there = Place(folder=f"{place}/tree", snapshot=copy, folder_mode=PRIVATE)
    with console.progress(quiet="--json" in flags) as show:

        def on_sent(size: int, whole: int) -> None:
            show(f"{size_in_words(size)} of {size_in_words(whole)} sent to {relay.login}")

        sent = deliver(helper, manifest, there, on_sent=on_sent)
    told = {**provenance.of_code(here), provenance.OF_ONE_JOB: words[0] == "submit"}
    helper.ask("write", path=f"{copy}.json", text=files.json_text(told))
    helper.talk.end_input()
    if sent.files and "--json" not in flags:
        count = f"{sent.files} file{'s' * (sent.files != 1)}"
        console.note(f"sent {count}, {size_in_words(sent.size)}, to {relay.login}")
    inside = str(here.relative_to(folder)) if here.is_relative_to(folder) else "."
    return copy, "" if inside == "." else inside, [*without(words, {"--sync", "--sync-limit"})]


def without(words: Sequence[str], flags: set[str]) -> Iterator[str]:
    """Yield a command line without these flags and their values, up to its script."""
    remaining = iter(words)
    taken = [*own_words(words[1:], _command_of(words[0]))]
    count = sum(1 for flag, _ in taken if flag in flags)
    for word in remaining:
        if count and word.partition("=")[0] in flags:
            count -= 1
            if "=" not in word:
                next(remaining, None)
            continue
        yield word


def _run(
    relay: Relay,
    node: LoginNode,
    words: Sequence[str],
    folder: str,
    given: Sequence[tuple[str, str]],
) -> int:
    """Run clusterkit there with the streams of this process; return its exit code."""
    verb = next(word for word in words if word != "--debug")
    raw = verb == "shell" or (
        verb == "exec" and bool({"--tty", "-t"} & {flag for flag, _ in given})
    )
    terminal = raw or (verb != "exec" and _has_terminal())
    variables = {
        name: value
        for name in ("NO_COLOR", *(f"CLUSTERKIT_{flag}" for flag in _FLAGS))
        if (value := os.environ.get(name))
    }
    extra: tuple[str, ...] = ()
    if verb == "forward":
        extra = _forwarding(given)
    script = relay.script(words, folder=_word(folder), variables=variables)
    argv = node.argv(script, terminal=terminal, extra=extra)
    code = _attached(argv, reads=terminal or verb == "exec", raw=raw)
    node.require(code)
    return code


def _word(folder: str) -> str:
    """Return a folder there as a word of a shell; for most verbs nothing is loaded for that."""
    if folder == "~/":
        return _HOME
    from clusterkit.core.shell import quote_path

    return quote_path(folder)


def _forwarding(given: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return what lets a port of this machine lead to the same one of the login node."""
    ports = [word for flag, word in given if not flag][1:2]
    local = ports[0].partition(":")[0] if ports else ""
    if not (local.isascii() and local.isdigit() and 0 < int(local) < 1 << 16):
        raise UserError("forward: name the port of this machine", hint="forward JOB 8888:6006")
    # Of a shared connection it would outlive this command.
    return ("-S", "none", "-o", "ExitOnForwardFailure=yes", "-L", f"{local}:localhost:{local}")


def _has_terminal() -> bool:
    """Tell whether somebody sits at a terminal, and this command is not in the background."""
    try:
        return sys.stdin.isatty() and sys.stdout.isatty() and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _attached(argv: Sequence[str], *, reads: bool, raw: bool) -> int:
    """Run ssh with our streams, of which a terminal gets only what is harmless; return its code."""
    from clusterkit.transport.process import tied

    sys.stdout.flush()
    shown = [not raw and stream.isatty() for stream in (sys.stdout, sys.stderr)]
    pipes = [subprocess.PIPE if one else None for one in shown]
    with subprocess.Popen(
        tied(argv, signal.SIGTERM),
        stdin=None if reads else subprocess.DEVNULL,
        stdout=pipes[0],
        stderr=pipes[1],
    ) as process:
        streams = ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
        threads = [
            threading.Thread(target=_show, args=(source, target), daemon=True)
            for source, target in streams
            if source is not None
        ]
        for thread in threads:
            thread.start()
        try:
            code = process.wait()
        except BaseException:
            process.terminate()  # and the other side notices that nobody listens
            process.wait()
            raise
        for thread in threads:
            thread.join()
    return code if code >= 0 else 128 - code


def _show(source: IO[bytes], target: Any) -> None:
    screen = Screen()
    while data := os.read(source.fileno(), 1 << 15):
        target.write(screen.shown(data))
        target.flush()


class Screen:
    """What of a stream of bytes a terminal gets."""

    _OURS = re.compile(r"\x1b\[(?:[0-9;]{0,24}[A-HJKm]|\?(?:25|1049)[hl])|[\r\b]")
    """Colours, movements of the cursor, erasing, another screen: what `top` and progress need."""
    _OPEN = re.compile(r"\x1b(?:\[[?0-9;]{0,24})?\Z")

    def __init__(self) -> None:
        """Have seen nothing yet."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def shown(self, data: bytes) -> str:
        r"""Return the next piece; a sequence that may go on comes with the piece after.

        >>> screen = Screen()
        >>> screen.shown(b"\x1b]0;owned\x07 \x1b[31mred\x1b[")
        '?]0;owned? \x1b[31mred'
        >>> screen.shown(b"0m")
        '\x1b[0m'
        """
        text = self._rest + self._decoder.decode(data)
        cut = self._OPEN.search(text)
        self._rest = text[cut.start() :] if cut else ""
        text = text[: cut.start()] if cut else text
        found, at = [], 0
        for match in self._OURS.finditer(text):
            found += [harmless(text[at : match.start()]), match[0]]
            at = match.end()
        return "".join((*found, harmless(text[at:])))


def _bring(relay: Relay, node: LoginNode, folder: str, name: str) -> None:
    """Bring what a verb has written there under a relative name."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or name.startswith("~"):
        console.note(f"{name} was written on {relay.login}")
        return
    from clusterkit.cli.frame.receive import receive

    receive(node.helper(), folder, [name], Path.cwd())


def begin_relayed(mark: str) -> None:
    """Be the other end, as the caller's `mark` says: of the same version, and ended with it.

    Without a terminal, sshd leaves what it started alone when the connection ends; then nobody
    reads our output any more, which is noticed here and taken as Ctrl-C.

    Raises:
        UserError: the caller is of another version.
    """
    version, _, cluster = mark.partition(" ")
    if version != __version__:
        raise UserError(
            f"clusterkit {__version__} is on the login node, and {version} here",
            hint=f"clusterkit nodes prepare --cluster {cluster}",
        )
    if not sys.stdout.isatty():
        threading.Thread(
            target=_end_with_reader, args=(os.dup(1), os.getpid()), daemon=True
        ).start()


def _end_with_reader(stream: int, pid: int) -> None:
    watch = select.poll()
    watch.register(stream, 0)  # its reader has gone: POLLERR, POLLHUP
    watch.poll()
    os.kill(pid, signal.SIGTERM)
