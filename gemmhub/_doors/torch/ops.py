"""The operators ``gemmhub::matmul`` and ``gemmhub::matmul_out`` of torch, for tracers and transforms.

Eager calls do not pass through them: a registered operator costs several microseconds on the host.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd.forward_ad import _set_fwd_grad_enabled
from torch.autograd.function import _SingleLevelFunction

from gemmhub import dtypes
from gemmhub._arrays.torch import tensors
from gemmhub._arrays.torch.operands import epilogue_dtype, output_dtype, torch_dtypes
from gemmhub._call.options import EXTRA, refuse_extra, refuse_recorded
from gemmhub._doors.torch import gradients
from gemmhub._doors.torch.vmap import batched
from gemmhub.errors import GemmhubError, InputError, ShapeError

Tensor = Any

OLDEST = "2.5"
"""The first version of torch where an operator in Python can have gradients and a rule for vmap."""

_NAMES = ("c", "bias", "alpha", "beta", "out_dtype", "activation", "precision", "deterministic", "backend")
_DEFAULTS = (None, None, 1, 0, None, None, None, False, None)
_OPTIONS = (
    "Tensor? c=None, Tensor? bias=None, Scalar alpha=1, Scalar beta=0, ScalarType? out_dtype=None, "
    "str? activation=None, str? precision=None, bool deterministic=False, str? backend=None"
)


def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None, stream: Any = None, **options: Any) -> Tensor:
    """Compute :func:`gemmhub.matmul` by the operators, with the same arguments; InputError for scales of operands."""
    refuse_extra(options, "in a function that torch traces")
    options = {name: x for name, x in options.items() if name not in EXTRA}
    if hasattr(a, "device_mesh") or hasattr(b, "device_mesh"):  # DTensors, which are tensors to torch's compiler
        from gemmhub._doors.torch import sharded

        return sharded.matmul(a, b, out=out, stream=stream, **options)
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        given = f"a {type(a).__name__} and a {type(b).__name__}"
        raise InputError(
            "a, b", given, "tensors, in a function that torch traces", "convert them to tensors outside of it"
        )
    if stream is not None:
        raise InputError("stream", "given in a function that torch traces", "None", "make the stream current")
    for name in options:
        if name not in _NAMES:
            raise TypeError(f"unexpected keyword argument {name!r}; allowed: out, {', '.join(_NAMES)}, stream")
    refuse_recorded(options)
    wanted = options.get("out_dtype")
    if wanted is not None and not isinstance(wanted, torch.dtype):
        options["out_dtype"] = _torch_dtype(wanted)
    if options.get("c") is not None and "beta" not in options:
        raise InputError("c", "given without beta", "c with beta", "pass beta=1 to add it")
    values = [options.get(name, default) for name, default in zip(_NAMES, _DEFAULTS)]
    if out is not None:
        torch.ops.gemmhub.matmul_out.default(a, b, out, *values)
        return out
    return torch.ops.gemmhub.matmul.default(a, b, *values)


@torch.compiler.assume_constant_result
def _torch_dtype(wanted: Any) -> Any:
    return torch_dtypes()[1][dtypes.as_dtype(wanted)]


def _options(values: Sequence[Any]) -> dict[str, Any]:
    """The arguments of an operator as keywords, without default values."""
    given = zip(_NAMES, values, _DEFAULTS)
    options = {name: x for name, x, default in given if isinstance(x, torch.Tensor) or x != default}
    if "c" in options:
        options.setdefault("beta", 0)
    return options


def _run(*arguments: Any) -> Tensor:
    """The kernel on every device: the direct path."""
    from gemmhub import api

    a, b, *values = map(_plain, arguments)
    if tensors.forward_mode():
        with _set_fwd_grad_enabled(False):  # tangents are handled above the kernel
            return api.matmul(a, b, **_options(values))
    return api.matmul(a, b, **_options(values))


def _run_out(*arguments: Any) -> None:
    from gemmhub import api

    a, b, out, *values = map(_plain, arguments)
    options = _options(values)
    c = options.get("c")
    if c is not None and c is not out and _same(c, out):
        options["c"] = out  # one tensor that torch passes as two: the sum is made in place
    api.matmul(a, b, out=out, **options)


def _plain(x: Any) -> Any:
    """A tensor of a subclass, which has handled the operator already, as a plain tensor."""
    if isinstance(x, torch.Tensor) and not tensors.plain_subclass(type(x)):
        return x.as_subclass(torch.Tensor)
    return x


def _same(x: Tensor, y: Tensor) -> bool:
    same = x.dtype is y.dtype and x.shape == y.shape and x.stride() == y.stride()
    return same and x.data_ptr() == y.data_ptr()


def _fake(a: Tensor, b: Tensor, *values: Any) -> Tensor:
    """A tensor like the result, of any size, symbolic ones included."""
    _refuse_packages()
    shape, dtype = _result(a, b, values)
    return a.new_empty(shape, dtype=dtype)


def _fake_out(a: Tensor, b: Tensor, out: Tensor, *values: Any) -> None:
    _refuse_packages()
    shape, _ = _result(a, b, values)
    torch._check(len(shape) == out.dim(), lambda: f"out: {out.dim()} dimensions; allowed: {len(shape)}")
    for i, size in enumerate(shape):
        torch._check(out.shape[i] == size, lambda: f"out: shape {tuple(out.shape)}; allowed: {tuple(shape)}")


def _result(a: Tensor, b: Tensor, values: tuple[Any, ...]) -> tuple[list[Any], Any]:
    """The shape and dtype of the product, by the rules of :func:`gemmhub.matmul`."""
    for name, x in (("a", a), ("b", b)):
        if not x.dim():
            raise ShapeError(name, "a scalar (0 dimensions)", "1 dimension or more", "use * for scalars")
    k, inner = a.shape[-1], b.shape[0] if b.dim() == 1 else b.shape[-2]
    if isinstance(k, int) and isinstance(inner, int) and k != inner:
        raise ShapeError("a, b", f"{tuple(a.shape)} by {tuple(b.shape)}", "as many columns of a as rows of b")
    torch._check(k == inner, lambda: f"a, b: {tuple(a.shape)} by {tuple(b.shape)}: k differs")
    shape = [*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])]
    shape += [a.shape[-2]] if a.dim() > 1 else []
    shape += [b.shape[-1]] if b.dim() > 1 else []
    wanted = values[_NAMES.index("out_dtype")] if len(values) > _NAMES.index("out_dtype") else None
    return shape, output_dtype(a.dtype, b.dtype, wanted)


def _refuse_packages() -> None:
    """Raise GemmhubError while AOTInductor compiles: its packages run without Python, and so without gemmhub."""
    virtualized = sys.modules.get("torch._inductor.virtualized")
    if virtualized is None:
        return
    graph = getattr(virtualized.V, "graph", None)
    if getattr(graph, "aot_mode", False):
        raise GemmhubError(
            "AOTInductor cannot package gemmhub's products: they run in Python. Use torch.compile, or torch.export and "
            "load the program in Python"
        )


class _Recorded(_SingleLevelFunction):  # the dispatcher runs it at one level of torch.func's transforms
    """A node of autograd's graph around the kernels of ``matmul`` below autograd."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        a, b, c, bias = arguments[:4]
        with ExitStack() as below:
            if torch._C._are_functorch_transforms_active():  # the levels below record, too
                below.enter_context(torch.enable_grad())
                below.enter_context(_set_fwd_grad_enabled(True))
            below.enter_context(torch._C._AutoDispatchBelowAutograd())
            output = torch.ops.gemmhub.matmul.default(*arguments)
        gradients.save(ctx, a, b, c, bias, _options(arguments[2:]), output)
        if tensors.forward_ad()._current_level >= 0:
            ctx.save_for_forward(a, b, c, bias)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *gradients.backward(ctx, grad, matmul), *(None,) * 7

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return gradients.forward(ctx, ctx.saved_tensors, tangents[:4], matmul)


