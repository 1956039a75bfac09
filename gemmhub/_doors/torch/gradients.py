"""Gradients of a product: further products of gemmhub, recorded by autograd around the direct path.

With ``out = scale_out * activation(x)``, ``x = alpha * (a * scale_a) @ (b * scale_b) + beta * c + bias``, and ``g`` the
gradient of ``x``, which is that of ``out`` times ``scale_out`` and the derivative of the activation::

    grad_a = conj(alpha) * g @ b^H      grad_c = conj(beta) * g
    grad_b = conj(alpha) * a^H @ g      grad_bias = g, summed over the axis that bias lacks

each summed over the dimensions that were broadcast. Where operands have scales, a and b stand for their products with
them: grad_a is then multiplied by scale_a, and the gradient of scale_a is grad_a times a, summed over the elements that
have one factor. All gradients are differentiable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import torch

from gemmhub import scale_layouts
from gemmhub._arrays.torch.operands import epilogue_dtype
from gemmhub._call.options import pins_rows
from gemmhub._doors.torch import activations, adjoints, scales, shapes
from gemmhub.epilogues import EPILOGUES
from gemmhub.errors import DTypeError
from gemmhub.operands import OPERANDS

Tensor = Any

READ = tuple(name for name, row in OPERANDS.items() if not row.written)
"""Operands that may have gradients, beside a and b."""
FACTORS = tuple(name for name, row in OPERANDS.items() if row.role == "factor")


@dataclass(frozen=True, eq=False)
class Computed:
    """The functions that compute the products of a node."""

    run: adjoints.Multiply
    """The product itself."""
    both: Callable[..., tuple[Tensor, Tensor]]
    """The product, and the argument of its activation in the accumulator's dtype."""
    writes: Callable[..., bool]
    """``(a, b, options)``: whether ``both`` gives the bits of ``run``, and costs less than another product."""
    multiply: adjoints.Multiply
    """The products of gradients and tangents."""
    right: Callable[..., Tensor] = adjoints.right
    """The gradient of b."""
    transposed: bool = False
    """Whether the node's second operand is the transpose of b."""


class Kept(NamedTuple):
    """The facts that a node keeps beside tensors."""

    computed: Computed
    options: Mapping[str, Any]
    """The options that are no operands."""
    names: tuple[str, ...]
    """Names of the operands beside a and b."""
    facts: Sequence[tuple[Any, Any, Any]]
    """Shape, dtype and strides of a, b, and the operands of these names."""
    saved: tuple[str, ...]
    """Names of the tensors that are saved after a and b."""
    saves: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    """Selects what is saved from a, b, the other operands, the result, the argument of the activation, and None."""
    dtype: Any
    """torch's, of the result."""
    writes: bool
    """Whether the argument of the activation is an output."""
    plain: bool
    """Whether a, b and the result are real matrices of one dtype, and at most a bias is added."""
    a_columns: bool
    """Whether the columns of a are contiguous, and so those of its gradient."""
    b_columns: bool

    @classmethod
    def of(
        cls, computed: Computed, needed: Sequence[bool], options: Mapping[str, Any], names: tuple[str, ...],
        operands: Sequence[Tensor], out: Tensor, writes: bool,
    ) -> Kept:  # fmt: skip
        """The facts and tensors of a product's node: an operand is saved only where another one's gradient reads it.

        ``needed``: which inputs of the node have gradients; ``operands``: a, b, and those of these names.
        """
        _, left, right, *wants = needed
        after = len(operands)  # the index of the result; then that of the argument of the activation
        saved: dict[str, int] = {}
        if writes:
            saved["argument"] = after + 1
        elif needs_argument(options):  # it is computed once more
            saved, left, right = {name: index for index, name in enumerate(names, 2)}, True, True
        elif options.get("activation") is not None:
            saved["out"] = after
        if any(name in names for name in FACTORS):
            left = right = left or right or any(wants)
        saved |= {name: index for index, name in enumerate(names, 2) if OPERANDS[name].role != "term"}
        others = {name: x for name, x in options.items() if name not in OPERANDS}
        plain = (
            not saved and others.keys() <= set(_SHARED) and set(names) <= {"bias"} and computed.right is adjoints.right
            and all(x.dtype is out.dtype for x in operands) and out.dtype in adjoints.DIRECT and not out.is_complex()
            and all(x.dim() == 2 for x in operands[:2])
        )  # fmt: skip
        return cls(
            computed, others, names, [(x.shape, x.dtype, x.stride()) for x in operands], tuple(saved),
            itemgetter(0 if right else -1, 1 if left else -1, *saved.values()), out.dtype, writes,
            plain, *(adjoints.column_major(x.stride()) for x in operands[:2]),
        )  # fmt: skip


