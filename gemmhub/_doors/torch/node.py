"""Nodes of autograd's graph: a product that is recorded, and what is saved for its gradients.

A repeated product is looked up once, by the fast path of tensors; the node's forward runs the looked-up kernel,
and its backward pass multiplies by the same path. No operator of torch is passed, and nothing of torch.func.

The derivative of relu follows from its result. Others need their argument. Where the backend that runs the product
writes it (``pre_activation``), it is saved; elsewhere backward computes it once more. Either is in the accumulator's
dtype, float32 for 16 bits. What is recorded is, bit for bit, the result of a call without gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.autograd.function import _SingleLevelFunction

from gemmhub import api
from gemmhub._arrays.torch import tensors
from gemmhub._base.registered import Replay
from gemmhub._call.options import refuse_recorded
from gemmhub._doors.torch import arguments, gradients
from gemmhub._doors.torch.gradients import READ, Computed, Kept, needs_argument
from gemmhub.dtypes import as_dtype, saturates
from gemmhub.errors import DTypeError, InputError, OutputError
from gemmhub.operands import WRITTEN

Tensor = Any


def product(a: Tensor, b: Tensor, **options: Any) -> Any:
    """A product that autograd records; arguments and errors are those of :func:`gemmhub.matmul`."""
    if options:
        refuse_written(options)
        if options.get("stream") is not None:
            raise InputError(
                "stream", "given with a tensor that requires grad: its backward pass has no stream",
                "None", "make the stream current: with torch.cuda.stream(s)",
            )  # fmt: skip
        refuse_recorded(options)
        options = {name: _unwrapped(x) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    return record(Product, EAGER, _unwrapped(a), _unwrapped(b), options)


_unwrapped = getattr(torch._C._functorch, "unwrap_if_dead", lambda x: x)
"""The tensor inside one that has outlived its transform of torch.func; other tensors as they are."""


def refuse_written(options: Mapping[str, Any]) -> None:
    """Raise OutputError for an array to write in a call that autograd has to record."""
    for name in WRITTEN:
        if isinstance(options.get(name), torch.Tensor):
            makes = name == "pre_activation"
            raise OutputError(
                name, "a tensor where another one requires grad: autograd cannot record a write into a tensor",
                "True" if makes else "no largest magnitude with tensors that require grad: it has no gradient",
                f"pass {name}=True, which returns a new tensor" if makes
                else f"drop {name}=, or call under torch.no_grad()",
            )  # fmt: skip


def refuse_saturated(out_dtype: Any) -> None:
    """Raise DTypeError for the result dtype of a recorded product whose gradient torch would round to float8."""
    if out_dtype is not None and saturates(as_dtype(out_dtype)):
        raise DTypeError(
            "out_dtype", f"{as_dtype(out_dtype)} where an operand requires grad: torch rounds the gradient of a tensor "
            "to its dtype", "dtypes of 16 bits or more with tensors that require grad",
            "give out_dtype=torch.bfloat16, or call under torch.no_grad()",
        )  # fmt: skip


def unrecorded_out(name: str) -> OutputError:
    """The error of a call with ``out`` whose operand ``name`` requires grad."""
    return OutputError(
        "out", f"given where {name} requires grad: autograd cannot record a write into a tensor",
        "no out with tensors that require grad", "drop out=, or call under torch.no_grad()",
    )  # fmt: skip


def record(
    node: type[Product], computed: Computed, a: Tensor, b: Tensor, options: Mapping[str, Any],
    replay: Replay | None = None,
) -> Any:  # fmt: skip
    """The product, and the argument of its activation where ``pre_activation`` is True, recorded by a class of nodes.

    ``replay`` computes the product, where the fast path has the call.
    """
    if not options:
        return node.apply((replay, computed, options, (), False), a, b)
    wanted = options.get("pre_activation") is True
    if wanted:
        options = {name: x for name, x in options.items() if name != "pre_activation"}
    writes = wanted or (needs_argument(options) and computed.writes(a, b, options))
    result = apply(node, computed, a, b, options, writes, replay)
    if not writes:
        return result
    out, argument = result
    return (out, argument.to(out.dtype)) if wanted else out


def record_again(a: Tensor, b: Tensor, options: Mapping[str, Any], replay: Replay) -> Any:
    """The product of plain tensors in a call that the fast path has."""
    return record(Product, EAGER, a, b, options, replay)


def apply(
    node: type[Product], computed: Computed, a: Tensor, b: Tensor, options: Mapping[str, Any], writes: bool,
    replay: Replay | None = None,
) -> Any:  # fmt: skip
    """The outputs of a node of autograd's graph, whose inputs are all operands of the product: the product, and the
    argument of its activation where the node ``writes`` it.
    """
    names = replay.operands if replay else tuple([name for name in READ if options.get(name) is not None])
    return node.apply((replay, computed, options, names, writes), a, b, *[options[name] for name in names])


Call = tuple["Replay | None", Computed, Mapping[str, Any], tuple[str, ...], bool]
"""The first input of a node: the replay of the product, where it has one; the functions that compute products, the
options, the names of the operands among them, which follow a and b, and whether the node writes the argument of the
activation."""


class Product(_SingleLevelFunction):
    """A node of autograd's graph around one product. Its inputs are a :data:`Call` and all operands.

    It needs nothing of torch.autograd.Function, which runs Python for the transforms of torch.func in each call: the
    operator's kernel for autograd, which such transforms call, is run by the dispatcher at one level at a time.

    The argument of the activation is an output of the node where it is saved, so that gradients of gradients pass
    through it.
    """

    @staticmethod
    def forward(ctx: Any, call: Call, a: Tensor, b: Tensor, *others: Tensor) -> Any:
        replay, computed, options, names, writes = call
        if "out_dtype" in options and any(ctx.needs_input_grad):
            refuse_saturated(options["out_dtype"])
        out = argument = None
        if writes:
            out, argument = computed.both(a, b, **options)
        elif replay is not None:
            try:
                out = replay.run(a, b, None, options)
            except Exception:
                out = None  # the call itself finds the reason, and reports it
        if out is None:
            out = computed.run(a, b, **options)
        operands, needed = (a, b, *others), ctx.needs_input_grad
        kept = None
        varies = options and ("alpha" in options or "beta" in options)  # the numbers are not in the look-up's key
        if replay is not None and not varies:
            kept = replay.kept.get((computed, needed, writes))
        if kept is None:
            kept = Kept.of(computed, needed, options, names, operands, out, writes)
            if replay is not None and not varies:
                replay.kept[computed, needed, writes] = kept
        ctx.call = kept
        ctx.save_for_backward(*kept.saves((*operands, out, argument, None)))
        if _forward_ad._current_level >= 0:
            ctx.save_for_forward(a, b, *others)
        if not writes:
            return out
        ctx.set_materialize_grads(False)
        return out, argument

    @staticmethod
    def _compiled_autograd_key(ctx: Any) -> tuple[int]:
        """The key of this node's class for compiled autograd, as torch.autograd.Function has it."""
        return (ctx._autograd_function_id,)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, of_argument: Tensor | None = None) -> tuple[Any, ...]:
        # torch conjugates and negates lazily, which products refuse.
        grad = None if grad is None else grad.resolve_conj().resolve_neg()
        of_argument = None if of_argument is None else of_argument.resolve_conj().resolve_neg()
        either = grad if grad is not None else of_argument
        if either is None:
            return (None,) * len(ctx.needs_input_grad)
        if _any_autocast() and tensors.casting(device_type := either.device.type):
            with torch.autocast(device_type, enabled=False):  # it rounded the operands before the product was recorded
                return None, *gradients.backward(ctx, grad, of_argument)
        return None, *gradients.backward(ctx, grad, of_argument)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return gradients.forward(ctx, *tangents[1:])


_forward_ad = tensors.forward_ad()
_any_autocast = tensors.any_autocast()


EAGER = Computed(api.matmul, arguments.both, arguments.written, api.matmul)
"""Products of plain tensors, by the path of a product that is not recorded."""
LINEAR = Computed(
    lambda a, weight, **options: api.matmul(a, weight.t(), **options),
    lambda a, weight, **options: arguments.both(a, weight.t(), **options),
    lambda a, weight, options: arguments.written(a, weight.t(), options),
    api.matmul, transposed=True,
)  # fmt: skip
"""Products of a linear layer's input and weight, by the same path."""
