"""Launching the kernel: its parameters in memory, filled in with addresses, and one call of cuLaunchKernelEx.

Tensor maps hold the operands' addresses. Where a map is known to have its address in one word of its own (that is
checked when the problem is prepared) a new address is one word to write; else the map is encoded anew.
"""

from __future__ import annotations

import ctypes
from ctypes import addressof, c_float, c_int, c_int64, c_uint64
from typing import Any

from gemmhub.backend import Run
from gemmhub.errors import KernelError
from gemmhub.kit import cuda_launch
from gemmhub.kit.cuda import Gpu
from gemmhub.kit.cuda_launch import STREAM_WORD, WORD, Starter
from gemmhub.kit.cuda_scratch import COUNTERS, Scratch
from gemmhub_hopper import pdl, tensor_map
from gemmhub_hopper.candidate import Choice, Room
from gemmhub_hopper.config import Variant
from gemmhub_hopper.k_passes import Slabs
from gemmhub_hopper.lower import Lowered
from gemmhub_hopper.tensor_map import MapArguments
from gemmhub_hopper.tile_schedule import Walk, walk

_RECOMPUTED = 3
"""Up to this k every element of a product of split operands is computed by ordinary instructions (repair.cuh)."""

_STREAMED = 200 * 2**20
"""Bytes of results beyond which L2 had better keep others (benchmarks/results/h200/hopper_ab_streamed.txt)."""
_SHORT = 8
"""wgmmas, for 64 rows and each byte of a result, up to which writing those is what takes the time."""


class Params(ctypes.Structure):
    """Params of params.cuh."""

    _fields_ = (
        *((name, c_int) for name in ("m", "n", "a_block", "b_block")),
        ("walk", Walk),
        *((name, c_int) for name in ("streamed", "a_step", "b_step", "pairs")),
        ("alpha", c_float), ("beta", c_float),
        *((name, c_uint64) for name in ("d", "c", "bias", "partials", "counters")),
        *((name, c_int64) for name in ("d_ld", "d_batch", "c_ld", "c_batch")),
        *((name, c_int) for name in ("k", "all", "kept", "next")),
        *((name, c_uint64) for name in ("a", "b")),
        *((name, c_int64) for name in ("a_m", "a_k", "a_batch", "b_n", "b_k", "b_batch")),
        *((name, c_uint64) for name in ("a_marks", "b_marks", "finished")),
    )  # fmt: skip


class Arguments(ctypes.Structure):
    """The parameters of the kernel."""

    _fields_ = (
        ("a", c_uint64 * 16),
        ("b", c_uint64 * 16),
        ("map_d", c_uint64 * 16),
        ("p", Params),
    )


