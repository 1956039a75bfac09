"""Launches prepared products with muBLAS."""

from __future__ import annotations

from ctypes import byref, c_double, c_float, c_int32
from typing import Any

from gemmhub.problem import GemmProblem
from gemmhub_mublas.addend import Addend
from gemmhub_mublas.choose import Candidate
from gemmhub_mublas.enums import TYPE
from gemmhub_mublas.library import BATCHED, STRIDED, Library
from gemmhub_mublas.lower import Form, Lowered
from gemmhub_mublas.pointers import Pointers
from gemmhub_mublas.probe import Machine

_SCALAR: dict[str, Any] = {"float32": c_float, "float64": c_double, "int32": c_int32}
_PART: dict[str, Any] = {"complex64": c_float, "complex128": c_double}

_HANDLE, _ALPHA = 0, 6
"""Positions of two arguments, the same in all functions."""
_A, _B, _BETA, _C = "A", "B", "beta", "C"
"""Markers for the other operands, until their positions are found."""


def scalar(value: Any, compute: str) -> Any:
    """alpha or beta in host memory, in the accumulator's type."""
    part = _PART.get(compute)
    if part is not None:
        return (part * 2)(value.real, value.imag)
    return _SCALAR[compute](int(value) if compute == "int32" else value)


class Arguments:
    """The argument list for one candidate and form, without the values that differ from call to call."""

    def __init__(self, candidate: Candidate, form: Form, library: Library, count: int) -> None:
        """``count`` is the number of matrices in one call, for the functions that take more than one."""
        values = library.codes.values
        operation = values["MUBLAS_OP_N"], values["MUBLAS_OP_T"]
        ex = candidate.letter is None

        def operand(place: str, matrix: Any) -> list[Any]:
            parts: list[Any] = [place]
            parts += [values[TYPE[matrix.dtype]]] if ex else []
            parts.append(matrix.ld)
            return parts + ([matrix.stride] if candidate.kind == STRIDED else [])

        arguments: list[Any] = [None, operation[form.trans_a], operation[form.trans_b], form.m, form.n, form.k, None]
        arguments += [*operand(_A, form.a), *operand(_B, form.b), _BETA, *operand(_C, form.d)]
        arguments += [count] if candidate.kind in (STRIDED, BATCHED) else []
        arguments += [candidate.compute, candidate.algorithm] if ex else []
        self._places = [arguments.index(x) for x in (_A, _B, _BETA, _C)]
        self._arguments = arguments
        self._function = library.functions[candidate.function].function

    def call(self, handle: int, alpha: Any, a: int, b: int, beta: Any, c: int) -> int:
        """Call the function; return its status. All arguments are addresses, those of the scalars by ``byref``."""
        arguments = self._arguments.copy()
        arguments[_HANDLE], arguments[_ALPHA] = handle, alpha
        for place, value in zip(self._places, (a, b, beta, c)):
            arguments[place] = value
        status: int = self._function(*arguments)
        return status


class Gemm:
    """A prepared problem: :meth:`run` is the kernel. Safe in any number of threads."""

    def __init__(self, machine: Machine, problem: GemmProblem, lowered: Lowered, candidate: Candidate) -> None:
        """Allocate all that calls need. Raises AllocationError, and StatusError where the library makes no handle."""
        self._machine = machine
        self._index = problem.device.index
        self._lowered = lowered
        self._candidate = candidate
        self._compute = problem.compute_dtype.name
        form = lowered.forms[0]
        self._addend = Addend(machine.runtime, lowered) if problem.c is not None else None
        offsets = each_matrix(lowered, form) if candidate.kind == BATCHED else []
        count = len(offsets) or form.count
        self._main = Arguments(candidate, lowered.main, machine.library, count) if lowered.main else None
        self._zero = Arguments(candidate, lowered.zero, machine.library, count) if lowered.zero else None
        self._pointers: Pointers | None = None
        self._zero_pointers: Pointers | None = None
        with machine.current(self._index):
            machine.handles.reserve(self._index)
            self._zeros = machine.workspace(self._index).zeros(lowered.zero_bytes) if lowered.zero else 0
            if offsets:
                self._pointers = Pointers(machine.runtime, self._index, offsets)
                if lowered.zero is not None:
                    zero_offsets = [(0, 0, d) for _, _, d in offsets]
                    self._zero_pointers = Pointers(machine.runtime, self._index, zero_offsets)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of device memory that calls use."""
        tables = (self._pointers, self._zero_pointers)
        return self._lowered.zero_bytes + sum(table.nbytes for table in tables if table is not None)

    def run(self, a: Any, b: Any, out: Any, alpha: Any, beta: Any, stream: Any, c: Any = None) -> None:
        """The function of gemmhub's contract. Raises KernelError, MusaError or AllocationError."""
        machine, arguments, pointers = self._machine, self._main, self._pointers
        if self._lowered.swapped:
            a, b = b, a
        with machine.current(self._index):
            if self._addend is not None and c is not None and c != out:
                self._addend.copy(c, out, stream)
            if arguments is None or (self._zero is not None and alpha == 0):
                # The library never sees alpha = 0 or k = 0: its treatment of NaN is not documented for these.
                arguments, pointers, a, b, alpha = self._zero, self._zero_pointers, self._zeros, self._zeros, 1
                shared = True
            else:
                shared = False
            assert arguments is not None
            scalars = byref(scalar(alpha, self._compute)), byref(scalar(beta, self._compute))
            handle = machine.handles.take(self._index, stream)
            try:
                if pointers is not None:
                    with pointers.lease((a, b, out), stream) as places:
                        self._call(arguments, handle, stream, scalars, places)
                    return
                for a_offset, b_offset, _, d_offset in self._lowered.offsets:
                    place = (a, b, out + d_offset) if shared else (a + a_offset, b + b_offset, out + d_offset)
                    self._call(arguments, handle, stream, scalars, place)
            finally:
                machine.handles.give(self._index, stream, handle)

    def _call(
        self, arguments: Arguments, handle: int, stream: int, scalars: tuple[Any, Any], places: tuple[int, int, int]
    ) -> None:
        machine = self._machine
        before = machine.guard.before()
        machine.library.set_up(handle, stream)
        a, b, c = places
        status = arguments.call(handle, scalars[0], a, b, scalars[1], c)
        failure = machine.library.words(status) if status else ""
        machine.guard.after(before, self._candidate.function, failure)


def each_matrix(lowered: Lowered, form: Form) -> list[tuple[int, int, int]]:
    """Byte offsets of every matrix of the batch: of the library's A, of B, of the result."""
    steps = [x.stride * x.itemsize for x in (form.a, form.b, form.d)]
    return [
        (a + i * steps[0], b + i * steps[1], d + i * steps[2])
        for a, b, _, d in lowered.offsets
        for i in range(form.count)
    ]
