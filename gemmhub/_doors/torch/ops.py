"""The operators ``gemmhub::matmul``, ``gemmhub::matmul_pre_activation`` and ``gemmhub::matmul_out`` of torch.

They are for tracers and transforms. Eager calls do not pass through them: a registered operator costs several
microseconds on the host. The second one returns what the activation was applied to, too, in the accumulator's dtype;
the third one writes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from math import prod
from typing import Any, cast

import numpy as np
import torch
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd.forward_ad import _set_fwd_grad_enabled
from torch.utils import _python_dispatch as python_dispatch
from torch.utils import flop_counter

from gemmhub import api, dtypes
from gemmhub._arrays.torch import tensors
from gemmhub._arrays.torch.operands import epilogue_dtype, output_dtype, sums_dtype, torch_dtypes
from gemmhub._base.wording import instance
from gemmhub._call.describe import describe, product_shapes
from gemmhub._call.options import Options, pins_rows, refuse_recorded, request, unknown
from gemmhub._doors.torch import activations, adjoints, gradients, node, shapes
from gemmhub._doors.torch.vmap import batched
from gemmhub.errors import GemmhubError, InputError, ShapeError
from gemmhub.operands import OPERANDS, WRITTEN

Tensor = Any

OLDEST = "2.5"
"""The first version of torch where an operator in Python can have gradients and a rule for vmap."""

_READ = gradients.READ
_NAMES = (*_READ, "alpha", "beta", "out_dtype", "activation", "precision", "reproducible", "backend", "symmetric")
_DEFAULTS = (*(None for _ in _READ), 1, 0, None, None, None, None, None, False)
_OPTIONS = ", ".join(
    [
        *(f"Tensor? {name}=None" for name in _READ),
        "Scalar alpha=1, Scalar beta=0, ScalarType? out_dtype=None, str? activation=None, str? precision=None",
        "str? reproducible=None, str? backend=None, bool symmetric=False",
    ]
)
_WRITTEN = ", ".join(f"Tensor({letter}!)? {name}=None" for letter, name in zip("bcdef", WRITTEN))
"""Parts of the schemas: the arguments after a and b, and those that ``matmul_out`` writes beside ``out``."""


def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None, stream: Any = None, **options: Any) -> Any:
    """Compute :func:`gemmhub.matmul` by the operators, with the same arguments."""
    if hasattr(a, "device_mesh") or hasattr(b, "device_mesh"):  # DTensors, which are tensors to torch's compiler
        from gemmhub._doors.torch import sharded

        return sharded.matmul(a, b, out=out, stream=stream, **options)
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        types = f"{instance(type(a))} and {instance(type(b))}"
        raise InputError(
            "a, b", types, "tensors, in a function that torch traces", "convert them to tensors outside of it"
        )
    shapes.check_devices({"a": a, "b": b, "out": out, **options})
    if stream is not None:
        raise InputError("stream", "given in a function that torch traces", "None", "make the stream current")
    for name in options:
        if name not in _NAMES and name not in WRITTEN:
            raise unknown(name)
    refuse_recorded(options)
    wanted = options.get("out_dtype")
    if wanted is not None and not isinstance(wanted, torch.dtype):
        options["out_dtype"] = _torch_dtype(wanted)
    if options.get("c") is not None and "beta" not in options:
        raise InputError("c", "given without beta", "c with beta", "pass beta=1 to add it")
    values = [options.get(name, default) for name, default in zip(_NAMES, _DEFAULTS)]
    written = {name: options[name] for name in WRITTEN if options.get(name) is not None}
    argument = written.get("pre_activation") is True
    if out is None and not (written.keys() - {"pre_activation"}) and (argument or not written):
        if not argument:
            return torch.ops.gemmhub.matmul.default(a, b, *values)
        result, before = torch.ops.gemmhub.matmul_pre_activation.default(a, b, *values)
        return result, before.to(_sums_dtype(a.dtype, b.dtype, result.dtype))
    return _write(a, b, out, values, written)


def _write(a: Tensor, b: Tensor, out: Tensor | None, values: list[Any], written: dict[str, Any]) -> Any:
    """The product by the operator that writes into tensors, where the caller passes one."""
    arguments = dict(zip(_NAMES, values))
    argument = written.get("pre_activation") is True
    if out is None or argument:
        shape = shapes.product(a, b)
        dtype = _output_dtype(a.dtype, b.dtype, arguments["out_dtype"]) if out is None else out.dtype
        if argument:
            before = a.new_empty(shape, dtype=_sums_dtype(a.dtype, b.dtype, dtype))
            written = {**written, "pre_activation": before}
        if out is None:
            out = a.new_empty(_columns([*shape], b, values), dtype=dtype)
    torch.ops.gemmhub.matmul_out.default(a, b, out, *values, *(written.get(name) for name in WRITTEN))
    return (out, written["pre_activation"]) if argument else out


@torch.compiler.assume_constant_result
def _torch_dtype(wanted: Any) -> Any:
    return torch_dtypes()[1][dtypes.as_dtype(wanted)]


@torch.compiler.assume_constant_result
def _output_dtype(*operand_dtypes: Any) -> Any:
    return output_dtype(*operand_dtypes)


@torch.compiler.assume_constant_result
def _sums_dtype(*known: Any) -> Any:
    return sums_dtype(*known)


def _options(values: Sequence[Any]) -> dict[str, Any]:
    """The arguments of an operator as keywords, without default values."""
    arguments = zip(_NAMES, values, _DEFAULTS)
    options = {name: x for name, x, default in arguments if isinstance(x, torch.Tensor) or x != default}
    if "c" in options:
        options.setdefault("beta", 0)
    return options


def _run(*arguments: Any) -> Tensor:
    """The kernel on every device: the direct path."""
    a, b, *values = map(_plain, arguments)
    with without_tangents():
        return api.matmul(a, b, **_options(values))


def _run_both(*arguments: Any) -> tuple[Tensor, Tensor]:
    a, b, *values = map(_plain, arguments)
    with without_tangents():
        return node.EAGER.both(a, b, **_options(values))


def without_tangents() -> AbstractContextManager[object]:
    """A block without forward mode, whose tangents are handled above the kernels."""
    return _set_fwd_grad_enabled(False) if tensors.forward_mode() else nullcontext()


def _run_out(*arguments: Any) -> None:
    a, b, out, *values = map(_plain, arguments)
    options = _options(values[: len(_NAMES)])
    options |= {name: x for name, x in zip(WRITTEN, values[len(_NAMES) :]) if x is not None}
    c = options.get("c")
    if c is not None and c is not out and _same(c, out):
        options["c"] = out  # one tensor that torch passes as two: the sum is computed in place
    api.matmul(a, b, out=out, **options)


def _plain(x: Any) -> Any:
    """A tensor of a subclass, which has handled the operator already, as a plain tensor."""
    if type(x) is not torch.Tensor and isinstance(x, torch.Tensor) and not tensors.plain_subclass(type(x)):
        return x.as_subclass(torch.Tensor)
    return x


def _same(x: Tensor, y: Tensor) -> bool:
    same = x.dtype is y.dtype and x.shape == y.shape and x.stride() == y.stride()
    return same and x.data_ptr() == y.data_ptr()


def _fake(a: Tensor, b: Tensor, *values: Any) -> Tensor:
    """A tensor like the result, of any size, symbolic ones included."""
    _refuse_packages()
    shapes.check_devices({"a": a, "b": b, **dict(zip(_NAMES, values))})
    shape, dtype = _result(a, b, values)
    return a.new_empty(_columns(shape, b, values), dtype=dtype)


def _fake_both(a: Tensor, b: Tensor, *values: Any) -> tuple[Tensor, Tensor]:
    out = _fake(a, b, *values)
    shape, dtype = _result(a, b, values)
    return out, a.new_empty(shape, dtype=epilogue_dtype(a.dtype, b.dtype, dtype))


def _fake_out(a: Tensor, b: Tensor, out: Tensor, *values: Any) -> None:
    _refuse_packages()
    shapes.check_devices({"a": a, "b": b, "out": out, **dict(zip((*_NAMES, *WRITTEN), values))})
    shape, _ = _result(a, b, values)
    written = dict(zip(WRITTEN, values[len(_NAMES) :]))
    for name, x, allowed in (
        ("out", out, _columns(shape, b, values)), ("pre_activation", written.get("pre_activation"), shape),
    ):  # fmt: skip
        if x is not None:
            _check(name, x, allowed)


def _check(name: str, x: Tensor, allowed: list[Any]) -> None:
    torch._check(len(allowed) == x.dim(), lambda: f"{name}: {x.dim()} dimensions; allowed: {len(allowed)}")
    for i, size in enumerate(allowed):
        torch._check(x.shape[i] == size, lambda: f"{name}: shape {tuple(x.shape)}; allowed: {tuple(allowed)}")


def _value(name: str, values: Sequence[Any]) -> Any:
    """An argument of an operator, or its default value where the dispatcher omits it."""
    i = _NAMES.index(name)
    return values[i] if i < len(values) else _DEFAULTS[i]


def _result(a: Tensor, b: Tensor, values: Sequence[Any]) -> tuple[list[Any], Any]:
    """The shape of the product, with all its columns, and the dtype of the result, as :func:`gemmhub.matmul`."""
    for name, x in (("a", a), ("b", b)):
        if not x.dim():
            raise ShapeError(name, "a scalar (0 dimensions)", "1 dimension or more", "use * for scalars")
    k, inner = a.shape[-1], b.shape[0] if b.dim() == 1 else b.shape[-2]
    if isinstance(k, int) and isinstance(inner, int) and k != inner:
        raise ShapeError("a, b", f"{tuple(a.shape)} by {tuple(b.shape)}", "as many columns of a as rows of b")
    torch._check(k == inner, lambda: f"a, b: {tuple(a.shape)} by {tuple(b.shape)}: k differs")
    shape, dtype = shapes.result(a, b, _value("out_dtype", values))
    return [*shape], dtype


def _columns(shape: list[Any], b: Tensor, values: Sequence[Any]) -> list[Any]:
    """The shape of the result of a product of this shape: gated activations make one column of two."""
    name = _value("activation", values)
    epilogue = None if name is None else activations.known(name)
    if epilogue is None or epilogue.arity == 1:
        return shape
    if b.dim() == 1:
        raise ShapeError("activation", f"{name} with a vector b", "an even number of columns: gate and value")
    n = shape[-1]
    if isinstance(n, int) and n % epilogue.arity:
        raise ShapeError("activation", f"{name} with {n} columns", "an even number of columns: gate and value")
    torch._check(n % epilogue.arity == 0, lambda: f"activation: {name} with {n} columns; allowed: an even number")
    return [*shape[:-1], epilogue.columns(n)]


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


def _operator(argument: bool) -> Any:
    return (torch.ops.gemmhub.matmul_pre_activation if argument else torch.ops.gemmhub.matmul).default


def _below(a: Tensor, b: Tensor, argument: bool = False, **options: Any) -> Any:
    """The operators' kernels below autograd."""
    with ExitStack() as below:
        if torch._C._are_functorch_transforms_active():  # the levels below record, too
            below.enter_context(torch.enable_grad())
            below.enter_context(_set_fwd_grad_enabled(True))
        below.enter_context(torch._C._AutoDispatchBelowAutograd())
        return _operator(argument)(a, b, *map(options.get, _NAMES, _DEFAULTS))


