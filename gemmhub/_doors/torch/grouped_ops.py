"""The operator ``gemmhub::grouped_matmul`` of torch, for autograd, tracers and torch's compiler.

The gradients of a grouped product are grouped products by the same offsets, whatever its form: with the gradient g of
the result they are ``g @ b^H`` and ``a^H @ g``. So they have gradients themselves. The tangent of a grouped product is
a sum of grouped products. Both are computed at each level of torch.func's transforms, as those of
:mod:`gemmhub._doors.torch.ops`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from math import prod
from typing import Any

import torch
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd.forward_ad import _set_fwd_grad_enabled
from torch.autograd.function import _SingleLevelFunction

from gemmhub._arrays.torch import tensors
from gemmhub._arrays.torch.operands import epilogue_dtype, output_dtype
from gemmhub._base.wording import instance
from gemmhub._call.options import refuse_recorded
from gemmhub._doors.torch import activations, adjoints, calls, ops
from gemmhub._grouped import forms
from gemmhub._grouped.matmul import multiply
from gemmhub.errors import DTypeError, InputError, ShapeError

Tensor = Any

_OPERANDS = ("bias", "scale_a", "scale_b")
"""Operands beside a and b that the operator has."""
_NAMES = (*_OPERANDS, "alpha", "out_dtype", "activation", "precision", "reproducible", "backend")
_DEFAULTS = (*(None for _ in _OPERANDS), 1, None, None, None, None, None)
_SCHEMA = (
    "grouped_matmul(Tensor a, Tensor b, Tensor? offsets=None, Tensor? bias=None, Tensor? scale_a=None, "
    "Tensor? scale_b=None, Scalar alpha=1, ScalarType? out_dtype=None, str? activation=None, str? precision=None, "
    "str? reproducible=None, str? backend=None) -> Tensor"
)
_SHARED = ("precision", "reproducible", "backend")
"""Options that the products of gradients share."""
_HOST = ("cpu",)
"""Types of devices of offsets by which each group is a product of views, whatever the strides."""
_ALIGNMENT = 16
"""Alignment in bytes of addresses and lines of operands that kernels for groups read in place."""
_ADD = "without an activation add beta * c to the result; rows beyond the last end are zeros in it"
"""The remedy where ``c`` is refused."""


def matmul(a: Tensor, b: Tensor, offsets: Any, out: Any, options: Mapping[str, Any]) -> Tensor:
    """Compute :func:`gemmhub.grouped_matmul` by the operator, with the same arguments."""
    where = "in a function that torch traces, or where gradients are recorded"
    for name, x, remedy in (
        ("out", out, "drop out="), ("stream", options.get("stream"), "drop stream="), ("c", options.get("c"), _ADD),
    ):  # fmt: skip
        if x is not None:
            raise InputError(name, f"given {where}", "None", remedy)
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, torch.Tensor):
            raise InputError(name, f"{instance(type(x))} {where}", "tensors", "convert it to a tensor outside of it")
    refuse_recorded(options)
    if offsets is not None and not isinstance(offsets, torch.Tensor):
        offsets = torch.as_tensor(offsets)
    values = [options.get(name) for name in _NAMES]
    values = [default if x is None else x for x, default in zip(values, _DEFAULTS)]
    wanted = options.get("out_dtype")
    if wanted is not None and not isinstance(wanted, torch.dtype):
        values[_NAMES.index("out_dtype")] = ops._torch_dtype(wanted)
    return torch.ops.gemmhub.grouped_matmul.default(a, b, offsets, *values)


def _options(values: tuple[Any, ...]) -> dict[str, Any]:
    """The arguments of the operator after the offsets as keywords, without those that are None."""
    return {name: x for name, x in zip(_NAMES, values) if x is not None}


def _run(a: Tensor, b: Tensor, offsets: Tensor | None = None, *values: Any) -> Tensor:
    """The kernel on every device. The dispatcher omits arguments with default values."""
    with torch.no_grad(), ops.without_tangents():
        return multiply(_plain(a), _plain(b), _plain(offsets), None, _options(tuple(map(_plain, values))))


def _plain(x: Any) -> Any:
    """A tensor as plain memory: a pending conjugation, which torch resolves for few operators, is resolved here."""
    x = ops._plain(x)
    return x.resolve_conj().resolve_neg() if isinstance(x, torch.Tensor) and (x.is_conj() or x.is_neg()) else x


def _fake(a: Tensor, b: Tensor, offsets: Tensor | None = None, *values: Any) -> Tensor:
    """The result without its elements: shape and dtype alone."""
    ops._refuse_packages()
    options = _options(values)
    shape, n = _shape(a, b, offsets)
    name = options.get("activation")
    if name is not None:
        epilogue = activations.known(name)
        torch._check(n % epilogue.arity == 0, lambda: f"activation: {name} with {n} columns; allowed: an even number")
        shape = (*shape[:-1], epilogue.columns(n))
    return a.new_empty(shape, dtype=output_dtype(a.dtype, b.dtype, options.get("out_dtype")))


def _shape(a: Tensor, b: Tensor, offsets: Tensor | None) -> tuple[tuple[Any, ...], Any]:
    """The shape of the product with all its columns, and their number."""
    form = forms.form_of(tuple(a.shape), tuple(b.shape), offsets is not None)
    groups, m, n, _ = forms.sizes(form, tuple(a.shape), tuple(b.shape))
    if offsets is not None:
        if offsets.dim() != 1:
            raise ShapeError("offsets", f"shape {tuple(offsets.shape)}", "one dimension: an end for each group")
        groups = offsets.shape[0] if groups is None else groups
    return forms.result_shape(form, groups, m, n), n


def _below(a: Tensor, b: Tensor, offsets: Tensor | None, *values: Any) -> Tensor:
    """The operator's kernel below autograd, or the next level of torch.func's transforms."""
    with ExitStack() as below:
        if torch._C._are_functorch_transforms_active():  # the levels below record, too
            below.enter_context(torch.enable_grad())
            below.enter_context(_set_fwd_grad_enabled(True))
        below.enter_context(torch._C._AutoDispatchBelowAutograd())
        return torch.ops.gemmhub.grouped_matmul.default(a, b, offsets, *values)


class Product(_SingleLevelFunction):
    """A node of autograd's graph around one grouped product. Its inputs are the arguments of the operator, all of them.

    As the node of :mod:`gemmhub._doors.torch.node`, it needs nothing of torch.autograd.Function.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, offsets: Tensor | None, *values: Any) -> Tensor:
        options = _options(values)
        if any(ctx.needs_input_grad):
            for name in ("scale_a", "scale_b"):
                if name in options:
                    raise InputError(
                        name, "given to a grouped product whose gradients are recorded", "None: not implemented there",
                        "multiply the operand by it, or call under torch.no_grad()",
                    )  # fmt: skip
        output = _below(a, b, offsets, *values)
        operands = [options.pop(name, None) for name in _OPERANDS]
        ctx.save_for_backward(a, b, offsets, operands[0])
        ctx.save_for_forward(a, b, offsets, *operands)
        ctx.options, ctx.dtype = options, output.dtype
        return output

    @staticmethod
    def _compiled_autograd_key(ctx: Any) -> tuple[int]:
        """The key of this node's class for compiled autograd, as torch.autograd.Function has it."""
        return (ctx._autograd_function_id,)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, grad)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return _tangent(ctx, *tangents)


