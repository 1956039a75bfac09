"""Half precision, bfloat16, fp8 and integers on CPUs. Complex stays with NumPy's BLAS, as do float32 and float64 unless
pinned.

The candidates, each gated by what the machine has and by size:

- "native": int8, bfloat16 and float16 by kernels of our own, for AVX2, AVX-512, AMX and NEON; int32 and int64 for AVX2,
  which nothing else multiplies faster than NumPy's loops;
- "convert": blocks converted by all cores, multiplied by SGEMM. Always there.

A product of a packed b has one candidate, "packed": the form that b has decides what multiplies it.

Pinned problems have the native kernels alone, those for float32 and float64 too: the order in which BLAS adds depends
on sizes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from gemmhub.backend import BASIC, Array, Backend, Candidate, Kernel, Offer
from gemmhub.capability import CPU, Absent, Ready, Refusal
from gemmhub.dtypes import name_of
from gemmhub.numpy_backend.backend import NumpyBackend, blocked_kernel
from gemmhub.numpy_backend.blocked import work_dtypes
from gemmhub.numpy_backend.symmetric import HALF, symmetric_kernel
from gemmhub.operands import BLOCK, NO_OPERANDS
from gemmhub.problem import GemmProblem
from gemmhub_cpu import block_scales, model, probe
from gemmhub_cpu.block_scales import BlockGemm
from gemmhub_cpu.convert import copyto, grain
from gemmhub_cpu.model import Estimates
from gemmhub_cpu.native_engine import ACTIVATIONS, NativeGemm, finishes
from gemmhub_cpu.units import UNITS, Unit

_FACTORS = ("scale_a", "scale_b", "scale_out")
"""Operands that NumPy does not apply to the sums of a unit."""
_CONVERTED = "converted blocks through SGEMM"
_CHAINS = {"float32": "fma.f32", "float64": "fma.f64"}
"""The orders of the units for dtypes that BLAS has."""


class CpuBackend(Backend):
    """See the module."""

    name = "cpu"
    layout_sensitive = False
    by_bucket = True
    takes: ClassVar = {
        **BASIC,
        "activation": frozenset(name for name in ACTIVATIONS if name is not None),
        "reproducible": frozenset({"run", "batch"}),
        "scale_a": frozenset({"tensor", "row", "batch tensor", "batch row", "tensor x 128", "1x128"}),
        "scale_b": frozenset({"tensor", "column", "batch tensor", "batch column", "tensor x 128", "128x1", "128x128"}),
        "scale_out": frozenset({"tensor"}),
        "symmetric": None,
    }

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

    def probe(self) -> Ready | Absent:
        return probe.elsewhere() or probe.ready(self.machine)

    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        refused = self._refused(problem)
        if refused is not None:
            return refused
        machine, unit = self.machine, self.unit(problem)
        estimates = Estimates(problem)
        if block_scales.needed(problem):
            return self._offer_blocks(problem, unit, estimates)
        if unit is not None and _alone(unit, problem):
            return self._offer_alone(problem, unit, estimates)
        exact = "exact" if problem.compute_dtype.kind in "iu" else None  # a sum modulo 2**32 has no order
        # Of one order results are equal: those that NumPy and the kernels round from integers need not be.
        rounded = exact and unit is not None and problem.out.dtype.kind not in "iu"
        numpy, converting = self._numpy.seconds(problem), estimates.converted(machine.cores)
        # Never beyond the built-in backend's: it does the same, on one core.
        convert = Candidate("convert", min(0.99 * numpy, converting), order=None if rounded else exact)
        if problem.packed_by is not None:
            if unit is not None:
                return _packed(unit.name, estimates.native(unit, machine), exact or unit.order)
            return _packed(_CONVERTED, convert.seconds, convert.order)
        candidates = []
        gate = machine.why_no_native or f"no kernels of its own for {_dtypes(problem)}"
        if unit is not None:
            seconds = estimates.native(unit, machine)
            gate = self._no_native(problem, unit, seconds, numpy)
            if not gate:
                order = None if 1 in (problem.m, problem.n) else unit.order  # vectors are summed in other ways
                candidates.append(Candidate("native", seconds, order=exact or order))
        if not candidates and self._by_cost and not _worth_threads(problem):
            if unit is None:
                gate += "; the operands are too small for several cores to help with conversion"
            return Refusal(gate, "use the numpy backend")
        candidates.append(convert)

        def remark(candidate: str) -> str:
            half = HALF * problem.symmetric
            if candidate == "native" and unit is not None:
                return unit.name + half
            if candidate == "convert":
                return (f"{gate}; {_CONVERTED}" if gate else _CONVERTED) + half
            return candidate

        return Offer(tuple(candidates), remark)

    def _offer_alone(self, problem: GemmProblem, unit: Unit, estimates: Estimates) -> Offer | Refusal:
        """The offer of ``unit`` where BLAS cannot multiply the operands, or not in one order."""
        seconds = estimates.native(unit, self.machine)
        if problem.packed_by is not None:
            return _packed(unit.name, seconds, unit.order)
        if self._by_cost and not problem.pinned and seconds >= self._numpy.seconds(problem):
            return Refusal("too small: NumPy's loops end before a call does", "use the numpy backend", any_layout=True)
        return Offer(
            (Candidate("native", seconds, order=unit.order),), lambda name: unit.name + HALF * problem.symmetric
        )

    def _offer_blocks(self, problem: GemmProblem, unit: Unit | None, estimates: Estimates) -> Offer | Refusal:
        """The offer for scales that differ by block of k."""
        if unit is None:
            return Refusal(
                self.machine.why_no_native or f"no kernels of its own for {_dtypes(problem)}", "use the numpy backend"
            )
        seconds = estimates.native(unit, self.machine) + estimates.added_blocks()
        gate = self._no_native(problem, unit, seconds, self._numpy.seconds(problem))
        if gate:
            return Refusal(gate, "use the numpy backend")
        return Offer((Candidate("native", seconds),), lambda name: f"{unit.name}, {BLOCK} of k at a time")

    def _refused(self, problem: GemmProblem) -> Refusal | None:
        """The refusal of what no candidate runs, or runs faster than the built-in backend, whatever the units."""
        if problem.device != CPU:
            return Refusal(f"the operands are on {problem.device}", "copy them to the host, or install its plugin")
        if block_scales.needed(problem):
            reason = block_scales.refusal(problem)
            return Refusal(f"scales of blocks: {reason}", "use the numpy backend") if reason else None
        unit = self.unit(problem)
        if unit is not None and _alone(unit, problem):
            return None
        if problem.pinned:
            here = self.machine.why_no_native or f"no kernels of its own for {_dtypes(problem)}"
            reason = f"{here}, and the order in which BLAS adds depends on sizes"
            return Refusal(reason, 'ask for reproducible="run"', any_layout=True)
        kinds = work_dtypes(problem)
        if kinds is None or problem.a.dtype == problem.b.dtype == problem.out.dtype == kinds[0]:
            return Refusal(
                f"{_dtypes(problem)}: this plugin has nothing faster than NumPy's own product",
                "use the numpy backend",
                any_layout=True,
                any_size=True,
            )
        if problem.packed_by is None:
            return None
        single = np.dtype(np.int32 if problem.a.dtype.kind == "i" else np.float32)
        if unit is not None:
            return None
        dtype = problem.a.dtype
        if dtype.kind in "iu" and dtype.itemsize >= 4:  # of units whose results are such integers
            exact = replace(problem, out=replace(problem.out, dtype=dtype), compute_dtype=dtype, operands=NO_OPERANDS)
            if self.unit(exact) is not None:
                return Refusal(
                    f"b may be packed for kernels whose results are {dtype}, not {problem.out.dtype}",
                    f"multiply by the unpacked b, or pass out_dtype={dtype}",
                )
        if self.unit(replace(problem, compute_dtype=single, operands=NO_OPERANDS)) is None:
            return None
        if _in_32_bits(problem):
            return Refusal(
                f"b may be packed for kernels which scale results in float32, not in {problem.out.dtype}",
                "multiply by the unpacked b, or pass out_dtype=float32",
            )
        return Refusal(
            f"b may be packed for kernels which accumulate in 32 bits, not in {problem.compute_dtype}",
            "multiply by the unpacked b, or leave out_dtype= and scalars beyond float32 away",
        )

    def unit(self, problem: GemmProblem) -> Unit | None:
        """The best unit of our own kernels that multiplies such operands here; None where there is none."""
        if block_scales.needed(problem):
            problem = block_scales.of_block(problem)
        return next((unit for unit in UNITS if unit.name in self.machine.native and _takes(unit, problem)), None)

    def _no_native(self, problem: GemmProblem, unit: Unit, seconds: float, numpy: float) -> str:
        """The gate that keeps ``unit`` from ``problem``, by the seconds through it and through the built-in backend;
        empty where it may run it.
        """
        if not self._by_cost:
            return ""
        halves = "float16" in (name_of(problem.a.dtype), name_of(problem.b.dtype))
        if problem.n < 4 and not (halves or model.by_vector(problem, unit) or model.exchanges(problem)):
            return "too few columns for a micro-kernel"
        return "packing would cost more than it saves" if seconds > numpy else ""

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel | Refusal:
        if block_scales.needed(problem):
            return self._prepare_blocks(problem, candidate, workspace_limit)
        engine = self._engine(problem, candidate, workspace_limit)
        packed = ", b packed beforehand" if problem.packed_by is not None else ""
        if engine is not None and engine.scratch_bytes:
            direct, with_epilogue = None, None
            if engine.fused and problem.plain:
                direct = engine.direct_packed if packed else engine.direct
            elif engine.fused:
                with_epilogue = engine.with_epilogue
            description = engine.description + packed
            together = engine.groups if direct and not packed and not problem.symmetric else None
            return Kernel(
                engine, description, engine.scratch_bytes, direct, with_epilogue, any_size=not packed, groups=together
            )
        if engine is not None:
            remedy = "multiply by b itself" if packed else f"leave the candidate's name, {candidate}, out"
            return Refusal(_too_little(engine, workspace_limit), f"raise the setting workspace_mib, or {remedy}")
        if candidate not in ("convert", "packed"):
            return Refusal(f"{candidate} does not run these operands", "leave the candidate's name out")
        if problem.symmetric:
            return symmetric_kernel(problem, lambda part: self._converted(part, "", workspace_limit))
        return self._converted(problem, packed, workspace_limit)

    def _converted(self, problem: GemmProblem, packed: str, workspace_limit: int) -> Kernel:
        """The kernel that converts blocks by all cores."""
        converted = blocked_kernel(problem, workspace_limit, copyto)
        description = f"converted by {self.machine.cores} cores: {converted.description}{packed}"
        return replace(converted, description=description, any_size=not packed)

    def _prepare_blocks(self, problem: GemmProblem, candidate: str, limit: int) -> Kernel | Refusal:
        unit = self.unit(problem)
        if unit is None or candidate != "native" or block_scales.refusal(problem):
            return Refusal(f"{candidate} does not run these operands", "leave the candidate's name out")
        engine = BlockGemm(problem, unit, limit)
        if not engine.scratch_bytes:
            return Refusal(_too_little(engine, limit), "raise the setting workspace_mib")
        return Kernel(engine, engine.description, engine.scratch_bytes, any_size=True)

    def _engine(self, problem: GemmProblem, candidate: str, limit: int) -> NativeGemm | None:
        """The engine of a candidate, which has no scratch memory where ``limit`` bytes do not suffice; None where
        blocks are converted.
        """
        unit, packed = self.unit(problem), candidate == "packed"
        if unit is not None and (packed or candidate == "native"):
            return NativeGemm(problem, unit, limit)
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


def _too_little(engine: NativeGemm | BlockGemm, limit: int) -> str:
    return f"{limit / 2**20:.4g} MiB of workspace do not suffice for {engine.description}"


def _dtypes(problem: GemmProblem) -> str:
    return f"{problem.a.dtype} by {problem.b.dtype}"


def _worth_threads(problem: GemmProblem) -> bool:
    """Whether one operand at least is large enough to be converted by two cores."""
    operands = (problem.a, problem.b, problem.out)
    return any(x.layout.distinct_elements >= 2 * grain(x.dtype) for x in operands)


def _in_32_bits(problem: GemmProblem) -> bool:
    """Whether sums of 32 bits do: float32, or integers modulo a power of 2 that divides 2**32."""
    return problem.compute_dtype.kind in "fiu" and problem.compute_dtype.itemsize <= 4


def _chain(problem: GemmProblem) -> str | None:
    """The order of the units for two operands of a dtype that BLAS has; None for other operands."""
    return _CHAINS.get(problem.a.dtype.name) if problem.a.dtype == problem.b.dtype else None


def _alone(unit: Unit, problem: GemmProblem) -> bool:
    """Whether ``unit``, which takes the operands, has no alternative: BLAS has no such dtype, or no fixed order."""
    return unit.exact or problem.pinned or _chain(problem) is not None


def _takes(unit: Unit, problem: GemmProblem) -> bool:
    """Whether ``unit`` multiplies the operands of ``problem``, in its dtype, and scales and mirrors them where the
    problem does."""
    whole = problem.symmetric or not problem.operands.keys().isdisjoint(_FACTORS)
    return _multiplies(unit, problem) and (not whole or finishes(unit, problem))


def _multiplies(unit: Unit, problem: GemmProblem) -> bool:
    """Whether ``unit`` multiplies the operands of ``problem``, in its dtype."""
    names = name_of(problem.a.dtype), name_of(problem.b.dtype)
    if unit.exact:
        same = problem.a.dtype == problem.b.dtype == problem.out.dtype == problem.compute_dtype
        return same and names[0].removeprefix("u") == unit.pair
    chain = _chain(problem)
    if chain is not None:  # b is packed for pinned problems alone
        pinned = problem.pinned or problem.packed_by is not None
        return pinned and problem.compute_dtype == problem.a.dtype and unit.order == chain
    if not _in_32_bits(problem):
        return False
    return all(name in unit.operands for name in names) and (names != ("int8", "int8") or unit.pair == "int8")
