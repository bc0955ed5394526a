"""Count and trace a `torch.nn.Module` by its import path, in a process of its own.

That process runs the code of the user (programs/estimate/trace_module.py): this package itself
imports no torch, and whatever that code does ends with it.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from clusterkit.core.commands import TIMED_OUT, Answer, run_command
from clusterkit.core.data import data_dir
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.estimate.models.model_config import FAMILIES, names_of, shape_of
from clusterkit.estimate.models.named import llama_of
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
        UserError: torch is missing, nothing is found under that path, it cannot be built, or all
            of that takes longer than `timeout_s`.
    """
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise UserError(f"{spec!r} names no function that returns a model", hint=_HINT)
    program = data_dir("templates/programs/estimate") / "trace_module.py"
    answer = run_command(
        [sys.executable, "-P", str(program), spec, str(seq), str(micro_batch)],
        environment={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        timeout_s=timeout_s,
    )
    if answer.code == TIMED_OUT:
        message = f"{spec} was not counted and traced within {timeout_s:.0f} s"
        raise UserError(message, hint=f"build fewer blocks, a shorter sequence, {_CONFIG_HINT}")
    parsed = _parse(answer)
    if "refused" in parsed:
        raise _refusal(spec, parsed)
    if "counted" not in parsed:
        raise _failure(spec, str(parsed.get("step", "import")), answer)
    traced = parsed.get("traced") or {"reason": _last_words(answer)}
    return _model(name=spec, counted=parsed["counted"], traced=traced)


def _parse(answer: Answer) -> dict[str, Any]:
    """Return the output of the program, as far as it came; the later of two values counts."""
    parsed: dict[str, Any] = {}
    for line in answer.output.splitlines():
        try:
            parsed.update(json.loads(line))
        except ValueError:
            break
    return parsed


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


def _refusal(spec: str, parsed: Mapping[str, Any]) -> UserError:
    name, hint = parsed.get("name"), _HINT
    match parsed["refused"]:
        case "torch":
            message = f"tracing a module needs torch, which {sys.executable} has not"
            hint = f"pip install torch, {_CONFIG_HINT}"
        case "file":
            message = f"there is no {name}"
        case "module":
            message = f"there is no Python module {name!r} in this folder or on PYTHONPATH"
        case "name":
            message = f"{spec.rpartition(':')[0]} has no {name!r}"
            hint = choices_hint(str(name), parsed["known"])
        case "arguments":
            message = f"{spec} cannot be called without arguments: {parsed['why']}"
            hint = "write a function that needs none and returns the model"
        case _:
            message = f"{spec} gives a {name}, no torch.nn.Module"
    return UserError(message, hint=hint)


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


_TOLD = (
    *("num_attention_heads", "num_key_value_heads", "head_dim"),
    *("num_experts", "num_experts_per_tok"),
)
"""What attributes of attention and MLP tell, where the model keeps no configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a module was found to be made of."""

    params: int
    blocks: tuple[int, ...] = ()
    """Parameters of each of its blocks."""
    block_weights: tuple[tuple[int, ...], ...] = ()
    """Shapes of the weights of its first block, as (out, in)."""
    embeddings: tuple[tuple[int, ...], ...] = ()
    heads: tuple[tuple[int, ...], ...] = ()
    """Shapes of the other matrices outside the blocks, but for those that are an embedding."""
    config: Mapping[str, Any]
    attributes: Mapping[str, int]

    @property
    def block_params(self) -> int | None:
        """Parameters of one block, of the usual sort; None where it has none."""
        return Counter(self.blocks).most_common(1)[0][0] if self.blocks else None


def shape_of_parts(parts: Parts, *, name: str) -> ModelShape:
    """Return the shape of a module: exact in its parameters, by block and in all.

    What it does not tell is assumed and said; a module without an embedding in front of blocks
    becomes a Llama of its size.

    Raises:
        UserError: it has no parameters.
    """
    if parts.params == 0:
        raise UserError(
            f"{name} builds a module without parameters: there is nothing to train",
            hint="name the function that returns the model: --model package.module:factory",
        )
    hidden = _hidden(parts)
    if hidden is None or not parts.blocks:
        shape = llama_of(parts.params)
        note = "it has no list of equal blocks behind an embedding: taken for a Llama of its size"
        return replace(shape, name=name, assumed=(note, *shape.assumed))
    notes: list[str] = []
    document = _document(parts, hidden, notes)
    try:
        shape = shape_of(document, name=name, source=name)
    except UserError as error:
        notes.append(f"its configuration cannot be read ({error.problems[0].message})")
        document = _document(replace(parts, config={}, attributes={}), hidden, notes)
        shape = shape_of(document, name=name, source=name)
    if document["model_type"] == "llama":
        shape = _as_built(shape, parts)
    return _exact(replace(shape, assumed=(*shape.assumed, *notes)), parts)


def _document(parts: Parts, hidden: int, notes: list[str]) -> Mapping[str, Any]:
    """Return a configuration: what the module says it was built from, corrected by what it has."""
    model_type = str(parts.config.get("model_type") or "").lower()
    names = [name for key in _TOLD for name in names_of(key)]
    known = {name: parts.attributes[name] for name in names if name in parts.attributes}
    document: dict[str, Any] = {
        **known,
        **parts.config,
        "model_type": model_type if model_type in FAMILIES else "llama",
        "hidden_size": hidden,
        "num_hidden_layers": len(parts.blocks),
        "vocab_size": max(rows for rows, width in parts.embeddings if width == hidden),
        "text_config": None,
    }
    # Inputs of what leads back to the residual stream: the widest is the MLP's, the narrowest that
    # of attention's output projection.
    inputs = [weight[-1] for weight in parts.block_weights if weight[-2:-1] == (hidden,)]
    ffn, width = max(inputs, default=4 * hidden), min(inputs, default=hidden)
    kv_width = _kv_width(parts, hidden, width, ffn)
    if not _has(document, "intermediate_size"):
        document["intermediate_size"] = ffn
    if not _has(document, "num_attention_heads"):
        document["num_attention_heads"] = _heads((width, kv_width), document, notes)
    heads = next(
        document[name] for name in names_of("num_attention_heads") if document.get(name) is not None
    )
    if isinstance(heads, int) and 0 < heads <= width:
        if not _has(document, "head_dim"):
            document["head_dim"] = width // heads
        kv_heads = kv_width * heads // width
        if document["model_type"] == "llama" and not _has(document, "num_key_value_heads"):
            document["num_key_value_heads"] = kv_heads or heads
    return document


def _as_built(shape: ModelShape, parts: Parts) -> ModelShape:
    """Return `shape` with what the weights tell of a model of no known type."""
    hidden = shape.hidden
    outputs = [weight[0] for weight in parts.block_weights if _takes(weight, hidden)]
    gated = outputs.count(shape.ffn) > 1 or 2 * shape.ffn in outputs
    others = [rows for rows, width in parts.embeddings if width == hidden and rows != shape.vocab]
    return replace(
        shape,
        gated=gated or bool(shape.experts),
        tied=(shape.vocab, hidden) not in parts.heads,
        learned_positions=sum(others),
    )


def _exact(shape: ModelShape, parts: Parts) -> ModelShape:
    block = parts.block_params or 0
    shape = replace(shape, other_block_params=shape.other_block_params + block - shape.block_params)
    by_shape = replace(shape, exact_params=None).params
    return replace(
        shape,
        other_params=shape.other_params + parts.params - by_shape,
        exact_params=parts.params,
    )


def _hidden(parts: Parts) -> int | None:
    """Return the width of the residual stream: that of the embedding, if the blocks know it."""
    widths = {size for weight in parts.block_weights for size in weight}
    found = [embedding for embedding in parts.embeddings if embedding[1] in widths]
    return max(found, key=lambda each: each[0] * each[1])[1] if found else None


def _kv_width(parts: Parts, hidden: int, width: int, ffn: int) -> int:
    """Return the width of all keys: two matrices have it, or one has that of all three together."""
    outputs = [weight[0] for weight in parts.block_weights if _takes(weight, hidden)]
    outputs = [rows for rows in outputs if rows not in {ffn, 2 * ffn}]
    alone = [rows for rows in outputs if rows < width and outputs.count(rows) > 1]
    together = [(rows - width) // 2 for rows in outputs if width < rows < 3 * width]
    return max(alone or together, default=width)


def _heads(widths: tuple[int, int], document: Mapping[str, Any], notes: list[str]) -> int:
    """Return how many heads share these widths, of queries and of keys."""
    given = next((document[name] for name in names_of("head_dim") if document.get(name)), None)
    if isinstance(given, int) and widths[0] % given == 0:
        return widths[0] // given
    both = math.gcd(*widths)
    usual = next(size for size in (128, 64, 32, 1) if both % size == 0)
    notes.append(f"it does not say how many heads it has: {usual} wide each, as usual")
    return widths[0] // usual


def _takes(weight: Sequence[int], hidden: int) -> bool:
    return len(weight) == 2 and weight[1] == hidden


def _has(document: Mapping[str, Any], key: str) -> bool:
    return any(document.get(name) is not None for name in names_of(key))
