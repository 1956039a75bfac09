"""Plans: decided once, called many times with operands of equal shapes and dtypes.

:func:`make_plan` picks the cheapest function that still refuses operands unlike the planned ones before anything is
written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, TypeVar, cast

import numpy as np

from gemmhub._arrays.host.operands import NUMPY
from gemmhub._arrays.spec.operands import SpecArrays
from gemmhub._base import registered
from gemmhub._base.guard import out_of_memory, propagates
from gemmhub._base.report import Report
from gemmhub._base.tables import Facts, Part
from gemmhub._call.bind import Array, Execute, bind, by_options, product, shortcut
from gemmhub._call.cache import CallCache
from gemmhub._call.describe import Call
from gemmhub._call.keys import call_key
from gemmhub._call.library_paths import by_views, viewed
from gemmhub._call.options import Request, scalar, stream_handle
from gemmhub._call.recipe import Recipe
from gemmhub.array_library import HostArrays
from gemmhub.backend import Kernel
from gemmhub.dtypes import scalar_class
from gemmhub.errors import AllocationError, DeviceError, InputError, KernelError
from gemmhub.operands import OPERANDS, Bias, Operand, Scale
from gemmhub.packed import PackedB
from gemmhub.problem import GemmProblem
from gemmhub.verdict import Decision

A = TypeVar("A")
"""The type of the arrays that a plan multiplies."""


class Plan(Report, partial[A]):  # a class with __call__ would cost a call 0.3 us
    """A product that was decided once, as :func:`gemmhub.plan` returns it: ``Plan[A]`` for arrays of the type A.

    It is called with operands of the planned shapes and dtypes: ``plan(a, b, out=None, **operands)``. It takes ``c``,
    ``bias`` and other operands where they were planned, and ``alpha``, ``beta`` and ``stream``, which default to the
    planned ones. Raises InputError for operands that are not as planned, before anything is written; a b of another
    dtype whose product NumPy rounds into a given ``out`` may be taken.

    It pickles, and is decided anew where it is loaded.
    """

    decision: Decision
    """The decision, as :func:`gemmhub.explain` returns it."""
    kernel: Kernel
    """The kernel that the chosen backend prepared."""
    _recipe: Recipe

    @classmethod
    def of(cls, run: Execute, decision: Decision, kernel: Kernel, recipe: Recipe) -> Plan[Any]:
        """The plan that ``run(a, b, out=None, **operands)`` computes."""
        run._torchdynamo_disable = True  # type: ignore[attr-defined]  # torch's compiler leaves its graph for a plan
        registered.leave_to_python(run)
        plan: Plan[Any] = cls(run)
        plan.decision, plan.kernel, plan._recipe = decision, kernel, recipe
        return plan

    def _parts(self) -> Iterator[Part]:
        decision, kernel = self.decision, self.kernel
        rows = [("plan for", str(decision.problem)), ("backend", f"{decision.chosen} ({decision.why})")]
        yield Facts([*rows, ("kernel", kernel.description), ("workspace", f"{kernel.workspace_bytes} bytes")])

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return getattr, (self._recipe, "plan")

    def __copy__(self) -> Plan[A]:
        return self  # it holds nothing of a call

    def __deepcopy__(self, memo: object) -> Plan[A]:
        return self


def make_plan(
    call: Call,
    decision: Decision,
    kernel: Kernel,
    request: Request,
    describe: Callable[..., Call],
    b: object,
    recipe: Recipe,
) -> Plan[Any]:
    """The public plan of a decided call. ``describe`` checks later operands as the first ones were."""
    if isinstance(call.arrays, SpecArrays):
        return Plan.of(_plan_of_specs(call, decision, kernel, request, describe, recipe), decision, kernel, recipe)
    execute = bind(call, decision.chosen or "", kernel)
    problem, out_shape, layout_free = call.problem, call.out_shape, decision.chosen_layout_free

    def facts(x: Any) -> tuple[Any, ...] | None:
        if x is None:
            return None
        layout = x.kind if isinstance(x, PackedB) else layout_free or (x.strides, x.flags.aligned)
        return type(x), x.shape, x.dtype, layout

    views = (
        None
        if call.packed or not viewed(call.arrays) or call.exact
        else _plan_of_views(call, decision, kernel, request, describe, b, recipe)
    )
    names = tuple(request.operands)
    planned: Any = None
    if call.exact or call.packed:  # else describe() checks the operands of every call
        right = b if isinstance(b, PackedB) else call.b
        read = [None if name == "c" and request.beta == 0 else x for name, x in request.operands.items()]
        if all(x is None or type(x) is np.ndarray for x in (call.a, *read)):  # no lists and numbers
            planned = tuple(map(facts, (call.a, right, *read)))
    scalars_planned = scalar_class(request.alpha), scalar_class(request.beta)
    out_planned = type(call.a), out_shape, problem.out.dtype, layout_free or (_out_strides(call), True)
    request = replace(request, operands={})  # examples, too

    def checked(a: Any, b: Any, out: Any = None, **options: Any) -> Array:
        try:
            operands = _planned_operands(options, names) if options else {}
            alpha, beta, stream = (options.get(name) for name in ("alpha", "beta", "stream"))
            alpha = request.alpha if alpha is None else scalar(alpha, "alpha")
            beta = request.beta if beta is None else scalar(beta, "beta")
            stream = request.stream if stream is None else stream_handle(stream)
            try:
                as_planned = (
                    tuple(map(facts, (a, b, *map(operands.get, names)))) == planned
                    and (out is None or facts(out) == out_planned)
                    and (scalar_class(alpha), scalar_class(beta)) == scalars_planned
                    and stream is None
                )
            except Exception:  # a list, or foreign code that raises: describe() checks it
                as_planned = False
            if not as_planned:
                _must_suit(alpha, beta, request)
                _must_have_c(operands, beta)
                now = replace(
                    request, operands=operands, stream=stream, alpha=alpha, beta=beta, out_dtype=problem.out.dtype
                )
                described = describe(a, b, out, now)
                _must_equal(described, problem, out_shape, layout_free)
                _must_hold(described.problem, problem, alpha, beta)
            return execute(a, b, out, operands, alpha, beta, stream)
        except AllocationError:
            raise
        except MemoryError as error:
            raise out_of_memory(error) from error

    direct = shortcut(call, kernel)
    run: Execute = checked
    if direct is not None and layout_free and problem.plain and not call.packed:
        run = _short_plan(direct, checked, call, decision.chosen or "")
    elif request.stream is None:
        run = _learning_plan(call, kernel, direct, execute, checked, request, not layout_free, views)
    return Plan.of(run, decision, kernel, recipe)


def _plan_of_views(
    call: Call, decision: Decision, kernel: Kernel, request: Request, describe: Callable[..., Call], b: object,
    recipe: Recipe,
) -> Callable[[Any, Any, Any, Mapping[str, Any]], Any]:  # fmt: skip
    """The plan of ndarrays, for operands of a library that views them as such."""
    operands = {name: call.arrays.view(x, name) for name, x in request.operands.items()}
    native, of_views = replace(call, arrays=NUMPY, exact=True), replace(request, operands=operands)
    plan = make_plan(native, decision, kernel, of_views, describe, call.b, recipe)
    return by_views(type(b), cast("HostArrays", call.arrays), None, plan).call


def _plan_of_specs(
    call: Call, decision: Decision, kernel: Kernel, request: Request, describe: Callable[..., Call], recipe: Recipe
) -> Execute:
    """The plan of operands that were specs: of each type of arrays, the first ones complete it."""
    plans: dict[type, Plan[Any]] = {}
    problem, out_shape, layout_free = call.problem, call.out_shape, decision.chosen_layout_free
    names, request = tuple(request.operands), replace(request, operands={})

    def planned(a: Any, b: Any, out: Any = None, **options: Any) -> Array:
        plan = plans.get(a.__class__)
        if plan is None:
            operands = _planned_operands(options, names)
            _must_have_c(operands, request.beta)
            now = replace(request, operands=operands, out_dtype=problem.out.dtype)
            described = describe(a, b, out, now)
            if described.problem.device != problem.device:
                given = f"arrays on {described.problem.device}"
                raise DeviceError(
                    "a, b", given, f"arrays on {problem.device}, as planned", "move them, or plan for them"
                )
            _must_equal(described, problem, out_shape, layout_free)
            plan = plans[a.__class__] = make_plan(described, decision, kernel, now, describe, b, recipe)
        return plan(a, b, out, **options)

    return planned


def _must_have_c(operands: Mapping[str, Any], beta: Any) -> None:
    if operands.get("c") is None and beta != 0:
        raise InputError("c", f"None with beta {beta}", "an array as planned", "pass c=")


def _planned_operands(options: Mapping[str, Any], planned: tuple[str, ...]) -> dict[str, Any]:
    """The operands, without those that are None. TypeError and InputError for unplanned ones."""
    for name, x in options.items():
        if name in _CALLS:
            continue
        if name not in OPERANDS:
            raise TypeError(f"a gemmhub.Plan got an unexpected keyword argument {name!r}")
        if x is not None and name not in planned:
            remedy = "make a plan with c= and beta=" if name == "c" else f"make a plan with {name}="
            raise InputError(name, "given to a plan that was made without", f"no {name}", remedy)
    return {name: options[name] for name in planned if options.get(name) is not None}


_CALLS = ("alpha", "beta", "stream")
"""Options of a plan's calls that are no operands."""


