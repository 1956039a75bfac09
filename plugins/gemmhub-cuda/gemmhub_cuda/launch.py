"""Launches a kernel: fills addresses into prepared parameters and calls cuLaunchKernelEx."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int, c_int64, c_uint64
from typing import Any

from gemmhub_nvidia.driver import Gpu
from gemmhub_nvidia.launch import STREAM_WORD, WORD, Function, Slot
from gemmhub_nvidia.scales import Scales
from gemmhub_nvidia.scratch import COUNTERS, Scratch

from gemmhub.backend import Run
from gemmhub_cuda.candidate import Choice


class Params(ctypes.Structure):
    """``Params`` of kernels/params.cuh."""

    _fields_ = (
        *((name, c_int) for name in ("m", "n", "k", "splits", "tiles_m", "tiles_n", "group", "batch")),
        ("alpha", c_float), ("beta", c_float),
        *((name, c_uint64) for name in ("a", "b", "c", "d", "bias", "partials", "counters")),
        *((name, c_int64) for name in (
            "a_ld", "b_ld", "c_ld", "d_ld", "a_batch", "b_batch", "c_batch", "d_batch",
        )),
        ("row_scales", Scales), ("column_scales", Scales),
    )  # fmt: skip


def params(choice: Choice, at_once: int) -> Params:
    """Return the parameters without addresses and scalars. ``at_once``: CTAs that the card runs at once."""
    lowering, batch = choice.lowering, choice.lowering.batch
    row_scales, column_scales = (Scales() if x is None else x.fields for x in lowering.scales)
    return Params(
        m=lowering.m, n=lowering.n, k=lowering.k, splits=choice.splits, tiles_m=choice.tiles[0],
        tiles_n=choice.tiles[1], group=choice.group(at_once), batch=batch.count, alpha=1.0, beta=0.0, a_ld=lowering.lda,
        b_ld=lowering.ldb, c_ld=lowering.ldc, d_ld=lowering.ldd, a_batch=batch.stride_a, b_batch=batch.stride_b,
        c_batch=batch.stride_c, d_batch=batch.stride_d, row_scales=row_scales, column_scales=column_scales,
    )  # fmt: skip


class Arguments(ctypes.Structure):
    """The arguments of the kernel."""

    _fields_ = (("p", Params),)


def _word(name: str) -> int:
    """Return the index of the 8-byte word of a parameter."""
    return int(getattr(Params, name).offset) // WORD


class Launch:
    """A prepared product: :attr:`run` launches its kernel. Safe in any number of threads."""

    def __init__(
        self, gpu: Gpu, choice: Choice, function: int, at_once: int, workspace: Scratch, limit: int, alone: bool
    ) -> None:
        """``function``: the kernel of ``choice.variant``. ``alone``: the machine has no other device."""
        self._gpu, self._choice, self._workspace, self._limit = gpu, choice, workspace, limit
        self._alone = alone
        self._calls = tuple(choice.offsets())
        self._at_once = at_once
        template, grid, variant = (
            Arguments(params(choice, at_once)),
            choice.grid(self._calls[0][4], at_once),
            choice.variant,
        )
        self._kernel = Function(
            gpu, "cuda", function, lambda: Slot(template, grid, variant.threads, variant.shared_bytes)
        )

    @property
    def run(self) -> Run:
        """The function of gemmhub's contract: a fast path where only addresses differ from call to call."""
        form = self._choice.lowering.form
        more = form.scaled or form.addend or form.bias or form.scales
        bare = self._choice.splits == 1 and len(self._calls) == 1 and not more
        return self._fast_path() if bare and self._alone else self._run

    def _fast_path(self) -> Run:
        kernel, slow_path = self._kernel, self._run
        launch, function, free, make = kernel.launch, kernel.function, kernel.free, kernel.slot
        first, second = ("b", "a") if self._choice.lowering.swapped else ("a", "b")
        a_word, b_word, d_word = _word(first), _word(second), _word("d")

        def run(a: Any, b: Any, out: Any, alpha: Any, beta: Any, stream: Any) -> None:
            try:
                slot = free.pop()  # one for each thread between here and the launch
            except IndexError:
                slot = make()
            words = slot.words
            words[a_word] = a
            words[b_word] = b
            words[d_word] = out
            slot.launch[STREAM_WORD] = stream
            status = launch(slot.config, function, slot.places, None)
            free.append(slot)
            if status:
                # The context of this thread is not the device's: the slow path sets it.
                slow_path(a, b, out, alpha, beta, stream)

        return run

    def _run(
        self, a: Any, b: Any, out: Any, alpha: Any, beta: Any, stream: Any, c: Any = None, bias: Any = None,
        **scales: int,
    ) -> None:  # fmt: skip
        kernel = self._kernel
        try:
            slot = kernel.free.pop()
        except IndexError:
            slot = kernel.slot()
        if self._choice.lowering.swapped:
            a, b = b, a
        stream = stream or 0
        p = slot.arguments.p
        p.alpha, p.beta, p.bias = float(alpha), float(beta), bias or 0
        if scales:  # other calls create no objects for them
            for field, access in zip((p.row_scales, p.column_scales), self._choice.lowering.scales):
                if access is not None:
                    field.at = scales[access.name]
        try:
            if self._choice.splits > 1:
                with self._gpu, self._workspace.lease(stream, self._choice.workspace_bytes, self._limit) as lease:
                    p.counters, p.partials = lease.address, lease.address + COUNTERS
                    kernel.check(self._launch_all(slot, stream, a, b, c, out))
                return
            if self._alone:
                status = self._launch_all(slot, stream, a, b, c, out)
                if not status or self._gpu.is_current():
                    kernel.check(status)
                    return
            with self._gpu:
                kernel.check(self._launch_all(slot, stream, a, b, c, out))
        finally:
            kernel.free.append(slot)

    def _launch_all(self, slot: Slot, stream: int, a: int, b: int, c: int | None, d: int) -> int:
        """Launch for each part of the batch until one fails; return the CUresult of the last launch."""
        p, status = slot.arguments.p, 0
        for at_a, at_b, at_c, at_d, count in self._calls:
            p.a, p.b, p.c, p.d = a + at_a, b + at_b, c + at_c if c else 0, d + at_d
            p.batch = count
            slot.grid[0], _, slot.grid[2] = self._choice.grid(count, self._at_once)
            status = self._kernel.start(slot, stream)
            if status:
                break
        return status
