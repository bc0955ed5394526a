"""Exit codes: those of clusterkit itself, and those of a job."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.cli.explain.topic import Topic, paragraphs, table

CODES = (
    ("0", "nothing to report: it worked, every check passed, the diff is empty"),
    ("1", "findings: a check failed, the job failed, the files on disk differ"),
    ("2", "could not do it: usage, configuration, connection, or a missing tool"),
    ("130", "interrupted with Ctrl-C; a job that was submitted goes on"),
)

JOB_CODES = (
    ("1-127", "the command's own exit code, on the first node that failed"),
    ("128+N", "a process was ended by signal N"),
    ("134", "SIGABRT: an abort, often a C++ exception or a NCCL/gloo error"),
    ("137", "SIGKILL: mostly out of memory; see `dmesg` and `seff JOB`"),
    ("139", "SIGSEGV: a crash in native code"),
    ("143", "SIGTERM: cancelled, out of time, or ended because a peer failed"),
)


def topics() -> Iterator[Topic]:
    """Yield the one topic of this module."""
    yield Topic(
        name="exit-codes",
        summary="what 0, 1, 2 and 130 mean, and the exit code of a job",
        text="\n\n".join(
            (
                paragraphs("Exit codes of every clusterkit command:"),
                table(CODES),
                paragraphs(
                    "The `exit_code` of a job, in `status --json` and in its run folder, is that "
                    "of the training command as a shell reports it:"
                ),
                table(JOB_CODES),
                paragraphs(
                    "Of torchrun, DeepSpeed and Horovod it is the code of the rank that failed "
                    "first, whatever its launcher makes of that; `clusterkit status JOB` names "
                    "the rank and shows its last words."
                ),
            )
        ),
    )