_TRACED = gradients.Computed(_below, partial(_below, argument=True), lambda a, b, options: False, matmul)


def _autograd(argument: bool) -> Callable[..., Any]:
    """The kernel of an operator for autograd. The dispatcher omits arguments with default values."""
    kernel = _run_both if argument else _run

    def run(a: Tensor, b: Tensor, *values: Any) -> Any:
        arguments = (a, b, *values)
        tensor_arguments = [x for x in arguments if isinstance(x, torch.Tensor)]
        wanted = torch.is_grad_enabled() and any(x.requires_grad for x in tensor_arguments)
        if not wanted and not tensors.traced(tensor_arguments):
            return kernel(*arguments)  # nothing else handles it: not dispatching again saves half of its time
        if wanted or tensors.forward_mode():
            with enable_single_level_autograd_function():
                return node.apply(node.Product, _TRACED, a, b, _options(values), argument)
        with torch._C._AutoDispatchBelowAutograd():
            return _operator(argument)(*arguments)

    return run


def _autograd_out(a: Tensor, b: Tensor, out: Tensor, *values: Any) -> None:
    """The kernel of ``matmul_out`` for autograd, which cannot record it."""
    if torch.is_grad_enabled():
        arguments = {"a": a, "b": b, "out": out, **dict(zip((*_NAMES, *WRITTEN), values))}
        for name, x in arguments.items():
            if isinstance(x, torch.Tensor) and x.requires_grad:
                node.refuse_written(arguments)
                raise node.unrecorded_out(name)
    with torch._C._AutoDispatchBelowAutograd():
        torch.ops.gemmhub.matmul_out.default(a, b, out, *values)


