"""The mode ``gemmhub.torch.use``: a block in which gemmhub computes torch's own products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from gemmhub import api
from gemmhub._arrays.plugin_arrays import plugin_arrays
from gemmhub._arrays.torch import tensors
from gemmhub._base.device_types import of_torch
from gemmhub._base.wording import unexpected
from gemmhub._contractions.contract import one_product
from gemmhub._contractions.equation import Equation, parse
from gemmhub._doors.grouped import grouped_matmul
from gemmhub._doors.torch import calls, grouped
from gemmhub.dtypes import single
from gemmhub.errors import InputError

Tensor = Any

OLDEST = "2.6"
"""The first version of torch whose compiler traces a mode like this one. An earlier one passes over it."""

_NARROW = (torch.float16, torch.bfloat16, torch.float32)
"""Dtypes of the operands that torch.autocast rounds, all to one dtype."""
_FLOATING = (*_NARROW, torch.float64, torch.complex64, torch.complex128)
"""Dtypes whose products have the same dtype in torch and in gemmhub. (torch multiplies int8 modulo 256.)"""


class use(TorchFunctionMode):  # noqa: N801  (a block reads: with gemmhub.torch.use())
    """Compute torch's products by gemmhub in a ``with`` block, in this thread only.

    These are torch.matmul, mm, bmm, mv, addmm, baddbmm (and the methods of tensors), ``@``, einsum of two operands, and
    torch.nn.functional.linear, on dense floating or complex tensors of one dtype, and torch._grouped_mm and
    torch.nn.functional.grouped_mm: on CPUs, and on CUDA devices where a backend there takes groups by offsets on the
    device. torch runs every other call, and every call that it refuses. Gradients are recorded
    as usual; gemmhub computes their products inside and outside of the block.

    Parameters
    ----------
    precision, reproducible, backend : as of :func:`gemmhub.matmul`, for each product in the block.

    Raises
    ------
    InputError : an unknown precision or backend; a torch older than 2.6, whose compiler would pass over the block.
    NoBackendError : a product that no backend here can compute. There is no fallback to torch.

    See Also
    --------
    gemmhub.torch.accelerate : replace the linear layers of one model.
    gemmhub.torch.override : all products of the process, in C++ and in compiled graphs, too.
    gemmhub.use : settings of gemmhub for a block of code.

    Examples
    --------
    >>> x = torch.randn(64, 32, dtype=torch.float64)
    >>> with gemmhub.torch.use():
    ...     y = x @ x.T
    """

    def __init__(
        self,
        *,
        precision: str | None = None,
        reproducible: str | None = None,
        backend: str | None = None,
        **others: NoReturn,
    ) -> None:
        super().__init__()
        for name in others:
            raise unexpected(name, ("precision", "reproducible", "backend"))
        if not _TRACED:
            raise InputError(
                "use", f"torch {torch.__version__}, whose compiler passes over such a block",
                f"torch {OLDEST} or later", "upgrade torch, or call gemmhub.matmul",
            )  # fmt: skip
        self.options = calls.kept(precision, reproducible, backend)
        if not torch.compiler.is_compiling():
            plugin_arrays()  # registers the device types of plugins

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        if function in _REPEATED and not named:
            result = _REPEATED[function](self.options, *arguments)
            if result is not None:
                return result
        named = named or {}
        taken = _TAKEN.get(function)
        if taken is not None:
            product = _untraced(taken.product, arguments, named)
            if product is not None:
                options = {**self.options, **product.options} if self.options else product.options
                return api.matmul(product.a, product.b.t() if product.transposed else product.b, **options)
        elif function in _EINSUM and not named:
            equation = _untraced(_contraction, arguments)
            if equation is not None:
                return one_product(equation, _operands(arguments), self.options)
        elif function in grouped.FUNCTIONS:
            call = _untraced(_grouped, arguments, named)
            if call is not None:
                return grouped_matmul(*call[0], **{**self.options, **call[1]})
        return function(*arguments, **named)


def options() -> dict[str, Any]:
    """The options of the blocks of :class:`use` around this call, the innermost block's before the others'."""
    found: dict[str, Any] = {}
    for block in _get_current_function_mode_stack():
        if isinstance(block, use):
            found |= block.options
    return found


def _untraced(analyse: Callable[..., Any], *arguments: Any) -> Any:
    """The result of an analysis, whose questions about sizes torch.jit.trace would otherwise record."""
    if torch.compiler.is_compiling() or not tensors.recording():
        return analyse(*arguments)
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)
    try:
        return analyse(*arguments)
    finally:
        torch._C._set_tracing_state(state)


class Product(NamedTuple):
    """gemmhub's product that is equivalent to a call of torch."""

    a: Tensor
    b: Tensor
    options: dict[str, Any]
    transposed: bool = False
    """Whether ``b`` is the right operand's transpose."""


