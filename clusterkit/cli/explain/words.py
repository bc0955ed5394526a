"""What no list has, and is explained: verbs, flags, GPUs, strategies, exit codes, errors."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from clusterkit.cli.explain.topic import Topic, filled, paragraphs, table, texts
from clusterkit.cli.frame.main import VERBS, command_of
from clusterkit.core.errors import UserError
from clusterkit.estimate.machines.gpus import Gpu, gpu_named
from clusterkit.estimate.strategies import STRATEGIES, strategy_named
from clusterkit.executors.slurm.pending import meaning
from clusterkit.executors.slurm.states import explained
from clusterkit.launch.frameworks import framework_names
from clusterkit.observe.diagnose.rules import Rule, own_rules
from clusterkit.preflight.probes.gpu.kernel_log import Xid, XidAction, xid_action, xid_name

_MOST_RULES = 12
_SIGNALLED = 128
_LAST_CODE = 255
_CODE_OF = re.compile(r"exit(?:ed)?[ _-]?(?:code|status|with)?[ =:]+(?=-?\w)", re.IGNORECASE)
_XID = re.compile(r"xid[ :=#]*([0-9]{1,3})", re.IGNORECASE)
_WORD = re.compile(r"[a-z0-9]+")
_KEY = re.compile(r"[A-Za-z][\w-]*")
_OF_LAUNCHER = "`--{flag}` of its launcher (docs/how-to/frameworks.md has the keys of our own)"
_SETTINGS = {"sbatch": "`--{key}` of sbatch", **dict.fromkeys(framework_names(), _OF_LAUNCHER)}
"""Before the dot of `--set`, and what becomes of the key behind it."""
_MOST_ADVICE = 3
"""Rules of which the advice is shown beside what they mean."""
_HIDDEN = re.compile(r":(?: ?\{\w+\})+$| \(\{\w+\}\)")
"""What a title tells only of a log: at its end, or in brackets."""
_FIELD = re.compile(r"\{(\w+)\}")
_SHOWN = re.compile(r"\{\w+\}(?: \{\w+\})*")
_COMMAND_LINE = {126: "the command cannot be executed", 127: "the command was not found"}
"""As a shell has it (POSIX, XCU 2.8.2)."""


def topic_of(word: str) -> Topic | None:
    """Return what is known of a word that is no topic; None for nothing."""
    ways: tuple[Callable[[str], Topic | None], ...]
    ways = (
        *(_verb, _exit_code, _slurm_state, _pending_reason, _setting, _gpu, _flag),
        *(_strategy, _strategies, _xid, _error, _flag_of_estimate),
    )
    for way in ways:
        with suppress(UserError):
            if (topic := way(word.strip())) is not None:
                return topic
    return None


def _verb(word: str) -> Topic | None:
    name = word.lower().replace("_", "-")
    if name not in VERBS:
        return None
    about = [" ".join(part.split()) for part in (command_of(name).help or "").split("\n\n")]
    more = f"Its flags: `clusterkit {name} --help`."
    return Topic(name=name, summary=about[0], text=paragraphs(*about, more))


def _flag_of_estimate(word: str) -> Topic | None:
    return _flag(word, "estimate")


def _flag(word: str, verb: str = "submit") -> Topic | None:
    name = "--" + word.lower().lstrip("-").replace("_", "-")
    for option in command_of(verb).params:
        if name in option.opts:
            about = " ".join(str(getattr(option, "help", "")).split())
            text = paragraphs(about, f"A flag of `clusterkit {verb}`.")
            return Topic(name=name, summary=about, text=text)
    return None


def _setting(word: str) -> Topic | None:
    """Return what `--set OWNER.KEY` does, such as `torchrun.tee`; None for another word."""
    name = word.partition("=")[0].strip()
    owner, dot, key = name.partition(".")
    if not dot or owner not in _SETTINGS or not _KEY.fullmatch(key):
        return None
    given = _SETTINGS[owner].format(key=key, flag=key.replace("_", "-"))
    about = next(option for option in command_of("submit").params if "--set" in option.opts)
    text = paragraphs(
        f"`--set {name}=VALUE` of a job, or `set:` in a job file: {given}.",
        " ".join(str(getattr(about, "help", "")).split()),
        f"More of it: `clusterkit explain {owner}`." if owner != "sbatch" else "",
    )
    return Topic(name=word, summary=f"a setting of {owner}", text=text)


def _exit_code(word: str) -> Topic | None:
    word = _CODE_OF.sub("", word)
    name = word.upper()
    if name in signal.Signals.__members__:
        code = _SIGNALLED + signal.Signals[name]
    elif re.fullmatch(r"[0-9]{1,3}", word) and int(word) <= _LAST_CODE:
        code = int(word)
    elif re.fullmatch(r"-[0-9]{1,2}", word):  # as Python and torchrun tell of signals
        code = _SIGNALLED - int(word)
    else:
        return None
    return Topic(
        name=str(code) if name.isdigit() else name,
        summary=f"exit code {code}",
        text=paragraphs(
            f"As the exit code of a job: {_meaning(code)}.",
            _of_ours(code),
            "Why a job ended so: `clusterkit diagnose JOB`." if code else "",
            "All of them: `clusterkit explain exit-codes`.",
        ),
    )


def _meaning(code: int) -> str:
    known = texts("job-exit-codes").get(str(code)) or _COMMAND_LINE.get(code)
    if known or code == 0:
        return known or "it succeeded"
    with suppress(ValueError):
        if code > _SIGNALLED:
            number = signal.Signals(code - _SIGNALLED)
            return f"{number.name}: a process was ended by signal {number.value}"
    return "the command's own"


def _of_ours(code: int) -> str:
    ours = texts("exit-codes").get(str(code))
    return f"Of clusterkit itself: {ours}." if ours else ""


def _gpu(word: str) -> Topic | None:
    if ":" in word or len(word) < 3:
        return None
    gpu = gpu_named(word)
    text = table(_figures(gpu)) + f"\n\nWhat fits on it: clusterkit estimate --gpu {gpu.name}"
    return Topic(name=gpu.name, summary="a GPU", text=text, group="gpus")


def _figures(gpu: Gpu) -> Iterator[tuple[str, str]]:
    yield "memory", f"{gpu.memory_gb:g} GB, {gpu.memory_gbs:g} GB/s"
    yield "16 bits", f"{gpu.half_tflops:g} TFLOP/s" + ("" if gpu.has_bf16 else ", without bf16")
    if gpu.fp8_tflops is not None:
        yield "8 bits", f"{gpu.fp8_tflops:g} TFLOP/s"
    if gpu.nvlink_busbw_gbs is not None:
        yield "in a node", f"{gpu.nvlink_busbw_gbs:g} GB/s by NVLink or xGMI (bus bandwidth)"
    yield "otherwise", f"PCIe {gpu.pcie_gen}"


def _strategy(word: str) -> Topic | None:
    named = strategy_named(word).name
    summary = next(one.summary for one in STRATEGIES if one.name == named)
    name = "".join(word.split())
    about, _, command = texts("strategies").get(named, "").partition(" Start it: ")
    text = paragraphs(f"A strategy: {summary}.", about)
    text += f"\n\n  {command.strip('`.')}" * bool(command)
    text += f"\n\nWhat it needs: clusterkit estimate --strategy {name} ..."
    return Topic(name=name, summary=summary, text=text, group="strategies")


def _strategies(word: str) -> Topic | None:
    """Return the strategies whose names begin with this word, where there are several."""
    alike = [one for one in STRATEGIES if len(word) > 2 and one.name.startswith(word.lower())]
    if len(alike) < 2:
        return None
    listed = table((one.name, one.summary) for one in alike)
    said = filled("Strategies, each of which `clusterkit explain NAME` tells more of:")
    return Topic(name=word, summary="strategies", text=f"{said}\n\n{listed}", group="strategies")


def _slurm_state(word: str) -> Topic | None:
    """Return what a state of Slurm's means, by its name or short form, such as `CG`."""
    if (state := explained(word)) is None:
        return None
    name, ours, words = state
    text = paragraphs(
        f"A state of jobs in Slurm (squeue, sacct): the job {words}.",
        f"clusterkit calls it {ours}: `clusterkit explain {ours}`.",
    )
    return Topic(name=name, summary=words, text=text)


