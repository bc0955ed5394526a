"""All topics that `clusterkit explain` knows: the pages of `topics.md`, and one for each word."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from itertools import chain
from pathlib import Path

from clusterkit.cli.explain import frameworks, platforms, reference
from clusterkit.cli.explain.topic import (
    Topic,
    filled,
    first_sentence,
    one_each,
    paragraphs,
    summaries,
    table,
    texts,
)
from clusterkit.cli.explain.words import topic_of
from clusterkit.cli.frame.main import VERBS
from clusterkit.cli.frame.usage import verb_instead
from clusterkit.config.platforms import load_platform
from clusterkit.core.data import read_table
from clusterkit.core.errors import UserError
from clusterkit.core.model import JobState
from clusterkit.estimate.machines.gpus import GPUS, OWN_FIGURES
from clusterkit.estimate.machines.interconnects import NETWORKS, OWN_NETWORK
from clusterkit.estimate.models.named import preset_names
from clusterkit.estimate.strategies import STRATEGIES
from clusterkit.executors.slurm import pending
from clusterkit.observe.diagnose.rules import own_rules
from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.checks.base import Check, Tier
from clusterkit.preflight.env_lint.lint import RULES
from clusterkit.preflight.env_lint.variables import NEWEST_NCCL, Kind, Variable, all_variables

WHEN = {
    Tier.NODE: "One round trip; evaluated on each node alone.",
    Tier.ROUND_TRIP: "One round trip; nodes are compared with each other.",
    Tier.NETWORK: "Traffic between the nodes; only with --network.",
}
_QUESTION = re.compile(r"(?:which|what(?:-is)?)-(?=.)")
_ALIKE = 0.8
"""With thousands of names, some other one is always a little like what was typed."""
_ALLOW = (
    "To leave a variable alone: `--allow NAME`, or `allowed_env: [NAME]` in the cluster. "
    "The page docs/how-to/nccl-environment.md lists all rules."
)


_OF_NODES = "A state of nodes in Slurm: `clusterkit explain node-states`."


@cache
def all_topics() -> Mapping[str, Topic]:
    """Return every topic by name: the pages first, in their order."""
    pages = {page.name: page for page in _pages()}
    named = chain(frameworks.topics(), platforms.topics())
    others = chain(_checks(), reference.topics(), named, _rules(), _lists())
    return {
        **pages,
        **{topic.name: topic for topic in chain(others, _variables())},
        **pages,
    }


def find_topic(word: str) -> Topic:
    """Return the topic called `word`; case does not count, nor `-` against `_` or a space.

    Unless two topics differ in nothing else: the area `ENV` and the key `env`. After `platform`
    and a space it may be a platform's file.

    Raises:
        UserError: there is no such topic, or the file is wrong.
    """
    kind, _, platform = word.strip().partition(" ")
    if _fold(kind) in {"platform", "platforms"} and platform:
        return platforms.platform_topic(load_platform(platform.strip()))
    topics = all_topics()
    folded = {_fold(name): topic for name, topic in topics.items()}
    called = _QUESTION.sub("", _fold(word))
    meant, instead = _near().get(called, (called, None))
    if instead is not None:
        raise UserError(f"{word!r} is no topic", hint=instead)
    if meant != called:
        return find_topic(meant)
    plural = f"{called}s" if len(called) > 2 else ""  # squeue's F is not the area FS
    named = folded.get(called) or folded.get(plural)
    topic = topics.get(word.strip()) or named or _variable(word, topics)
    if topic is None or (topic.group == "variables" and " " in word.strip()):  # an error's words
        topic = topic_of(word) or topic
    if topic is None:
        near = _alike(word, folded)
        raise UserError(
            f"nothing is known about {word!r}",
            hint=near or verb_instead(word.strip()) or "`clusterkit explain` lists the topics",
        )
    return topic


def _alike(word: str, folded: Mapping[str, Topic]) -> str | None:
    """Return the topic that differs by a typing error, else the page that is named in `word`."""
    spelt = {**{verb: verb for verb in VERBS}, **{key: one.name for key, one in folded.items()}}
    for name in get_close_matches(_fold(word), spelt, n=1, cutoff=_ALIKE):
        return f"did you mean {spelt[name]!r}?"
    pages = [name for name, topic in folded.items() if topic.group is None]
    parts = [part.removesuffix("s") for part in _fold(word).split("-")]
    page = next((name for name in pages if name.removesuffix("s") in parts), None)
    return page and f"clusterkit explain {page}"


def _variable(setting: str, topics: Mapping[str, Topic]) -> Topic | None:
    """Return the variable that `NAME=VALUE` sets; None where it is no known one."""
    name, sets, _ = setting.partition("=")
    topic = topics.get(name.strip().upper()) if sets else None
    return topic if topic and topic.group == "variables" else None


@cache
def _near() -> Mapping[str, tuple[str, str | None]]:
    """Return the topic that is meant by a word that is none, or what to type instead."""
    return {
        word: (row["topic"], row["hint"] or None)
        for row in read_table(__file__, "near.tsv")
        for word in row["words"].split()
    }


def _fold(word: str) -> str:
    return re.sub(r"[_\s]+", "-", word.strip().lower())


def _pages() -> Iterator[Topic]:
    values = _values()
    text = Path(__file__).with_name("topics.md").read_text(encoding="utf-8")
    for page in text.split("\n## ")[1:]:
        head, *parts = page.strip().split("\n\n")
        name, summary = head.split("\n")
        tables = {f"{{{value}}}": text for value, text in values.items()}
        laid_out = [
            # Indented text is typed as it stands.
            part if part.startswith("    ") else tables.get(part) or filled(part.format_map(values))
            for part in parts
        ]
        yield Topic(name=name, summary=summary, text="\n\n".join(laid_out))


def _values() -> Mapping[str, str]:
    """Return what the pages have in braces: tables laid out for 80 columns, and words."""
    gpus = (
        (gpu.name, f"{gpu.memory_gb:g} GB, {gpu.half_tflops:g} TFLOP/s in 16 bits")
        for gpu in GPUS.values()
    )
    networks = (
        (network.name, f"{network.node_gbs(8):.0f} GB/s out of a node of 8 GPUs")
        for network in NETWORKS.values()
    )
    listed = ("verdicts", "modes", "exit-codes", "job-exit-codes")
    return {
        **{name: table(texts(name).items()) for name in listed},
        **{
            name: summaries(texts(name))
            for name in (
                "glossary",
                "links",
                "node-states",
                "ranks",
                "runtime",
                "states",
                "trackers",
            )
        },
        **reference.tables(),
        "reasons": table(pending.reasons().items()),
        "checks": _listed(all_checks()),
        "diagnose": table((rule.id, f"{rule.general_title} ({rule.role})") for rule in own_rules()),
        "choice": frameworks.choice(),
        "frameworks": frameworks.listed(),
        "platforms": platforms.listed(),
        "rules": table(
            (f"{rule.id} {rule.verdict}", f"{rule.name}: {rule.what}") for rule in RULES
        ),
        "strategies": table((strategy.name, strategy.summary) for strategy in STRATEGIES),
        "gpus": table(gpus),
        "own_figures": OWN_FIGURES,
        "networks": table(networks),
        "own_network": OWN_NETWORK,
        "models": paragraphs(", ".join(preset_names())),
        "newest_nccl": NEWEST_NCCL,
    }


def _lists() -> Iterator[Topic]:
    """Yield a topic for each word of the lists that `texts.tsv` has."""
    yield from one_each(texts("glossary"), "glossary")
    yield from one_each(texts("links"), "links")
    yield from one_each(texts("node-states"), "node-states", _OF_NODES)
    yield from one_each({**texts("runtime"), **texts("trackers")}, "runtime")
    for name, text in texts("states").items():
        ending = "The job has ended." if JobState(name).final else "The job has not ended."
        if name == JobState.UNKNOWN:  # the one word that is a verdict, too
            ending = "Of a check: `clusterkit explain verdicts`."
        yield from one_each({name: text}, "states", ending)


def _checks() -> Iterator[Topic]:
    """Yield a topic for each verdict, each area, and each id and name of a check."""
    checks = all_checks()
    yield from one_each(texts("verdicts"), "verdicts")
    for area, text in texts("areas").items():
        about = paragraphs(f"An area of preflight (--select {area}). {text}")
        own = _listed(check for check in checks if check.area == area)
        summary = first_sentence(text)
        yield Topic(name=area, summary=summary, text=f"{about}\n\n{own}", group="checks")
    for check in checks:
        summary = first_sentence(check.about.what)
        for name, other in ((check.id, check.name), (check.name, check.id)):
            yield Topic(name=name, summary=summary, text=_text(check, other), group="checks")


def _listed(checks: Iterable[Check]) -> str:
    return table((c.id, f"{c.name}: {first_sentence(c.about.what)}") for c in checks)


def _text(check: Check, other: str) -> str:
    """Return the text below the id or the name of a check; `other` is the other of the two."""
    about = check.about
    return paragraphs(
        f"{other}: {about.what}",
        f"Why it matters: {about.why}",
        f"How it is measured: {about.how} {WHEN[check.tier]}",
        f"How to fix it: {about.fix}",
        f"Source: {about.source}",
    )


def _rules() -> Iterator[Topic]:
    """Yield a topic for each rule of `clusterkit lint-env`."""
    for rule in RULES:
        first = f"{rule.name} ({rule.verdict}): {rule.what}."
        text = paragraphs(first, rule.why, rule.fix, _ALLOW)
        yield Topic(name=rule.id, summary=rule.what, text=text, group="lint-rules")


def _variables() -> Iterator[Topic]:
    """Yield a topic for each variable of NCCL and its siblings that the lint knows."""
    families, kinds, types = texts("families"), texts("kinds"), texts("types")
    documents = texts("documents")
    for variable in all_variables():
        family = families.get(variable.family, variable.family)
        state = kinds[variable.kind].format(until=variable.until or "a while")
        facts = table(_facts(variable, types.get(variable.type, variable.type)))
        yield Topic(
            name=variable.name,
            summary=f"a variable of {family}",
            text=paragraphs(variable.does, f"A variable of {family}: {state}.")
            + f"\n\n{facts}\n\n"
            + paragraphs(
                f"Documented in {documents[variable.family]}."
                if variable.kind is Kind.DOCUMENTED
                else "",
                "Whether a value suits a cluster: `clusterkit lint-env`.",
            ),
            group="variables",
        )


def _facts(variable: Variable, value: str) -> Iterator[tuple[str, str]]:
    if variable.kind not in {Kind.REMOVED, Kind.TYPO, Kind.PLUGIN}:
        yield "value", value
    known = {
        "allowed": variable.allowed.replace(",", ", "),
        "default": variable.default,
        "write": variable.replaced_by,
        "note": variable.note,
        "see": "docs/how-to/nccl-environment.md",
    }
    yield from ((name, text) for name, text in known.items() if text)
