"""Launching the kernel: its parameters in memory, filled in with addresses, and one call of cuLaunchKernelEx.

Tensor maps hold the operands' addresses. Where a map is known to have its address in one word of its own (that is
checked when the problem is prepared) a new address is one word to write; else the map is encoded anew.
"""

from __future__ import annotations

import ctypes
from ctypes import addressof, byref, c_char, c_float, c_int, c_int64, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from gemmhub.backend import Run
from gemmhub.errors import KernelError
from gemmhub.native.cuda import Gpu
from gemmhub.native.cuda_scratch import COUNTERS, Scratch
from gemmhub_hopper import tensor_map
from gemmhub_hopper.cost_model import Choice
from gemmhub_hopper.tensor_map import MapArguments

_POINTER, _SIZE = 1, 2  # CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE
_WORD = 8
_STREAM_WORD = 4
"""Which 8-byte word of CUlaunchConfig is the stream."""
_INVALID_CONTEXT = 201


class Params(ctypes.Structure):
    """Params of params.cuh."""

    _fields_ = (
        *((name, c_int) for name in (
            "m", "n", "k_blocks", "splits", "tiles_m", "tiles_n", "pieces", "group", "along_n", "a_step", "b_step",
            "pairs",
        )),
        ("alpha", c_float), ("beta", c_float),
        *((name, c_uint64) for name in ("d", "c", "bias", "partials", "counters")),
        *((name, c_int64) for name in ("d_ld", "d_batch", "c_ld", "c_batch")),
    )  # fmt: skip


class Arguments(ctypes.Structure):
    """All parameters of the kernel as they lie in the launch's buffer; it begins at a multiple of 64."""

    _fields_ = (
        ("a", c_uint64 * 16),
        ("b", c_uint64 * 16),
        ("map_d", c_uint64 * 16),
        ("p", Params),
    )


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("count", c_uint),
    )


def params(choice: Choice, sms: int) -> Params:
    """All but the addresses and scalars of a call."""
    way = choice.way
    return Params(
        m=way.m, n=way.n, k_blocks=way.k_blocks, splits=choice.splits, tiles_m=choice.tiles[0],
        tiles_n=choice.tiles[1], pieces=choice.pieces, group=choice.group(sms), along_n=0, a_step=way.a.step,
        b_step=way.b.step, pairs=way.pairs, alpha=1.0, beta=0.0, d_ld=way.d_ld, d_batch=way.d_batch, c_ld=way.c_ld,
        c_batch=way.c_batch,
    )  # fmt: skip


def maps(choice: Choice) -> tuple[MapArguments, MapArguments, MapArguments | None]:
    """Of the kernel's a, b and d; None for d where TMA does not store it."""
    way, shape = choice.way, choice.shape
    form = way.form
    a = tensor_map.operand(way.a.stored, form.input, way.a.mn_major, shape.m, shape.cluster_n)
    b = tensor_map.operand(way.b.stored, form.input, way.b.mn_major, shape.n, shape.cluster_m)
    return a, b, tensor_map.result(way.d, choice.variant) if form.tma_store else None