def _autograd(a: Tensor, b: Tensor, offsets: Tensor | None = None, *values: Any) -> Tensor:
    """The kernel for autograd. The dispatcher omits arguments with default values."""
    found = [x for x in (a, b, *values) if isinstance(x, torch.Tensor)]
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in found)
    if recorded or tensors.forward_mode():
        with enable_single_level_autograd_function():
            return Product.apply(a, b, offsets, *values, *_DEFAULTS[len(values) :])
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.gemmhub.grouped_matmul.default(a, b, offsets, *values)


def _tangent(
    ctx: Any, of_a: Tensor | None, of_b: Tensor | None, _: None, of_bias: Tensor | None, of_scale_a: Tensor | None,
    of_scale_b: Tensor | None, *others: None,
) -> Tensor:  # fmt: skip
    """The tangent of the result (forward mode), summed in the accumulator's dtype; an operand may have none."""
    a, b, offsets, *operands = ctx.saved_tensors
    if ctx.dtype not in adjoints.DIRECT:
        raise DTypeError(
            "out_dtype", f"{ctx.dtype} in forward mode: the tangent of a result has its dtype",
            "dtypes of 16 bits or more with tangents", "give out_dtype=torch.bfloat16",
        )  # fmt: skip
    wide = epilogue_dtype(a.dtype, b.dtype, ctx.dtype)
    named = {name: x for name, x in zip(_OPERANDS, operands) if x is not None}
    options = {**ctx.options, **named}
    plain = {name: x for name, x in ctx.options.items() if name != "activation"} | {"out_dtype": wide}
    factors = {"a": a, "b": b} | {name: x for name, x in named.items() if name != "bias"}
    total: Tensor | None = None
    form = forms.FORMS[a.dim(), b.dim()]
    of_a = None if of_a is None else _in_place(of_a, form.a, offsets)
    of_b = None if of_b is None else _in_place(of_b, form.b, offsets)
    for name, tangent in {"a": of_a, "b": of_b, "scale_a": of_scale_a, "scale_b": of_scale_b}.items():
        if tangent is not None:  # the product is linear in each
            changed = {**factors, name: tangent}
            part = matmul(changed.pop("a"), changed.pop("b"), offsets, None, {**plain, **changed})
            total = part if total is None else total + part
    if of_bias is not None:
        part = _spread(a, b, offsets, of_bias.to(wide), plain)
        total = part if total is None else total + part
    assert total is not None  # torch calls this where an operand has a tangent
    if "activation" in options:
        total = activations.tangent(options["activation"], _argument(a, b, offsets, options, wide), total)
    return total.to(ctx.dtype)