def _autograd(a: Tensor, b: Tensor, *values: Any) -> Tensor:
    """The kernel of ``matmul`` for autograd. The dispatcher omits arguments with default values."""
    arguments = (a, b, *values, *_DEFAULTS[len(values) :])
    wanted = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in arguments)
    if wanted or tensors.forward_mode():
        with enable_single_level_autograd_function():
            return _Recorded.apply(*arguments)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.gemmhub.matmul.default(*arguments)


def _vmap(info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor, *values: Any) -> tuple[Tensor, int]:
    """The rule for vmap. The dispatcher omits arguments with default values."""
    given = dict(zip(_NAMES, (*values, *_DEFAULTS[len(values) :])))
    dims = (*in_dims, None, None)[:4]
    called = batched(info.batch_size, dims, a, b, given["c"], given["bias"])
    a, b, given["c"], given["bias"] = called.operands
    if called.added is None:
        return called.result(torch.ops.gemmhub.matmul.default(a, b, *given.values())), 0
    # What follows the sum is computed in the dtype of the epilogue, and rounded once.
    dtype, activation = output_dtype(a.dtype, b.dtype, given["out_dtype"]), given["activation"]
    wide = epilogue_dtype(a.dtype, b.dtype, dtype)
    if given["c"] is not None and given["c"].dtype is not wide:
        given["c"] = given["c"].to(wide)
    given |= {"activation": None, "out_dtype": wide}
    made = torch.ops.gemmhub.matmul.default(a, b, *given.values()) + called.added.to(wide)
    made = made if activation is None else gradients.ACTIVATIONS[activation](made)
    return called.result(made.to(dtype)), 0


