"""Gradients of a product: further products of gemmhub, recorded by autograd around the direct path.

With ``out = alpha * a @ b + beta * c + bias`` and ``g`` the gradient of ``out``::

    grad_a = conj(alpha) * g @ b^H      grad_c = conj(beta) * g
    grad_b = conj(alpha) * a^H @ g      grad_bias = g, summed over the axis that bias lacks

each summed over the dimensions that were broadcast. The gradient of relu follows from its result. Those of gelu and
silu need their argument, which backward computes once more, in float32 where the result has 16 bits: what is recorded
is the product of a call without gradients, and nothing of the result's size is saved. All gradients are differentiable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import torch

from gemmhub import api, dtypes
from gemmhub._arrays.torch import tensors
from gemmhub._arrays.torch.operands import output_dtype, torch_dtypes
from gemmhub._call.options import EXTRA, refuse_extra, refuse_recorded
from gemmhub.errors import InputError

Tensor = Any
Multiply = Callable[..., Tensor]
"""``matmul`` of gemmhub, or its operator of torch where calls are traced."""

_EXTRA = frozenset(EXTRA)

_DIRECT = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
"""Dtypes that gradients are computed in. The gradient of an operand of another one (float8) is rounded afterwards."""


class Activation(NamedTuple):
    """torch's forms of an activation of epilogues."""

    function: Callable[[Tensor], Tensor]
    """The function, differentiable, for what is computed outside of a product. Minus infinity becomes 0."""
    gradient: Callable[[Tensor, Tensor], Tensor] | None
    """``(grad, x) -> grad * f'(x)``; None where the gradient follows from the result, as that of relu."""

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x)


_FLAT = 1000.0
"""Beyond this argument the gradients of gelu and silu are exactly 0 or 1, in float64, too. torch's own formulas give
NaN where the square of the argument overflows.
"""


def gelu(x: Tensor) -> Tensor:
    """Compute the tanh form, as gemmhub's epilogue does."""
    return torch.nn.functional.gelu(x.clamp(-_FLAT, _FLAT), approximate="tanh") + torch.relu(x - _FLAT)


def silu(x: Tensor) -> Tensor:
    """Compute x * sigmoid(x)."""
    return torch.nn.functional.silu(x.clamp(-_FLAT, _FLAT)) + torch.relu(x - _FLAT)


def _gelu_gradient(grad: Tensor, x: Tensor) -> Tensor:
    return torch.ops.aten.gelu_backward(grad, x.clamp(-_FLAT, _FLAT), approximate="tanh")


def _silu_gradient(grad: Tensor, x: Tensor) -> Tensor:
    return torch.ops.aten.silu_backward(grad, x.clamp(-_FLAT, _FLAT))


class _Activations(dict[str, Activation]):
    def __missing__(self, name: str) -> Activation:
        raise InputError(
            "activation", f"{name!r}, which has no function and no gradient for tensors of torch", ", ".join(self),
            "apply it to the product",
        )  # fmt: skip


ACTIVATIONS = _Activations(
    relu=Activation(torch.relu, None), gelu=Activation(gelu, _gelu_gradient), silu=Activation(silu, _silu_gradient)
)
"""By the names of :data:`gemmhub.epilogues.ACTIVATIONS`; InputError for one that is missing."""


def product(a: Tensor, b: Tensor, **options: Any) -> Tensor:
    """A product that autograd records; arguments and errors are those of :func:`gemmhub.matmul`."""
    if options:
        if not _EXTRA.isdisjoint(options):
            refuse_extra(options, "with a tensor that requires grad")
        if options.get("stream") is not None:
            raise InputError(
                "stream", "given with a tensor that requires grad: its backward pass has no stream",
                "None", "make the stream current: with torch.cuda.stream(s)",
            )  # fmt: skip
        refuse_recorded(options)
    return Product.apply(a, b, options.get("c"), options.get("bias"), options)