def _learning_plan(
    call: Call, kernel: Kernel, direct: Execute | None, execute: Execute, checked: Execute, request: Request,
    with_strides: bool, again: Callable[[Any, Any, Any, Mapping[str, Any]], Any] | None,
) -> Execute:  # fmt: skip
    """A plan that checks each call signature once: later calls of that signature go straight to the kernel, or to
    ``again`` where it is not None, which returns None where it does nothing.
    """
    cache = CallCache()
    arrays, problem, shape, prepared = call.arrays, call.problem, call.out_shape, kernel.run
    alpha, beta, find = request.alpha, request.beta, cache.find
    fast = None
    if problem.device.type != "cpu" and not call.packed:
        # The settings no longer matter: bool() is always the same, and no Python function.
        fast = arrays.fast_path(bool, alpha, beta)
        again = fast and (fast.planned or fast.call)

    def planned(a: Any, b: Any, out: Any = None, **epilogue: Any) -> Array:
        try:
            if again is not None:
                result = again(a, b, out, epilogue)
                if result is not None:
                    return result
            else:
                known = find(call_key(a, b, out, epilogue, with_strides))
                if known is not None:
                    return known(a, b, out, epilogue)
        except Exception:
            pass  # checked() reports the fault
        except BaseException as error:
            if propagates(error):
                raise
        result = checked(a, b, out, **epilogue)
        with suppress(MemoryError):  # the result is there; another call may remember how
            if fast is not None:
                fast.learn(arrays, problem, shape, prepared, a, b, out, epilogue)
            elif again is None and "stream" not in epilogue:
                key = call_key(a, b, out, epilogue, with_strides)
                if key is not None:
                    cache.put(key, by_options(direct, problem.plain, execute, epilogue, alpha, beta))
        return result

    return planned


