"""Launches a prepared product by cublasLtMatmul."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import nullcontext
from ctypes import addressof
from typing import Any

from gemmhub.backend import Run
from gemmhub.errors import KernelError
from gemmhub.problem import GemmProblem
from gemmhub_cublas.choose import Algorithm
from gemmhub_cublas.descriptors import Descriptors
from gemmhub_cublas.library import words
from gemmhub_cublas.lower import BIAS_ALIGNMENT, Form, Lowered, bias_anywhere
from gemmhub_cublas.probe import Machine

_REAL: dict[str, Any] = {"float32": ctypes.c_float, "float64": ctypes.c_double, "int32": ctypes.c_int32}
_PART: dict[str, Any] = {"complex64": ctypes.c_float, "complex128": ctypes.c_double}
_NOTHING = nullcontext()


def scalar(value: Any, dtype: str) -> Any:
    """Return alpha or beta in host memory, as the library reads it for the compute dtype ``dtype``."""
    part = _PART.get(dtype)
    if part is not None:
        return (part * 2)(value.real, value.imag)
    return _REAL[dtype](int(value) if dtype == "int32" else value)


class Launch:
    """A form with its algorithm, ready for cublasLtMatmul."""

    def __init__(self, machine: Machine, form: Form, algorithm: Algorithm) -> None:
        self.workspace = algorithm.workspace
        self._library, self._form = machine.library, form
        self.descriptors = Descriptors(machine.library, form)
        self.operation, self.a, self.b, self.c, self.d = self.descriptors.handles
        self.free = [self.descriptors]
        self._algo = ctypes.create_string_buffer(algorithm.data, len(algorithm.data))
        self.algo = addressof(self._algo)

    def with_bias(self, address: int) -> Descriptors:
        """Return descriptors with the bias at ``address``, for one call; the caller puts them back into ``free``.

        The address is part of the operation's descriptor, and a concurrent or nested call has another.
        """
        try:
            descriptors = self.free.pop()
        except IndexError:
            descriptors = Descriptors(self._library, self._form)
        descriptors.set_bias(address)
        return descriptors


class Gemm:
    """A prepared product: :attr:`run` launches it. Safe in any number of threads."""

    def __init__(
        self,
        machine: Machine,
        problem: GemmProblem,
        lowered: Lowered,
        algorithms: Mapping[Form, Algorithm],
        workspace_limit: int,
    ) -> None:
        """``algorithms`` has one for each of ``lowered.forms``, whose workspaces are at most ``workspace_limit`` bytes.

        Raises AllocationError or StatusError.
        """
        index = problem.device.index
        self._matmul = machine.library.lt.cublasLtMatmul
        self._handle = machine.handle(index)
        self._memory = machine.workspaces[index]
        self._gpu = machine.gpus[index]
        self._alone = len(machine.gpus) == 1
        self._lowered = lowered
        self._limit = workspace_limit
        self._launches = {form: Launch(machine, form, algorithms[form]) for form in lowered.forms}
        self._dtype = problem.compute_dtype.name
        self._one, self._nil = scalar(1, self._dtype), scalar(0, self._dtype)
        self._zeros = self._memory.zeros(lowered.zero_bytes) if lowered.zero else 0
        self._bare = problem.alpha_is_one and problem.c is None and problem.bias is None

    @property
    def run(self) -> Run:
        """The function of gemmhub's contract: a fast path where it is one call of the library."""
        main = self._lowered.main
        if main is not None and self._bare and len(self._lowered.offsets) == 1 and self._alone:
            launch = self._launches[main]
            if not launch.workspace:
                return self._fast_path(launch)
        return self._run

    def _fast_path(self, launch: Launch) -> Run:
        """Return the function for alpha 1, beta 0 and no bias, one launch without workspace, and one device."""
        matmul, handle, swapped = self._matmul, self._handle, self._lowered.swapped
        operation, a_layout, b_layout, d_layout, algo = launch.operation, launch.a, launch.b, launch.d, launch.algo
        one, nil, owner, gpu = addressof(self._one), addressof(self._nil), self, self._gpu
        is_current, slow_path = gpu.is_current, self._run

        def run(a: Any, b: Any, out: Any, c: Any, bias: Any, alpha: Any, beta: Any, stream: Any) -> None:
            if not is_current():
                slow_path(a, b, out, c, bias, alpha, beta, stream)
                return
            if swapped:
                a, b = b, a
            status = matmul(
                handle, operation, one, a, a_layout, b, b_layout, nil, out, d_layout, out, d_layout, algo,
                None, 0, stream,
            )  # fmt: skip
            if status:
                raise owner.failed(status)

        return run

    def _run(self, a: Any, b: Any, out: Any, c: Any, bias: Any, alpha: Any, beta: Any, stream: Any) -> None:
        lowered, form = self._lowered, self._lowered.main
        product = form is not None and not (alpha == 0 and lowered.zero is not None)
        if not product:
            # alpha is 1, as some algorithms return early where it is 0, without the epilogue.
            form, a, b, alpha = lowered.zero, self._zeros, self._zeros, 1
        elif lowered.swapped:
            a, b = b, a
        assert form is not None
        launch = self._launches[form]
        if bias is not None and bias % BIAS_ALIGNMENT:
            launch = self._launches[bias_anywhere(form)]
        descriptors = None if bias is None else launch.with_bias(bias)
        operation = launch.operation if descriptors is None else descriptors.operation.handle
        # Local variables keep the scalars alive while the library reads them.
        alpha_here, beta_here = self._scalar(alpha), self._scalar(beta)
        alpha_at, beta_at = addressof(alpha_here), addressof(beta_here)
        with _NOTHING if self._gpu.is_current() else self._gpu, self._workspace(launch, stream) as lease:
            nbytes, workspace = (0, None) if lease is None else (lease.nbytes, lease.address)
            for a_offset, b_offset, c_offset, d_offset in lowered.offsets:
                d = out + d_offset
                status = self._matmul(
                    self._handle, operation, alpha_at,
                    a + a_offset if product else a, launch.a, b + b_offset if product else b, launch.b,
                    beta_at, d if c is None else c + c_offset, launch.d if c is None else launch.c,
                    d, launch.d, launch.algo, workspace, nbytes, stream,
                )  # fmt: skip
                if status:
                    raise self.failed(status)
        if descriptors is not None:
            launch.free.append(descriptors)

    def _workspace(self, launch: Launch, stream: Any) -> Any:
        """Return a lease of the workspace that the algorithm needs."""
        if not launch.workspace:
            return _NOTHING
        return self._memory.lease(stream or 0, launch.workspace, self._limit)

    def _scalar(self, value: Any) -> Any:
        return self._one if value == 1 else self._nil if value == 0 else scalar(value, self._dtype)

    def failed(self, status: int) -> KernelError:
        """Return the exception for a call that the library refused."""
        return KernelError("cublas", f"cublasLtMatmul: {words(status)}")