class Product(torch.autograd.Function):
    """A node of autograd's graph around one call of :func:`gemmhub.matmul`."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None, options: dict[str, Any]
    ) -> Tensor:
        out = api.matmul(a, b, **options)
        save(ctx, a, b, c, bias, options, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (*backward(ctx, grad, api.matmul), None)


def save(
    ctx: Any, a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None, options: dict[str, Any], out: Tensor
) -> None:
    """Save what :func:`backward` reads: an operand only where the other one's gradient is needed."""
    left, right, of_c, of_bias = ctx.needs_input_grad[:4]
    if options:
        activation = options.get("activation")
        if activation is not None and ACTIVATIONS[activation].gradient is not None:  # their argument is recomputed
            ctx.save_for_backward(a, b, None, c, bias)
            left = right = True
        else:
            ctx.save_for_backward(
                a if right else None, b if left else None, out if activation is not None else None, None, None
            )
        options = {name: x for name, x in options.items() if name not in ("c", "bias")}
    else:
        ctx.save_for_backward(a if right else None, b if left else None, None, None, None)
    ctx.call = (
        options, None if right else _facts(a), None if left else _facts(b),
        _facts(c) if of_c else None, _facts(bias) if of_bias else None,
    )  # fmt: skip


def _facts(x: Tensor) -> tuple[Any, ...]:
    return x.shape, x.dtype, x.stride()


def _column_major(strides: tuple[int, ...]) -> bool:
    """Whether columns are contiguous: a gradient takes the layout of its operand, which saves a copy."""
    return len(strides) > 1 and bool(strides[-2] == 1 and strides[-1] != 1)


def backward(
    ctx: Any, grad: Tensor, multiply: Multiply, right: Callable[..., Tensor] | None = None
) -> tuple[Tensor | None, ...]:
    """The gradients of a, b, c and bias; None for those that are not needed. ``right`` replaces :func:`_right`."""
    with _as_recorded(grad):
        return _backward(ctx, grad, multiply, right)


def _as_recorded(grad: Tensor) -> AbstractContextManager[object]:
    """A block without autocast, which rounded the operands before the product was recorded."""
    kind = grad.device.type
    return torch.autocast(kind, enabled=False) if tensors.casting(kind) else nullcontext()


def _backward(
    ctx: Any, grad: Tensor, multiply: Multiply, right: Callable[..., Tensor] | None
) -> tuple[Tensor | None, ...]:
    a, b, out, c, bias = ctx.saved_tensors
    wants_a, wants_b, wants_c, wants_bias = ctx.needs_input_grad[:4]
    given, a_facts, b_facts, c_facts, bias_facts = ctx.call
    options, beta = _options(given), given.get("beta", 0)
    if out is not None:
        grad = torch.ops.aten.threshold_backward(grad, out, 0)
    elif given.get("activation") is not None:
        grad = _through(given, a, b, c, bias, grad, multiply)
    a_shape, a_dtype, a_strides = a_facts or _facts(a)
    b_shape, b_dtype, b_strides = b_facts or _facts(b)
    rows, columns = len(a_shape) == 1, len(b_shape) == 1
    g = grad.unsqueeze(-1) if columns else grad
    g = g.unsqueeze(-2) if rows else g
    if "alpha" in given:
        options["alpha"] = _conj(given["alpha"])
    grad_a = grad_b = grad_c = grad_bias = None
    made = partial(_summed, multiply=multiply, options=options)
    if wants_a:
        grad_a = _left(g, b.unsqueeze(-1) if columns else b, a_shape[:-2], a_dtype, _column_major(a_strides), made)
        grad_a = grad_a.reshape(a_shape) if rows else grad_a
    if wants_b:
        left = a.unsqueeze(-2) if rows else a
        grad_b = (right or _right)(left, g, b_shape[:-2], b_dtype, _column_major(b_strides), made)
        grad_b = grad_b.reshape(b_shape) if columns else grad_b
    if wants_c and beta != 0:
        grad_c = _fold(grad, c_facts[0], c_facts[1], _conj(beta))
    if wants_bias:
        shape, dtype, _ = bias_facts
        grad_bias = _fold(g, _as_matrix(shape, rows, columns), dtype).reshape(shape)
    return grad_a, grad_b, grad_c, grad_bias