def needs_argument(options: Mapping[str, Any]) -> bool:
    """Whether gradients need the argument of the activation."""
    name = options.get("activation")
    if options.get("scale_out") is not None:
        return True
    return name is not None and not EPILOGUES[name].from_result


def backward(ctx: Any, grad: Tensor | None, of_argument: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients of the operands; None for those that are not needed."""
    call: Kept = ctx.call
    if call.plain and grad is not None:
        return _matrices(call, grad, *ctx.saved_tensors, *ctx.needs_input_grad[1:])
    a, b, *rest = ctx.saved_tensors
    _, wants_a, wants_b, *wants = ctx.needs_input_grad
    (a_shape, a_dtype, a_strides), (b_shape, b_dtype, b_strides), *facts = call.facts
    if call.computed.transposed:
        b, b_shape, b_strides = None if b is None else b.t(), b_shape[::-1], b_strides[::-1]
    options = {name: x for name, x in call.options.items() if name in _SHARED}
    if "alpha" in call.options:
        options["alpha"] = adjoints.conj(call.options["alpha"])
    grads: dict[str, Tensor | None] = {}
    kept = dict(zip(call.saved, rest))
    wanted = {name for name, wants_it in zip(call.names, wants) if wants_it}
    ends = "activation" in call.options or "scale_out" in kept
    if grad is None or of_argument is not None or ends:
        grad, grads["scale_out"] = _of_argument(call, a, b, kept, grad, of_argument, "scale_out" in wanted)
    assert grad is not None
    rows, columns = len(a_shape) == 1, len(b_shape) == 1
    g = grad.unsqueeze(-1) if columns else grad
    g = g.unsqueeze(-2) if rows else g
    summed_product = partial(adjoints.summed, multiply=call.computed.multiply, options=options)
    if any(name in kept for name in FACTORS):
        left, right = a.unsqueeze(-2) if rows else a, b.unsqueeze(-1) if columns else b
        grads |= _through_scales(call, kept, g, left, right, summed_product, wants_a, wants_b, wanted)
    else:
        if wants_a:
            other = b.unsqueeze(-1) if columns else b
            grads["a"] = adjoints.left(
                g, other, a_shape[:-2], a_dtype, adjoints.column_major(a_strides), summed_product
            )
        if wants_b:
            other = a.unsqueeze(-2) if rows else a
            grads["b"] = call.computed.right(
                other, g, b_shape[:-2], b_dtype, adjoints.column_major(b_strides), summed_product
            )
    grad_a, grad_b = grads.get("a"), grads.get("b")
    grad_a = grad_a.reshape(a_shape) if rows and grad_a is not None else grad_a
    grad_b = grad_b.reshape(b_shape) if columns and grad_b is not None else grad_b
    grad_b = grad_b.t() if call.computed.transposed and grad_b is not None else grad_b
    for name, (shape, dtype, _) in zip(call.names, facts):
        if name in wanted and OPERANDS[name].role == "term":
            grads[name] = _of_term(name, grad, call.options, shape, dtype)
    return grad_a, grad_b, *[grads.get(name) for name in call.names]


def _matrices(
    call: Kept, grad: Tensor, a: Tensor, b: Tensor, wants_a: bool, wants_b: bool, wants_bias: bool = False
) -> tuple[Tensor | None, ...]:
    """The gradients of the commonest products, with nothing that others need: two products, and a sum for a bias."""
    multiply, options, transposed = call.computed.multiply, call.options, call.computed.transposed
    of_a = of_b = None
    if wants_a:
        if call.a_columns and not pins_rows(options.get("reproducible")):
            of_a = multiply(b.t() if transposed else b, grad.t(), **options).t()
        else:
            of_a = multiply(grad, b if transposed else b.t(), **options)
    if wants_b:
        if transposed is call.b_columns:
            of_b = multiply(a.t(), grad, **options)
            of_b = of_b.t() if transposed else of_b
        else:
            of_b = multiply(grad.t(), a, **options)
            of_b = of_b if transposed else of_b.t()
    if not call.names:
        return of_a, of_b
    shape, dtype, _ = call.facts[2]
    return of_a, of_b, adjoints.fold(grad, shape, dtype) if wants_bias else None


_SHARED = ("precision", "reproducible", "backend")
"""Options of a product that the products of its gradients share."""


def _of_argument(
    call: Kept, a: Tensor | None, b: Tensor | None, kept: Mapping[str, Tensor], grad: Tensor | None,
    of_argument: Tensor | None, scaled: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The gradient of what the activation is applied to, in the result's dtype, and that of scale_out where it is
    ``scaled``.
    """
    name, factor, of_factor = call.options.get("activation"), kept.get("scale_out"), None
    if grad is not None and (name is not None or factor is not None):
        wide = _wide(call)
        grad = grad.to(wide)
        x = kept.get("argument", kept.get("out"))
        if x is None and (name is not None or scaled):
            x = _computed(call, a, b, {other: kept[other] for other in call.names}, wide)
        if factor is not None:
            if scaled:
                result = x if name is None else activations.activated(name, x.to(wide))
                of_factor = adjoints.fold(grad * result, (1,) * grad.dim(), factor.dtype).reshape(factor.shape)
            grad = grad * factor.reshape(())
        if name is not None:
            grad = activations.gradient(name, grad, x.to(wide))
    if of_argument is not None:
        grad = of_argument if grad is None else grad.to(of_argument.dtype) + of_argument
    assert grad is not None
    return grad.to(call.dtype), of_factor


def _through_scales(
    call: Kept, kept: Mapping[str, Tensor], g: Tensor, a: Tensor, b: Tensor, summed_product: Callable[..., Tensor],
    wants_a: bool, wants_b: bool, wanted: set[str],
) -> dict[str, Tensor | None]:  # fmt: skip
    """The gradients of the matrices a and b and of their scales.

    With A = a * scale_a and B = b * scale_b, the gradient of A is g @ B^T. A factor that B's columns share multiplies
    the product; only one that varies along its inner dimension multiplies b before, in the accumulator's dtype.
    """
    (_, a_dtype, _), (_, b_dtype, _), *_ = call.facts
    wide, batch = _wide(call), g.shape[:-2]
    of = {name: scales.matrix(name, kept[name]) for name in FACTORS if name in kept}
    scale_a, scale_b = of.get("scale_a"), of.get("scale_b")
    grads: dict[str, Tensor | None] = {}
    if wants_a or "scale_a" in wanted:
        inner, after = _split(b, scale_b, -1, wide)
        by = adjoints.left(g, inner, batch, wide, False, summed_product)
        by = by if after is None else by * after.transpose(-2, -1)
        grads |= _parts("a", by, a, scale_a, kept, wants_a, wanted, a_dtype)
    if wants_b or "scale_b" in wanted:
        inner, after = _split(a, scale_a, -2, wide)
        by = adjoints.right(inner, g, batch, wide, False, summed_product)
        by = by if after is None else by * after.transpose(-2, -1)
        grads |= _parts("b", by, b, scale_b, kept, wants_b, wanted, b_dtype)
    return grads


def _split(x: Tensor, scale: Tensor | None, inner: int, wide: Any) -> tuple[Tensor, Tensor | None]:
    """An operand of a gradient's product whose inner dimension is ``inner``, and the factors that multiply the result,
    transposed; None where there are none.
    """
    if scale is None:
        return x, None
    factors = scale_layouts.spread(scale, x.shape)
    return (x, factors) if factors.shape[inner] == 1 else (x.to(wide) * factors, None)


def _parts(
    operand: str, by: Tensor, x: Tensor, scale: Tensor | None, kept: Mapping[str, Tensor], wants: bool,
    wanted: set[str], dtype: Any,
) -> dict[str, Tensor | None]:  # fmt: skip
    """The gradients of an operand and of its scale, given that of their product ``by``."""
    grads: dict[str, Tensor | None] = {}
    name = f"scale_{operand}"
    if wants:
        scaled = by if scale is None else by * scale_layouts.spread(scale, x.shape)
        grads[operand] = adjoints.fold(scaled, x.shape, dtype)
    if name in wanted and scale is not None:
        own = kept[name]
        of_scale = scales.gathered(by * x.to(by.dtype), scale.shape)
        grads[name] = adjoints.fold(of_scale, scale.shape, own.dtype).reshape(own.shape)
    return grads


def _of_term(name: str, grad: Tensor, options: Mapping[str, Any], shape: Any, dtype: Any) -> Tensor | None:
    """The gradient of an operand that is added, given that of the sum."""
    factor = options.get("beta", 0) if name == "c" else 1
    if factor == 0:
        return None
    missing = len(shape) - grad.dim()  # of a bias of a product with a vector
    grad = grad.reshape((1,) * missing + grad.shape) if missing > 0 else grad
    return adjoints.fold(grad, shape, dtype, adjoints.conj(factor))


def forward(ctx: Any, of_a: Tensor | None, of_b: Tensor | None, *of_others: Tensor | None) -> Any:
    """The tangent of the result (forward mode), summed in the accumulator's dtype; an operand may have none."""
    a, b, *others = ctx.saved_tensors
    call: Kept = ctx.call
    if call.dtype not in adjoints.DIRECT:
        raise DTypeError(
            "out_dtype", f"{call.dtype} in forward mode: the tangent of a result has its dtype",
            "dtypes of 16 bits or more with tangents", "give out_dtype=torch.bfloat16",
        )  # fmt: skip
    named, along = dict(zip(call.names, others)), dict(zip(call.names, of_others))
    multiply, options, wide, name = call.computed.multiply, call.options, _wide(call), call.options.get("activation")
    shape = shapes.product(a, b)
    plain = {x: v for x, v in options.items() if x not in ("activation", "beta")} | {"out_dtype": wide}
    factors = {"a": a, "b": b} | {x: named[x] for x in FACTORS if x in named}
    parts: list[Tensor] = []
    for one, tangent in {"a": of_a, "b": of_b, **along}.items():
        if tangent is None:
            continue
        if one in factors:  # the product is linear in each
            changed = {**factors, one: tangent}
            parts.append(multiply(changed.pop("a"), changed.pop("b"), **changed, **plain))
        elif one == "bias":
            tangent = tangent[0] if a.dim() == 1 and tangent.dim() == 2 else tangent
            parts.append((tangent if shape else tangent.reshape(())).to(wide))
        elif one != "scale_out" and (one != "c" or options.get("beta", 0) != 0):
            parts.append(tangent.to(wide) * (options["beta"] if one == "c" else 1))
    total = parts[0] if parts else torch.zeros((), dtype=wide, device=a.device)
    for part in parts[1:]:
        total = total + part
    total = total.expand(shape)
    result, of_factor = total, along.get("scale_out")
    x: Tensor = None if name is None and of_factor is None else _computed(call, a, b, named, wide)
    if name is not None:
        result = activations.tangent(name, x, total)
    if "scale_out" in named:
        result = result * named["scale_out"].reshape(())
    if of_factor is not None:
        result = result + (x if name is None else activations.activated(name, x)) * of_factor.reshape(())
    result = result.to(call.dtype)
    return (result, total) if call.writes else result


def _wide(call: Kept) -> Any:
    """torch's dtype in which a product computes its epilogue."""
    return epilogue_dtype(call.facts[0][1], call.facts[1][1], call.dtype)


def _computed(call: Kept, a: Tensor, b: Tensor, named: Mapping[str, Tensor], wide: Any) -> Tensor:
    """The product without its activation and what follows, in the dtype ``wide``."""
    options = {name: x for name, x in call.options.items() if name != "activation"} | {"out_dtype": wide}
    for name, x in named.items():
        if OPERANDS[name].role != "result":
            options[name] = x.to(wide) if OPERANDS[name].role == "term" else x
    return call.computed.multiply(a, b, **options)
