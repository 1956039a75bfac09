"""Half precision, bfloat16, fp8 and int8 on CPUs. float32, float64 and complex stay with NumPy's BLAS.

The candidates, each gated by what the machine has and by size:

- "native": int8, bfloat16 and float16 by kernels of our own, for AVX2, AVX-512 and AMX;
- "numkong": bfloat16 where there is a matrix unit (AMX, SME), int8 where there are VNNI or matrix units;
- "convert": blocks converted by all cores, multiplied by SGEMM. Always there;
- "torch": bfloat16, float16 and int8, where the caller has torch in the process; only tuning chooses it,
  because its threads spin and slow down the BLAS calls that follow.

A product of a packed b has one candidate, "packed": the form that b has decides what multiplies it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from gemmhub.backend import BASIC, Array, Backend, Candidate, Kernel, Offer
from gemmhub.capability import CPU, Ready, Refusal
from gemmhub.dtypes import name_of
from gemmhub.epilogues import ELEMENTWISE
from gemmhub.numpy_backend.backend import NumpyBackend, blocked_kernel
from gemmhub.numpy_backend.blocked import work_dtypes
from gemmhub.problem import GemmProblem
from gemmhub_cpu import model, native_engine, probe, torch_engine
from gemmhub_cpu.convert import copyto, grain
from gemmhub_cpu.model import Estimates
from gemmhub_cpu.native_engine import NativeGemm
from gemmhub_cpu.numkong_engine import NumkongGemm
from gemmhub_cpu.units import UNITS, Unit

_MOST_CORES = 4
"""Beyond, SGEMM scales better than numkong through Python threads: it won on 2 cores and lost on 16 (docs/cpu.md)."""
_CONVERTED = "converted blocks through SGEMM"


class CpuBackend(Backend):
    """See the module."""

    name = "cpu"
    layout_sensitive = True
    by_bucket = True
    takes: ClassVar = {**BASIC, "activation": frozenset(ELEMENTWISE)}

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

    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        refused = self._refused(problem)
        if refused is not None:
            return refused
        machine, unit, no_numkong = self.machine, self.unit(problem), self._no_numkong(problem)
        estimates = Estimates(problem)
        exact = "exact" if problem.compute_dtype.kind in "iu" else None  # a sum modulo 2**32 has no order
        numpy, converting = self._numpy.seconds(problem), estimates.converted(machine.cores)
        # Never beyond the built-in backend's: it does the same, on one core.
        convert = Candidate("convert", min(0.99 * numpy, converting), order=exact)
        if problem.packed_by is not None:
            if unit is not None:
                return _packed(unit.name, estimates.native(unit, machine), exact or unit.name)
            if no_numkong is None:
                return _packed("numkong", estimates.numkong(machine), exact)
            return _packed(_CONVERTED, convert.seconds, exact)
        found, gate = [], no_numkong and (machine.why_no_native or no_numkong)
        if unit is not None:
            seconds = estimates.native(unit, machine)
            gate = self._no_native(problem, seconds, min(numpy, estimates.converted(1)))
            if gate is None:
                order = None if 1 in (problem.m, problem.n) else unit.name  # vectors are summed in other ways
                found.append(Candidate("native", seconds, order=exact or order))
        if no_numkong is None:
            seconds = estimates.numkong(machine)
            if not self._by_cost or seconds <= converting:
                found.append(Candidate("numkong", seconds, order=exact))
            elif unit is None:
                gate = "packing b would cost more than it saves"
        if not found and self._by_cost and not _worth_threads(problem):
            alone = "the operands are too small for several cores to help with conversion"
            return Refusal(gate if unit is not None and gate else alone, "use the numpy backend")
        found.append(convert)
        if machine.torch and torch_engine.can(problem):
            found.append(Candidate("torch", order=exact))

        def remark(candidate: str) -> str:
            if candidate == "native" and unit is not None:
                return unit.name
            if candidate == "convert":
                return f"{gate}; {_CONVERTED}" if gate else _CONVERTED
            return candidate

        return Offer(tuple(found), remark)

    def _refused(self, problem: GemmProblem) -> Refusal | None:
        """The refusal of what no candidate runs, or runs faster than the built-in backend, whatever the units."""
        if problem.device != CPU:
            return Refusal(f"the operands are on {problem.device}", "copy them to the host, or install its plugin")
        kinds = work_dtypes(problem)
        if kinds is None or problem.a.dtype == problem.b.dtype == problem.out.dtype == kinds[0]:
            return Refusal(
                f"{problem.a.dtype} by {problem.b.dtype}: this plugin has nothing faster than NumPy's own product",
                "use the numpy backend",
                any_layout=True,
                any_size=True,
            )
        if problem.packed_by is None:
            if self._by_cost and model.too_small(problem):
                return Refusal(
                    "too small: a call of any faster unit takes as long", "use the numpy backend", any_layout=True
                )
        elif not _in_32_bits(problem):
            single = replace(problem, compute_dtype=np.dtype(np.int32 if problem.a.dtype.kind == "i" else np.float32))
            if self.unit(single) is not None or self._no_numkong(single) is None:
                return Refusal(
                    f"b may be packed for kernels which accumulate in 32 bits, not in {problem.compute_dtype}",
                    "multiply by the unpacked b, or leave out_dtype= and scalars beyond float32 away",
                )
        return None

    def unit(self, problem: GemmProblem) -> Unit | None:
        """The best unit of our own kernels that multiplies such operands here; None where there is none."""
        names = name_of(problem.a.dtype), name_of(problem.b.dtype)
        if not _in_32_bits(problem) or names == ("float32", "float32"):
            return None
        for unit in UNITS:
            if unit.name in self.machine.native and _takes(unit, names):
                return unit
        return None

    def _no_native(self, problem: GemmProblem, seconds: float, on_one_core: float) -> str | None:
        """The gate that keeps a unit from ``problem``, by the seconds through it and through blocks converted by one
        core; None where the unit may run it.
        """
        if not self._by_cost:
            return None
        halves = "float16" in (name_of(problem.a.dtype), name_of(problem.b.dtype))
        if problem.n < 4 and not halves and not native_engine.by_vector(problem):
            return "too few columns for a micro-kernel"
        return "packing would cost more than it saves" if seconds > on_one_core else None

    def _no_numkong(self, problem: GemmProblem) -> str | None:
        """The gate that keeps numkong from such operands, whatever their size; None where it may multiply them."""
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

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel | Refusal:
        if candidate == "torch" and self.machine.torch and torch_engine.can(problem):
            return torch_engine.kernel(problem)
        engine = self._engine(problem, candidate, workspace_limit)
        packed = ", b packed beforehand" if problem.packed_by is not None else ""
        if engine is not None and engine.scratch_bytes:
            any_size = candidate == "native"
            return Kernel(engine, engine.description + packed, engine.scratch_bytes, any_size=any_size)
        if engine is not None:
            remedy = "multiply by b itself" if packed else f"leave the candidate's name, {candidate}, out"
            return Refusal(_too_little(engine, workspace_limit), f"raise the setting workspace_mib, or {remedy}")
        if candidate not in ("convert", "packed"):
            return Refusal(f"{candidate} does not run these operands", "leave the candidate's name out")
        converted = blocked_kernel(problem, workspace_limit, copyto)
        description = f"converted by {self.machine.cores} cores: {converted.description}{packed}"
        return replace(converted, description=description, any_size=not packed)

    def _engine(self, problem: GemmProblem, candidate: str, limit: int) -> NativeGemm | NumkongGemm | None:
        """The engine of a candidate, which has no scratch memory where ``limit`` bytes do not suffice; None where
        blocks are converted.
        """
        unit, packed = self.unit(problem), candidate == "packed"
        if unit is not None and (packed or candidate == "native"):
            return NativeGemm(problem, unit, limit)
        if self._no_numkong(problem) is None and (packed or candidate == "numkong"):
            return NumkongGemm(problem, limit)
        return None

    def pack(self, b: Array, problem: GemmProblem) -> object | Refusal:
        """Packed for the unit that runs such products, else converted for SGEMM."""
        offer = self.offer(problem)
        if isinstance(offer, Refusal):
            return offer
        engine = self._engine(replace(problem, packed_by=self.name), "packed", offer.workspace)
        if engine is None:
            return self._numpy.pack(b, problem)
        if not engine.scratch_bytes:
            return Refusal(_too_little(engine, offer.workspace), "multiply without pack()")
        return engine.pack(b)


def _packed(engine: str, seconds: float | None, order: str | None) -> Offer:
    """The offer for a b that was packed for ``engine``."""
    return Offer((Candidate("packed", seconds, order=order),), lambda name: f"{engine}, b packed beforehand")


def _too_little(engine: NativeGemm | NumkongGemm, limit: int) -> str:
    return f"{limit / 2**20:.4g} MiB of workspace do not suffice for {engine.description}"


def _worth_threads(problem: GemmProblem) -> bool:
    """Whether one operand at least is large enough to be converted by two cores."""
    operands = (problem.a, problem.b, problem.out)
    return any(x.layout.distinct_elements >= 2 * grain(x.dtype) for x in operands)


def _in_32_bits(problem: GemmProblem) -> bool:
    """Whether sums of 32 bits do: float32, or integers modulo a power of 2 that divides 2**32."""
    return problem.compute_dtype.kind in "fiu" and problem.compute_dtype.itemsize <= 4


def _takes(unit: Unit, names: tuple[str, str]) -> bool:
    """Whether ``unit`` multiplies operands of these dtypes."""
    return all(
        name in ("float16", "bfloat16", "float32") if unit.pair == "float" else name == unit.pair for name in names
    )