def _check_mapped(a: Tensor, b: Tensor, options: Mapping[str, Any], mapped: Mapping[str, int | None]) -> None:
    """Raise what the products of a mapped function would raise one by one, without its mapped dimensions."""

    def like(name: str, x: Tensor) -> Any:
        shape, dim = [*x.shape], mapped.get(name)
        if dim is not None:
            del shape[dim]
        return np.broadcast_to(np.empty((), torch_dtypes()[0][x.dtype]), shape)  # no memory

    values = {name: like(name, x) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    if values.get("c") is None:
        values.pop("beta", None)
    describe(like("a", a), like("b", b), None, request(cast(Options, values)))


def _vmap(argument: bool) -> Callable[..., Any]:
    """The rule of an operator for vmap. The dispatcher omits arguments with default values."""

    def run(info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor, *values: Any) -> Any:
        arguments = dict(zip(_NAMES, (*values, *_DEFAULTS[len(values) :])))
        read = {name: arguments[name] for name in _READ if arguments[name] is not None}
        mapped = dict(zip(_NAMES, in_dims[2:]))
        _check_mapped(a, b, arguments, {"a": in_dims[0], "b": in_dims[1], **mapped})
        called = batched(info.batch_size, in_dims[:2], a, b, read, mapped)
        arguments |= dict.fromkeys(_READ) | called.read
        if not called.after:
            results = _operator(argument)(called.a, called.b, *arguments.values())
            if argument:
                return tuple(map(called.result, results)), (0, 0)
            return called.result(results), 0
        if pins_rows(arguments["reproducible"]):
            raise InputError(
                "reproducible", f"the bits of rows pinned, under vmap over {' and '.join(called.after)}: the epilogue "
                "of all products would be computed apart from the sums", "a bias and scale_out that all products share",
                'call the function once for each, or pass reproducible="run"',
            )  # fmt: skip
        # What follows the sum is computed in the dtype of the epilogue, and rounded once.
        dtype, activation = output_dtype(a.dtype, b.dtype, arguments["out_dtype"]), arguments["activation"]
        wide = epilogue_dtype(a.dtype, b.dtype, dtype)
        if arguments["c"] is not None and arguments["c"].dtype is not wide:
            arguments["c"] = arguments["c"].to(wide)
        arguments |= {"activation": None, "out_dtype": wide}
        before = _operator(False)(called.a, called.b, *arguments.values())
        if "bias" in called.after:
            before = before + called.after["bias"].to(wide)
        result = before if activation is None else activations.activated(activation, before)
        if "scale_out" in called.after:
            result = result * called.after["scale_out"]
        result = called.result(adjoints.rounded(result, dtype))
        return ((result, called.result(before)), (0, 0)) if argument else (result, 0)

    return run


def _autocast(argument: bool, device_type: str, key: Any) -> Any:
    """The kernel of an operator under torch.autocast, which rounds operands as for torch.matmul, but for scales."""
    keys = torch._C.DispatchKeySet(key)

    def cast(i: int, x: Any, wanted: Any) -> Any:
        if not isinstance(x, torch.Tensor) or (i > 1 and OPERANDS[_NAMES[i - 2]].role != "term"):
            return x
        return x.to(wanted) if x.device.type == device_type and tensors.rounded(device_type, (x.dtype,)) else x

    def run(*arguments: Any) -> Any:
        wanted = torch.get_autocast_dtype(device_type)
        arguments = tuple(cast(i, x, wanted) for i, x in enumerate(arguments))
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return _operator(argument)(*arguments)

    return run


def _register() -> Any:
    """Define the operators. They exist as long as the library object, which this module keeps."""
    if not hasattr(torch.library, "register_vmap"):
        raise InputError(
            "a", f"a tensor that torch {torch.__version__} traces or transforms", f"torch {OLDEST} or later",
            "upgrade torch, or call gemmhub outside of the traced function",
        )  # fmt: skip
    library = torch.library.Library("gemmhub", "FRAGMENT")
    tags = (torch.Tag.pt2_compliant_tag,)
    for name, returns, kernel, fake, argument in (
        ("matmul", "Tensor", _run, _fake, False),
        ("matmul_pre_activation", "(Tensor, Tensor)", _run_both, _fake_both, True),
    ):
        library.define(f"{name}(Tensor a, Tensor b, {_OPTIONS}) -> {returns}", tags=tags)
        for key in _DEVICES:
            library.impl(name, kernel, key)
        torch.library.register_fake(f"gemmhub::{name}", fake, lib=library)
        library.impl(name, _autograd(argument), "Autograd")
        torch.library.register_vmap(f"gemmhub::{name}", _vmap(argument), lib=library)
        for device_type in ("CPU", "CUDA"):
            key = getattr(torch._C.DispatchKey, f"Autocast{device_type}")
            library.impl(name, _autocast(argument, device_type.lower(), key), f"Autocast{device_type}")
    library.define(f"matmul_out(Tensor a, Tensor b, Tensor(a!) out, {_OPTIONS}, {_WRITTEN}) -> ()", tags=tags)
    for key in _DEVICES:
        library.impl("matmul_out", _run_out, key)
    torch.library.register_fake("gemmhub::matmul_out", _fake_out, lib=library)
    library.impl("matmul_out", _autograd_out, "Autograd")
    return library


_DEVICES = ("CPU", "CUDA", "PrivateUse1")
_LIBRARY = _register()


def _flops(a: tuple[int, ...], b: tuple[int, ...], *others: Any, **named: Any) -> int:
    """2 m n k operations of each matrix of a batch, as torch counts its own products. The epilogue is not counted."""
    batch, m, n, k, _ = product_shapes(a, b)
    return 2 * m * n * k * prod(batch)


def count_flops(targets: list[Any], flops: Callable[..., int]) -> None:
    """Register the formula of operators with torch's counter, and with counters that are active already."""
    formula = flop_counter.register_flop_formula(targets)(flops)
    for mode in python_dispatch._get_current_dispatch_mode_stack():
        counter = getattr(mode, "counter", mode)  # of torch 2.7 and later the mode has a counter
        if isinstance(counter, flop_counter.FlopCounterMode):
            counter.flop_registry.update(dict.fromkeys(targets, formula))


count_flops([torch.ops.gemmhub.matmul, torch.ops.gemmhub.matmul_pre_activation, torch.ops.gemmhub.matmul_out], _flops)
