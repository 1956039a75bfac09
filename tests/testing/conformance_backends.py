"""A small, correct backend, and wrong ones: each breaks one promise, which the conformance kit must detect."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from gemmhub.backend import Backend, Candidate, Kernel, Offer
from gemmhub.capability import CPU, Absent, Copy, Ready, Refusal
from gemmhub.dtypes import compute_dtype, info, saturates
from gemmhub.epilogues import EPILOGUES, NUMPY
from gemmhub.operands import BLOCK, OPERANDS
from gemmhub.problem import GemmProblem

Array = Any
Operands = Mapping[str, Array]
"""The operands beside a, b and out, by name."""


class RightBackend(Backend):
    """NumPy, slowly: operands widened to the accumulator's dtype, multiplied, rounded once at the end.

    It refuses rows in reverse order, so that refusals are tested too.
    """

    name = "right"
    takes: ClassVar = {**dict.fromkeys((*OPERANDS, "activation", "precision")), "reproducible": frozenset({"run"})}

    def probe(self) -> Ready | Absent:
        return Ready((CPU,), {"numpy": np.__version__})

    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        if problem.packed_by not in (None, self.name):
            return Refusal(f"b was packed by {problem.packed_by!r}", "pack b with this backend")
        if min(problem.a.layout.row_stride, problem.b.layout.row_stride) < 0:
            return Refusal("rows lie in reverse order", "pass a copy")
        inexact = info(problem.compute_dtype).inexact
        names = ("matmul", "einsum") if problem.k < 100 and inexact else ("matmul",)
        order = None if inexact else "exact"
        return Offer(tuple(Candidate(name, 1e-6 + problem.flops * 1e-9, order=order) for name in names))

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        def run(a: Array, b: Array, out: Array, alpha: Any, beta: Any, stream: Any, **operands: Array) -> None:
            product = self.scaled(problem, a, b, candidate, operands)
            out[...] = self.epilogue(problem, product, out, alpha, beta, operands)

        return Kernel(run, candidate, workspace_limit)

    def pack(self, b: Array, problem: GemmProblem) -> object | Refusal:
        return b.copy()

    def product(self, problem: GemmProblem, a: Array, b: Array, candidate: str) -> Array:
        compute = problem.compute_dtype
        a, b = a.astype(compute), b.astype(compute)
        if candidate == "einsum":
            return np.einsum("...ik,...kj->...ij", a, b)
        return np.matmul(a, b)

    def scaled(self, problem: GemmProblem, a: Array, b: Array, candidate: str, operands: Operands) -> Array:
        """The product of the scaled operands, block by block along k where factors differ there."""
        if not {"scale_a", "scale_b"} & operands.keys():
            return self.product(problem, a, b, candidate)
        deep = any(problem.operands[name].depth for name in ("scale_a", "scale_b") if name in operands)
        step = BLOCK if deep else max(1, problem.k)
        total = 0
        for i, start in enumerate(range(0, max(1, problem.k), step)):
            block = slice(start, start + step)
            part = self.product(problem, a[..., block], b[..., block, :], candidate).astype(self.working(problem))
            if "scale_a" in operands:
                x = operands["scale_a"]
                part = part * x[..., min(i, x.shape[-1] - 1)][..., np.newaxis]
            if "scale_b" in operands:
                x = self.columns(problem, operands["scale_b"])
                part = part * x[..., min(i, x.shape[-2] - 1), :][..., np.newaxis, :]
            total = total + part
        return total

    def columns(self, problem: GemmProblem, scale: Array) -> Array:
        """Factors of b with each of a block of columns repeated."""
        if problem.operands["scale_b"].axis != "n blocks":
            return scale
        return np.repeat(scale, BLOCK, axis=-1)[..., : problem.n]

    def working(self, problem: GemmProblem) -> np.dtype[Any]:
        """The dtype of the epilogue."""
        if info(problem.compute_dtype).kind == "int" and info(problem.out.dtype).kind == "float":
            return np.dtype(np.float64)
        return problem.out.dtype if info(problem.out.dtype).kind in ("int", "uint", "bool") else problem.compute_dtype

    def epilogue(
        self, problem: GemmProblem, product: Array, out: Array, alpha: Any, beta: Any, operands: Operands
    ) -> Array:
        working = self.working(problem)
        value = product.astype(working)
        if alpha == 0:
            value = np.zeros_like(value)
        elif alpha != 1:
            value = value * self.scalar(alpha, working)
        if "c" in operands:
            value = value + operands["c"].astype(working) * self.scalar(beta, working)
        if "bias" in operands:
            vector = operands["bias"].astype(working)
            value = value + (vector[:, np.newaxis] if self.bias_axis(problem) == "m" else vector)
        if "pre_activation" in operands:
            operands["pre_activation"][...] = value
        value = self.activated(problem, value)
        if "amax" in operands:
            operands["amax"][...] = np.max(np.abs(value), initial=0)
        if "scale_out" in operands:
            value = value * operands["scale_out"]
        if saturates(out.dtype):
            largest = info(out.dtype).largest
            value = np.clip(value, -largest, largest)
        return value.astype(out.dtype)

    def activated(self, problem: GemmProblem, value: Array) -> Array:
        if problem.activation is None:
            return value
        if value.dtype.kind in "iu":
            return np.maximum(value, 0)  # relu is the only one of integers
        return EPILOGUES[problem.activation](value)

    def bias_axis(self, problem: GemmProblem) -> str:
        assert problem.bias is not None
        return problem.bias.axis

    @staticmethod
    def scalar(value: Any, dtype: np.dtype[Any]) -> Any:
        """``value`` in ``dtype``, integers modulo its width."""
        if dtype.kind == "i":
            return np.array(int(value)).astype(dtype)[()]
        if dtype.kind == "u":
            return dtype.type(int(value) % 2 ** (8 * dtype.itemsize))
        return dtype.type(value)


class Transposed(RightBackend):
    """Returns (a b)^T where that has the right shape."""

    def product(self, problem: GemmProblem, a: Array, b: Array, candidate: str) -> Array:
        product = super().product(problem, a, b, candidate)
        return product.swapaxes(-1, -2) if problem.m == problem.n else product


class IgnoresC(RightBackend):
    """Forgets beta * c."""

    def epilogue(
        self, problem: GemmProblem, product: Array, out: Array, alpha: Any, beta: Any, operands: Operands
    ) -> Array:
        return super().epilogue(problem, product, out, alpha, beta, {x: y for x, y in operands.items() if x != "c"})


class UnscaledC(RightBackend):
    """Adds c without beta."""

    def epilogue(
        self, problem: GemmProblem, product: Array, out: Array, alpha: Any, beta: Any, operands: Operands
    ) -> Array:
        return super().epilogue(problem, product, out, alpha, 1, operands)


class Tail(RightBackend):
    """Never writes the last column when n is not a multiple of 8."""

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        def run(a: Array, b: Array, out: Array, alpha: Any, beta: Any, stream: Any, **operands: Array) -> None:
            full = self.epilogue(problem, self.scaled(problem, a, b, candidate, operands), out, alpha, beta, operands)
            n = out.shape[-1] - (out.shape[-1] % 8 != 0)
            out[..., :n] = full[..., :n] if full.shape[-1] > 1 else full

        return Kernel(run, candidate)


class ShortK(RightBackend):
    """Drops the last row of b where k is odd and long."""

    def product(self, problem: GemmProblem, a: Array, b: Array, candidate: str) -> Array:
        k = problem.k - (problem.k % 2 and problem.k > 60)
        return super().product(problem, a[..., :k], b[..., :k, :], candidate)


class StalePack(RightBackend):
    """Packs once per address."""

    def __init__(self) -> None:
        self.cache: dict[int, Array] = {}

    def pack(self, b: Array, problem: GemmProblem) -> object | Refusal:
        return self.cache.setdefault(b.ctypes.data, b.copy())


class SharedPack(RightBackend):
    """The packed form is b itself."""

    def pack(self, b: Array, problem: GemmProblem) -> object | Refusal:
        return b


class PackedForOneResult(RightBackend):
    """The packed form is of the dtype that the product in which it was packed accumulates in."""

    def pack(self, b: Array, problem: GemmProblem) -> object | Refusal:
        return b.astype(problem.compute_dtype, order="C").view(np.uint8)

    def product(self, problem: GemmProblem, a: Array, b: Array, candidate: str) -> Array:
        return super().product(problem, a, b.view(problem.compute_dtype) if problem.packed_by else b, candidate)


class FoldsEmptyStacks(RightBackend):
    """Makes one matrix of a batch by a reshape whose size k = 0 leaves unknown."""

    def product(self, problem: GemmProblem, a: Array, b: Array, candidate: str) -> Array:
        if problem.batch and b.ndim == 2 and a.flags.c_contiguous:
            folded = super().product(problem, a.reshape(-1, a.shape[-1]), b, candidate)
            return folded.reshape(*a.shape[:-1], b.shape[-1])
        return super().product(problem, a, b, candidate)


class StaleTranspose(RightBackend):
    """Each kernel keeps a converted b by its address."""

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        kept: dict[int, Array] = {}

        def run(a: Array, b: Array, out: Array, alpha: Any, beta: Any, stream: Any, **operands: Array) -> None:
            right = kept.setdefault(b.ctypes.data, b.copy())
            out[...] = self.epilogue(
                problem, self.scaled(problem, a, right, candidate, operands), out, alpha, beta, operands
            )

        return Kernel(run, candidate)


class RoundsOperands(RightBackend):
    """Rounds float32 operands to ``bits`` significant bits and calls that ``claims``."""

    bits = 11
    claims = "ieee"

    def product(self, problem: GemmProblem, a: Array, b: Array, candidate: str) -> Array:
        if a.dtype == b.dtype == np.float32 and problem.precision == self.claims:
            a, b = (self.rounded(x) for x in (a, b))
        return super().product(problem, a, b, candidate)

    def rounded(self, x: Array) -> Array:
        fraction, exponent = np.frexp(x)
        return np.ldexp(np.rint(fraction * 2.0**self.bits), exponent - self.bits).astype(np.float32)


class TruncatesOperands(RoundsOperands):
    """Truncates as tensor cores do with float32 bits read as tf32."""

    def rounded(self, x: Array) -> Array:
        return (x.copy().view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


class TF32AsBF16x3(RoundsOperands):
    claims = "bf16x3"


class ThreeProducts(RoundsOperands):
    """float32 as the sum of two bfloat16 numbers, of whose four products three are added."""

    bits = 8
    claims = "bf16x3"

    def product(self, problem: GemmProblem, a: Array, b: Array, candidate: str) -> Array:
        if not (a.dtype == b.dtype == np.float32 and problem.precision == self.claims):
            return super().product(problem, a, b, candidate)
        multiply = super(RoundsOperands, self).product
        main = multiply(problem, self.rounded(a), self.rounded(b), candidate)
        # NaN and infinities are in the first of the three alone.
        a, b = (np.where(np.isfinite(x), x, np.float32(0)) for x in (a, b))
        high_a, high_b = self.rounded(a), self.rounded(b)
        left = multiply(problem, high_a, self.rounded(b - high_b), candidate)
        return self.added(main, left, multiply(problem, self.rounded(a - high_a), high_b, candidate))

    def added(self, main: Array, *cross: Array) -> Array:
        return main + (cross[0] + cross[1])


class TwoProducts(ThreeProducts):
    """Leaves one of them out."""

    def added(self, main: Array, *cross: Array) -> Array:
        return main + cross[0]


class BF16AsTF32(RoundsOperands):
    bits = 8
    claims = "tf32"


class SplitsInTwo(RoundsOperands):
    """float32 as the sum of two bfloat16 numbers: 16 bits, not 24."""

    def rounded(self, x: Array) -> Array:
        self.bits = 8
        high = super().rounded(x)
        return high + super().rounded(x - high)


class AccumulatesInHalf(RightBackend):
    """Keeps float16 sums in float16."""

    def product(self, problem: GemmProblem, a: Array, b: Array, candidate: str) -> Array:
        if not (a.dtype == b.dtype == np.float16):
            return super().product(problem, a, b, candidate)
        total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), problem.m, problem.n), np.float16)
        for i in range(problem.k):
            total = total + a[..., :, i : i + 1] * b[..., i : i + 1, :]
        return total


class RoundsScalars(RightBackend):
    """Computes the epilogue in the operands' dtype for any alpha and beta."""

    def epilogue(
        self, problem: GemmProblem, product: Array, out: Array, alpha: Any, beta: Any, operands: Operands
    ) -> Array:
        natural = compute_dtype(problem.a.dtype, problem.b.dtype, problem.out.dtype)
        return super().epilogue(replace(problem, compute_dtype=natural), product, out, alpha, beta, operands)


