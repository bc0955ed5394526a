"""Call a module with fake tensors, and see what autograd keeps of it: for trace_module.py."""

import inspect
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

FEW = 3
"""Blocks that are traced where all are alike. The first may keep what all share (a mask)."""
LABELS = ("labels", "targets", "target")


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
    alike = len({sum(weight.numel() for weight in layer.parameters()) for layer in layers}) == 1
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
                except (DataDependentOutputException, DynamicOutputShapeException) as error:
                    reasons.append(f"what it does depends on the values of tensors: {error.func}")
                except Exception as error:  # noqa: BLE001
                    message = str(error).strip().split("\n")[0]
                    reasons.append(f"{type(error).__name__}: {message}"[:160])
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
