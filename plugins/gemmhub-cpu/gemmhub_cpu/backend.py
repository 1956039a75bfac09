"""Half precision, bfloat16, fp8 and int8 on CPUs. float32, float64 and complex stay with NumPy's BLAS.

The candidates, each gated by what the machine has and by size:

- "native": int8, bfloat16 and float16 by kernels of our own, for AVX2, AVX-512 and AMX;
- "numkong": bfloat16 where there is a matrix unit (AMX, SME), int8 where there are VNNI or matrix units;
- "torch": bfloat16, float16 and int8, where the caller has torch in the process; only tuning chooses it,
  because its threads spin and slow down the BLAS calls that follow;
- "convert": blocks converted by all cores, multiplied by SGEMM. Always there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gemmhub.backend import Array, Backend, Kernel
from gemmhub.capability import CPU, Ready, Refusal
from gemmhub.dtypes import name_of
from gemmhub.numpy_backend.activations import IN_PLACE
from gemmhub.numpy_backend.backend import NumpyBackend, blocked_kernel
from gemmhub.numpy_backend.blocked import work_dtypes
from gemmhub.problem import GemmProblem
from gemmhub_cpu import model, native_engine, probe, torch_engine
from gemmhub_cpu.convert import copyto, grain
from gemmhub_cpu.native_engine import NativeGemm
from gemmhub_cpu.numkong_engine import NumkongGemm
from gemmhub_cpu.panels import Packed
from gemmhub_cpu.units import UNITS, Unit

_MOST_CORES = 4
"""Beyond, SGEMM scales better than numkong through Python threads: it won on 2 cores and lost on 16 (docs/cpu.md)."""
_PACK_SCRATCH = 64 * 2**20
"""Bytes of scratch memory while packing."""


class CpuBackend(Backend):
    """See the module."""

    name = "cpu"
    layout_sensitive = True
    by_bucket = True

    def __init__(self, machine: probe.Machine | None = None, by_cost: bool = True) -> None:
        """For tests: ``machine`` masks what is there; not ``by_cost`` opens the gates that sizes decide."""
        self._machine = machine
        self._by_cost = by_cost
        self._numpy = NumpyBackend()

    @property
    def machine(self) -> probe.Machine:
        if self._machine is None:
            self._machine = probe.look()
        return self._machine

    def probe(self) -> Ready:
        return probe.ready(self.machine)

    def supports(self, problem: GemmProblem) -> Refusal | None:
        if problem.device != CPU:
            return Refusal(f"the operands are on {problem.device}", "copy them to the host, or install its plugin")
        if problem.activation is not None and problem.activation not in IN_PLACE:  # its results are finished by those
            return Refusal(
                f"it has no activation {problem.activation}", "apply it to the product", any_layout=True, any_size=True
            )
        kinds = work_dtypes(problem)
        dtypes = {problem.a.dtype, problem.b.dtype, problem.out.dtype}
        if kinds is None or dtypes <= {kinds[0]}:
            return Refusal(
                f"{problem.a.dtype} by {problem.b.dtype}: this plugin has nothing faster than NumPy's own product",
                "use the numpy backend",
                any_layout=True,
                any_size=True,
            )
        if self._by_cost and problem.packed_by is None and model.too_small(problem):
            return Refusal(
                "too small: a call of any faster unit takes as long", "use the numpy backend", any_layout=True
            )
        if problem.packed_by is not None and problem.compute_dtype.itemsize > 4:
            single = replace(problem, compute_dtype=np.dtype(np.int32 if problem.a.dtype.kind == "i" else np.float32))
            if self._packs_for(single) is not None:
                return Refusal(
                    f"b may be packed for kernels which accumulate in 32 bits, not in {problem.compute_dtype}",
                    "multiply by the unpacked b, or leave out_dtype= and scalars beyond float32 away",
                )
        if problem.packed_by is not None or self.why_not_native(problem) is None:
            return None
        if self.why_not_numkong(problem) is None or not self._by_cost or _worth_threads(problem):
            return None
        gate = self._gate(problem) if self.unit(problem) is not None else None
        reason = gate or "the operands are too small for several cores to help with conversion"
        return Refusal(reason, "use the numpy backend")

    def candidates(self, problem: GemmProblem) -> Sequence[str]:
        if problem.packed_by is not None:
            return ("packed",)
        found = ["convert"]
        if self.why_not_numkong(problem) is None:
            found.insert(0, "numkong")
        if self.why_not_native(problem) is None:
            found.insert(0, "native")
        if self.machine.torch and torch_engine.can(problem):
            found.append("torch")
        return found

    def _unit_gate(self, problem: GemmProblem) -> str | None:
        """Whether the machine has a faster way at all, whatever the size."""
        machine, pair = self.machine, (name_of(problem.a.dtype), name_of(problem.b.dtype))
        if pair not in (("bfloat16", "bfloat16"), ("int8", "int8")):
            return f"{pair[0]} by {pair[1]}: no library beats conversion"
        if not machine.numkong:
            return machine.why_no_numkong or "no numkong"
        if not _in_32_bits(problem):
            return f"accumulates in {problem.compute_dtype}"
        if pair[0] == "bfloat16" and not machine.has(probe.BF16_UNITS):
            return "bf16: no AMX or SME"
        if pair[0] == "int8" and not machine.has(probe.INT8_UNITS):
            return "int8: no VNNI, AMX or dot-product instructions"
        if self._by_cost and machine.cores > _MOST_CORES:
            return f"{machine.cores} cores: numkong through Python threads is behind SGEMM on many"
        return None

    def unit(self, problem: GemmProblem) -> Unit | None:
        """The best unit of our own kernels that multiplies such operands here; None where there is none."""
        names = (name_of(problem.a.dtype), name_of(problem.b.dtype))
        if not _in_32_bits(problem) or set(names) == {"float32"}:
            return None
        for unit in UNITS:
            if unit.name in self.machine.native and _takes(unit, names):
                return unit
        return None

    def why_not_native(self, problem: GemmProblem) -> str | None:
        """The gate that keeps our own kernels from ``problem``; None when they may run it."""
        unit = self.unit(problem)
        if unit is None:
            names = f"{name_of(problem.a.dtype)} by {name_of(problem.b.dtype)}"
            return self.machine.why_no_native or f"no unit for {names} accumulated in {problem.compute_dtype}"
        if not self._by_cost:
            return None
        vector = native_engine.by_vector(problem)
        if problem.n < 4 and not vector and "float16" not in (name_of(problem.a.dtype), name_of(problem.b.dtype)):
            return "too few columns for a micro-kernel"
        on_one_core = min(self._numpy.estimate(problem), model.converted(problem, 1))
        if model.native(problem, unit, self.machine) > on_one_core:
            return "packing would cost more than it saves"
        return None

    def _gate(self, problem: GemmProblem) -> str | None:
        """Return the reason why no faster unit runs the problem: that of the first engine that has a unit for it."""
        if self.unit(problem) is not None:
            return self.why_not_native(problem)
        if self._unit_gate(problem) is not None and self.machine.why_no_native:
            return self.machine.why_no_native
        return self.why_not_numkong(problem)

    def _packs_for(self, problem: GemmProblem, limit: int = _PACK_SCRATCH) -> NativeGemm | NumkongGemm | None:
        """The engine that a packed b is for; None where it is converted."""
        unit = self.unit(problem)
        if unit is not None:
            return NativeGemm(problem, unit, limit)
        return NumkongGemm(problem, limit) if self._unit_gate(problem) is None else None

    def why_not_numkong(self, problem: GemmProblem) -> str | None:
        """The gate that keeps numkong from ``problem``; None when it may run it."""
        gate = self._unit_gate(problem)
        if (
            gate is None
            and self._by_cost
            and model.numkong(problem, self.machine) > model.converted(problem, self.machine.cores)
        ):
            return "packing b would cost more than it saves"
        return gate

    def estimate(self, problem: GemmProblem) -> float:
        unit, packed = self.unit(problem), problem.packed_by is not None
        if unit is not None and (packed or self.why_not_native(problem) is None):
            return model.native(problem, unit, self.machine)
        if (self._unit_gate if packed else self.why_not_numkong)(problem) is None:
            return model.numkong(problem, self.machine)
        # Never beyond the built-in backend's: it does the same, on one core.
        return min(0.99 * self._numpy.estimate(problem), model.converted(problem, self.machine.cores))

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        unit = self.unit(problem)
        if candidate == "native" and unit is not None:
            own = NativeGemm(problem, unit, workspace_limit)
            if own.scratch_bytes:
                return Kernel(own, f"{unit.name}, up to {own.threads} threads", own.scratch_bytes, any_size=True)
        if candidate == "numkong":
            gemm = NumkongGemm(problem, workspace_limit)
            if gemm.width:
                kind = "matrix units" if self.machine.has(probe.BF16_UNITS) else "dot products"
                return Kernel(gemm, f"numkong on {kind}, panels of {gemm.width} columns", gemm.scratch_bytes)
        if candidate == "torch":
            return torch_engine.kernel(problem)
        converted = blocked_kernel(problem, workspace_limit, copyto)
        if candidate == "packed":
            return _packed_kernel(self._packs_for(problem, workspace_limit), converted)
        description = f"converted by {self.machine.cores} cores: {converted.description}"
        return Kernel(converted.run, description, converted.workspace_bytes, any_size=True)

    def remark(self, problem: GemmProblem, candidate: str) -> str:
        """Which gate decided."""
        if candidate == "convert":
            gate = self._gate(problem)
            return f"{gate}; converted blocks through SGEMM" if gate else "converted blocks through SGEMM"
        unit = self.unit(problem)
        return unit.name if candidate == "native" and unit is not None else candidate

    def pack(self, b: Array, problem: GemmProblem) -> object | Refusal:
        """Packed for the unit that runs such products, else converted for SGEMM."""
        refused = self.supports(problem)
        if refused is not None:
            return refused
        engine = self._packs_for(problem)
        if engine is not None and engine.scratch_bytes:
            return engine.pack(b)
        return self._numpy.pack(b, problem)


def _worth_threads(problem: GemmProblem) -> bool:
    """Whether one operand at least is large enough to be converted by two cores."""
    operands = (problem.a, problem.b, problem.out)
    return any(x.layout.distinct_elements >= 2 * grain(x.dtype) for x in operands)


def _in_32_bits(problem: GemmProblem) -> bool:
    """Whether sums of 32 bits do: float32, or integers modulo a power of 2 that divides 2**32."""
    compute = problem.compute_dtype
    return compute == np.float32 or (compute.kind in "iu" and compute.itemsize <= 4)


def _takes(unit: Unit, names: tuple[str, str]) -> bool:
    """Whether ``unit`` multiplies operands of these dtypes."""
    return all(
        name in ("float16", "bfloat16", "float32") if unit.pair == "float" else name == unit.pair for name in names
    )


def _packed_kernel(gemm: NativeGemm | NumkongGemm | None, converted: Kernel) -> Kernel:
    """For an operand that :meth:`CpuBackend.pack` made: its form decides what multiplies it."""
    if gemm is None:
        return Kernel(converted.run, "b packed beforehand", converted.workspace_bytes)
    engine = gemm

    def run(
        a: Array, b: Array, out: Array, c: Array | None, bias: Array | None, alpha: Any, beta: Any, stream: Any
    ) -> None:
        multiply = engine if isinstance(b, (Packed, native_engine.Packed)) else converted.run
        multiply(a, b, out, c, bias, alpha, beta, stream)

    return Kernel(run, "b packed beforehand", max(gemm.scratch_bytes, converted.workspace_bytes))
