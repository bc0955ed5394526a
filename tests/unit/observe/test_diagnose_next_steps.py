"""The next step that the words of an exception ask for, where no rule knows more of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterkit.core.data import read_table
from clusterkit.observe.diagnose import evidence
from clusterkit.observe.diagnose.verdict import Diagnosis

RAISED = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 9, in main
    model.fit(data)
"""
STEPS = [row["do"] for row in read_table(evidence.__file__, "next_steps.tsv")]
SAID = (
    "RuntimeError: DDP is not needed when a module has no parameters that require a gradient.",
    "ValueError: Must flatten tensors with uniform requires_grad when use_orig_params=False",
    "RuntimeError: a variable has been modified by an inplace operation: [torch.FloatTensor]",
    """\
RuntimeError:
    Some tensors share memory: [{'a', 'b'}]
""",
    "RuntimeError: \"mul_cpu\" not implemented for 'Half'",
    "hub.errors.HFValidationError: Repo id must be in the form 'name': '/models/a/b'.",
    "RuntimeError: FlashAttention only support fp16 and bf16 data type",
    "ValueError: You cannot perform fine-tuning on purely quantized models.",
    "ValueError: You can't train a model that was loaded with `device_map='auto'`",
    "ValueError: Target modules {'q'} not found in the base model.",
    "ValueError: Asking to pad but the tokenizer does not have a padding token.",
    "ValueError: Unable to create tensor, you should probably activate truncation",
    "RuntimeError: Failed to import shelf because of the following error (look up):",
    "RuntimeError: Dataset scripts are no longer supported, but found a.py",
    "ValueError: The repository for a/b contains custom code which must be executed.",
    "RuntimeError: One of the subprocesses has abruptly died during map operation.",
    "RuntimeError: You set `--ntasks=8` in your SLURM bash script",
    "RuntimeError: apex.optimizers.FusedLAMB requires cuda extensions",
    "ImportError: cannot import name 'UnencryptedCookieSessionFactoryConfig' from 'pyramid'",
    "ValueError: There is no task with index 3 in the TF_CONFIG cluster spec",
    "ValueError: Reused local directory: ['/tmp/a'] vs ['/tmp/a'].",
    "AttributeError: partially initialized module 'torch' has no attribute 'nn'",
    "RuntimeError: No dot product attention support for the provided inputs!",
    "AssertionError: No inf checks were recorded for this optimizer.",
    """\
RuntimeError:
The detected CUDA version (11.8) mismatches the version of PyTorch
""",
    """\
RuntimeError:
   CUDA VERSION MISMATCH of bitsandbytes
""",
    "RuntimeError: Cannot writeback when the parameter shape changes",
    "ValueError: Cannot use chat template functions because tokenizer.chat_template is not set",
    "ValueError: No columns in the dataset match the model's forward method signature",
    "ValueError: Can't find 'adapter_config.json' at '/models/a'",
    "OSError: Can't load tokenizer for '/models/a'. If you were trying to load it from elsewhere",
    "RuntimeError: aten.mm.default: got mixed torch.Tensor and DTensor, convert all of them",
    "RuntimeError: more than one node have assigned same rank at /a/General.cpp:17",
    "NotImplementedError: Loading a dataset cached in a LocalFileSystem is not supported.",
)


@pytest.mark.parametrize(("said", "step"), list(zip(SAID, STEPS, strict=True)))
def test_an_exception_is_told_with_its_own_next_step(
    say: Callable[[str], Diagnosis], said: str, step: str
) -> None:
    found = say(f"{RAISED}{said.rstrip()}\n").cause
    assert found is not None
    assert found.do == step


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
