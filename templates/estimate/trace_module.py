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
import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path

try:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.autograd.graph import saved_tensors_hooks
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.overrides import TorchFunctionMode
    from torch.utils.flop_counter import FlopCounterMode
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    print(json.dumps({"refused": "torch"}))
    sys.exit()

FEW = 3
"""Blocks that are traced where all are alike. The first may keep what all share (a mask)."""
CONFIGS = ("config", "cfg", "args", "model_args", "params", "hparams")
"""Where modules keep what they were built from."""
CONTAINERS = ("ModuleList", "Sequential", "ModuleDict")
LABELS = ("labels", "targets", "target")


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
        with torch.device("meta"):
            model = factory()
    if not isinstance(model, torch.nn.Module):
        raise RefusedError("module type", name=type(model).__name__)
    return model


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
        value = getattr(model, name, None)
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


def trace(model, blocks, size):
    """Return the bytes that are kept per block and outside, and the operations of a forward pass.

    Tokens are tried as input first, then numbers of the width of a block; few blocks first where
    all are alike, then all of them.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return {"reason": "it has no parameter to train"}
    if blocks is None:
        return {"reason": "it has no list of equal blocks"}
    name, layers = blocks
    alike = len({numel(layer.parameters()) for layer in layers}) == 1
    depths = [FEW, len(layers)] if alike and len(layers) > FEW + 1 else [len(layers)]
    reasons = []
    with FakeTensorMode(allow_non_fake_inputs=True):
        pretend(model)
        for inputs in (tokens, numbers):
            for depth in depths:
                # It is the code of someone else: whatever it raises is the answer.
                try:
                    with shortened(model.get_submodule(name), depth):
                        return kept(model, layers[:depth], inputs(size, layers[0]))
                except Exception as error:  # noqa: BLE001
                    said = str(error).strip().split("\n")[0]
                    reasons.append(f"{type(error).__name__}: {said}"[:160])
    return {"reason": reasons[len(depths) - 1]}


def tokens(size, _):
    return torch.zeros(size, dtype=torch.int64)


def numbers(size, block):
    width = next((p.shape[-1] for p in block.parameters() if p.ndim == 2), 1)
    return torch.zeros((*size, width), dtype=torch.bfloat16, requires_grad=True)


def pretend(model):
    """Put fake tensors of the CPU, in bf16 where they are numbers, in the place of all weights."""
    new = {}

    def pretended(tensor):
        if id(tensor) not in new:
            dtype = torch.bfloat16 if tensor.is_floating_point() else tensor.dtype
            fake = torch.empty(tensor.shape, dtype=dtype, device="cpu")
            if isinstance(tensor, torch.nn.Parameter):
                fake = torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
            new[id(tensor)] = fake, tensor
        return new[id(tensor)][0]

    for module in model.modules():
        own = vars(module)
        for held in (own["_parameters"], own["_buffers"], own):
            for name, tensor in held.items():
                if isinstance(tensor, torch.Tensor):
                    held[name] = pretended(tensor)


@contextmanager
def shortened(container, depth):
    """Leave only the first modules in a container."""
    own = vars(container)
    whole = own["_modules"]
    own["_modules"] = OrderedDict(list(whole.items())[:depth])
    try:
        yield
    finally:
        own["_modules"] = whole


def kept(model, layers, inputs):
    """Call `model`, and return what every storage is kept for that autograd takes hold of."""
    model.train()
    if hasattr(getattr(model, "config", None), "use_cache"):
        model.config.use_cache = False  # it is for generating text, and would keep copies
    seen = {StorageWeakRef(weight.untyped_storage()): weight for weight in model.parameters()}
    bytes_of, flops_of = [0] * (len(layers) + 1), [0] * (len(layers) + 1)
    within = [len(layers)]

    def pack(tensor):
        storage = tensor.untyped_storage()
        key = StorageWeakRef(storage)
        if key not in seen:
            seen[key] = tensor  # held, so that nothing else gets its address
            bytes_of[within[-1]] += storage.nbytes()
        return tensor

    def enter(index):
        def hook(*_):
            within.append(index)
            flops_of[index] -= counter.get_total_flops()

        return hook

    def leave(index):
        def hook(*_):
            within.pop()
            flops_of[index] += counter.get_total_flops()

        return hook

    hooks = []
    for index, layer in enumerate(layers):
        hooks.append(layer.register_forward_pre_hook(enter(index)))
        hooks.append(layer.register_forward_hook(leave(index)))
    try:
        with (
            FlopCounterMode(display=False, custom_mapping=uncounted()) as counter,
            saved_tensors_hooks(pack, lambda tensor: tensor),
            FusedAttention(),
        ):
            finish(call(model, inputs))
            total = counter.get_total_flops()
    finally:
        for hook in hooks:
            hook.remove()
    flops_of[-1] = total - sum(flops_of[:-1])
    many = inputs.shape[0] * inputs.shape[1]
    return {
        "blocks": [size / many for size in bytes_of[:-1]],
        "outside": bytes_of[-1] / many,
        "block_flops": [count / many for count in flops_of[:-1]],
        "outside_flops": flops_of[-1] / many,
        "inputs": "tokens" if not inputs.is_floating_point() else "numbers",
    }


class FusedAttention(TorchFunctionMode):
    """Call attention so that also the CPU has a kernel for it that keeps no map, as GPUs have.

    That is without dropout, and with values as wide as queries.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is not torch.nn.functional.scaled_dot_product_attention or len(args) < 3:
            return func(*args, **kwargs)
        query, key, value, *others = args
        kwargs.pop("dropout_p", None)
        others[1:2] = [0.0] * len(others[1:2])
        width = value.shape[-1]
        if width < query.shape[-1]:
            value = torch.nn.functional.pad(value, (0, query.shape[-1] - width))
        return func(query, key, value, *others, **kwargs)[..., :width]


def uncounted():
    """Return how to count operations that torch counts for CUDA only, or not at all."""
    counts = {
        "_scaled_dot_product_flash_attention_for_cpu": attention_flops,
        "_grouped_mm": grouped_flops,
    }
    known = torch.ops.aten
    return {getattr(known, name): by for name, by in counts.items() if hasattr(known, name)}


def attention_flops(query, key, value, *_, **__):
    batch, heads, rows, width = query
    return 2 * batch * heads * rows * key[-2] * (width + value[-1])


def grouped_flops(first, second, *_, **__):
    return 2 * first[0] * first[1] * second[-1]


def call(model, inputs):
    """Call the model, with the tokens as labels too where it takes such."""
    accepted = inspect.signature(model.forward).parameters
    label = next((name for name in LABELS if name in accepted), None)
    if label is None or inputs.is_floating_point():
        return model(inputs)
    return model(inputs, **{label: inputs})


def finish(output):
    """Go from what a model returns to its loss, if it has not done so itself."""
    found = [value for value in flat(output) if isinstance(value, torch.Tensor)]
    found = [value for value in found if value.is_floating_point() and value.requires_grad]
    if not found:
        raise TypeError(f"it returned {type(output).__name__} without a result to train by")
    if all(value.ndim for value in found):
        scores = found[0].flatten(0, -2).float()
        targets = torch.zeros(scores.shape[0], dtype=torch.int64)
        torch.nn.functional.cross_entropy(scores, targets)


def flat(output):
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return [value for each in output for value in flat(each)]
    return [output]


if __name__ == "__main__":
    main()