def params(choice: Choice, k: int, card: Room) -> Params:
    """All but the addresses and scalars of a call; of a slab with ``k`` elements along k."""
    way, shape = choice.way, choice.shape
    k_blocks = -(-k // way.form.block_k)
    splits = min(choice.splits, k_blocks)  # the last slab may have fewer blocks
    a_kept, b_kept = marks_kept(way)
    made = Params(
        m=way.m, n=way.n, walk=walk(choice.tiles, way.batch, choice.group(card), k_blocks, splits, shape.cluster_k),
        streamed=streamed(way), a_step=way.a.step, b_step=way.b.step, pairs=way.pairs, alpha=1.0, beta=0.0,
        d_ld=way.d_ld, d_batch=way.d_batch, c_ld=way.c_ld, c_batch=way.c_batch, k=k, all=way.k <= _RECOMPUTED,
        kept=a_kept | b_kept << 1, next=pdl.gemm(choice, k_blocks, card),
    )  # fmt: skip
    (made.a_m, made.a_k, made.a_batch), (made.b_n, made.b_k, made.b_batch) = way.a.strides, way.b.strides
    return made


def marks_kept(way: Lowered) -> tuple[bool, bool]:
    """Whether the marks of the kernel's a, and of its b, are those of a packed operand: no product writes to them. Of
    operands that a kernel splits itself it finds marks of its own.
    """
    return way.a.packed and not way.form.a_registers, way.b.packed and not way.form.b_split


def streamed(way: Lowered) -> bool:
    """Whether results need not stay in L2: they are several times as large, and to write them takes longer than to
    multiply. What a and b are read again from L2 for is then not driven out by them.
    """
    form = way.form
    large = way.m * way.n * way.batch * form.output_bytes > _STREAMED
    return large and way.k * form.steps <= _SHORT * form.output_bytes * form.block_k


def maps(choice: Choice, cut: Slabs, variant: Variant) -> tuple[MapArguments, MapArguments, MapArguments | None]:
    """Of the kernel's a, b and d; None for d where TMA does not store it."""
    way, shape, form = choice.way, choice.shape, variant.form
    k = cut.k(form)
    a = tensor_map.operand(way.a.stored(form, k), form, form.a_mn, shape.m, shape.cluster_n, form.a_registers)
    b = tensor_map.operand(way.b.stored(form, k), form, form.b_mn, shape.n, shape.cluster_m, form.b_split)
    return a, b, tensor_map.result(way.d, variant) if form.tma_store else None


class Slot(cuda_launch.Slot):
    """The memory of one launch in the making."""

    a = b = d = -1
    """The addresses in ``words``."""
    known: object = None
    """What else was written there, in the words of whoever did."""


class Function(Starter):
    """A kernel that can be launched: calls of it share nothing but a pool of slots."""

    def __init__(self, gpu: Gpu, function: int, template: ctypes.Structure, grid: int, threads: int, shared: int):
        """``function``: its handle. ``template``: its parameters as a fresh slot has them."""
        super().__init__(gpu.driver, function)
        self._gpu = gpu
        self._made = template, (grid, 1, 1), threads, shared, pdl.allowed()
        self.free: list[Slot] = []

    def slot(self) -> Slot:
        return Slot(*self._made)

    def take(self) -> Slot:
        """One that no other call has; to be put back into ``free``. Where a call fails it is not put back: what it is
        known to hold may be written half.
        """
        try:
            return self.free.pop()
        except IndexError:
            return self.slot()

    def started(self, slot: Slot, stream: int) -> bool:
        """Launched, without looking for a context first; not where this thread's is not the device's."""
        status = self.start(slot, stream)
        if status and not self._gpu.is_current():
            return False
        self.check(status)
        return True

    def check(self, status: int) -> None:
        if status:
            raise KernelError("hopper", f"cuLaunchKernelEx: {self._gpu.driver.words(status)} ({status})")


class Gemm(Function):
    """The kernel of a variant with its tensor maps."""

    def __init__(
        self, gpu: Gpu, choice: Choice, cut: Slabs, variant: Variant, function: int, template: Params, grid: int,
        dummy: int,
    ) -> None:  # fmt: skip
        """``grid``: thread blocks. ``dummy``: an address that maps can be made for. DriverError where the driver does
        not take them.
        """
        self._maps = maps(choice, cut, variant)
        arguments = Arguments(p=template)
        places = (Arguments.a.offset, Arguments.b.offset, Arguments.map_d.offset)
        self.words: list[int | None] = []
        """For each map the word of Arguments that is its address."""
        for place, made in zip(places, self._maps):
            word = None
            if made is not None:
                data = tensor_map.encode(gpu.driver, made, dummy)
                ctypes.memmove(addressof(arguments) + place, data, len(data))
                word = tensor_map.address_word(gpu.driver, made)
            self.words.append(None if word is None else place // WORD + word)
        fields = Params.a.offset, Params.b.offset, Params.d.offset
        self.plain = tuple((Arguments.p.offset + offset) // WORD for offset in fields)
        """The words of the addresses of a, b and d themselves."""
        super().__init__(gpu, function, arguments, grid, choice.shape.threads, variant.shared_bytes)

    @property
    def patched(self) -> bool:
        """Every map's address is one word to write."""
        return None not in self.words[:2] and (self._maps[2] is None or self.words[2] is not None)

    def place(self, slot: Slot, a: int, b: int, d: int) -> None:
        """Write the addresses where they stand, into maps and parameters."""
        for i, (name, address) in enumerate((("a", a), ("b", b), ("d", d))):
            if getattr(slot, name) == address:
                continue
            arguments, word = self._maps[i], self.words[i]
            if word is not None:
                slot.words[word] = address
            elif arguments is not None:
                data = tensor_map.encode(self._gpu.driver, arguments, address)
                ctypes.memmove(addressof(slot.words) + tensor_map.NBYTES * i, data, len(data))
            setattr(slot, name, address)
        slot.words[self.plain[2]] = d


class Launch:
    """A product that needs no copies: :attr:`run` calls its kernel. Safe in any number of threads."""

    def __init__(
        self, gpu: Gpu, card: Room, choice: Choice, function: int, workspace: Scratch, limit: int, alone: bool
    ) -> None:
        """``function``: the kernel of ``choice.variant``. ``alone``: the machine has no other device.

        Raises DriverError where the driver does not take the tensor maps.
        """
        cut = choice.cut(limit)
        assert not isinstance(cut, str), cut
        self._gpu, self._choice, self._cut, self._workspace, self._limit = gpu, choice, cut, workspace, limit
        self._alone = alone
        self._dummy = workspace.dummy()
        template = params(choice, choice.way.k, card)
        self.gemm = Gemm(gpu, choice, cut, choice.variant, function, template, choice.grid(card), self._dummy)

    @property
    def run(self) -> Run:
        """The function of gemmhub's contract; a short one where only addresses differ from call to call."""
        form = self._choice.way.form
        bare = self._choice.splits == 1 and not (form.scaled or form.addend or form.bias)
        return self._short() if bare and self.gemm.patched and self._alone else self._run

    def _short(self) -> Run:
        gemm, slow = self.gemm, self._run
        launch, function, free, make = gemm.launch, gemm.function, gemm.free, gemm.slot
        swapped, (plain_a, plain_b, d_word) = self._choice.way.swapped, gemm.plain
        a_word, b_word, d_map_word = gemm.words
        assert a_word is not None
        assert b_word is not None

        def run(a: Any, b: Any, out: Any, c: Any, bias: Any, alpha: Any, beta: Any, stream: Any) -> None:
            try:
                slot = free.pop()  # one for each thread that is between here and the launch
            except IndexError:
                slot = make()
            if swapped:
                a, b = b, a
            words = slot.words
            if slot.a != a:
                slot.a = words[a_word] = words[plain_a] = a
            if slot.b != b:
                slot.b = words[b_word] = words[plain_b] = b
            if slot.d != out:
                slot.d = words[d_word] = out
                if d_map_word is not None:
                    words[d_map_word] = out
            slot.launch[STREAM_WORD] = stream
            status = launch(slot.config, function, slot.places, None)
            free.append(slot)
            if status:
                # A thread whose context is not the device's.
                slow(*((b, a) if swapped else (a, b)), out, c, bias, alpha, beta, stream)

        return run

    def _run(self, a: Any, b: Any, out: Any, c: Any, bias: Any, alpha: Any, beta: Any, stream: Any) -> None:
        way, gemm = self._choice.way, self.gemm
        slot = gemm.take()
        if way.without_k:
            a = b = self._dummy
            alpha = 0
        elif way.swapped:
            a, b = b, a
        gemm.place(slot, a, b, out)
        p = slot.arguments.p
        p.a, p.b, p.alpha, p.beta = a, b, float(alpha), float(beta)
        p.c, p.bias = c or 0, bias or 0
        stream = stream or 0
        if self._choice.splits > 1:
            with self._gpu, self._workspace.lease(stream, self._cut.nbytes, self._limit) as lease:
                p.counters, p.partials = lease.address, lease.address + COUNTERS
                gemm.check(gemm.start(slot, stream))
        elif not (self._alone and gemm.started(slot, stream)):
            with self._gpu:
                gemm.check(gemm.start(slot, stream))
        gemm.free.append(slot)
