"""Launches a prepared product by cublasLtMatmul.

The fast algorithms need a bias whose address is a multiple of 16 bytes. Any other bias is copied into scratch memory on
the stream of the call, so that the same algorithm runs for every bias.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import nullcontext
from ctypes import addressof, c_size_t, c_void_p
from typing import Any

from gemmhub_nvidia.driver import DriverError

from gemmhub.backend import Run
from gemmhub.errors import AllocationError, InputError, KernelError
from gemmhub.problem import GemmProblem
from gemmhub_cublas import scales
from gemmhub_cublas.choose import Algorithm, Chooser
from gemmhub_cublas.descriptors import (
    A_SCALE_POINTER,
    AMAX_POINTER,
    B_SCALE_POINTER,
    BIAS_POINTER,
    D_SCALE_POINTER,
    scale_pointers,
)
from gemmhub_cublas.library import StatusError, words
from gemmhub_cublas.lower import BIAS_ALIGNMENT, NAME, Form, Lowered
from gemmhub_cublas.probe import Machine

_COPY = "cuMemcpyDtoDAsync_v2"
_REAL: dict[str, Any] = {"float32": ctypes.c_float, "float64": ctypes.c_double, "int32": ctypes.c_int32}
_PART: dict[str, Any] = {"complex64": ctypes.c_float, "complex128": ctypes.c_double}
_POINTERS = {
    False: {"scale_a": A_SCALE_POINTER, "scale_b": B_SCALE_POINTER},
    True: {"scale_a": B_SCALE_POINTER, "scale_b": A_SCALE_POINTER},
}
"""The attribute for the address of each operand's scale, by whether the library's A is the problem's b."""
_OF_RESULT = {"scale_out": D_SCALE_POINTER, "amax": AMAX_POINTER}
_NOTHING = nullcontext()
_POINTER: Any = c_void_p.from_param
_SIZE: Any = c_size_t.from_param
"""Conversions of an argument as ctypes makes them where types are declared."""


def scalar(value: Any, dtype: str) -> Any:
    """Return alpha or beta in host memory, as the library reads it for the compute dtype ``dtype``."""
    part = _PART.get(dtype)
    if part is not None:
        return (part * 2)(value.real, value.imag)
    return _REAL[dtype](int(value) if dtype == "int32" else value)


_UNITS = {dtype: (scalar(1, dtype), scalar(0, dtype)) for dtype in (*_REAL, *_PART)}
"""1 and 0, which nothing changes, by compute dtype."""


class Launch:
    """A form with its algorithm, ready for cublasLtMatmul."""

    __slots__ = (
        "_descriptors", "a", "algo", "b", "bias_bytes", "c", "d", "in_place", "operation", "pointers", "shared",
        "workspace",
    )  # fmt: skip

    def __init__(self, machine: Machine, form: Form, algorithm: Algorithm) -> None:
        self._descriptors = machine.objects.descriptors(form)  # keeps what the handles are of
        self.shared, self.a, self.b, self.c, self.d = self._descriptors.handles
        self.operation = self._descriptors.operation
        self.algo, self.workspace = algorithm.data, algorithm.workspace
        self.pointers = scale_pointers(form.scaling)
        self.bias_bytes = form.bias_bytes
        self.in_place = form.c.type == form.d.type
        """Whether D stands for C where nothing is added. It does not where their types differ."""


