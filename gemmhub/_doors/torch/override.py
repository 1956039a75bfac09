"""The override of torch's own operators of products, for the whole process: ``gemmhub.torch.override``.

Each operator's kernel for CPU and CUDA tensors is replaced through torch's dispatcher, below autograd, autocast and
torch.func. Whatever reaches these operators then runs in gemmhub: functions in Python and in C++, autograd's gradients,
scripted functions, and the calls that graphs of torch's compiler make. A call that gemmhub does not take runs torch's
kernel, which was obtained before it was replaced.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import torch

from gemmhub import api, config
from gemmhub._arrays.plugin_arrays import plugin_arrays
from gemmhub._base.wording import unexpected
from gemmhub._doors.torch import calls, exempt
from gemmhub._doors.torch.mode import Product, added, of_ranks
from gemmhub._doors.torch.mode import options as block_options
from gemmhub._doors.torch.ops import without_tangents
from gemmhub.errors import DependencyError, InputError, NoBackendError
from gemmhub.kit import locks

Tensor = Any
Analysis = Callable[..., "Product | None"]

_log = logging.getLogger("gemmhub")

_DEVICES = ("CPU", "CUDA")
"""Dispatch keys of the kernels that are replaced, where torch has them."""


def _in_place(equivalent: Analysis) -> Analysis:
    """The analysis of an operator that writes the sum into its addend."""

    def analysed(c: Tensor, a: Tensor, b: Tensor, **named: Any) -> Product | None:
        return equivalent(c, a, b, out=c, **named)

    return analysed


_OPERATORS: dict[str, Analysis] = {
    "mm": of_ranks(2, 2), "mm.out": of_ranks(2, 2),
    "bmm": of_ranks(3, 3), "bmm.out": of_ranks(3, 3),
    "dot": of_ranks(1, 1),
    "addmm": added(2, 2), "addmm.out": added(2, 2), "addmm_": _in_place(added(2, 2)),
    "baddbmm": added(3, 3), "baddbmm.out": added(3, 3), "baddbmm_": _in_place(added(3, 3)),
    "addmv": added(2, 1), "addmv.out": added(2, 1), "addmv_": _in_place(added(2, 1)),
}  # fmt: skip
"""Operators of aten with their analyses. mv, linear, matmul, einsum, tensordot and others call these; the dispatcher
has no kernels of their own for dense tensors.
"""

_COMPILED = ("mm", "bmm", "dot", "addmm", "baddbmm", "addmv", "mv")
"""Operators that torch's compiler may replace by its own kernels, or by sums of element-wise products."""


class _Thread(threading.local):
    inside = False
    """Whether this thread runs one of gemmhub's products for torch: a backend may call torch's."""


_thread = _Thread()
_changing = locks.lock()
_active: Override | None = None
_replaced: list[Any] = []
"""The library whose kernels stand before torch's, once there was an override: it is never destroyed, because another
thread may be on its way to one of its kernels. Without an active override they call torch's."""


def options() -> dict[str, Any]:
    """The options of the active override; none without one."""
    active = _active
    return {} if active is None else dict(active._options)


def in_force() -> dict[str, Any]:
    """The options of the active override and of the blocks of ``use`` around a call; those of a block go before."""
    return options() | block_options()