class Taken(NamedTuple):
    """A function of torch that gemmhub takes."""

    names: tuple[str, ...]
    """torch's names of the operands, which may be passed by position."""
    keywords: tuple[str, ...]
    """Names of the other arguments that gemmhub understands."""
    equivalent: Callable[..., Product | None]
    """A function of the operands, in this order, and of the keywords."""

    def product(self, positional: tuple[Any, ...], named: dict[str, Any]) -> Product | None:
        """The equivalent product; None for a call that torch must run: another overload, or one that it refuses."""
        if not named and len(positional) == len(self.names):
            return self.equivalent(*positional)
        if len(positional) > len(self.names) or any(name in named for name in self.names[: len(positional)]):
            return None
        if any(name not in self.names and name not in self.keywords for name in named):
            return None
        operands = [*positional, *(named.get(name) for name in self.names[len(positional) :])]
        return self.equivalent(*operands, **{name: named[name] for name in self.keywords if name in named})


def _alike(*operands: Any) -> bool:
    """Whether these are dense tensors on one device whose product has the same dtype in torch and gemmhub."""
    for x in operands:
        if not isinstance(x, torch.Tensor):
            return False
    if calls.multiplies_itself(*operands):
        return False
    first = operands[0]
    device, dtype, compiling = first.device, first.dtype, torch.compiler.is_compiling()
    if (device.type != "cpu" and of_torch(device.type, torch) is None) or dtype not in _FLOATING:
        return False
    for x in operands:
        if x.layout is not torch.strided or x.is_nested or x.device != device:
            return False
        if hasattr(x, "device_mesh") is not hasattr(first, "device_mesh"):  # a DTensor and another tensor
            return False
        if not compiling and (x.is_neg() or (dtype.is_complex and x.is_conj()) or _named(x)):
            return False  # the compiler resolves them
        if x.dtype is not dtype and not (
            x.dtype in _NARROW and dtype in _NARROW and torch.is_autocast_enabled(device.type)
        ):
            return False
    return True


_named = getattr(torch.Tensor, "has_names", lambda x: False)
"""Whether a tensor's dimensions have names, which torch gives to results. (torch 2.13 has no such tensors.)"""


def _written(options: dict[str, Any], out: Any, shape: tuple[int, ...], operands: tuple[Any, ...]) -> bool:
    """Add ``out`` to the options; False where torch would resize it, round to its dtype, or refuse it."""
    if not _alike(out, *operands) or tuple(out.shape) != shape or any(x.dtype is not out.dtype for x in operands):
        return False
    if any(step == 0 and size > 1 for step, size in zip(out.stride(), shape)):
        return False
    if torch.is_grad_enabled() and any(x.requires_grad for x in (out, *operands)):
        return False
    options["out"] = out
    return True


def _matmul(a: Any, b: Any, *, out: Any = None) -> Product | None:
    if not _alike(a, b) or not a.dim() or not b.dim() or (out is not None and (a.dim() > 2 or b.dim() > 2)):
        return None
    if a.shape[-1] != b.shape[0 if b.dim() == 1 else -2] or not _broadcast(a.shape[:-2], b.shape[:-2]):
        return None
    return _plain(a, b, out)


