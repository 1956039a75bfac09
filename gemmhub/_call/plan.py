"""Plans: decided once, called many times with operands of equal shapes and dtypes.

:func:`make_plan` picks the cheapest function that still refuses operands unlike the planned ones before anything is
written.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import prod
from types import MethodType
from typing import Any, Protocol, cast

import numpy as np

from gemmhub._arrays.find import layout_key
from gemmhub._base.guard import out_of_memory, propagates
from gemmhub._call.bind import Array, Execute, bind, by_options, product, shortcut
from gemmhub._call.cache import CallCache
from gemmhub._call.describe import Call
from gemmhub._call.kinds import kind_of
from gemmhub._call.options import Request, scalar, stream_handle
from gemmhub.backend import Kernel
from gemmhub.dtypes import scalar_kind
from gemmhub.errors import AllocationError, InputError, KernelError
from gemmhub.operands import OPERANDS, Bias, Operand, Scale
from gemmhub.packed import PackedB
from gemmhub.problem import GemmProblem
from gemmhub.verdict import Decision


class _Attributes(type(Protocol)):  # type: ignore[misc]  # the metaclass of protocols has no public name
    """``isinstance`` by the attributes that an object has.

    From Python 3.12 on, that of protocols does not see those that a bound function has of its function.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        return callable(instance) and all(hasattr(instance, name) for name in ("decision", "kernel"))


class Plan(Protocol, metaclass=_Attributes):
    """What :func:`gemmhub.plan` returns: a function of operands with the planned shapes and dtypes.

    (A function that is bound to its :class:`~gemmhub._call.recipe.Recipe`, by which it pickles. An object with
    ``__call__`` would cost 0.1 us more, a ``functools.partial`` 0.03 us. What it prints, and what Python calls it in
    errors, is its ``__qualname__``.)

    It takes ``c``, ``bias`` and other operands where they were planned, ``alpha``, ``beta`` and ``stream``, which
    default to the planned ones. Raises InputError for operands that are not as planned, before anything is written.

    One that was planned without any of these may be a function of ``(a, b, out=None)`` alone: keyword arguments that
    are never given would cost a sixth of what a planned call may.
    """

    decision: Decision
    kernel: Kernel

    def __call__(self, a: Array, b: Array, out: Array | None = None, **epilogue: Any) -> Array: ...


def make_plan(
    call: Call,
    decision: Decision,
    kernel: Kernel,
    request: Request,
    describe: Callable[..., Call],
    b: object,
    with_epilogue: bool,
    recipe: object,
) -> Plan:
    """The public plan of a decided call. ``describe`` checks later operands as the first ones were.

    ``with_epilogue``: alpha, beta, c, bias or stream was named, if only by its default.
    """
    execute = bind(call, decision.chosen or "", kernel)
    problem, out_shape, layout_free = call.problem, call.out_shape, decision.chosen_layout_free
    name = f"gemmhub.Plan({problem}, backend={decision.chosen!r})"

    def facts(x: Any) -> tuple[Any, ...] | None:
        if x is None:
            return None
        kind = x.kind if isinstance(x, PackedB) else layout_free or layout_key(x)
        return type(x), x.shape, x.dtype, kind

    names = tuple(request.operands)
    planned: Any = None
    if call.exact or call.packed:  # else describe() checks the operands of every call
        right = b if isinstance(b, PackedB) else call.b
        read = [None if name == "c" and request.beta == 0 else x for name, x in request.operands.items()]
        if all(x is None or hasattr(x, "dtype") for x in read):  # no lists and numbers
            planned = tuple(map(facts, (call.a, right, *read)))
    scalars_planned = scalar_kind(request.alpha), scalar_kind(request.beta)
    out_planned = type(call.a), out_shape, problem.out.dtype, layout_free or (_out_strides(call), True)
    request = replace(request, operands={})  # examples, too

    def checked(
        a: Any, b: Any, out: Any = None, *, alpha: Any = None, beta: Any = None, stream: Any = None, **operands: Any
    ) -> Array:
        try:
            if operands:
                operands = _planned_operands(operands, names, name)
            alpha = request.alpha if alpha is None else scalar(alpha, "alpha")
            beta = request.beta if beta is None else scalar(beta, "beta")
            stream = request.stream if stream is None else stream_handle(stream)
            try:
                as_planned = (
                    tuple(map(facts, (a, b, *map(operands.get, names)))) == planned
                    and (out is None or facts(out) == out_planned)
                    and (scalar_kind(alpha), scalar_kind(beta)) == scalars_planned
                    and stream is None
                )
            except Exception:  # a list, or foreign code that raises: describe() checks it
                as_planned = False
            if not as_planned:
                _must_suit(alpha, beta, request)
                if operands.get("c") is None and beta != 0:
                    raise InputError("c", f"None with beta {beta}", "an array as planned", "pass c=")
                now = replace(
                    request, operands=operands, stream=stream, alpha=alpha, beta=beta, out_dtype=problem.out.dtype
                )
                given = describe(a, b, out, now)
                _must_equal(given, problem, out_shape, layout_free)
                _must_hold(given.problem, problem, alpha, beta)
            return execute(a, b, out, operands, alpha, beta, stream)
        except AllocationError:
            raise
        except MemoryError as error:
            raise out_of_memory(error) from error

    def always_checked(_: Any, *operands: Any, **epilogue: Any) -> Array:
        return checked(*operands, **epilogue)

    run = shortcut(call, kernel, execute)
    function: Execute = always_checked
    if run is not execute and layout_free and problem.plain:
        function = _short_plan(run, checked, call, decision.chosen or "", with_epilogue)
    elif request.stream is None:
        function = _learning_plan(call, kernel, run, checked, request, not layout_free)
    checked.__qualname__ = function.__qualname__ = name
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # torch's compiler leaves its graph for a plan
    made: Any = function
    made.__name__, made.decision, made.kernel = "plan", decision, kernel
    made._repr_html_ = partial(_html, decision, kernel)
    return cast("Plan", MethodType(made, recipe))