class _Slot:
    """The memory of one launch in the making: configuration, parameters, and the way the driver finds them."""

    def __init__(self, template: Arguments, grid: int, threads: int, shared: int) -> None:
        size = ctypes.sizeof(Arguments)
        self._memory = ctypes.create_string_buffer(size + 64)
        start = -addressof(self._memory) % 64
        self.arguments = Arguments.from_buffer(self._memory, start)
        ctypes.memmove(addressof(self.arguments), addressof(template), size)
        self.words = (c_uint64 * (size // _WORD)).from_buffer(self._memory, start)
        self._size = c_size_t(size)
        self._extra = (c_void_p * 5)(_POINTER, addressof(self.words), _SIZE, addressof(self._size), 0)
        self._config = _Config((c_uint * 3)(grid, 1, 1), (c_uint * 3)(threads, 1, 1), shared, None, None, 0)
        self.config, self.extra = byref(self._config), byref(self._extra)
        self.a = self.b = self.d = -1
        """The addresses in ``words``."""
        self.launch = (c_uint64 * (ctypes.sizeof(_Config) // _WORD)).from_buffer(self._config)


class Launch:
    """A product with its kernel: :attr:`run` calls it. Safe in any number of threads."""

    def __init__(self, gpu: Gpu, choice: Choice, function: int, workspace: Scratch, limit: int, alone: bool) -> None:
        """``function``: the kernel of ``choice.variant``. ``alone``: the machine has no other device.

        Raises DriverError where the driver does not take the tensor maps.
        """
        self._gpu, self._choice, self._workspace, self._limit = gpu, choice, workspace, limit
        self._alone = alone
        driver = gpu.driver
        self._maps = maps(choice)
        self._template = Arguments(p=params(choice, gpu.sms))
        places = (Arguments.a.offset, Arguments.b.offset, Arguments.map_d.offset)
        self._dummy = workspace.dummy()
        self._words: list[int | None] = []
        """For each map the word of Arguments that is its address."""
        for place, arguments in zip(places, self._maps):
            word = None
            if arguments is not None:
                data = tensor_map.encode(driver, arguments, self._dummy)
                ctypes.memmove(addressof(self._template) + place, data, len(data))
                word = tensor_map.address_word(driver, arguments)
            self._words.append(None if word is None else place // _WORD + word)
        self._d_word = (Arguments.p.offset + Params.d.offset) // _WORD
        self._slots: list[_Slot] = []
        # A function without declared types and arguments that are pointers already: less of conversions a call.
        self._launch = ctypes.CFUNCTYPE(c_int)(ctypes.cast(driver.cuda.cuLaunchKernelEx, c_void_p).value or 0)
        self._function = byref(c_char.from_address(function))

    def _slot(self) -> _Slot:
        choice = self._choice
        return _Slot(self._template, choice.grid(self._gpu.sms), choice.shape.threads, choice.variant.shared_bytes)

    @property
    def run(self) -> Run:
        """The function of gemmhub's contract; a short one where only addresses differ from call to call."""
        form = self._choice.way.form
        known = None not in self._words[:2] and (self._maps[2] is None or self._words[2] is not None)
        bare = self._choice.splits == 1 and not (form.scaled or form.addend or form.bias)
        return self._short() if bare and known and self._alone else self._run

    def _short(self) -> Run:
        launch, function, free, make, slow = self._launch, self._function, self._slots, self._slot, self._run
        swapped, d_word = self._choice.way.swapped, self._d_word
        a_word, b_word, d_map_word = self._words
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
                slot.a = words[a_word] = a
            if slot.b != b:
                slot.b = words[b_word] = b
            if slot.d != out:
                slot.d = words[d_word] = out
                if d_map_word is not None:
                    words[d_map_word] = out
            slot.launch[_STREAM_WORD] = stream
            status = launch(slot.config, function, None, slot.extra)
            free.append(slot)
            if status:
                # A thread without a context, say.
                slow(*((b, a) if swapped else (a, b)), out, c, bias, alpha, beta, stream)

        return run

    def _run(self, a: Any, b: Any, out: Any, c: Any, bias: Any, alpha: Any, beta: Any, stream: Any) -> None:
        way = self._choice.way
        try:
            slot = self._slots.pop()
        except IndexError:
            slot = self._slot()
        if way.without_k:
            a = b = self._dummy
            alpha = 0
        elif way.swapped:
            a, b = b, a
        try:
            self._place(slot, a, b, out)
            p = slot.arguments.p
            p.alpha, p.beta = float(alpha), float(beta)
            p.c, p.bias = c or 0, bias or 0
            stream = stream or 0
            slot.launch[_STREAM_WORD] = stream
            if self._alone and self._choice.splits == 1:
                status = self._launch(slot.config, self._function, None, slot.extra)
                if status != _INVALID_CONTEXT:
                    self._check(status)
                    return
            with self._gpu:
                if self._choice.splits > 1:
                    buffer = self._workspace.buffer(stream, self._choice.workspace_bytes, self._limit)
                    p.counters, p.partials = buffer, buffer + COUNTERS
                self._check(self._launch(slot.config, self._function, None, slot.extra))
        finally:
            self._slots.append(slot)

    def _place(self, slot: _Slot, a: int, b: int, d: int) -> None:
        """Write the addresses where they stand, into maps and parameters."""
        for i, (name, address) in enumerate((("a", a), ("b", b), ("d", d))):
            if getattr(slot, name) == address:
                continue
            arguments, word = self._maps[i], self._words[i]
            if word is not None:
                slot.words[word] = address
            elif arguments is not None:
                data = tensor_map.encode(self._gpu.driver, arguments, address)
                ctypes.memmove(addressof(slot.words) + tensor_map.NBYTES * i, data, len(data))
            setattr(slot, name, address)
        slot.words[self._d_word] = d

    def _check(self, status: int) -> None:
        if status:
            raise KernelError("hopper", f"cuLaunchKernelEx: {self._gpu.driver.words(status)} ({status})")