def _xid(word: str) -> Topic | None:
    """Return what an error of NVIDIA's driver means, by its number, such as `Xid 79`."""
    numbered = _XID.fullmatch(word)
    if numbered is None:
        return None
    xid = Xid(code=int(numbered[1]), bus="", count=1, detail="")
    name, action = xid_name(xid), xid_action(xid)
    if name == f"Xid {xid.code}" and action is XidAction.WATCH:
        return None
    text = paragraphs(
        f"An error that NVIDIA's driver writes to the kernel's log: {name}.",
        f"What it asks for: {action}.",
        "Which nodes have had one since boot: `clusterkit preflight --select gpu-xid`.",
    )
    return Topic(name=f"Xid {xid.code}", summary=name, text=text)


def _pending_reason(word: str) -> Topic | None:
    """Return why Slurm lets a job wait, by its own word for it, such as `Resources`."""
    waits = meaning(word, "JOB") or meaning(word.replace("_", " "), "JOB")
    if waits is None:
        return None
    text = paragraphs(
        f"A reason for which Slurm lets a job wait: {waits}.",
        "`clusterkit status JOB` shows it, and when Slurm expects the job to start.",
    )
    return Topic(name=word, summary=waits, text=text)


def _error(word: str) -> Topic | None:
    """Return the rules of `diagnose` in whose name, title or examples these words stand.

    Several words may stand in a name in any order, and apart: `nccl timeout`.
    In an example, which is of somebody's log, a single word of small letters says nothing of the
    error: it may be a module, a file, a person. A name such as `ncclSystemError` or `SIGBUS` does.
    """
    wanted = re.compile(rf"(?i)(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])")
    if not re.search(r"(?i)[a-z]{3}", word):
        return None
    known = own_rules()
    words = set(_WORD.findall(word.lower()))
    plain = str.islower if word.isalpha() else lambda _: False

    def tells(rule: Rule) -> bool:
        found = (hit[0] for text in rule.examples for hit in wanted.finditer(text))
        named = any(map(wanted.search, (rule.id, rule.title)))
        if len(words) > 1:
            named = named or words <= {*rule.id.split("-")}
        return named or any(not plain(hit) for hit in found)

    rules = [rule for rule in known if rule.id == word.lower()] or list(filter(tells, known))
    if not rules:
        return None
    if len(rules) == 1:
        return Topic(name=word, summary=_plain_title(rules[0]), text=_text(rules[0]))
    rules.sort(key=lambda rule: (not words & {*rule.id.split("-")}, not wanted.search(rule.title)))
    listed = table(_rows(rules))
    said = filled("`clusterkit diagnose` tells these from each other by the logs of a job:")
    return Topic(name=word, summary="words of logs", text=f"{said}\n\n{listed}\n\n{_NEXT}")