class WritesOutside(RightBackend):
    """Rounds rows up to 8 elements where they are padded."""

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        right = super().prepare(problem, candidate, workspace_limit).run

        def run(a: Array, b: Array, out: Array, *rest: Any, **operands: Array) -> None:
            right(a, b, out, *rest, **operands)
            layout = problem.out.layout
            if layout.col_stride == 1 and layout.row_stride > layout.cols:
                wider = np.lib.stride_tricks.as_strided(out, (*out.shape[:-1], layout.cols + 1), out.strides)
                wider[..., -1] = 0

        return Kernel(run, candidate)


class ChangesInput(RightBackend):
    """Scales a in place by alpha."""

    def product(self, problem: GemmProblem, a: Array, b: Array, candidate: str) -> Array:
        product = super().product(problem, a, b, candidate)
        if not problem.alpha_is_one:
            a[..., 0, 0] = 0
        return product


class NoRemedy(RightBackend):
    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        offer = super().offer(problem)
        return replace(offer, remedy=" ") if isinstance(offer, Refusal) else offer


class Lies(RightBackend):
    """Accepts column-major results, then cannot prepare."""

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        if problem.out.layout.order == "col":
            raise RuntimeError("no kernel for column-major results")
        return super().prepare(problem, candidate, workspace_limit)