_KEPT = ("precision", "deterministic", "backend")
"""Options of a product that the products of its gradients share."""


def _options(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in _KEPT if name in given} if given else {}


def forward(ctx: Any, operands: Any, tangents: Any, multiply: Multiply) -> Tensor:
    """The tangent of the result (forward mode), summed in the accumulator's dtype; an operand may have none."""
    a, b, c, bias = operands
    of_a, of_b, of_c, of_bias = tangents
    given = ctx.call[0]
    activation, beta = given.get("activation"), given.get("beta", 0)
    shape, dtype = _result_of(a, b, given)
    wide = _wide(dtype)
    parts = []
    plain = {name: v for name, v in given.items() if name not in ("activation", "beta")} | {"out_dtype": wide}
    if of_a is not None:
        parts.append(multiply(of_a, b, **plain))
    if of_b is not None:
        parts.append(multiply(a, of_b, **plain))
    if of_c is not None and beta != 0:
        parts.append(of_c.to(wide) * beta)
    if of_bias is not None:
        added = of_bias[0] if a.dim() == 1 and of_bias.dim() == 2 else of_bias
        parts.append(added.to(wide).reshape(()) if not shape else added.to(wide))
    tangent = parts[0]
    for part in parts[1:]:
        tangent = tangent + part
    tangent = tangent.expand(shape)
    if activation is not None:
        gradient, x = ACTIVATIONS[activation].gradient, _argument(given, a, b, c, bias, wide, multiply)
        tangent = torch.ops.aten.threshold_backward(tangent, x, 0) if gradient is None else gradient(tangent, x)
    return tangent.to(dtype)


def _result_of(a: Tensor, b: Tensor, given: Mapping[str, Any]) -> tuple[tuple[Any, ...], Any]:
    """The shape and torch's dtype of a product of these operands with these options."""
    wanted = given.get("out_dtype")
    if wanted is not None and not isinstance(wanted, torch.dtype):
        wanted = torch_dtypes()[1][dtypes.as_dtype(wanted)]
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (*batch, *a.shape[-2:-1], *(b.shape[-1:] if b.dim() > 1 else ())), output_dtype(a.dtype, b.dtype, wanted)


def _wide(dtype: Any) -> Any:
    """The dtype of sums that are rounded to ``dtype`` at the end."""
    return dtype if dtype.itemsize > 2 else torch.float32


def _argument(
    given: dict[str, Any], a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None, wide: Any, multiply: Multiply
) -> Tensor:
    """The product without its activation, in the dtype ``wide``."""
    options = {name: x for name, x in given.items() if name != "activation"} | {"out_dtype": wide}
    for name, x in (("c", c), ("bias", bias)):
        if x is not None:
            options[name] = x.to(wide) if x.dtype.itemsize < wide.itemsize else x
    return multiply(a, b, **options)


def _through(
    given: dict[str, Any], a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None, grad: Tensor, multiply: Multiply
) -> Tensor:
    """The gradient of the argument of an activation, in the result's dtype."""
    wide, gradient = _wide(grad.dtype), ACTIVATIONS[given["activation"]].gradient
    assert gradient is not None
    return gradient(grad.to(wide), _argument(given, a, b, c, bias, wide, multiply)).to(grad.dtype)


def _as_matrix(shape: Any, rows: bool, columns: bool) -> tuple[int, ...]:
    """The shape of bias for the product of matrices: for a matrix by a vector it has an element for each row."""
    if len(shape) == 2:
        return tuple(shape)
    return (shape[0], 1) if columns and not rows else (1, shape[0])