_NEXT = paragraphs(
    "Which of them it is: `clusterkit diagnose JOB`, or `clusterkit diagnose FILE` of any log. "
    "More of one: `clusterkit explain ID`."
)


def _rows(rules: Sequence[Rule]) -> Iterator[tuple[str, str]]:
    """Yield what each of these rules means, and of the first what to do as well."""
    for number, rule in enumerate(rules[:_MOST_RULES]):
        advice = _advice(rule) if number < _MOST_ADVICE else ""
        title = _plain_title(rule)
        yield rule.id, f"{title[0].upper()}{title[1:]}. {advice}" if advice else title


def _plain_title(rule: Rule) -> str:
    """Return the title of any such failure; what only a log tells is left out of it."""
    known = _HIDDEN.sub("", rule.title)
    return _SHOWN.sub(lambda name: rule.defaults.get(name[0][1:-1]) or "...", known)


def _advice(rule: Rule) -> str:
    """Return what to do after any such failure; empty where only a log tells it."""
    known = {"job": "JOB", **{name: value for name, value in rule.defaults.items() if value}}
    asked = set(_FIELD.findall(rule.do))
    return rule.fill(rule.do, known) if asked <= known.keys() else ""


def _text(rule: Rule) -> str:
    about = f"What `clusterkit diagnose` calls {rule.id}: {_plain_title(rule)}."
    plain = (rule.says if "{" not in rule.says else "", _advice(rule))  # else it needs a log
    example = rule.examples[0].strip().splitlines()[-1]
    such = filled(example, "Such as: ")
    return f"{paragraphs(about, *plain)}\n\n{such}\n\n{_OF_ONE}"


_OF_ONE = filled("Whether it is what ended a job: `clusterkit diagnose JOB`, or FILE.")
