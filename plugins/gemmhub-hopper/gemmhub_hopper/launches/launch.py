"""Launches gemm_kernel.cu: fills addresses into prepared parameters and calls cuLaunchKernelEx once.

Tensor maps hold the operands' addresses. Where a map has its address in one word of its own, which is checked when the
problem is prepared, a new address is one word to write; else the map is encoded anew.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import addressof, c_float, c_int, c_int64, c_uint64
from typing import Any

from gemmhub_nvidia import launch as launching
from gemmhub_nvidia import tma
from gemmhub_nvidia.driver import Gpu
from gemmhub_nvidia.launch import STREAM_WORD, WORD
from gemmhub_nvidia.scales import Scales
from gemmhub_nvidia.scratch import COUNTERS, Scratch
from gemmhub_nvidia.tma import MapArguments

from gemmhub.backend import Run
from gemmhub_hopper.candidates.candidate import Choice, Occupancy
from gemmhub_hopper.launches import pdl
from gemmhub_hopper.launches.tile_schedule import TileSchedule, schedule
from gemmhub_hopper.lowering import f16_planes
from gemmhub_hopper.lowering.k_passes import KPasses
from gemmhub_hopper.lowering.lower import BEFORE, Lowering
from gemmhub_hopper.variants import tensor_map
from gemmhub_hopper.variants.config import FLOAT8_RESULTS, Variant

_RECOMPUTED = 3
"""K up to which every element of a product of split operands is recomputed by ordinary instructions (repair.cuh)."""
_STREAMED = 200 * 2**20
"""Bytes of results above which L2 should keep the operands (benchmarks/results/h200/hopper_ab_streamed.txt)."""
_SHORT = 8
"""wgmmas of a 64-row fragment for each byte of a result up to which a product is bound by storing the results."""


class Params(ctypes.Structure):
    """``Params`` of kernels/params.cuh."""

    _fields_ = (
        *((name, c_int) for name in ("m", "n", "a_block", "b_block")),
        ("schedule", TileSchedule),
        *((name, c_int) for name in ("streamed", "a_step", "b_step", "pairs")),
        ("alpha", c_float), ("beta", c_float),
        *((name, c_uint64) for name in ("d", "c", "bias", "partials", "counters")),
        *((name, c_int64) for name in ("d_ld", "d_batch", "c_ld", "c_batch")),
        *((name, c_int) for name in ("k", "all", "kept", "next")),
        *((name, c_uint64) for name in ("a", "b")),
        *((name, c_int64) for name in ("a_m", "a_k", "a_batch", "b_n", "b_k", "b_batch")),
        *((name, c_uint64) for name in ("a_marks", "b_marks", "finished", "a_scales", "b_scales")),
        *((name, c_int) for name in (
            "a_scale_pitch", "b_scale_pitch", "scale_groups", "a_source", "b_source", "small_limit",
        )),
        ("min_scaled", c_float),
        ("redo", c_int),
        ("marked_groups", c_int * 2),
        ("row_scales", Scales), ("column_scales", Scales),
        *((name, c_uint64) for name in ("result_scale", "largest")), ("ends", c_uint64), ("bias_group", c_int64),
        ("groups", c_int), ("unused", c_int),
        ("before", c_uint64), ("before_ld", c_int64), ("before_batch", c_int64),
    )  # fmt: skip


class Arguments(ctypes.Structure):
    """The arguments of the kernel: three tensor maps and the parameters. ``map_d``: see :func:`maps`."""

    _fields_ = (
        ("a", c_uint64 * 16),
        ("b", c_uint64 * 16),
        ("map_d", c_uint64 * 16),
        ("p", Params),
    )


def params(choice: Choice, k: int, card: Occupancy, redo: int = 0) -> Params:
    """Return the parameters of a K pass with ``k`` elements, without the addresses and scalars of a call.

    ``redo``: bits of :data:`f16_planes.ONLY_REJECTED` and :data:`f16_planes.BY_TILES`.
    """
    lowering, shape = choice.lowering, choice.shape
    k_blocks = -(-k // lowering.form.block_k)
    splits = min(choice.splits, k_blocks)  # the last K pass may have fewer blocks
    a_kept, b_kept = marks_kept(lowering)
    parameters = Params(
        m=lowering.m, n=lowering.out_n,
        schedule=schedule(
            choice.tiles, lowering.batch, choice.group(card), k_blocks, splits, shape.cluster_k, choice.matrix_tiles
        ),
        streamed=streamed(lowering), a_step=lowering.a.step, b_step=lowering.b.step, pairs=lowering.pairs,
        alpha=1.0, beta=0.0, d_ld=lowering.d_ld, d_batch=lowering.d_batch, c_ld=lowering.c_ld,
        c_batch=lowering.c_batch, k=k, all=lowering.k <= _RECOMPUTED,
        kept=a_kept | b_kept << 1, next=pdl.gemm(choice, k_blocks, card, redo),
        a_scale_pitch=f16_planes.scale_pitch(lowering.a.rows), b_scale_pitch=f16_planes.scale_pitch(lowering.b.rows),
        small_limit=f16_planes.small_limit(lowering.k), min_scaled=f16_planes.min_scaled(lowering.k),
        scale_groups=f16_planes.groups(k),
        a_source=lowering.a.source_format, b_source=lowering.b.source_format, redo=redo,
        groups=lowering.groups, bias_group=lowering.bias_group,
        before_ld=lowering.before_ld, before_batch=lowering.before_batch,
    )  # fmt: skip
    parameters.marked_groups[:] = f16_planes.marked_groups(lowering.a), f16_planes.marked_groups(lowering.b)
    parameters.a_m, parameters.a_k, parameters.a_batch = lowering.a.strides
    parameters.b_n, parameters.b_k, parameters.b_batch = lowering.b.strides
    for field, fields in scale_fields(lowering).items():
        setattr(parameters, field, fields)
    return parameters


def scale_fields(lowering: Lowering) -> dict[str, Scales]:
    """Return the fields of the parameters that describe quantization scales, without addresses."""
    sides = {"row_scales": lowering.row_scales, "column_scales": lowering.column_scales}
    return {field: scales.fields for field, scales in sides.items() if scales is not None}


def place_scales(p: Any, lowering: Lowering, addresses: Mapping[str, int], first_block: int = 0) -> None:
    """Write the ``addresses`` of quantization scales, by their names, for a K pass that begins at ``first_block``; and
    that of what the activation is applied to, which the last K pass stores.
    """
    if lowering.form.stores_before:
        p.before = addresses[BEFORE]
    for field, scales in (("row_scales", lowering.row_scales), ("column_scales", lowering.column_scales)):
        if scales is not None:
            getattr(p, field).at = addresses[scales.name] + 4 * first_block * scales.depth


def place_range(p: Any, addresses: Mapping[str, int]) -> None:
    """Write the ``addresses`` of the scale and of the largest magnitude of a result, by their names."""
    p.result_scale, p.largest = addresses.get("scale_out", 0), addresses.get("amax", 0)


def clear_largest(gpu: Gpu, addresses: Mapping[str, int], stream: int) -> None:
    """Zero the largest magnitude of a result on ``stream``, before the kernel that raises it."""
    if "amax" in addresses:
        with gpu:
            gpu.driver.call("cuMemsetD8Async", addresses["amax"], 0, 4, stream)


def marks_kept(lowering: Lowering) -> tuple[bool, bool]:
    """Return whether the marks of the kernel's a, and of its b, belong to a packed operand: no product writes to them.

    A kernel that splits an operand itself writes marks of its own.
    """
    return lowering.a.packed and not lowering.form.registers_a, lowering.b.packed and not lowering.form.split_planes_b


def streamed(lowering: Lowering) -> bool:
    """Return whether results need not stay in L2, so that they do not evict the operands, which are read again.

    That is so where they are several times as large as L2, and storing them takes longer than multiplying.
    """
    form = lowering.form
    large = lowering.results * form.output_bytes > _STREAMED
    k = lowering.k * form.plane_products
    return large and k * form.wgmmas_per_stage <= _SHORT * form.output_bytes * form.block_k


def maps(choice: Choice, passes: KPasses, variant: Variant) -> tuple[MapArguments, MapArguments, MapArguments | None]:
    """Return the tensor maps of the kernel's a, b and d.

    The third is a's second map where rows or columns of a are shifted, and None where else TMA does not store d.
    """
    lowering, shape, form = choice.lowering, choice.shape, variant.form
    k = passes.k(form)
    columns = shape.n // 2 if form.gate == "halves" else shape.n
    b = tensor_map.operand(
        lowering.b.stored(form, k), form, form.mn_major_b, columns, shape.cluster_m, form.split_planes_b
    )
    if form.shifted:
        a, last_rows = tensor_map.shifted(lowering.a.stored(form, k), form, shape.m)
        return a, b, last_rows
    a = tensor_map.operand(
        lowering.a.stored(form, k), form, form.mn_major_a, shape.m, shape.cluster_n, form.registers_a
    )
    return a, b, tensor_map.result(lowering.d, variant) if form.tma_store else None


class Slot(launching.Slot):
    """The memory of one launch while it is prepared."""

    a = b = d = -1
    """The addresses that ``words`` holds."""
    filled: object = None
    """A key of what else ``words`` holds, which its writer compares."""


class Function(launching.Function[Slot]):
    """A kernel of this plugin, which may start while the previous one of the stream ends."""

    def __init__(self, gpu: Gpu, function: int, template: ctypes.Structure, grid: int, threads: int, shared: int):
        """``function``: the handle of the kernel. ``template``: the arguments of a fresh slot."""
        early = pdl.allowed()
        super().__init__(gpu, "hopper", function, lambda: Slot(template, (grid, 1, 1), threads, shared, early))


class Gemm(Function):
    """The kernel of a variant with its tensor maps."""

    def __init__(
        self, gpu: Gpu, choice: Choice, passes: KPasses, variant: Variant, function: int, template: Params, grid: int,
        dummy: int,
    ) -> None:  # fmt: skip
        """``grid``: CTAs. ``dummy``: an address for which maps are encoded.

        Raises DriverError where the driver refuses the maps.
        """
        self._maps = maps(choice, passes, variant)
        self.third = "a" if variant.form.shifted else "d"
        """Whose address the third map has."""
        arguments = Arguments(p=template)
        offsets = (Arguments.a.offset, Arguments.b.offset, Arguments.map_d.offset)
        self.words: list[int | None] = []
        """For each map, the index of the word of Arguments that is its address; None where there is no such word."""
        for offset, map_arguments in zip(offsets, self._maps):
            word = None
            if map_arguments is not None:
                data = tma.encode_once(gpu.driver, map_arguments, dummy)
                ctypes.memmove(addressof(arguments) + offset, data, len(data))
                word = tma.address_word_of(gpu.driver, map_arguments, data, dummy)
            self.words.append(None if word is None else offset // WORD + word)
        fields = Params.a.offset, Params.b.offset, Params.d.offset
        self.address_words = tuple((Arguments.p.offset + offset) // WORD for offset in fields)
        """The indices of the words of Params that are the addresses of a, b and d."""
        super().__init__(gpu, function, arguments, grid, choice.shape.num_threads, variant.shared_bytes)

    @property
    def patched(self) -> bool:
        """Whether the address of every map is one word to write."""
        return None not in self.words[:2] and (self._maps[2] is None or self.words[2] is not None)

    def place(self, slot: Slot, a: int, b: int, d: int) -> None:
        """Write the addresses into maps and parameters."""
        addresses = {"a": a, "b": b, "d": d}
        for i, name in enumerate(("a", "b", self.third)):
            address = addresses[name]
            if getattr(slot, name) == address:
                continue
            arguments, word = self._maps[i], self.words[i]
            if word is not None:
                slot.words[word] = address
            elif arguments is not None:
                data = tma.encode(self._gpu.driver, arguments, address)
                ctypes.memmove(addressof(slot.words) + tma.NBYTES * i, data, len(data))
        slot.a, slot.b, slot.d = a, b, d
        slot.words[self.address_words[2]] = d


class Launch:
    """A prepared product without copies: :attr:`run` launches its kernel. Safe in any number of threads."""

    def __init__(
        self, gpu: Gpu, card: Occupancy, choice: Choice, function: int, workspace: Scratch, limit: int,
        passes: KPasses, alone: bool,
    ) -> None:  # fmt: skip
        """``function``: the kernel of ``choice.variant``. ``alone``: the machine has no other device.

        Raises DriverError where the driver refuses the tensor maps.
        """
        self._gpu, self._choice, self._passes, self._workspace, self._limit = gpu, choice, passes, workspace, limit
        self._alone = alone
        self._dummy = workspace.dummy()
        template = params(choice, choice.lowering.k, card)
        self.gemm = Gemm(gpu, choice, passes, choice.variant, function, template, choice.grid(card), self._dummy)

    @property
    def run(self) -> Run:
        """The function of gemmhub's contract: a fast path where only addresses differ from call to call."""
        lowering, form = self._choice.lowering, self._choice.lowering.form
        bare = self._choice.splits == 1 and not (
            lowering.has_alpha
            or form.addend
            or form.bias
            or form.scales
            or form.divided
            or form.stores_before
            or lowering.k_is_zero
        )
        bare = bare and form.output not in FLOAT8_RESULTS
        return self._fast_path() if bare and self.gemm.patched and self._alone else self._run

    def _fast_path(self) -> Run:
        gemm, slow_path = self.gemm, self._run
        launch, function, free, make = gemm.launch, gemm.function, gemm.free, gemm.slot
        swapped, (plain_a, plain_b, d_word) = self._choice.lowering.swapped, gemm.address_words
        a_word, b_word, third_word = gemm.words
        d_map_word, last_rows_word = (third_word, None) if gemm.third == "d" else (None, third_word)
        assert a_word is not None
        assert b_word is not None

        def run(a: Any, b: Any, out: Any, alpha: Any, beta: Any, stream: Any) -> None:
            try:
                slot = free.pop()  # one for each thread between here and the launch
            except IndexError:
                slot = make()
            if swapped:
                a, b = b, a
            words = slot.words
            if slot.a != a:
                slot.a = words[a_word] = words[plain_a] = a
                if last_rows_word is not None:
                    words[last_rows_word] = a
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
                # The context of this thread is not the device's: the slow path sets it.
                slow_path(*((b, a) if swapped else (a, b)), out, alpha, beta, stream)

        return run

    def _run(
        self, a: Any, b: Any, out: Any, alpha: Any, beta: Any, stream: Any, c: Any = None, bias: Any = None,
        offsets: int = 0, **scales: int,
    ) -> None:  # fmt: skip
        lowering, gemm = self._choice.lowering, self.gemm
        slot = gemm.take()
        if lowering.k_is_zero:
            a = b = self._dummy
            alpha = 0
        elif lowering.swapped:
            a, b = b, a
        gemm.place(slot, a, b, out)
        p = slot.arguments.p
        p.a, p.b, p.alpha, p.beta = a, b, float(alpha), float(beta)
        p.c, p.bias, p.ends = c or 0, bias or 0, offsets
        place_scales(p, lowering, scales)
        place_range(p, scales)
        stream = stream or 0
        clear_largest(self._gpu, scales, stream)
        if self._choice.splits > 1:
            with self._gpu, self._workspace.lease(stream, self._passes.nbytes, self._limit) as lease:
                p.counters, p.partials = lease.address, lease.address + COUNTERS
                gemm.check(gemm.start(slot, stream))
        elif not (self._alone and gemm.started(slot, stream)):
            with self._gpu:
                gemm.check(gemm.start(slot, stream))
        gemm.free.append(slot)
