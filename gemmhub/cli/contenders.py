"""The contenders of a benchmark: gemmhub's backends, and the array library's own matmul.

Each contender's first result is checked; one that refuses, fails or is wrong is :class:`Excluded`, with a remark.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

from gemmhub import api
from gemmhub._arrays.torch.operands import TorchArrays
from gemmhub._call.options import Options
from gemmhub._check.spot_check import SpotCheck, spot_check
from gemmhub.array_library import ArrayLibrary
from gemmhub.cli.by_name import one_line
from gemmhub.dtypes import DType, info, permits_tf32
from gemmhub.errors import AllocationError, BackendError, GemmhubError, InputError, NoBackendError
from gemmhub.problem import GemmProblem

Array = Any

LIBRARY_MATMULS = ("numpy.matmul", "cupy.matmul", "torch.matmul")
"""Names of contenders that are not backends: the array libraries' own functions, called directly."""

_LONGEST = 1.0
"""Seconds a call that numpy.matmul may take with its scalar loops; beyond, it gets fewer rows."""
_PROBE_ROWS = 4
_BLAS = ("float32", "float64", "complex64", "complex128")
_CHECK_WHOLE = 2**26
"""Elements of both operands and the result up to which all are examined (about 3 s); beyond, a sample."""
_SAMPLES = 1024


@dataclass(frozen=True)
class Product:
    """One product: operands on the device for the contenders, and on the host for the check of results."""

    arrays: ArrayLibrary
    a: Array
    b: Array
    a_host: Array
    b_host: Array
    problem: GemmProblem
    options: Options
    """Options of its call, with the further operands on the device."""
    out: Array | None = None
    """Example of a result that is not row-major; None where it is row-major."""
    operands: Mapping[str, Array] = field(default_factory=dict)
    """The further operands on the device, by name."""
    operands_host: Mapping[str, Array] = field(default_factory=dict)
    """The same on the host."""

    def check(self, result: Array) -> SpotCheck:
        """Whether ``result`` is the product."""
        scalars: Any = {name: x for name, x in self.options.items() if name == "beta"}
        return self._check(result, self.problem.m, **self.operands_host, **scalars)

    def check_plain(self, result: Array, rows: int) -> SpotCheck:
        """Whether ``result`` is the first ``rows`` rows of the product of a and b alone."""
        return self._check(result, rows)

    def _check(self, result: Array, rows: int, **options: Any) -> SpotCheck:
        m, n, k = self.problem.m, self.problem.n, self.problem.k
        samples = _SAMPLES if m * n + m * k + n * k > _CHECK_WHOLE else None
        host_result = self.arrays.to_host(result)
        precision: Any = self.problem.precision
        return spot_check(self.a_host[:rows], self.b_host, host_result, precision=precision, samples=samples, **options)


@dataclass(frozen=True)
class Contender:
    """A contender that is timed."""

    name: str
    kernel: str
    out_dtype: DType
    bind: Callable[[Array, Array, Array], Callable[[], object]]
    """Function of operands and a result array of ``out_dtype`` that returns the call."""
    check: str
    """Method by which its first result was checked: the ``method`` of :func:`gemmhub.spot_check`."""
    scale: float = 1.0
    """Ratio of the whole product to the measured part."""
    remark: str = ""


@dataclass(frozen=True)
class Excluded:
    """A contender that is not timed. ``verdict`` is "failed", or "" where it did not run."""

    name: str
    kernel: str
    verdict: str
    remark: str


def label(name: str) -> str:
    """The printed name of a contender.

    gemmhub's backend on NumPy is "numpy (through gemmhub)": "numpy" and "numpy.matmul" are easily confused.
    """
    return f"{name} (through gemmhub)" if f"{name}.matmul" in LIBRARY_MATMULS else name


def library_matmul_name(arrays: ArrayLibrary) -> str | None:
    """ "numpy.matmul", "cupy.matmul" or "torch.matmul"; None for arrays whose library has none."""
    name = f"{arrays.name}.matmul"
    return name if name in LIBRARY_MATMULS else None


