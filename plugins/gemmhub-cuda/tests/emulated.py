"""Kernels on the host: the real .cu files, compiled by g++ and run by tests/emulator instead of a GPU.

    run("mma.cu", macros, params, grid=(tiles * splits, 1, batch), threads=128, shared_bytes=49152,
        buffers=[a, b], written=[d, partials, counters], seed=1)

runs ``gemm(params)`` once, or raises :class:`EmulatorError` with what a GPU might hide for long: which thread, which
line. ``params`` is a ctypes structure, ``buffers`` and ``written`` are the numpy arrays that its addresses point into.

What the emulator demands of a kernel, and what it sees:

- Threads are fibers that switch where they meet; a few blocks run at once, in random order (``seed``). A barrier that
  not all threads reach, or reach at different lines, is an error; so are lanes of a warp at different collective
  instructions.
- Shared memory is reached by 32-bit address through ``dynamic_shared() + offset`` and the functions of ptx.cuh
  (load_shared, store_shared, copy_async, load_matrices ...); ``__shared__`` arrays do not compile. Every access is
  checked: bounds, alignment, bytes not yet written, and races: two threads, one of them writing, with no barrier in
  between.
- Asynchronous copies land when they are waited for, not before; touching what is still in flight is an error.
- ``load_global``, ``store_global``, ``copy_async`` and partials must stay inside of ``buffers`` and ``written``.
  Ordinary pointers to global memory work, unchecked.
- What ``store_partial`` wrote may be read by ``load_partial`` of another block once its thread has fenced it and, after
  a barrier, one thread of the block has counted up.
- Files of tests/emulator take the place of those with the same name in gemmhub_cuda/kernels: device.cuh, ptx.cuh.
  What is in macros is compiled anew for every set of values (about a second): vary sizes at run time.

``Report`` counts the bank conflicts of shared memory, line by line (``count=True``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import c_char_p, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path

from gemmhub_cuda.variants import sources
from gemmhub_nvidia.testing.emulator import EmulatedKernels

_KERNELS = EmulatedKernels("gemmhub_cuda", sources.activations(), Path(__file__).parent / "emulator")


class EmulatorError(AssertionError):
    """A fault in a launch, as the emulator reports it."""


@dataclass(frozen=True)
class Report:
    """Bank conflicts by line of the kernel, such as "mma.cu:120"."""

    requests: Mapping[str, int]
    """Accesses of shared memory, each of as many lanes of a warp as the banks can serve at once."""
    conflicts: Mapping[str, int]
    """Bank conflicts: accesses beyond one for each request."""


def run(source, macros, params, grid, threads, shared_bytes, buffers, written, seed=0, count=False, changes=()):
    """Launch ``source`` (a file of gemmhub_cuda/kernels) once; see the head of this file. A Report if ``count``.

    ``changes``: (file, old, new) texts to replace in the kernel's files first, for tests that break it.
    """
    library = built(source, macros, changes)
    arrays = [(x, False) for x in buffers] + [(x, True) for x in written]
    ranges = [word for x, writable in arrays for word in (x.ctypes.data, x.nbytes, int(writable))]
    message, report = ctypes.create_string_buffer(4096), ctypes.create_string_buffer(4096) if count else None
    size = ctypes.sizeof(params)
    failed = library.emulate(
        ctypes.addressof(params), size, (c_uint32 * 3)(*grid), threads, shared_bytes,
        (c_uint64 * len(ranges))(*ranges), len(arrays), seed, message, report, len(message),
    )  # fmt: skip
    if failed:
        raise EmulatorError(message.value.decode())
    if report is None:
        return None
    lines = [line.rsplit(" ", 2) for line in report.value.decode().splitlines()]
    return Report({x: int(requests) for x, requests, _ in lines}, {x: int(extra) for x, _, extra in lines})


def built(source, macros, changes=()):
    """The kernel with these macros as a library of the host; compiled when it is not there yet."""
    library = _KERNELS.library({**macros, "SOURCE": f'"{source}"'}, changes)
    library.emulate.argtypes = (
        c_void_p, c_uint32, c_void_p, c_uint32, c_uint32, c_void_p, c_uint32, c_uint64, c_char_p, c_char_p, c_uint32,
    )  # fmt: skip
    return library