def _autocast(kind: str, key: Any) -> Any:
    """The kernel of ``matmul`` under torch.autocast, which rounds operands as for torch.matmul."""
    keys = torch._C.DispatchKeySet(key)

    def cast(x: Any, wanted: Any) -> Any:
        rounds = isinstance(x, torch.Tensor) and x.device.type == kind and tensors.rounded(kind, (x.dtype,))
        return x.to(wanted) if rounds else x

    def run(*arguments: Any) -> Tensor:
        wanted = torch.get_autocast_dtype(kind)
        arguments = tuple(cast(x, wanted) for x in arguments)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return torch.ops.gemmhub.matmul.default(*arguments)

    return run


def _register() -> Any:
    """Define the operators. They exist as long as the library object, which this module keeps."""
    if not hasattr(torch.library, "register_vmap"):
        raise InputError(
            "a", f"a tensor that torch {torch.__version__} traces or transforms", f"torch {OLDEST} or later",
            "upgrade torch, or call gemmhub outside of the traced function",
        )  # fmt: skip
    library = torch.library.Library("gemmhub", "FRAGMENT")
    library.define(f"matmul(Tensor a, Tensor b, {_OPTIONS}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    library.define(
        f"matmul_out(Tensor a, Tensor b, Tensor(a!) out, {_OPTIONS}) -> ()", tags=(torch.Tag.pt2_compliant_tag,)
    )
    for key in ("CPU", "CUDA", "PrivateUse1"):
        library.impl("matmul", _run, key)
        library.impl("matmul_out", _run_out, key)
    torch.library.register_fake("gemmhub::matmul", _fake, lib=library)
    torch.library.register_fake("gemmhub::matmul_out", _fake_out, lib=library)
    library.impl("matmul", _autograd, "Autograd")
    torch.library.register_vmap("gemmhub::matmul", _vmap, lib=library)
    for kind in ("CPU", "CUDA"):
        key = getattr(torch._C.DispatchKey, f"Autocast{kind}")
        library.impl("matmul", _autocast(kind.lower(), key), f"Autocast{kind}")
    return library


_LIBRARY = _register()