def _short_plan(
    direct: Callable[[Array, Array, Array | None], Array], checked: Execute, call: Call, backend: str
) -> Execute:
    """A plan that checks no more than it must before handing over to a self-checking matmul."""
    run = direct
    signature = replace(call, a=None, b=None, out=None, operands={})  # the plan keeps no examples
    a_shape, a_dtype, b_shape, b_dtype = call.a.shape, call.a.dtype, call.b.shape, call.b.dtype
    b_ndim, out_dtype, array = call.b.ndim, call.problem.out.dtype, np.ndarray
    out_strides = _out_strides(call)  # of others it must be seen whether elements share memory
    shape, single = call.out_shape, not call.problem.batch  # a stack NumPy would broadcast to a larger one
    # Strides imply the itemsize. Of types as wide as float32 and complex128 NumPy refuses to round into any other;
    # float64 it would round into complex64. (One attribute is a tenth of what a planned call may cost.)
    implied = single and out_dtype.itemsize != 8

    def first(a: Any, b: Any, out: Any) -> Array:
        nonlocal run
        result = product(direct(a, b, out), signature, out, backend)
        run = direct
        return result

    run = first

    def planned(a: Any, b: Any, out: Any = None, **epilogue: Any) -> Array:
        # With these, the matmul itself finds any other fault of out: matrices of the wrong size, and a read-only
        # one; and also a wrong b with as many dimensions (one that fits is multiplied right, in the wider dtype, and
        # rounded into out). With a vector for a matrix, or a stack, it would broadcast the product into out.
        try:
            if epilogue:
                pass
            elif a.__class__ is array and b.__class__ is array and a.shape == a_shape and a.dtype is a_dtype:
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
        return checked(a, b, out, **epilogue)

    return planned