class Raises(RightBackend):
    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        if problem.k == 0:
            raise ZeroDivisionError("k")
        return super().offer(problem)


class Fickle(RightBackend):
    """Answers differently each time."""

    calls = itertools.count()

    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        return Refusal("busy", "ask again") if next(self.calls) % 2 else super().offer(problem)


class OnlyBiasN(RightBackend):
    """Adds every bias along n where the shape allows it."""

    def bias_axis(self, problem: GemmProblem) -> str:
        return "n" if problem.m == problem.n else super().bias_axis(problem)


class NotDeterministic(RightBackend):
    """Sums in an order that changes from call to call."""

    def product(self, problem: GemmProblem, a: Array, b: Array, candidate: str) -> Array:
        order = np.random.default_rng().permutation(problem.k)
        return super().product(problem, a[..., order], b[..., order, :], candidate)


class DirectDiffers(RightBackend):
    """run and direct add up in another order."""

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        kernel = super().prepare(problem, candidate, workspace_limit)
        if {problem.a.dtype, problem.b.dtype, problem.out.dtype} != {np.dtype(np.float32)}:
            return kernel

        def direct(a: Array, b: Array, out: Array | None) -> Array:
            made = np.asarray(np.matmul(a[..., ::-1], np.flip(b, -2 if b.ndim > 1 else 0)))
            if out is None:
                return made
            np.copyto(out, made)
            return out

        return replace(kernel, direct=direct)