def _planned_operands(given: dict[str, Any], planned: tuple[str, ...], plan: str) -> dict[str, Any]:
    """The operands, without those that are None. TypeError and InputError for what was not planned."""
    for name, x in given.items():
        if name not in OPERANDS:
            raise TypeError(f"{plan}() got an unexpected keyword argument {name!r}")
        if x is not None and name not in planned:
            remedy = "make a plan with c= and beta=" if name == "c" else f"make a plan with {name}="
            raise InputError(name, f"given to {plan}", f"no {name}", remedy)
    return {name: given[name] for name in planned if given.get(name) is not None}


def _html(decision: Decision, kernel: Kernel) -> str:
    """What notebooks show of a plan."""
    from gemmhub._base import markup

    scratch = f"{kernel.workspace_bytes} bytes"
    rows = [("plan for", decision.problem), ("backend", f"{decision.chosen} ({decision.why})")]
    return markup.facts([*rows, ("kernel", kernel.description), ("scratch memory", scratch)])


def _learning_plan(
    call: Call, kernel: Kernel, run: Execute, checked: Execute, request: Request, closely: bool
) -> Execute:
    """A plan that checks each kind of operands once: later calls of that kind go straight to the kernel."""
    cache, alone = CallCache(), run is kernel.direct
    arrays, problem, shape, prepared = call.arrays, call.problem, call.out_shape, kernel.run
    alpha, beta, find = request.alpha, request.beta, cache.find
    fast = again = None
    if problem.device.kind != "cpu" and not call.packed:
        # The settings no longer matter: bool() is always the same, and no Python function.
        fast = arrays.fast_path(bool, alpha, beta)
        again = fast and (fast.planned or fast.call)

    def planned(_: Any, a: Any, b: Any, out: Any = None, **epilogue: Any) -> Array:
        try:
            if again is not None:
                result = again(a, b, out, epilogue)
                if result is not None:
                    return result
            else:
                known = find(kind_of(a, b, out, epilogue, closely))
                if known is not None:
                    return known(a, b, out, epilogue)
        except Exception:
            pass  # checked() finds out what is wrong, and reports it
        except BaseException as error:
            if propagates(error):
                raise
        result = checked(a, b, out, **epilogue)
        with suppress(MemoryError):  # the result is there; another call may remember how
            if fast is not None:
                fast.learn(arrays, problem, shape, prepared, a, b, out, epilogue)
            elif "stream" not in epilogue:
                key = kind_of(a, b, out, epilogue, closely)
                if key is not None:
                    cache.put(key, by_options(run, alone, epilogue, alpha, beta))
        return result

    return planned