def backend(name: str, product: Product) -> Contender | Excluded:
    """One backend as a contender. Raises InputError for an unknown one, AllocationError for lack of memory."""
    forced: Options = {**product.options, "backend": name}
    try:
        plan = api.plan(product.a, product.b, out=product.out, **forced)
        result = plan(product.a, product.b, product.out, **product.operands)
        check = product.check(result)
    except NoBackendError as error:
        verdict = error.decision[name] if error.decision is not None else None
        parts = (verdict.reason, verdict.remedy) if verdict is not None else (str(error),)
        return Excluded(name, "", "", "; ".join(part for part in parts if part))
    except BackendError as error:
        return Excluded(name, "", "", str(error))
    except GemmhubError:
        raise
    except RuntimeError as error:  # the array library reports the device's error later
        return Excluded(name, "", "", f"the device failed: {one_line(error)}")
    if not check.ok:
        return Excluded(name, plan.kernel.description, "failed", check.reason)
    dtype = plan.decision.problem.out.dtype
    bind = partial(partial, plan) if not product.operands else partial(partial, partial(plan, **product.operands))
    return Contender(name, plan.kernel.description, dtype, bind, check.method)


def library_matmul(product: Product) -> Contender | Excluded:
    """The array library's matmul with ``out=``; numpy's on fewer rows where its scalar loops would take too long.

    The result dtype follows the library's rules (numpy returns float32 for bfloat16, for example), except that numpy
    and cupy accumulate integers in gemmhub's result dtype: int8 would wrap.
    """
    arrays, problem = product.arrays, product.problem
    name, a, b = f"{arrays.name}.matmul", product.a, product.b
    matmul = sys.modules[arrays.name].matmul
    dtype_classes = {info(x).kind for x in (problem.a.dtype, problem.out.dtype)}
    rows = problem.m
    try:
        own: DType = arrays.view(matmul(a[:1, :1], b[:1, :1]), "out").dtype
        result = problem.out.dtype if dtype_classes <= {"int", "uint"} and arrays.name != "torch" else own
        extra: dict[str, Any] = {"dtype": result, "casting": "unsafe"} if result != own else {}
        if arrays.device.type == "cpu" and own.name not in _BLAS and rows > _PROBE_ROWS:
            start = perf_counter()
            matmul(a[:_PROBE_ROWS], b, **extra)
            call_time = (perf_counter() - start) / _PROBE_ROWS * rows
            rows = max(_PROBE_ROWS, min(rows, int(rows * _LONGEST / call_time)))
        check = product.check_plain(matmul(a[:rows], b, **extra), rows)
    except AllocationError:
        raise
    except Exception as error:  # foreign code, and dtypes that it does not multiply
        return Excluded(name, "", "", str(error) if isinstance(error, GemmhubError) else one_line(error))
    if not check.ok:
        return Excluded(name, name, "failed", check.reason)

    def bind(left: Array, right: Array, out: Array) -> Callable[[], object]:
        return partial(matmul, left[:rows], right, out=out[:rows], **extra)

    remarks = [f"{result.name} result"] if result != problem.out.dtype else []
    remarks += [f"without {', '.join(product.operands)}"] * bool(product.operands)
    remarks += [f"{rows} of {problem.m} rows measured, scaled"] if rows < problem.m else []
    if problem.precision != "ieee" and not (problem.permits_tf32 and _torch_float32(arrays) is not None):
        remarks.append(f"float32 not rounded to {problem.precision}")
    return Contender(name, name, result, bind, check.method, problem.m / rows, ", ".join(remarks))


@contextmanager
def rounding_of_torch(arrays: ArrayLibrary, precision: str) -> Iterator[None]:
    """Let torch.matmul on CUDA round float32 to tf32 where ``precision`` permits it, and nowhere else.

    The setting is process-wide, so it is restored at the end.
    """
    switch = _torch_float32(arrays)
    if switch is None:
        yield
        return
    rounded = permits_tf32(precision)
    # torch warns about the old name where it has the new one.
    name, value = ("fp32_precision", "tf32" if rounded else "ieee") if hasattr(switch, "fp32_precision") else (
        "allow_tf32", rounded
    )  # fmt: skip
    before = getattr(switch, name)
    setattr(switch, name, value)
    try:
        yield
    finally:
        setattr(switch, name, before)


def _torch_float32(arrays: ArrayLibrary) -> Any:
    """The object with torch's setting for rounding float32 operands; None for other libraries and devices."""
    if isinstance(arrays, TorchArrays) and arrays.device.type == "cuda":
        return arrays.module.backends.cuda.matmul
    return None


def unknown_baseline(name: str, arrays: ArrayLibrary) -> InputError | None:
    """The error for another library's matmul; None for this library's, and for names that may be backends."""
    if name in LIBRARY_MATMULS and name != library_matmul_name(arrays):
        return InputError(
            "baseline", f"{name} for {arrays.name} arrays on {arrays.device}",
            ", or ".join(filter(None, (library_matmul_name(arrays), "the name of a backend"))),
        )  # fmt: skip
    return None