class ReadsPoison(RightBackend):
    """Adds 0 * out where there is no c."""

    def epilogue(
        self, problem: GemmProblem, product: Array, out: Array, alpha: Any, beta: Any, operands: Operands
    ) -> Array:
        reads = "c" not in operands and out.dtype.kind == "f" and out.shape == product.shape
        return super().epilogue(problem, product, out, alpha, beta, {**operands, "c": out} if reads else operands)


class SharedScratch(RightBackend):
    """All calls of a kernel use one intermediate buffer."""

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        scratch: list[Array] = [None]

        def run(a: Array, b: Array, out: Array, alpha: Any, beta: Any, stream: Any, **operands: Array) -> None:
            scratch[0] = self.scaled(problem, a, b, candidate, operands)
            if threading.active_count() > 1:
                time.sleep(0.005)  # the other threads' turn
            out[...] = self.epilogue(problem, scratch[0].copy(), out, alpha, beta, operands)

        return Kernel(run, candidate)


class BadSecondCandidate(RightBackend):
    def product(self, problem: GemmProblem, a: Array, b: Array, candidate: str) -> Array:
        return super().product(problem, a, b, candidate) * (1 if candidate == "matmul" else 2)


class Spoilt(RightBackend):
    """Its offers have ``spoilt`` in place of what is right; ``candidate`` in each candidate."""

    spoilt: Mapping[str, Any] = MappingProxyType({})
    candidate: Mapping[str, Any] = MappingProxyType({})

    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        offer = super().offer(problem)
        if isinstance(offer, Refusal):
            return offer
        candidates = tuple(replace(x, **self.candidate) for x in offer.candidates)
        return replace(offer, candidates=candidates, **self.spoilt)


class NegativeEstimate(Spoilt):
    candidate = MappingProxyType({"seconds": -1.0})


class UndefinedEstimate(Spoilt):
    candidate = MappingProxyType({"seconds": float("nan")})


class InfiniteEstimate(Spoilt):
    candidate = MappingProxyType({"seconds": float("inf")})