def _spread(a: Tensor, b: Tensor, offsets: Tensor | None, bias: Tensor, options: Mapping[str, Any]) -> Tensor:
    """A bias in the shape of the product, with zeros beyond the last end."""
    if forms.FORMS[a.dim(), b.dim()].out is None:
        shape, _ = _shape(a, b, offsets)
        return bias.unsqueeze(-2).expand(shape)
    return matmul(a[..., :0], b[..., :0, :], offsets, None, {**options, "bias": bias})


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of a, b and bias, and None for the other arguments."""
    a, b, offsets, bias = ctx.saved_tensors
    options = {name: ctx.options[name] for name in _SHARED if name in ctx.options}
    wide = epilogue_dtype(a.dtype, b.dtype, ctx.dtype)
    name = ctx.options.get("activation")
    if name is not None:
        x = _argument(a, b, offsets, {**ctx.options, "bias": bias}, wide)
        grad = activations.gradient(name, grad.to(wide), x).to(ctx.dtype)
    grad = _in_place(grad, forms.FORMS[a.dim(), b.dim()].out, offsets)
    factor = {"alpha": adjoints.conj(ctx.options["alpha"])} if "alpha" in ctx.options else {}
    grads: list[Tensor | None] = [None] * len(ctx.needs_input_grad)
    if ctx.needs_input_grad[0]:
        grads[0] = _product(grad, adjoints.conjugate(b).transpose(-2, -1), offsets, a.dtype, {**options, **factor})
    if ctx.needs_input_grad[1]:
        left, right = adjoints.conjugate(a).transpose(-2, -1), grad
        turned = b.dim() == 3 and b.stride(-2) == 1  # weights of torch: their gradient is made as they lie, not copied
        if turned:
            left, right = grad.transpose(-2, -1), left.transpose(-2, -1)
        of_b = _product(left, right, offsets, b.dtype, {**options, **factor})
        grads[1] = of_b.transpose(-2, -1) if turned else of_b
    if bias is not None and ctx.needs_input_grad[3]:
        grads[3] = _of_bias(a, b, grad, offsets, bias, wide, options)
    return tuple(grads)


def _argument(a: Tensor, b: Tensor, offsets: Tensor | None, options: Mapping[str, Any], wide: Any) -> Tensor:
    """The argument of the activation, computed once more."""
    others = {name: x for name, x in options.items() if name not in ("activation", "out_dtype")}
    if others.get("bias") is not None:
        others["bias"] = others["bias"].to(wide)
    return matmul(a, b, offsets, None, {**others, "out_dtype": wide})


def _product(x: Tensor, y: Tensor, offsets: Tensor | None, dtype: Any, options: Mapping[str, Any]) -> Tensor:
    """The grouped product, rounded once to the ``dtype`` of an operand."""
    x, y = adjoints.alike(x, y)
    direct = dtype in adjoints.DIRECT and (dtype.is_complex or not x.dtype.is_complex)
    result = matmul(x, y, offsets, None, {**options, "out_dtype": dtype if direct else None})
    return adjoints.fold(result, result.shape, dtype)


def _any_strides(offsets: Tensor | None) -> bool:
    """Whether products by these offsets take operands of any strides."""
    return offsets is None or offsets.device.type in _HOST


def _in_place(x: Tensor, divided: int | None, offsets: Tensor | None) -> Tensor:
    """A gradient or tangent as kernels read groups in place: aligned lines along the axis that offsets do not divide,
    along either one where they divide none. It is copied where it has other strides, as those of ``sum()`` are.
    """
    if _any_strides(offsets) or not x.numel():
        return x
    turned = x.transpose(-2, -1)
    if any(_in_lines(y) for y, axis in ((x, 0), (turned, 1)) if divided in (axis, None)):
        return x
    lines = turned if divided == 1 else x
    size = lines.shape[-1]
    rest = -size % (_ALIGNMENT // x.element_size())
    if rest:
        copied = torch.nn.functional.pad(lines, (0, rest)).narrow(-1, 0, size)
    else:
        copied = lines.clone(memory_format=torch.contiguous_format)
    return copied.transpose(-2, -1) if divided == 1 else copied


def _in_lines(x: Tensor) -> bool:
    """Whether rows are contiguous, and they and matrices are aligned."""
    *outer, step = x.stride()
    apart = outer[-1] >= x.shape[-1] and all((y * x.element_size()) % _ALIGNMENT == 0 for y in outer)
    return step == 1 and apart and (x.storage_offset() * x.element_size()) % _ALIGNMENT == 0


def _of_bias(
    a: Tensor, b: Tensor, grad: Tensor, offsets: Tensor | None, bias: Tensor, wide: Any, options: Mapping[str, Any]
) -> Tensor:
    """The gradient of the bias: sums over rows, of which those beyond the last end do not count."""
    form = forms.FORMS[a.dim(), b.dim()]
    if form.out is None:
        sums = grad.sum(1, dtype=wide)
    elif form.out == 0:
        lines = 1 if _any_strides(offsets) else _ALIGNMENT // grad.element_size()
        ones = grad.new_ones((grad.shape[0], lines)).transpose(0, 1)  # an aligned line for each element of the sums
        sums = _product(ones, grad, offsets, wide, options)[:, 0]
    else:
        ones = _in_place(grad.new_ones((a.shape[0], 1, grad.shape[0])), form.a, offsets)
        sums = _product(ones, grad, offsets, wide, options)
    return adjoints.fold(sums if bias.dim() == 2 else sums.sum(0, dtype=wide), bias.shape, bias.dtype)


def _vmap(info: Any, dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
    """The rule for torch.func.vmap: one call after the other, for each may have offsets of its own."""
    if not info.batch_size:  # one call of zeros, for the shape of its result
        arguments = tuple(
            x if dim is None else x.new_zeros(x.movedim(dim, 0).shape[1:]) for x, dim in zip(arguments, dims)
        )
        return torch.ops.gemmhub.grouped_matmul.default(*arguments).unsqueeze(0)[:0], 0
    calls = range(info.batch_size)
    each = [[x if dim is None else x.select(dim, i) for x, dim in zip(arguments, dims)] for i in calls]
    return torch.stack([torch.ops.gemmhub.grouped_matmul.default(*one) for one in each]), 0


def _autocast(device_type: str, key: Any) -> Any:
    """The kernel under torch.autocast, which rounds a, b and bias as for torch.matmul."""
    keys = torch._C.DispatchKeySet(key)

    def run(a: Tensor, b: Tensor, offsets: Tensor | None = None, bias: Tensor | None = None, *values: Any) -> Tensor:
        found = [x for x in (a, b, bias) if x is not None]
        cast = calls.autocast(found, {}) if a.device.type == device_type else None
        a, b, bias = (x if cast is None or x is None else cast(x) for x in (a, b, bias))
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return torch.ops.gemmhub.grouped_matmul.default(a, b, offsets, bias, *values)

    return run


def _register() -> Any:
    """Define the operator. It exists as long as the library object, which this module keeps."""
    library = torch.library.Library("gemmhub", "FRAGMENT")
    library.define(_SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA", "PrivateUse1"):
        library.impl("grouped_matmul", _run, key)
    name = "gemmhub::grouped_matmul"
    torch.library.register_fake(name, _fake, lib=library)
    library.impl("grouped_matmul", _autograd, "Autograd")
    torch.library.register_vmap(name, _vmap, lib=library)
    for device_type in ("CPU", "CUDA"):
        key = getattr(torch._C.DispatchKey, f"Autocast{device_type}")
        library.impl("grouped_matmul", _autocast(device_type.lower(), key), f"Autocast{device_type}")
    return library


_LIBRARY = _register()


def _flops(a: tuple[int, ...], b: tuple[int, ...], *others: Any, **named: Any) -> int:
    """Operations of a grouped product whose groups fill the dimension that they divide: no counter reads offsets."""
    return 2 * prod(a) * b[-1] if len(a) == 2 or len(b) == 3 else 2 * a[1] * prod(b)


ops.count_flops([torch.ops.gemmhub.grouped_matmul], _flops)
