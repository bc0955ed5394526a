"""Count and trace a `torch.nn.Module` by its import path, in a process of its own.

That process runs the code of the user (templates/estimate/trace_module.py): this package itself
imports no torch, and whatever that code does ends with it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from clusterkit.core.commands import TIMED_OUT, Answer, run_command
from clusterkit.core.data import data_dir
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.estimate.models.module_shape import Parts, shape_of_parts
from clusterkit.estimate.shapes import ModelShape

_HINT = "give PACKAGE.MODULE:FACTORY or path/to/file.py:FACTORY, such as my_model.llama:make_model"
_CONFIG_HINT = "or give the model's config.json"


def model_of_module(
    spec: str, *, seq: int = 2048, micro_batch: int = 1, timeout_s: float = 120.0
) -> ModelShape:
    """Build what `spec` names on the meta device, count it, and trace one step in bf16.

    This runs the code of the user, in a process that sees no GPU: `spec` is `package.module:name`
    (found from the working folder, or on PYTHONPATH) or `path/to/file.py:name`. `name` is a module,
    or something that returns one and is called without arguments. Its only input are whole numbers
    of the form (micro_batch, seq), given as `labels` or `targets` too where it takes such; if it
    refuses those, numbers of the form (micro_batch, seq, width of a block). Its result is taken for
    scores of words, unless it returns a loss.

    No memory is used for weights, however large the module is. What cannot be traced (a path that
    depends on values, as the routing of many experts does) is counted, and `assumed` says why.

    Raises:
        UserError: torch is not there, nothing is found under that path, it cannot be built, or all
            of that takes longer than `timeout_s`.
    """
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise UserError(f"{spec!r} names no function that returns a model", hint=_HINT)
    program = data_dir("templates") / "estimate" / "trace_module.py"
    answer = run_command(
        [sys.executable, "-P", str(program), spec, str(seq), str(micro_batch)],
        environment={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        timeout_s=timeout_s,
    )
    if answer.code == TIMED_OUT:
        message = f"{spec} was not counted and traced within {timeout_s:.0f} s"
        raise UserError(message, hint=f"build fewer blocks, a shorter sequence, {_CONFIG_HINT}")
    said = _said(answer)
    if "refused" in said:
        raise _refusal(spec, said)
    if "counted" not in said:
        raise _failure(spec, str(said.get("step", "import")), answer)
    traced = said.get("traced") or {"reason": _last_words(answer)}
    return _model(name=spec, counted=said["counted"], traced=traced)


def _said(answer: Answer) -> dict[str, Any]:
    """Return what the program has said, as far as it came; the later of two words counts."""
    said: dict[str, Any] = {}
    for line in answer.output.splitlines():
        try:
            said.update(json.loads(line))
        except ValueError:
            break
    return said


def _model(*, name: str, counted: Mapping[str, Any], traced: Mapping[str, Any]) -> ModelShape:
    parts = Parts(
        params=counted["params"],
        blocks=tuple(counted["blocks"]),
        block_weights=_shapes(counted.get("block_weights", [])),
        embeddings=_shapes(counted["embeddings"]),
        heads=_shapes(counted["heads"]),
        config=counted["config"],
        attributes=counted.get("attributes", {}),
    )
    shape = shape_of_parts(parts, name=name)
    bytes_per_token, reason = _block_bytes(traced, shape)
    notes = (f"it could not be traced ({reason}): activations by formula",) if reason else ()
    return replace(shape, saved_bytes_per_token=bytes_per_token, assumed=(*shape.assumed, *notes))


def _block_bytes(traced: Mapping[str, Any], shape: ModelShape) -> tuple[float | None, str | None]:
    """Return what a block keeps per token, or why that is not known."""
    if "reason" in traced:
        return None, traced["reason"]
    # The first block may keep what all of them share; the last keeps only what is its own.
    kept = fmean(traced["blocks"][1:] or traced["blocks"])
    if kept < 4 * shape.hidden:
        return None, "its blocks keep only their input and compute the rest again by themselves"
    return kept, None


def _shapes(rows: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in rows)


def _refusal(spec: str, said: Mapping[str, Any]) -> UserError:
    name = said.get("name")
    match said["refused"]:
        case "torch":
            message = f"tracing a module needs torch, which {sys.executable} has not"
            return UserError(message, hint=f"pip install torch, {_CONFIG_HINT}")
        case "file":
            return UserError(f"there is no {name}", hint=_HINT)
        case "module":
            message = f"there is no Python module {name!r} in this folder or on PYTHONPATH"
            return UserError(message, hint=_HINT)
        case "name":
            message = f"{spec.rpartition(':')[0]} has no {name!r}"
            return UserError(message, hint=choices_hint(str(name), said["known"]))
        case "arguments":
            message = f"{spec} cannot be called without arguments: {said['why']}"
            return UserError(message, hint="write a function that needs none and returns the model")
        case _:
            message = f"{spec} gives a {name}, no torch.nn.Module"
            return UserError(message, hint=_HINT)


def _failure(spec: str, step: str, answer: Answer) -> UserError:
    doing = {
        "import": "cannot be imported",
        "build": "cannot be built on the meta device, where numbers have no values",
    }.get(step, "cannot be counted")
    return UserError(
        f"{spec} {doing}:\n{_where(answer)}", hint=f"try it in a shell, {_CONFIG_HINT}"
    )


def _where(answer: Answer) -> str:
    """Return the place in the user's own code where it failed, and how."""
    lines = answer.errors.splitlines()
    libraries = ("site-packages", "<frozen", str(data_dir("templates")), "/lib/python")
    own = [
        index
        for index, line in enumerate(lines)
        if line.startswith('  File "') and not any(library in line for library in libraries)
    ]
    place = lines[own[-1] : own[-1] + 2] if own else []
    return "\n".join([*place, f"  {_last_words(answer)}"])


def _last_words(answer: Answer) -> str:
    """Return how the process ended, as its stderr says it."""
    errors = [line for line in answer.errors.splitlines() if line.strip()]
    return errors[-1].strip() if errors else f"its process ended with code {answer.code}"