class SeveralEstimates(Spoilt):
    """Each of its candidates has an estimate of both."""

    candidate = MappingProxyType({"seconds": (1e-6, 2e-6)})


class HiddenWorkspace(RightBackend):
    """Declares no workspace for the arrays that it widens."""

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        return replace(super().prepare(problem, candidate, workspace_limit), workspace_bytes=0)


class CopiesColumnMajor(RightBackend):
    """float32 alone, of a b that is copied where it is column-major; ``declared`` in its offers."""

    takes: ClassVar = {}
    declared = True

    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        if {problem.a.dtype, problem.b.dtype, problem.out.dtype} != {np.dtype(np.float32)} or not problem.plain:
            return Refusal("it has float32 alone, without alpha", "convert the operands")
        copy = Copy("b", 4 * problem.k * problem.n * problem.batch_count, "it is column-major")
        declared = self.declared and problem.b.layout.order == "col"
        return Offer((Candidate(copies=(copy,) if declared else ()),))

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        def run(a: Array, b: Array, out: Array, alpha: Any, beta: Any, stream: Any) -> None:
            np.matmul(a, np.ascontiguousarray(b) if problem.b.layout.order == "col" else b, out=out)

        return Kernel(run, candidate)


class HiddenCopy(CopiesColumnMajor):
    declared = False


class BoundlessWorkspace(Spoilt):
    """Its default is not a number of bytes."""

    spoilt = MappingProxyType({"workspace": None})


class FalseOrder(Spoilt):
    """States one order for sums that numpy.matmul and numpy.einsum form in different orders."""

    candidate = MappingProxyType({"order": "chain.all"})


class SilentRemark(Spoilt):
    spoilt = MappingProxyType({"remark": lambda name: None})


class OldRows(RightBackend):
    """Its kernels for other rows never write more of them than the problem had that was prepared."""

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        kernel = super().prepare(problem, candidate, workspace_limit)

        def run(a: Array, b: Array, out: Array, *rest: Any, **operands: Array) -> None:
            last = None if any(x.per_row for x in problem.operands.values()) else problem.m
            rows = {name: x[:last] if name in ("c", "pre_activation") else x for name, x in operands.items()}
            kernel.run(a[:last], b, out[:last], *rest, **rows)

        return replace(kernel, with_rows=lambda rows: run)


class FlushesNaN(RightBackend):
    """relu as max(0, x) of hardware that drops NaN."""

    def epilogue(
        self, problem: GemmProblem, product: Array, out: Array, alpha: Any, beta: Any, operands: Operands
    ) -> Array:
        value = super().epilogue(problem, product, out, alpha, beta, operands)
        return np.fmax(value, out.dtype.type(0)) if problem.activation == "relu" and out.dtype.kind == "f" else value


class Saturates(RightBackend):
    """Clamps half results to the largest number."""

    def epilogue(
        self, problem: GemmProblem, product: Array, out: Array, alpha: Any, beta: Any, operands: Operands
    ) -> Array:
        value = super().epilogue(problem, product, out, alpha, beta, operands)
        return np.clip(value, -65504, 65504) if out.dtype == np.float16 else value


class DirectWrong(RightBackend):
    """direct returns the accumulator's dtype."""

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        kernel = super().prepare(problem, candidate, workspace_limit)

        def direct(a: Array, b: Array, out: Array | None) -> Array:
            compute = problem.compute_dtype
            return np.matmul(a.astype(compute), b.astype(compute), out=out, casting="unsafe")

        return replace(kernel, direct=direct)


class FalselyInsensitive(RightBackend):
    """States that layouts do not matter, and refuses some."""

    layout_sensitive = False


class Gone(RightBackend):
    name = "gone"

    def probe(self) -> Ready | Absent:
        return Absent("no such device", "buy one")


class RefusesAll(RightBackend):
    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        return Refusal("not today", "come back tomorrow")


class ExchangesGate(RightBackend):
    """Applies the function of a gated activation to the other column of each pair."""

    def activated(self, problem: GemmProblem, value: Array) -> Array:
        if problem.activation is None or EPILOGUES[problem.activation].gate is None:
            return super().activated(problem, value)
        gate, up = EPILOGUES[problem.activation].split(value)
        return EPILOGUES[problem.activation].formula(up, NUMPY) * gate