def _left(g: Tensor, b: Tensor, batch: Any, dtype: Any, transposed: bool, made: Callable[..., Tensor]) -> Tensor:
    """``g @ b^H``, summed over the batch dimensions that the left operand lacks."""
    g, b = _alike(g, b)
    if transposed:
        return made(_conjugate(b), g.transpose(-2, -1), batch, dtype).transpose(-2, -1)
    return made(g, _conjugate(b).transpose(-2, -1), batch, dtype)


def _right(a: Tensor, g: Tensor, batch: Any, dtype: Any, transposed: bool, made: Callable[..., Tensor]) -> Tensor:
    """``a^H @ g``, summed over the batch dimensions that the right operand lacks.

    Where it lacks all of them, the sum is part of the product, whose k runs over the rows of all matrices of the batch.
    """
    a, g = _alike(a, g)
    if not batch and a.dim() > 2 and a.shape[:-2] == g.shape[:-2]:
        rows = prod(a.shape[:-1])  # not -1, which is ambiguous where the other size is 0
        a, g = a.reshape(rows, a.shape[-1]), g.reshape(rows, g.shape[-1])
    if transposed:
        return made(g.transpose(-2, -1), _conjugate(a), batch, dtype).transpose(-2, -1)
    return made(_conjugate(a).transpose(-2, -1), g, batch, dtype)


def _summed(x: Tensor, y: Tensor, batch: Any, dtype: Any, multiply: Multiply, options: dict[str, Any]) -> Tensor:
    """``x @ y`` with these batch dimensions and this dtype; sums are rounded once, at the end."""
    alone = x.dim() == y.dim() == 2 or tuple(torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])) == tuple(batch)
    natural = _result(x.dtype, y.dtype)
    if dtype not in _DIRECT or (natural.is_complex and not dtype.is_complex):
        wanted = natural
    elif alone or dtype.itemsize > 2:
        wanted = dtype
    else:
        wanted = torch.float32
    if wanted is not natural:
        options = {**options, "out_dtype": wanted}
    result = multiply(x, y, **options)
    return result if alone and result.dtype is dtype else _fold(result, (*batch, *result.shape[-2:]), dtype)


def _fold(x: Tensor, shape: Any, dtype: Any, factor: Any = 1) -> Tensor:
    """``factor`` times ``x``, summed to a shape that broadcasts to its own, and rounded once to the given dtype."""
    summed = tuple(x.shape) != tuple(shape)
    wide = dtype if dtype in _DIRECT and dtype.itemsize > x.dtype.itemsize else x.dtype
    wide = wide if factor == 1 else _wide(wide)  # (torch itself sums 16 bits in float32)
    if summed:
        extra = x.dim() - len(shape)
        over = [*range(extra), *(i + extra for i, size in enumerate(shape) if size == 1 and x.shape[i + extra] != 1)]
        x = x.sum(over, keepdim=True, dtype=wide).reshape(shape)
    if factor != 1:
        x = x.to(wide if dtypes.single(factor) else torch.promote_types(wide, torch.float64)) * factor
    if x.is_complex() and not dtype.is_complex:
        x = x.real
    return x if x.dtype is dtype else x.to(dtype)


def _alike(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both tensors in their common wider dtype: a saved operand may be narrower than the gradient, or wider."""
    if x.dtype is y.dtype:
        return x, y
    common = _result(x.dtype, y.dtype)
    return x.to(common), y.to(common)


@lru_cache(maxsize=256)
def _result(x: Any, y: Any) -> Any:
    """torch's dtype of a product of the two, where float8 counts as the other one."""
    to_ours, to_torch = torch_dtypes()
    float8 = [d.itemsize == 1 and d.is_floating_point for d in (x, y)]
    if float8[0] or float8[1]:
        return y if float8[0] else x
    return to_torch[dtypes.result_dtype(to_ours[x], to_ours[y])]


def _conjugate(x: Tensor) -> Tensor:
    return x.conj().resolve_conj() if x.is_complex() else x


def _conj(x: Any) -> Any:
    return x.conjugate() if isinstance(x, complex) else x