class Override:
    """torch's products in gemmhub, for the whole process; what :func:`override` returns.

    As a context manager it ends at the end of the block.
    """

    def __init__(self, options: Mapping[str, Any], strict: bool) -> None:
        self._options, self._strict = options, strict
        self._counting, self._products, self._left = locks.lock(), 0, Counter[str]()
        self._inductor: Any = None
        global _active
        from torch._inductor import decomposition, lowering  # noqa: F401  (not under the lock: it takes seconds)

        with _changing:
            if _active is not None:
                raise InputError(
                    "override", "called while torch's products are overridden", "one override at a time",
                    "call undo() of the object that the first call returned",
                )  # fmt: skip
            if not _replaced:
                _replaced.append(_replacement())
            self._inductor = _undecomposed()
            self._inductor.__enter__()
            _active = self

    @property
    def active(self) -> bool:
        """Whether torch's products run in gemmhub now."""
        return _active is self

    @property
    def products(self) -> int:
        """The number of calls that gemmhub has computed."""
        return self._products

    @property
    def left(self) -> dict[str, int]:
        """The calls that torch has computed: their numbers, by operator and reason."""
        with self._counting:
            return dict(self._left)

    def undo(self) -> None:
        """Let torch compute its products again, at once and in the whole process. A second call does nothing."""
        global _active
        with _changing:
            if _active is self:
                _active = None
                self._inductor.__exit__(None, None, None)

    def __enter__(self) -> Override:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        state = "active" if self.active else "undone"
        return f"<{type(self).__name__}: {state}, {self.products} products, {sum(self.left.values())} left to torch>"

    def _run(self, name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
        """gemmhub's result of a call; None where torch has to compute it."""
        recorded = torch.is_grad_enabled()
        try:
            _thread.inside = True
            torch._C._set_grad_enabled(False)  # gradients and tangents are handled above the kernels
            with without_tangents():
                return self._product(name, arguments, named)
        finally:
            torch._C._set_grad_enabled(recorded)
            _thread.inside = False

    def _product(self, name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
        """gemmhub's result; None where torch has to compute it."""
        written = named.get("out", arguments[0] if name.endswith("_") else None)  # it must not be a copy
        product = _OPERATORS[name](*[x if x is written else _dense(x) for x in arguments], **named)
        if product is None:
            self._leave(_refusal(name, arguments), "not a call that gemmhub takes", name, arguments)
            return None
        options = {**product.options, **self._options}
        if torch.are_deterministic_algorithms_enabled() and config.current().reproducible is None:
            options.setdefault("reproducible", "run")
        try:
            result = api.matmul(product.a, product.b, **options)
        except (InputError, NoBackendError) as error:
            self._leave(error, str(error).partition("\n")[0], name, arguments)
            return None
        with self._counting:
            self._products += 1
        return result if written is None else written

    def _leave(self, error: Exception, reason: str, name: str, arguments: tuple[Any, ...]) -> None:
        """Count a call that torch computes, and log the first one of each reason. Raises ``error`` where strict."""
        if self._strict:
            raise error
        entry = f"{_described(name, arguments)}: {reason}"
        with self._counting:
            first = entry not in self._left and len(self._left) < _REASONS
            self._left[entry if first or entry in self._left else "others"] += 1
        if first:
            _log.warning("torch computes %s", entry)


_REASONS = 256
"""The most reasons that are counted apart."""


def _kernel(name: str, theirs: Any, keys: Any, *arguments: Any, **named: Any) -> Tensor:
    """The kernel of an operator. The dispatcher omits arguments with default values."""
    active = _active
    result = None if active is None or _thread.inside else active._run(name, arguments, named)
    return theirs.call_boxed(keys, *arguments, **named) if result is None else result


exempt(_kernel)


def _replacement() -> Any:
    """Put kernels before torch's, and return the library that holds them."""
    kernels = [
        (name, key, torch.library.get_kernel(f"aten::{name}", key))
        for name in _OPERATORS
        for key in _DEVICES
        if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key)
    ]
    library = torch.library.Library("aten", "IMPL")
    with _quiet():
        for name, key, theirs in kernels:
            kernel = partial(_kernel, name, theirs)
            library.impl(name, kernel, key, with_keyset=True, allow_override=True)
    return library


def _dense(x: Any) -> Any:
    """An operand as gemmhub reads it: of the plain type, without a pending conjugation or negation."""
    if not isinstance(x, torch.Tensor):
        return x
    if type(x) is not torch.Tensor and type(x) is not torch.nn.Parameter:
        with torch._C.DisableTorchFunctionSubclass():
            x = x.as_subclass(torch.Tensor)  # its own functions and operators were called above the kernels
    return x.resolve_conj().resolve_neg() if x.is_conj() or x.is_neg() else x


def _described(name: str, arguments: tuple[Any, ...]) -> str:
    """A call in words, without sizes."""
    operands = [x for x in arguments if isinstance(x, torch.Tensor)]
    dtypes = " by ".join(str(x.dtype).removeprefix("torch.") for x in operands)
    return f"aten::{name} of {dtypes} on {operands[0].device.type}"


def _refusal(name: str, arguments: tuple[Any, ...]) -> InputError:
    """The error for a call that gemmhub does not take."""
    return InputError(
        "override", f"a call of {_described(name, arguments)}, with strict=True",
        "dense floating or complex operands of one dtype and device, shapes that fit, and out= of the result's shape",
        "leave strict= out, and torch computes such calls",
    )  # fmt: skip


@contextmanager
def _quiet() -> Iterator[None]:
    """A block in which torch does not warn of kernels that are replaced."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel", UserWarning)
        yield


@contextmanager
def _undecomposed() -> Iterator[None]:
    """A block in which torch's compiler keeps products as calls of their operators.

    Its decompositions and lowerings turn small ones, and batches of vectors by matrices on CPUs, into sums of
    element-wise products, and its templates of kernels compete with the operators where it tunes. Graphs that were
    compiled before, or are compiled within, are not used on the other side: the compiler starts anew, and the keys of
    its caches on disk differ.
    """
    from torch._inductor import decomposition, lowering

    decompositions, lowerings, config = decomposition.decompositions, lowering.lowerings, torch.compiler.config
    operators = [getattr(torch.ops.aten, name).default for name in _COMPILED]
    removed = {x: decompositions.pop(x) for x in operators if x in decompositions}
    replaced = {x: lowerings[x] for x in operators if x in lowerings}
    for x in replaced:
        lowerings[x] = lowering.fallback_handler(x, add_to_fallback_set=False)
    tag = config.cache_key_tag
    config.cache_key_tag = f"{tag}+gemmhub.override"
    torch.compiler.reset()
    try:
        yield
    finally:
        decompositions.update(removed)
        lowerings.update(replaced)
        config.cache_key_tag = tag
        torch.compiler.reset()


def override(
    reproducible: str | None = None, *, backend: str | None = None, precision: str | None = None, strict: bool = False,
    **others: NoReturn,
) -> Override:  # fmt: skip
    """Let gemmhub compute torch's own products in the whole process, until :meth:`Override.undo`.

    The operators are aten's mm, bmm, addmm, baddbmm, addmv and dot, with their forms that write, for dense tensors on
    CPUs and CUDA devices. torch.matmul, mv, einsum, torch.nn.functional.linear, whole models, autograd's gradients,
    optimizers, scripted functions, functions in C++ and graphs of torch.compile call them. After the first override
    torch's products of the process pass a function in Python, also when it has ended. Begin the first one before other
    threads multiply. Not overridden are recurrent layers that torch gives to oneDNN or cuDNN as a whole, fused
    attention (torch.nn.functional.scaled_dot_product_attention, except its math form), convolutions, products of
    integers, scaled and grouped products, and packages of AOTInductor, which run without Python.

    Parameters
    ----------
    reproducible : as of :func:`gemmhub.matmul`, for each product. "batch" gives each row of a result the same bits in
        every batch. Under torch.use_deterministic_algorithms(True), None counts as "run".
    backend, precision : as of :func:`gemmhub.matmul`.
    strict : whether a call that gemmhub does not compute raises. By default torch computes it, and
        :attr:`Override.left` counts it, with the reason, which is logged once.

    Returns
    -------
    The object whose ``undo()`` ends it. As a context manager it ends at the end of the block.

    Raises
    ------
    InputError : an unknown promise, backend or precision; an override that is active already. With ``strict``, from
        calls of torch, calls that gemmhub does not take.
    NoBackendError : with ``strict``, from calls of torch, a product that no backend can compute.
    DependencyError : a torch without torch.library.get_kernel.

    See Also
    --------
    gemmhub.torch.use : the same for functions in Python that one thread calls in a block of code.
    gemmhub.torch.accelerate : replace the linear layers of one model.

    Examples
    --------
    >>> model = torch.nn.Linear(32, 8)
    >>> with gemmhub.torch.override() as override:
    ...     model(torch.randn(4, 32)).sum().backward()
    >>> override.products, override.active
    (2, False)
    """
    for name in others:
        raise unexpected(name, ("reproducible", "backend", "precision", "strict"))
    if strict is not True and strict is not False:
        raise InputError("strict", f"{strict!r}", "True or False")
    if not hasattr(torch.library, "get_kernel"):
        raise DependencyError(
            f"override: torch {torch.__version__} has no torch.library.get_kernel, which returns torch's own kernels; "
            "allowed: torch 2.11 or later. pip install --upgrade torch"
        )
    options = calls.kept(precision, reproducible, backend)
    plugin_arrays()  # registers the device types of plugins
    return Override(options, strict)