class Gemm:
    """A prepared product: :attr:`run` launches it. Safe in any number of threads."""

    def __init__(
        self,
        machine: Machine,
        problem: GemmProblem,
        lowered: Lowered,
        algorithms: Sequence[Algorithm],
        workspace_limit: int,
    ) -> None:
        """``algorithms`` has one for each of ``lowered.forms``, whose workspaces are at most ``workspace_limit`` bytes.

        ``problem`` may have another m. Raises AllocationError or StatusError.
        """
        index = problem.device.index
        self._machine, self._problem, self._algorithms = machine, problem, algorithms
        self._matmul, self._untyped = machine.library.lt.cublasLtMatmul, machine.library.untyped_matmul
        self._handle = machine.handle(index)
        self._memory = machine.workspaces[index]
        self._gpu = machine.gpus[index]
        self._alone = len(machine.gpus) == 1
        self._lowered = lowered
        self._limit = workspace_limit
        self._copy_bytes = lowered.copy_bytes
        self.workspace_bytes = max([algorithm.workspace for algorithm in algorithms]) + self._copy_bytes
        """Bytes of scratch memory of a call whose bias, if any, is copied; without zeros."""
        if self.workspace_bytes:
            self._memory.reserve(self.workspace_bytes, workspace_limit + self._copy_bytes)
        launches = [Launch(machine, form, algorithm) for form, algorithm in zip(lowered.forms, algorithms)]
        self._main = launches[0] if lowered.main else None
        """The launch of the product."""
        self._zero = launches[-1] if lowered.zero else None
        """The launch for the same result without the product."""
        self._dtype = NAME[lowered.forms[0].scale]
        self._one, self._nil = _UNITS[self._dtype]
        self._zeros = self._memory.zeros(lowered.zero_bytes) if lowered.zero else 0
        self._bare = problem.alpha_is_one and not problem.operands and lowered.forms[0].scaling is None
        self._pointers = {**_POINTERS[lowered.swapped], **_OF_RESULT}
        self._aligned = lowered.in_blocks

    @property
    def run(self) -> Run:
        """The function of gemmhub's contract: a fast path where it is one call of the library."""
        launch = self._main
        single = self._bare and len(self._lowered.offsets) == 1 and self._alone
        return self._fast_path(launch) if single and launch is not None and not launch.workspace else self._run

    def with_rows(self, m: int) -> Run | None:
        """Return :attr:`run` for ``m`` rows by the same algorithms; None where one of them does not run its form.

        For products without a batch.
        """
        lowered = self._lowered.with_rows(m)
        if lowered is None:
            return None
        limit = self._limit + self._lowered.extra_bytes - lowered.extra_bytes
        algorithms = []
        try:
            with _NOTHING if self._gpu.is_current() else self._gpu:
                for form, (config, data, _) in zip(lowered.forms, self._algorithms):
                    checked = Chooser(self._machine, self._problem.device.index, form).checked(config, data)
                    if checked is None or checked.workspace > limit:
                        return None
                    algorithms.append(checked)
            return Gemm(self._machine, self._problem, lowered, algorithms, limit).run
        except (AllocationError, StatusError):  # the product is decided anew, which reports it
            return None

    def _fast_path(self, launch: Launch) -> Run:
        """Return the function for alpha 1, beta 0 and no bias, one launch without workspace, and one device.

        A function without declared types takes arguments that are converted already as they are: only the four that
        change are converted in a call, which takes a third of the time.
        """
        matmul, pointer, no_bytes, swapped = self._untyped, _POINTER, _SIZE(0), self._lowered.swapped
        constants = (
            self._handle, launch.shared, addressof(self._one), launch.a, launch.b, addressof(self._nil), launch.d,
            launch.algo,
        )  # fmt: skip
        handle, operation, one, a_layout, b_layout, nil, d_layout, algo = map(pointer, constants)
        # The methods keep this object, and so what the constants point to.
        is_current, slow_path, failed = self._gpu.is_current, self._run, self.failed

        def run(a: Any, b: Any, out: Any, alpha: Any, beta: Any, stream: Any) -> None:
            if not is_current():
                slow_path(a, b, out, alpha, beta, stream)
                return
            if swapped:
                a, b = b, a
            d = pointer(out)
            status = matmul(
                handle, operation, one, pointer(a), a_layout, pointer(b), b_layout, nil, d, d_layout, d, d_layout, algo,
                None, no_bytes, pointer(stream),
            )  # fmt: skip
            if status:
                raise failed(status)

        return run

    def _run(
        self, a: Any, b: Any, out: Any, alpha: Any, beta: Any, stream: Any, c: Any = None, bias: Any = None,
        **factors: Any,
    ) -> None:  # fmt: skip
        lowered, launch = self._lowered, self._main
        product = launch is not None and not (alpha == 0 and self._zero is not None)
        if not product:
            # alpha is 1, as some algorithms return early where it is 0, without the epilogue.
            launch, a, b, alpha = self._zero, self._zeros, self._zeros, 1
        elif lowered.swapped:
            a, b = b, a
        assert launch is not None
        addresses = self._addresses(launch, factors) if factors else {}
        copied = bias is not None and bias % BIAS_ALIGNMENT != 0
        # Local variables keep the scalars alive while the library reads them.
        alpha_here, beta_here = self._scalar(alpha), self._scalar(beta)
        alpha_at, beta_at = addressof(alpha_here), addressof(beta_here)
        with _NOTHING if self._gpu.is_current() else self._gpu, self._scratch(launch, copied, stream) as lease:
            workspace = lease.address + (self._copy_bytes if copied else 0) if launch.workspace else None
            if copied:
                self._copy(lease.address, bias, launch.bias_bytes, stream)
                bias = lease.address
            if bias is not None:
                addresses[BIAS_POINTER] = bias
            leased = launch.operation.at(addresses) if addresses else None
            operation = launch.shared if leased is None else leased.handle
            for a_offset, b_offset, c_offset, d_offset in lowered.offsets:
                d = out + d_offset
                own = d if launch.in_place else None
                status = self._matmul(
                    self._handle, operation, alpha_at,
                    a + a_offset if product else a, launch.a, b + b_offset if product else b, launch.b,
                    beta_at, own if c is None else c + c_offset, launch.d if c is None and own else launch.c,
                    d, launch.d, launch.algo, workspace, launch.workspace, stream,
                )  # fmt: skip
                if status:
                    raise self.failed(status)
        if leased is not None:
            launch.operation.give_back(leased)

    def _addresses(self, launch: Launch, factors: dict[str, Any]) -> dict[int, int]:
        """Return the addresses of scales by attribute, those of ``launch`` alone.

        Raises InputError for one that the library cannot read.
        """
        if self._aligned:
            for name, address in factors.items():
                if address % scales.ALIGNMENT:
                    multiple = f"a multiple of {scales.ALIGNMENT}"
                    raise InputError(name, f"address {address:#x}", multiple, "pass a copy of its own")
        found = {self._pointers[name]: address for name, address in factors.items()}
        return {attribute: address for attribute, address in found.items() if attribute in launch.pointers}

    def _scratch(self, launch: Launch, copied: bool, stream: Any) -> Any:
        """Return a lease of the memory that the call needs: for a copy of the bias, and after it the workspace."""
        nbytes = launch.workspace + (self._copy_bytes if copied else 0)
        if not nbytes:
            return _NOTHING
        return self._memory.lease(stream or 0, nbytes, self._limit + self._copy_bytes)

    def _copy(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        """Copy a bias on the stream. Raises KernelError."""
        try:
            self._gpu.driver.call(_COPY, target, source, nbytes, stream)
        except DriverError as error:
            raise KernelError("cublas", f"the bias, which is not aligned, cannot be copied: {error}") from error

    def _scalar(self, value: Any) -> Any:
        return self._one if value == 1 else self._nil if value == 0 else scalar(value, self._dtype)

    def failed(self, status: int) -> KernelError:
        """Return the exception for a call that the library refused."""
        return KernelError("cublas", f"cublasLtMatmul: {words(status)}")
