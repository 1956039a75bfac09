"""The proof that kernels of 8-bit operands are right on a card: small exact products, before any kernel is offered.

Other cards, drivers and compilers than those that were tried may differ in what the kernels rely on: the bits that
tensor cores keep. So in each process, for each device and pair of formats, the products of a plugin
(:meth:`Proofs.trials`) run first. Their data are whole numbers whose sums are exact if, and only if, 8-bit floats are
promoted in time: sums of a block of K have 13 bits, those of all of K have more than the 14 that tensor cores keep.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from ctypes import byref, c_size_t, c_uint64, c_void_p
from typing import Any, NamedTuple, Protocol

import numpy as np

from gemmhub.backend import Run
from gemmhub.capability import Device, Refusal
from gemmhub.dtypes import as_dtype, compute_dtype
from gemmhub.errors import KernelError
from gemmhub.kit import locks
from gemmhub.layout import MatrixLayout
from gemmhub.operands import BLOCK, Operands, Scale, blocks
from gemmhub.problem import GemmProblem, Operand
from gemmhub_nvidia.driver import DriverError, Gpu
from gemmhub_nvidia.nvrtc import CompilerError

FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
}
"""Functions of the driver that proofs call besides those of :mod:`gemmhub_nvidia.driver`, with their arguments."""
DTYPES = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "s8": "int8"}
"""Dtypes by the formats in the names of inputs."""
_M, _N, _K = 200, 136, 656
"""Sizes with remainders of every tile, and of blocks of K; more blocks than one."""
_GUARD = 256
"""Bytes behind the result that must not change."""
_REMEDY = "use another backend, and report it with the versions of the driver and of NVRTC"


class Check(Protocol):
    """A part of a proof."""

    @property
    def name(self) -> str:
        """The candidate that runs it."""

    def wrong(self, index: int, gpu: Gpu) -> str:
        """Return what is wrong with its product on a device; empty where it is right."""


class Trial(NamedTuple):
    """A product of a proof of 8-bit operands."""

    name: str
    """The candidate that runs it."""
    formats: tuple[str, str]
    """The formats of a and b: keys of :data:`DTYPES`."""
    order_b: str
    """The order of b: "row" or "col"."""
    out: str
    """The dtype of the result."""
    scales: str | None
    """The use of quantization scales (:func:`gemmhub_nvidia.scales.use`)."""
    launch: Callable[[GemmProblem], Run]
    """Returns the candidate ready to run."""

    def wrong(self, index: int, gpu: Gpu) -> str:
        """Return what is wrong with the product; empty where it is right."""
        problem = _problem(index, self)
        run = self.launch(problem)
        a, b, scales = _data(problem)
        expected = _expected(a, b, scales, problem.out.dtype)
        stored_b = b if self.order_b == "row" else np.ascontiguousarray(b.T)
        return difference(computed(gpu, run, {"a": a, "b": stored_b, **scales}, expected.nbytes), expected)


class Proofs(ABC):
    """The outcomes of the proofs of this process, by device and input."""

    def __init__(self) -> None:
        self._outcomes: dict[tuple[int, str], Refusal | None] = {}
        self._lock = locks.lock()

    @abstractmethod
    def trials(self, index: int, input_type: str) -> Iterable[Check]:
        """Return the products that prove an input, such as "e4m3.e5m2", on a device."""

    def of(self, index: int, gpu: Gpu, input_type: str) -> Refusal | None:
        """Return None where the kernels for an input are right on a device, else a refusal. Proven at the first call.

        Raises AllocationError without memory: nothing is known then.
        """
        key = index, input_type
        with self._lock:
            if key not in self._outcomes:
                self._outcomes[key] = self._proof(index, gpu, input_type)
            return self._outcomes[key]

    def _proof(self, index: int, gpu: Gpu, input_type: str) -> Refusal | None:
        for trial in self.trials(index, input_type):
            try:
                wrong = trial.wrong(index, gpu)
            except (CompilerError, DriverError, KernelError) as error:
                wrong = f"it failed: {error}"
            if wrong:
                return Refusal(
                    f"the first {input_type} product on cuda:{index}, by {trial.name}, shows it: {wrong}", _REMEDY
                )
        return None


def difference(result: Any, expected: Any) -> str:
    """Return how the bytes of a result, and those behind it, differ from the expected array; empty if they do not."""
    if (result[expected.nbytes :] != 0xFF).any():
        return "it wrote beyond the result"
    found = result[: expected.nbytes].view(expected.dtype).reshape(expected.shape)
    differ = np.argwhere(found != expected)
    if not len(differ):
        return ""
    at = tuple(differ[0].tolist())
    return f"{len(differ)} of {expected.size} elements differ, the first at {at}: {found[at]}, not {expected[at]}"


def _problem(index: int, trial: Trial) -> GemmProblem:
    a, b = (as_dtype(DTYPES[x]) for x in trial.formats)
    out = as_dtype(trial.out)
    scales = {}
    if trial.scales == "blocks":
        scales = {"scale_a": Scale("m", blocks(_K), True, 1), "scale_b": Scale("n", 1, True, _N)}
    elif trial.scales:
        scales = {"scale_a": Scale("m"), "scale_b": Scale("n")}
    return GemmProblem(
        _M, _N, _K,
        a=Operand(a, MatrixLayout.contiguous(_M, _K), 256),
        b=Operand(b, MatrixLayout.contiguous(_K, _N, (), trial.order_b), 256),
        out=Operand(out, MatrixLayout.contiguous(_M, _N), 256),
        compute_dtype=compute_dtype(a, b, out), operands=Operands(scales), device=Device("cuda", index),
    )  # fmt: skip


def _data(problem: GemmProblem) -> tuple[Any, Any, dict[str, Any]]:
    """Return a, b and the scales: whole numbers, of 8-bit floats of three bits, and powers of two."""
    rng = np.random.default_rng(0)
    shapes = (_M, _K), (_K, _N)
    if problem.a.dtype == np.int8:
        a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in shapes)
    else:  # all terms of a sum have one sign
        signs = rng.choice([-1, 1], (_M, 1)), rng.choice([-1, 1], (1, _N))
        a, b = (
            (sign * rng.integers(4, 8, shape)).astype(x.dtype)
            for sign, shape, x in zip(signs, shapes, (problem.a, problem.b))
        )
    scales = {}
    for name, size in (("scale_a", _M), ("scale_b", _N)):
        scale = problem.operands.get(name)
        if scale is not None:
            shape = (size, 1) if name == "scale_a" else (1, size)
            if scale.depth:
                shape = (size, blocks(_K)) if name == "scale_a" else (blocks(_K), size)
            scales[name] = np.ldexp(np.float32(1), rng.integers(-1, 2, shape))
    return a, b, scales


def _expected(a: Any, b: Any, scales: dict[str, Any], dtype: Any) -> Any:
    a, b = a.astype(np.float64), b.astype(np.float64)
    each = np.arange(_K) // BLOCK
    scale_a, scale_b = scales.get("scale_a"), scales.get("scale_b")
    if scale_a is not None:
        a = a * (scale_a[:, each] if scale_a.shape[1] > 1 else scale_a)
    if scale_b is not None:
        b = b * (scale_b[each] if scale_b.shape[0] > 1 else scale_b)
    return (a @ b).astype(np.float32).astype(dtype)


def computed(gpu: Gpu, run: Run, operands: dict[str, Any], nbytes: int) -> Any:
    """Return the bytes of a result of ``nbytes``, and those behind it. Operands are on the host."""
    driver, addresses = gpu.driver, dict[str, int]()
    result = np.full(nbytes + _GUARD, 0xFF, np.uint8)
    images = {**operands, "out": result}
    stream = c_void_p()
    try:
        for name, image in images.items():
            addresses[name] = gpu.allocate(image.nbytes)
        with gpu.outside_captures():
            driver.call("cuStreamCreate", byref(stream), 1)
            for name, image in images.items():
                driver.call("cuMemcpyHtoDAsync_v2", addresses[name], image.ctypes.data, image.nbytes, stream)
            others = {name: address for name, address in addresses.items() if name not in ("a", "b", "out")}
            run(addresses["a"], addresses["b"], addresses["out"], 1.0, 0.0, stream.value, **others)
            driver.call("cuMemcpyDtoHAsync_v2", result.ctypes.data, addresses["out"], result.nbytes, stream)
            driver.call("cuStreamSynchronize", stream)
    finally:
        if stream.value:
            with gpu:
                driver.cuda.cuStreamDestroy_v2(stream)
        for address in addresses.values():
            gpu.free(address)
    return result
