"""What a batch script's own commands print is no failure of the ranks that it starts later."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterkit.observe.diagnose.verdict import Diagnosis

Say = Callable[[str], Diagnosis]

HEAD = "Traceback (most recent call last):\n"
LOGIN = (
    f'{HEAD}  File "/home/ada/.local/bin/wandb", line 5, in <module>\n'
    "    from wandb.cli.cli import cli\n"
    '  File "/home/ada/.local/lib/python3.6/site-packages/wandb/util.py", line 8, in <module>\n'
    "    from dataclasses import asdict\n"
    "ModuleNotFoundError: No module named 'dataclasses'\n"
)
PREPARE = (
    f'{HEAD}  File "/home/ada/prepare.py", line 5, in <module>\n    write(path)\n'
    "OSError: [Errno 122] Disk quota exceeded: '/data/a.bin'\n"
)
GIVEN = f'{HEAD}  File "<string>", line 1, in <module>\nModuleNotFoundError: No module named "jq"\n'
GIVEN = GIVEN.replace('"jq"', "'jq'")
SPAWNED = GIVEN.replace(
    "<module>\n",
    '<module>\n  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 9, in spawn_main\n',
)
SHELL = "/var/spool/slurmd/job7/slurm_script: line 36: python: command not found\n"
WORK = "".join(f"{rank}: read part {n} of it, as asked\n" for n in range(9) for rank in range(2))


def raised(error: str, prefix: str = "1: ") -> str:
    lines = (HEAD.strip(), '  File "/home/ada/train.py", line 71, in <module>', "    run()", error)
    return "".join(f"{prefix}{line}\n" for line in lines)


CHECK = raised("AssertionError: 5224 steps and 5248 of the checkpoint do not match")
ABSENT = raised("FileNotFoundError: [Errno 2] No such file or directory: '/data/a.bin'")


@pytest.mark.parametrize(
    ("log", "rule", "rank"),
    [
        (f"{LOGIN}{SHELL}{WORK}{CHECK}", "python-exception", 1),
        (f"{PREPARE}{WORK}{CHECK}", "python-exception", 1),
        (f"{SHELL}{WORK}{CHECK}", "python-exception", 1),
        (f"run.sh: line 7: /scratch/x: Permission denied\n{WORK}{CHECK}", "python-exception", 1),
        (f"bash: line 7: /data: Permission denied\n{WORK}{ABSENT}", "permission-denied", None),
        (f"{PREPARE}{WORK}{ABSENT}", "quota", None),  # it may have been to make the file
        (f"{LOGIN}{WORK}{ABSENT}", "file-not-found", 1),
        (f"{WORK}{LOGIN}{CHECK}", "module-missing", None),  # not before the ranks began
        (f"{LOGIN}{raised('KeyError: 7', '[rank1]: ')}", "module-missing", None),
    ],
)
def test_what_stands_before_all_that_ranks_print_is_of_the_batch_script(
    say: Say, log: str, rule: str, rank: int | None
) -> None:
    cause = say(log).cause
    assert cause is not None
    assert (cause.rule, cause.rank) == (rule, rank)


def test_a_launcher_that_starts_ranks_leaves_commands_behind(say: Say) -> None:
    start = "Setting OMP_NUM_THREADS environment variable for each process to be 1\n"
    check = raised("KeyError: 7", "[rank1]: ")
    for log, rule in ((LOGIN, "python-exception"), (PREPARE, "quota")):
        cause = say(f"{log}{start}{check}").cause
        assert cause is not None
        assert cause.rule == rule


def test_ranks_that_go_on_have_not_failed_of_what_stands_before_them(say: Say) -> None:
    steps = "".join(f"{rank}: step {n} loss 2.1\n" for n in range(9) for rank in range(2))
    assert say(f"{LOGIN}{SHELL}{steps}").cause is None


@pytest.mark.parametrize(
    ("log", "good", "rule"),
    [
        (LOGIN, 40, "python-exception"),
        (LOGIN, 5, "module-missing"),
        (GIVEN, 200, "python-exception"),
        (GIVEN, 40, "module-missing"),
        (SPAWNED, 140, "module-missing"),
    ],
)
def test_a_command_beside_the_training_counts_only_where_it_was_the_last(
    say: Say, log: str, good: int, rule: str
) -> None:
    said = "".join(f"read part {n} of the data, as asked\n" for n in range(good))
    cause = say(f"{log}{said}{raised('KeyError: 7', '')}").cause
    assert cause is not None
    assert cause.rule == rule
