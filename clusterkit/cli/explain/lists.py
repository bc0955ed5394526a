"""Words that have a list of their own: exit codes, states, link classes, what estimates know."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.cli.explain.topic import (
    Topic,
    first_sentence,
    one_each,
    paragraphs,
    summaries,
    table,
    texts,
)
from clusterkit.core.model import JobState, Ref, Runtime
from clusterkit.estimate.machines.gpus import GPUS, OWN_FIGURES
from clusterkit.estimate.machines.interconnects import NETWORKS, OWN_NETWORK
from clusterkit.estimate.models.named import preset_names
from clusterkit.estimate.strategies import STRATEGIES
from clusterkit.observe.diagnose.rules import own_rules


def diagnose() -> Iterator[Topic]:
    """Yield what `clusterkit diagnose` looks for."""
    yield _list(
        "diagnose",
        "what `diagnose` looks for in the logs of a job that failed",
        paragraphs(
            "A cause can be the root of a failure; a symptom is taken for it only where no cause "
            "is found; a consequence happens to ranks because another has gone.",
        ),
        table((rule.id, f"{rule.general_title} ({rule.role})") for rule in own_rules()),
    )


def exit_codes() -> Iterator[Topic]:
    """Yield the exit codes: those of clusterkit itself, and those of a job."""
    yield _list(
        "exit-codes",
        "what 0, 1, 2 and 130 mean, and the exit code of a job",
        paragraphs("Exit codes of every clusterkit command:"),
        table(texts("exit-codes").items()),
        paragraphs(
            "The `exit_code` of a job, in `status --json` and in its run folder, is that "
            "of the training command as a shell reports it:"
        ),
        table(texts("job-exit-codes").items()),
        paragraphs(
            "Of torchrun, DeepSpeed and Horovod it is the code of the rank that failed "
            "first, whatever its launcher makes of that; `clusterkit status JOB` names "
            "the rank and shows its last words."
        ),
    )


def links() -> Iterator[Topic]:
    """Yield the link classes of `nvidia-smi topo -m`, nearest first."""
    classes = texts("links")
    yield _list(
        "links",
        "the link classes of `clusterkit topo` and nvidia-smi topo -m",
        paragraphs("Nearest first; X is the device itself:"),
        summaries(classes),
    )
    for name, text in classes.items():
        summary = first_sentence(text)
        about = paragraphs(f"{summary[0].upper()}{summary[1:]}.", text[len(summary) + 2 :])
        yield Topic(name=name, summary=summary, text=about, group="links")


def runtime() -> Iterator[Topic]:
    """Yield the `CK_*` variables that every process of a job can read."""
    known = texts("runtime")
    names = [ref.name for ref in vars(Runtime).values() if isinstance(ref, Ref)]
    rows = {name: known.get(name, "A runtime variable.") for name in names}
    yield _list(
        "runtime",
        "the CK_* variables that a job finds on every node",
        paragraphs("Every executor sets these on every node, for setup lines and scripts:"),
        summaries(rows),
    )
    yield from one_each(rows, "runtime")


def states() -> Iterator[Topic]:
    """Yield the states of a job."""
    rows = texts("states")
    about = "pending, running, succeeded, ... and how they are known"
    yield _list("states", about, summaries(rows))
    for name, text in rows.items():
        ending = "The job has ended." if JobState(name).final else "The job has not ended."
        if name == JobState.UNKNOWN:  # the one word that is a verdict, too
            ending = "Of a check: `clusterkit explain verdicts`."
        yield from one_each({name: text}, "states", ending)


def estimates() -> Iterator[Topic]:
    """Yield what may stand behind --strategy, --gpu, --interconnect and --model."""
    yield _list(
        "strategies",
        "how a model is held on several GPUs (estimate --strategy)",
        paragraphs(
            "clusterkit estimate tries them, the simplest first. A name may go on with ranks, as "
            "in megatron-tp8-pp2, and with +ac for full activation checkpointing, +lora or +qlora."
        ),
        table((strategy.name, strategy.summary) for strategy in STRATEGIES),
    )
    yield _list(
        "gpus",
        "the GPUs that an estimate knows (estimate --gpu)",
        table(
            (gpu.name, f"{gpu.memory_gb:g} GB, {gpu.half_tflops:g} TFLOP/s in 16 bits")
            for gpu in GPUS.values()
        ),
        paragraphs(f"Any other: {OWN_FIGURES}."),
    )
    yield _list(
        "interconnects",
        "the networks between nodes that an estimate knows (estimate --interconnect)",
        table(
            (network.name, f"{network.node_gbs(8):.0f} GB/s out of a node of 8 GPUs")
            for network in NETWORKS.values()
        ),
        paragraphs(f"Any other: {OWN_NETWORK}."),
    )
    yield _list(
        "models",
        "the models that an estimate knows by name (estimate --model)",
        paragraphs(", ".join(preset_names())),
        paragraphs("Any other by its config.json, its size (--params) or its module."),
    )


def _list(name: str, summary: str, *parts: str) -> Topic:
    return Topic(name=name, summary=summary, text="\n\n".join(parts))