def _plain(a: Tensor, b: Tensor, out: Any) -> Product | None:
    """The product alone, of matrices or vectors where there is an ``out``."""
    if out is None:
        return Product(a, b, {})
    options: dict[str, Any] = {}
    shape = (*a.shape[:-1], *(b.shape[-1:] if b.dim() > 1 else ()))
    return Product(a, b, options) if _written(options, out, shape, (a, b)) else None


def _broadcast(*shapes: Any, to: Any = None) -> bool:
    """Whether these shapes broadcast, to the shape ``to`` unless it is None."""
    if not all(shapes) and to is None:
        return True  # matrices: one has no batch dimension
    try:
        shape = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        return False
    return to is None or tuple(shape) == tuple(to)


def of_ranks(a_rank: int, b_rank: int) -> Callable[..., Product | None]:
    """The analysis of mm, bmm, mv or dot: torch.matmul for operands of these numbers of dimensions only."""

    def product(a: Any, b: Any, *, out: Any = None) -> Product | None:
        if not _alike(a, b) or a.dim() != a_rank or b.dim() != b_rank:
            return None
        if a.shape[-1] != b.shape[0 if b_rank == 1 else -2] or (a_rank == 3 and a.shape[0] != b.shape[0]):
            return None
        if b_rank == 1 and a.device.type != "cuda" and torch.is_autocast_enabled(a.device.type):
            return None  # torch.autocast rounds the operands of torch.mv on CUDA devices only
        return _plain(a, b, out)

    return product


def added(a_rank: int, b_rank: int) -> Callable[..., Product | None]:
    """The analysis of addmm, baddbmm or addmv, with operands of these numbers of dimensions."""
    plain = of_ranks(a_rank, b_rank)

    def product(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, out: Any = None) -> Product | None:
        result = plain(a, b, out=out)
        if result is None or not _alike(c, a, b) or (out is not None and not _written({}, out, out.shape, (c, a))):
            return None
        shape, options = (*a.shape[:-1], *b.shape[1:][-1:]), result.options
        if not _broadcast(c.shape, shape, to=shape) or not (_number(alpha, a) and _number(beta, a)):
            return None
        if alpha != 1:
            options["alpha"] = alpha
        if beta == 1 and b_rank == 2 and c.shape == shape[1:] and not (a.is_cuda and a.dtype in _FLOATING[3:]):
            options["bias"] = c
        elif beta != 0:
            options["c"], options["beta"] = c, beta
        elif c.requires_grad and torch.is_grad_enabled():
            return None  # its gradient is 0; gemmhub, which does not read c, records none
        return result

    return product


def _number(x: Any, of: Tensor) -> bool:
    """Whether torch and gemmhub multiply such a tensor by ``x``."""
    if isinstance(x, bool) or not isinstance(x, (int, float, complex)):
        return False
    if isinstance(x, complex) and not of.is_complex():
        return False
    if torch.compiler.is_compiling():
        return True  # x may be a symbol
    if isinstance(x, int) and not -(2**63) <= x < 2**63:
        return False
    return of.dtype not in (*_NARROW, torch.complex64) or single(x)


def _linear(input: Any, weight: Any, bias: Any = None, *, out: Any = None) -> Product | None:
    operands = (input, weight) if bias is None else (input, weight, bias)
    if not _alike(*operands) or not input.dim() or weight.dim() != 2 or input.shape[-1] != weight.shape[1]:
        return None
    if bias is not None and (bias.shape != weight.shape[:1] or (weight.is_cuda and weight.dtype in _FLOATING[3:])):
        return None  # no library on a GPU adds a bias in double precision or to complex numbers
    options = {} if bias is None else {"bias": bias}
    if out is not None and not _written(options, out, (*input.shape[:-1], weight.shape[0]), operands):
        return None
    return Product(input, weight, options, transposed=True)