def _out_strides(call: Call) -> tuple[int, ...]:
    """The strides of the example of out; those of a new array where there is none."""
    if call.out is not None:
        return cast("tuple[int, ...]", call.out.strides)
    shape, size = call.out_shape, call.problem.out.dtype.itemsize
    return tuple(prod(shape[i + 1 :]) * size for i in range(len(shape)))


def _must_suit(alpha: Any, beta: Any, planned: Request) -> None:
    """InputError for scalars that need another kernel.

    One that multiplies by alpha takes 1 as well. But one that adds ``beta * c`` may read c whatever beta is, and c
    must not count where beta is 0, not even where it is NaN; one that adds nothing does not take c.
    """
    if planned.alpha == 1 and alpha != 1:
        raise InputError("alpha", f"{alpha} in a plan for alpha 1", "1", "plan with another alpha: that takes any")
    if (planned.beta == 0) != (beta == 0):
        allowed = "0" if planned.beta == 0 else "numbers other than 0"
        raise InputError("beta", f"{beta} in a plan for beta {planned.beta}", allowed, "make another plan")


def _must_hold(problem: GemmProblem, planned: GemmProblem, alpha: Any, beta: Any) -> None:
    """InputError for scalars that the kernel's accumulator cannot hold."""
    if problem.compute_dtype.itemsize > planned.compute_dtype.itemsize:
        raise InputError(
            "alpha, beta",
            f"{alpha} and {beta} in a plan that computes in {planned.compute_dtype}",
            "0 and magnitudes from 1.2e-38 to 3.4e38",
            "make another plan with these scalars",
        )


def _must_equal(call: Call, planned: GemmProblem, out_shape: tuple[int, ...], layout_free: bool) -> None:
    """InputError naming the arguments that differ from the plan."""
    problem = call.problem
    names = {"m": "m", "n": "n", "k": "k", "batch": "batch", "packed_by": "b"}
    differing = [name for field, name in names.items() if getattr(problem, field) != getattr(planned, field)]
    for name in ("a", "b", "out", *{**planned.operands, **problem.operands}):
        before, after = (
            _compared(x.operands.get(name) if name in OPERANDS else getattr(x, name), layout_free)
            for x in (planned, problem)
        )
        if isinstance(before, Operand) and isinstance(after, Operand):
            after = replace(after, alignment=min(before.alignment, after.alignment))  # better than planned will do
        differing += [name] if before != after else []
    if call.out_shape != out_shape and not differing:
        differing = ["a, b"]  # a vector and a matrix of one row, for example
    if differing:
        raise InputError(
            ", ".join(dict.fromkeys(differing)),
            f"{problem}, a result of shape {call.out_shape}",
            f"what was planned: {planned}, a result of shape {out_shape}",
            "make another plan",
        )


def _compared(x: object, layout_free: bool) -> object:
    """The facts of an operand that must be equal. (Not its dtype itself: numpy.dtype("float64") == None.)"""
    if isinstance(x, Bias) and layout_free:
        return replace(x, stride=1)
    if isinstance(x, Scale) and layout_free:
        return x.form
    if isinstance(x, Operand):
        return x.dtype.name if layout_free else replace(x, layout=x.layout.essential)
    return x
