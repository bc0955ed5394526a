"""The next step that the words of an exception ask for, where no rule knows more of it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from clusterkit.observe.diagnose import evidence
from clusterkit.observe.diagnose.verdict import Diagnosis

RAISED = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 9, in main
    model.fit(data)
"""
LAST_LINE = re.compile(
    r"[a-z]{2,9}(?:\.sh)?: |rsync|WARNING|\d{4}:|[\w ]*ERROR|n1:|(?:Error|CMake)\b"
)
"""What stands in no traceback."""


@pytest.mark.parametrize("step", evidence.NEXT_STEPS, ids=lambda step: step.says.pattern[:60])
def test_an_error_is_told_with_its_own_next_step(
    say: Callable[[str], Diagnosis], step: evidence.NextStep
) -> None:
    example = step.example.replace("\\n", "\n")
    raised = "" if LAST_LINE.match(example) else RAISED
    found = say(f"step 1\n{raised}{example}\n").cause
    assert found is not None
    assert {found.rule, "unknown", "class", ""} & {*step.of.split(",")}
    told = [part for part in re.split(r"\{\w+\}", step.do) if part]
    assert all(part in found.do for part in told), found


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ("ValueError: the permutation requires CUDA tensors", "setting-refused"),
        ("AssertionError: PCH requires CUDA 12.8, got 12.4", "setting-refused"),
        ("RuntimeError: the prefix was not registered by the leader", "python-exception"),
        (
            "ImportError: cannot import name 'A' from partially initialized module 'b'",
            "python-exception",
        ),
    ],
)
def test_an_exception_is_not_taken_for_another_that_has_a_word_of_it(
    say: Callable[[str], Diagnosis], said: str, rule: str
) -> None:
    found = say(f"{RAISED}{said}\n").cause
    assert found is not None
    assert found.rule == rule


@pytest.mark.parametrize(
    ("frames", "advised"),
    [
        (
            ("torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py unshard",
             "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py foreach_all_gather"),
            "limit_all_gathers forward_prefetch set_modules_to_forward_prefetch",
        ),
        (
            ("deepspeed/runtime/zero/partitioned_param_coordinator.py __all_gather_params",
             "deepspeed/runtime/zero/partition_parameters.py all_gather_coalesced"),
            "stage3_prefetch_bucket_size limit_all_gathers",
        ),
        (
            ("torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py post_backward",
             "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py foreach_reduce"),
            "reduce_bucket_size limit_all_gathers",
        ),
    ],
)  # fmt: skip
def test_memory_that_ran_out_in_a_collective_names_its_buckets_and_prefetching(
    say: Callable[[str], Diagnosis], frames: tuple[str, ...], advised: str
) -> None:
    packages = "/opt/venv/lib/python3.11/site-packages"
    within = "".join(
        f'  File "{packages}/{path}", line 9, in {name}\n    handle.wait()\n'
        for path, name in (frame.split() for frame in frames)
    )
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    found = say(f"{RAISED}{within}{error}\n").cause
    assert found is not None
    assert found.rule == "cuda-out-of-memory"
    assert all(f"`{word}" in found.do for word in advised.split()), found.do
    assert "clusterkit estimate" in found.do