class OtherGelu(RightBackend):
    """gelu in the tanh form."""

    def activated(self, problem: GemmProblem, value: Array) -> Array:
        return super().activated(
            replace(problem, activation="gelu_tanh") if problem.activation == "gelu" else problem, value
        )


class Without(RightBackend):
    """Computes without the operand ``dropped``."""

    dropped = ""

    def scaled(self, problem: GemmProblem, a: Array, b: Array, candidate: str, operands: Operands) -> Array:
        return super().scaled(problem, a, b, candidate, {x: y for x, y in operands.items() if x != self.dropped})

    def epilogue(
        self, problem: GemmProblem, product: Array, out: Array, alpha: Any, beta: Any, operands: Operands
    ) -> Array:
        operands = {x: y for x, y in operands.items() if x != self.dropped}
        return super().epilogue(problem, product, out, alpha, beta, operands)


class WithoutScaleA(Without):
    dropped = "scale_a"


class WithoutScaleB(Without):
    dropped = "scale_b"


class WithoutScaleOut(Without):
    dropped = "scale_out"


class WithoutAmax(Without):
    """Never writes it."""

    dropped = "amax"


class NextBlock(RightBackend):
    """Takes the factors of the next block of columns."""

    def columns(self, problem: GemmProblem, scale: Array) -> Array:
        blocked = problem.operands["scale_b"].axis == "n blocks"
        return super().columns(problem, np.roll(scale, 1, axis=-1) if blocked else scale)


class OneMatrixForAll(RightBackend):
    """Takes the factors of a stack's first matrix for all."""

    def scaled(self, problem: GemmProblem, a: Array, b: Array, candidate: str, operands: Operands) -> Array:
        first = {x: y[:1] if y.ndim == 3 and x.startswith("scale") else y for x, y in operands.items()}
        return super().scaled(problem, a, b, candidate, first)


class LatePreActivation(RightBackend):
    """Writes pre_activation after the activation."""

    def epilogue(
        self, problem: GemmProblem, product: Array, out: Array, alpha: Any, beta: Any, operands: Operands
    ) -> Array:
        result = super().epilogue(problem, product, out, alpha, beta, operands)
        if "pre_activation" in operands and problem.out_columns == problem.n:
            operands["pre_activation"][...] = result
        return result


class LateAmax(RightBackend):
    """Writes amax after scale_out."""

    def epilogue(
        self, problem: GemmProblem, product: Array, out: Array, alpha: Any, beta: Any, operands: Operands
    ) -> Array:
        result = super().epilogue(problem, product, out, alpha, beta, operands)
        if "amax" in operands:
            operands["amax"][...] = np.max(np.abs(result), initial=0)
        return result


class AmaxWithoutNaN(RightBackend):
    """The largest of the numbers among the results."""

    def epilogue(
        self, problem: GemmProblem, product: Array, out: Array, alpha: Any, beta: Any, operands: Operands
    ) -> Array:
        result = super().epilogue(problem, product, out, alpha, beta, operands)
        if "amax" in operands and np.isnan(operands["amax"]).any():
            operands["amax"][...] = np.fmax.reduce(np.abs(result).astype(np.float32), axis=None)
        return result


class WritesBesidePreActivation(RightBackend):
    """Rounds its rows up where they are padded."""

    def epilogue(
        self, problem: GemmProblem, product: Array, out: Array, alpha: Any, beta: Any, operands: Operands
    ) -> Array:
        result = super().epilogue(problem, product, out, alpha, beta, operands)
        if "pre_activation" in operands:
            x, layout = operands["pre_activation"], problem.operands["pre_activation"].layout
            if layout.col_stride == 1 and layout.row_stride > layout.cols:
                np.lib.stride_tricks.as_strided(x, (*x.shape[:-1], layout.cols + 1), x.strides)[..., -1] = 0
        return result


class DirectWithoutBias(RightBackend):
    """direct_epilogue forgets the bias."""

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        kernel = super().prepare(problem, candidate, workspace_limit)

        def direct(a: Array, b: Array, out: Array | None, options: Mapping[str, Any]) -> Array:
            out = np.empty((*problem.batch, problem.m, problem.out_columns), problem.out.dtype) if out is None else out
            operands = {name: options[name] for name in problem.operands if name != "bias"}
            kernel.run(a, b, out, options["alpha"], options["beta"], None, **operands)
            return out

        simple = problem.operands.keys() <= {"c", "bias"}
        return replace(kernel, direct_epilogue=lambda size: direct) if simple else kernel