def _linear_again(options: dict[str, Any], input: Any, weight: Any = None, bias: Any = None, *others: Any) -> Any:
    """A linear layer's product, where gemmhub has computed one alike; None elsewhere."""
    if others or weight.__class__ not in _CLASSES or weight.dim() != 2 or input.dtype is not weight.dtype:
        return None
    if input.dtype not in _NARROW:
        return None
    if bias is not None:
        if bias.__class__ not in _CLASSES or bias.dim() != 1 or bias.dtype is not input.dtype:
            return None
        options = {**options, "bias": bias}
    return calls.repeated_linear(input, weight, options)


def _grouped(positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The operands and options of gemmhub's grouped product; None for a call that torch must run."""
    if len(positional) != 2 or not named.keys() <= {"offs", "bias", "out_dtype"} or not _alike(*positional):
        return None
    return grouped.equivalent(*positional, **named)


_CLASSES = (torch.Tensor, torch.nn.Parameter)
_REPEATED: dict[Any, Callable[..., Any]] = {torch.nn.functional.linear: _linear_again}
"""Functions whose repeated calls are looked up before they are analysed. torch and gemmhub agree on what a call is that
has operands of one narrow dtype, a bias along the columns, and was computed before.
"""


def _operands(arguments: tuple[Any, ...]) -> list[Any]:
    """The operands of an einsum, which torch takes one by one or as a list."""
    operands = [*arguments[1:]]
    return [*operands[0]] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands


def _contraction(arguments: tuple[Any, ...]) -> Equation | None:
    """The equation of an einsum that is one product of two operands; None for every other one."""
    operands = _operands(arguments)
    if len(operands) != 2 or not isinstance(arguments[0], str) or not _alike(*operands):
        return None
    parsed = _parsed(arguments[0], operands[0].dim(), operands[1].dim())
    if parsed is None or not parsed.product or not parsed.agree([x.shape for x in operands]):
        return None
    return parsed


def _parsed(equation: str, *dimensions: int) -> Equation | None:
    """An equation; None for one that torch refuses, or reads in its own way."""
    try:
        return parse(equation, dimensions)
    except InputError:
        return None


_parsed._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compiler.assume_constant_result


_T, _OUT, _SUM = torch.Tensor, ("out",), ("beta", "alpha")
_MM, _BMM, _MV = of_ranks(2, 2), of_ranks(3, 3), of_ranks(2, 1)
_ADDMM, _BADDBMM = added(2, 2), added(3, 3)
_TAKEN: dict[Any, Taken] = {
    torch.matmul: Taken(("input", "other"), _OUT, _matmul),
    torch.linalg.matmul: Taken(("input", "other"), _OUT, _matmul),
    _T.matmul: Taken(("self", "other"), (), _matmul),
    _T.__matmul__: Taken(("self", "other"), (), _matmul),
    _T.__rmatmul__: Taken(("self", "other"), (), lambda b, a: _matmul(a, b)),
    torch.mm: Taken(("input", "mat2"), _OUT, _MM),
    _T.mm: Taken(("self", "mat2"), (), _MM),
    torch.bmm: Taken(("input", "mat2"), _OUT, _BMM),
    _T.bmm: Taken(("self", "mat2"), (), _BMM),
    torch.mv: Taken(("input", "vec"), _OUT, _MV),
    _T.mv: Taken(("self", "vec"), (), _MV),
    torch.addmm: Taken(("input", "mat1", "mat2"), (*_SUM, "out"), _ADDMM),
    _T.addmm: Taken(("self", "mat1", "mat2"), _SUM, _ADDMM),
    torch.baddbmm: Taken(("input", "batch1", "batch2"), (*_SUM, "out"), _BADDBMM),
    _T.baddbmm: Taken(("self", "batch1", "batch2"), _SUM, _BADDBMM),
    torch.nn.functional.linear: Taken(("input", "weight", "bias"), _OUT, _linear),
}
_EINSUM = (torch.einsum, torch.functional.einsum)
_TRACED = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) >= tuple(map(int, OLDEST.split(".")))
"""Whether torch's compiler traces the mode."""
