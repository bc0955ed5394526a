"""Count a module on the meta device, and see what it keeps for the backward pass.

    trace_module.py PACKAGE.MODULE:FACTORY SEQ MICRO_BATCH

Runs the code that is named: imports the module, calls the factory without arguments, and calls
what it returns, a `torch.nn.Module`. No weights are allocated: it is built on the meta device, and
traced with fake tensors that pretend to be on the CPU. (Meta tensors would take the path of
attention that keeps the whole map; fake CUDA tensors abort a torch that was built without CUDA.)

Prints one JSON object a line as far as it comes: `step`, what it is about to do; `refused`, why the
user has to give something else; `counted`, parameters and structure; `traced`, what the blocks
keep. What the code of the user prints goes to stderr. Needs torch, and nothing else.
"""

import dataclasses
import gc
import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    gc.disable()  # it would take a second of the four that all this takes, most of it imports

try:
    import torch
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    print(json.dumps({"refused": "torch"}))
    sys.exit()

from torch.overrides import TorchFunctionMode

# The user's own modules are to be found, none of this folder: it is on the path for this only.
_HERE = str(Path(__file__).parent)
sys.path.insert(0, _HERE)
from clusterkit_tracing import trace  # noqa: E402

sys.path.remove(_HERE)

CONFIGS = ("config", "cfg", "args", "model_args", "params", "hparams")
"""Where modules keep what they were built from."""
FILLS = {torch.Tensor.normal_, torch.Tensor.uniform_}
CONTAINERS = ("ModuleList", "Sequential", "ModuleDict")


class RefusedError(Exception):
    """The user has to give something else."""

    def __init__(self, kind, **details):
        super().__init__(kind)
        self.answer = {"refused": kind, **details}


def main():
    spec, seq, micro_batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)

        def say(**answer):
            answers.write(json.dumps(answer) + "\n")

        try:
            say(step="import")
            factory = find(spec)
            say(step="build")
            model = build(factory)
            say(step="count")
            blocks = find_blocks(model)
            say(counted=count(model, blocks))
            say(step="trace")
            say(traced=trace(model, blocks, (micro_batch, seq)))
        except RefusedError as refused:
            say(**refused.answer)


def find(spec):
    """Return what `package.module:name` or `path/to/file.py:name` names."""
    place, _, name = spec.rpartition(":")
    module = load_file(Path(place)) if place.endswith(".py") else load(place)
    try:
        return attrgetter(name)(module)
    except AttributeError as error:
        known = [
            key
            for key, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", None) == module.__name__
        ]
        raise RefusedError("name", name=name, known=known) from error


def load(name):
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # What the user's module itself could not import is another matter.
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise
        raise RefusedError("module", name=error.name) from error


def load_file(path):
    if not path.is_file():
        raise RefusedError("file", name=str(path))
    sys.path.insert(0, str(path.resolve().parent))
    found = importlib.util.spec_from_file_location(path.stem, path)
    if found is None or found.loader is None:
        raise RefusedError("file", name=str(path))
    module = importlib.util.module_from_spec(found)
    sys.modules[path.stem] = module
    found.loader.exec_module(module)
    return module


def build(factory):
    model = factory
    if not isinstance(factory, torch.nn.Module):
        try:
            inspect.signature(factory).bind()
        except TypeError as error:
            raise RefusedError("arguments", why=str(error)) from error
        with torch.device("meta"), Unfilled():
            model = factory()
    if not isinstance(model, torch.nn.Module):
        raise RefusedError("module type", name=type(model).__name__)
    return model


class Unfilled(TorchFunctionMode):
    """Fill no meta tensor with random numbers: torch would import its compiler for that."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        fills = getattr(func, "__module__", None) == "torch.nn.init" or func in FILLS
        filled = args[0] if args else kwargs.get("tensor")
        if fills and isinstance(filled, torch.Tensor) and filled.is_meta:
            return filled
        return func(*args, **kwargs)


def find_blocks(model):
    """Return the name of the largest container of equal modules, and the modules; None: none."""
    best, largest = None, 0
    for name, module in model.named_modules():
        children = list(module.children())
        if type(module).__name__ not in CONTAINERS or len(children) < 2:
            continue
        size = numel(module.parameters())
        if len({type(child) for child in children}) == 1 and size > largest:
            best, largest = (name, children), size
    return best


def numel(parameters):
    return sum(parameter.numel() for parameter in parameters)


def count(model, blocks):
    """Return the parameters, tied ones once, and what tells the shape of the model."""
    parameters = list(model.parameters())
    inside = set()
    answer = {
        "params": numel(parameters),
        "trainable": numel(p for p in parameters if p.requires_grad),
        "buffers": numel(model.buffers()),
        "config": configuration(model),
        "blocks": [],
    }
    if blocks is not None:
        block = blocks[1][0]
        inside = {id(module) for each in blocks[1] for module in each.modules()}
        answer["blocks"] = [numel(each.parameters()) for each in blocks[1]]
        answer["block_weights"] = [list(shape) for shape in weights(block)]
        answer["attributes"] = attributes(block)
    outside = [module for module in model.modules() if id(module) not in inside]
    embeddings = [m.weight for m in outside if type(m).__name__.endswith("Embedding") and has(m)]
    heads = [m.weight for m in outside if has(m) and all(m.weight is not e for e in embeddings)]
    answer["embeddings"] = [list(weight.shape) for weight in embeddings]
    answer["heads"] = [list(weight.shape) for weight in heads]
    return answer


def has(module):
    weight = getattr(module, "weight", None)
    return getattr(weight, "ndim", 0) == 2


def weights(block):
    """Yield the shapes of all weights of a block as (out, in); of experts with their number."""
    for module in block.modules():
        for parameter in module.parameters(recurse=False):
            shape = tuple(parameter.shape)
            # The linear layer of GPT-2 in transformers keeps its weight the other way round.
            yield shape[::-1] if type(module).__name__ == "Conv1D" and len(shape) == 2 else shape


def attributes(block):
    """Return the whole numbers that the modules of a block were given as attributes."""
    found = {}
    for module in block.modules():
        for name, value in vars(module).items():
            if type(value) is int and name not in found:
                found[name] = value
    return found


def configuration(model):
    """Return what the module was built from, as far as it can be said in JSON."""
    for name in CONFIGS:
        value: Any = getattr(model, name, None)
        if hasattr(value, "to_dict"):
            value = value.to_dict()
        elif dataclasses.is_dataclass(value):
            value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        elif not isinstance(value, Mapping):
            value = getattr(value, "__dict__", None)
        if isinstance(value, Mapping) and value:
            return {str(k): v for k, v in value.items() if isinstance(v, plain_types())}
    return {}


def plain_types():
    return (int, float, str, bool, type(None))


if __name__ == "__main__":
    main()