def _short_plan(
    direct: Callable[[Array, Array, Array | None], Array], checked: Execute, call: Call, backend: str,
    with_epilogue: bool,
) -> Execute:  # fmt: skip
    """A plan that checks no more than it must before handing over to a self-checking matmul."""
    run = direct
    kind = replace(call, a=None, b=None, out=None, operands={})  # the plan keeps no examples
    a_shape, a_dtype, b_shape, b_dtype = call.a.shape, call.a.dtype, call.b.shape, call.b.dtype
    b_ndim, out_dtype, array = call.b.ndim, call.problem.out.dtype, np.ndarray
    out_strides = _out_strides(call)  # of others it must be seen whether elements share memory
    shape, single = call.out_shape, not call.problem.batch  # a stack NumPy would broadcast to a larger one
    # Strides imply the itemsize. Of types as wide as float32 and complex128 NumPy refuses to round into any other;
    # float64 it would round into complex64. (One attribute is a tenth of what a planned call may cost.)
    implied = single and out_dtype.itemsize != 8

    def first(a: Any, b: Any, out: Any) -> Array:
        nonlocal run
        result = product(direct(a, b, out), kind, out, backend)
        run = direct
        return result

    run = first

    def planned(_: Any, a: Any, b: Any, out: Any = None) -> Array:
        # With these, the matmul itself finds any other fault of out: matrices of the wrong size, and a read-only
        # one; and also a wrong b with as many dimensions (one that fits is multiplied right, in the wider dtype, and
        # rounded into out). With a vector for a matrix, or a stack, it would broadcast the product into out.
        try:
            if a.__class__ is array and b.__class__ is array and a.shape == a_shape and a.dtype is a_dtype:
                if out is None:
                    if b.shape == b_shape and b.dtype is b_dtype:
                        return run(a, b, None)
                elif (
                    out.strides == out_strides
                    and b.ndim == b_ndim
                    and (implied or (out.dtype is out_dtype and (single or out.shape == shape)))
                ):
                    return run(a, b, out)
        except KernelError:
            raise  # of the first product: direct does not return one
        except Exception:
            pass  # checked() raises the error
        except BaseException as error:
            if propagates(error):
                raise
        return checked(a, b, out)

    def planned_with_epilogue(_: Any, a: Any, b: Any, out: Any = None, **epilogue: Any) -> Array:
        return checked(a, b, out, **epilogue) if epilogue else planned(_, a, b, out)

    return planned_with_epilogue if with_epilogue else planned


def _out_strides(call: Call) -> tuple[int, ...]:
    """The strides of the example of out; those of a new array where none was given."""
    if call.out is not None:
        return cast("tuple[int, ...]", call.out.strides)
    shape, size = call.out_shape, call.problem.out.dtype.itemsize
    return tuple(prod(shape[i + 1 :]) * size for i in range(len(shape)))


def _must_suit(alpha: Any, beta: Any, planned: Request) -> None:
    """InputError for scalars that need another kernel.

    One that multiplies by alpha takes 1 as well. But one that adds ``beta * c`` may read c whatever beta is, and c
    must not count where beta is 0, not even where it is NaN; one that adds nothing has no place for c.
    """
    if planned.alpha == 1 and alpha != 1:
        raise InputError("alpha", f"{alpha} in a plan for alpha 1", "1", "plan with another alpha: that takes any")
    if (planned.beta == 0) != (beta == 0):
        allowed = "0" if planned.beta == 0 else "numbers other than 0"
        raise InputError("beta", f"{beta} in a plan for beta {planned.beta}", allowed, "make another plan")


def _must_hold(given: GemmProblem, planned: GemmProblem, alpha: Any, beta: Any) -> None:
    """InputError for scalars that the kernel's accumulator cannot hold."""
    if given.compute_dtype.itemsize > planned.compute_dtype.itemsize:
        raise InputError(
            "alpha, beta",
            f"{alpha} and {beta} in a plan that computes in {planned.compute_dtype}",
            "0 and magnitudes from 1.2e-38 to 3.4e38",
            "make another plan with these scalars",
        )


def _must_equal(call: Call, planned: GemmProblem, out_shape: tuple[int, ...], layout_free: bool) -> None:
    """InputError naming what differs from the plan."""
    given = call.problem
    names = {"m": "m", "n": "n", "k": "k", "batch": "batch", "packed_by": "b"}
    differing = [name for field, name in names.items() if getattr(given, field) != getattr(planned, field)]
    for name in ("a", "b", "out", *{**planned.operands, **given.operands}):
        before, after = (
            _compared(x.operands.get(name) if name in OPERANDS else getattr(x, name), layout_free)
            for x in (planned, given)
        )
        if isinstance(before, Operand) and isinstance(after, Operand):
            after = replace(after, alignment=min(before.alignment, after.alignment))  # better than planned will do
        differing += [name] if before != after else []
    if call.out_shape != out_shape and not differing:
        differing = ["a, b"]  # a vector and a matrix of one row, for example
    if differing:
        raise InputError(
            ", ".join(dict.fromkeys(differing)),
            f"{given}, a result of shape {call.out_shape}",
            f"what was planned: {planned}, a result of shape {out_shape}",
            "make another plan",
        )


def _compared(x: object, layout_free: bool) -> object:
    """What must be equal of an operand. (Not its dtype itself: numpy.dtype("float64") == None.)"""
    if isinstance(x, Bias) and layout_free:
        return replace(x, stride=1)
    if isinstance(x, Scale) and layout_free:
        return x.form
    if isinstance(x, Operand):
        return x.dtype.name if layout_free else replace(x, layout=x.layout.essential)
    return x
