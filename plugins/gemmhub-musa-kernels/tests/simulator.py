"""What the tests share: the simulator's own functions, and products on the device."""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager

import numpy as np
from gemmhub_musa import first_run, runtime, testing
from gemmhub_musa.sdk import Sdk
from gemmhub_musa_kernels.choose import defines
from gemmhub_musa_kernels.launch import Product
from gemmhub_musa_kernels.library import Libraries, Library
from gemmhub_musa_kernels.lower import lowered

from gemmhub.capability import Refusal

FAILED = -1
"""Returned by :meth:`Bench.wrong` where a kernel failed."""
OPTIONS = ("ARCH", "DEVICES", "SEED", "ASYNC", "LAYOUT", "LOCKSTEP", "LAZY", "QUIET", "COUNT", "ALIGN")


def sdk_of(home):
    """A home as an installation, whatever MUSA_HOME is."""
    return Sdk(home, "MUSA_HOME", (home / "lib",), home / "include", home / "bin" / "mcc")


class Simulator:
    """libmusart of the simulated home, for its own functions."""

    def __init__(self):
        from gemmhub_musa_sim.runtime import loaded_runtime

        self.runtime = runtime.load()
        self.rt = loaded_runtime()

    def set(self, **options):
        """Set options here; another ARCH also in the child process of first runs, whose card is the same one."""
        for name, value in options.items():
            assert self.rt.musaSimSetOption(name.encode(), value)
        arch = options.get("ARCH")
        if arch is not None and os.environ.get("MUSA_SIM_ARCH") != str(arch):
            os.environ["MUSA_SIM_ARCH"] = str(arch)
            first_run._close()

    @contextmanager
    def restored(self):
        old = {}
        for name in OPTIONS:
            kept = ctypes.c_int()
            assert self.rt.musaSimGetOption(name.encode(), ctypes.byref(kept))
            old[name] = kept.value
        self.set(QUIET=1)
        try:
            yield
        finally:
            self.rt.musaSimInject(b"")
            self.rt.musaSimReset()
            self.rt.musaSimClear()
            self.set(**old)

    def inject(self, text):
        self.rt.musaSimInject(text.encode())

    def message(self):
        return self.rt.musaSimMessage().decode()

    def findings(self):
        from gemmhub_musa_sim import checks

        return checks.findings(self.rt)


def problem(m, n, k, dtype="float16", out=None, a="row", b="row", d="row", **changes):
    """A product of dense operands; ``changes`` as gemmhub_musa.testing has them."""
    return testing.problem(m, n, k, dtype, out, a=a, b=b, d=d, **changes)


def whole(rng, *shape, dtype=np.float16):
    """Small whole numbers: sums are exact in float, whatever the order."""
    return rng.integers(-4, 5, shape).astype(dtype)


def stored(x, order):
    """The elements in their order in memory."""
    return np.ascontiguousarray(x if order == "row" else np.swapaxes(x, -1, -2))


class Bench:
    """Kernels by hand: compiled from any source, run on small whole numbers, compared with numpy."""

    def __init__(self, sim, sdk, arch="mp_22"):
        self.sim, self.arch, self.runtime = sim, arch, sim.runtime
        self.libraries = Libraries(sdk, sim.runtime)

    def library(self, file, flags=()) -> Library:
        found = self.libraries.get(file, self.arch, tuple(flags))
        assert not isinstance(found, Refusal), found.traceback or found
        return found

    def product(self, asked, way):
        library = self.library(way.kernel, defines(way, self.arch, asked.a.dtype, asked.out.dtype))
        copier = self.library("transpose") if way.transposed else None
        return Product(self.runtime, asked, lowered(asked), way, library, copier)

    def put(self, data):
        address = self.runtime.malloc(data.nbytes)
        self.runtime.memcpy(address, data.ctypes.data, data.nbytes, runtime.TO_DEVICE)
        return address

    def get(self, address, like):
        data = np.empty_like(like)
        self.runtime.memcpy(data.ctypes.data, address, data.nbytes, runtime.TO_HOST)
        return data

    def free(self, *addresses):
        for address in addresses:
            if address:
                self.runtime.free(address)

    def wrong(self, asked, way, seed=0, run=None):
        """How many elements are wrong; FAILED where the kernel failed, which loses the device until the next reset."""
        rng = np.random.default_rng(seed)
        a = whole(rng, *asked.batch, asked.m, asked.k, dtype=asked.a.dtype)
        b = whole(rng, *asked.batch, asked.k, asked.n, dtype=asked.b.dtype)
        run = run or self.product(asked, way).run
        expected = (a.astype(np.float32) @ b.astype(np.float32)).astype(asked.out.dtype)
        out = np.full_like(stored(expected, asked.out.layout.order), np.nan)
        places = [self.put(x) for x in (stored(a, asked.a.layout.order), stored(b, asked.b.layout.order), out)]
        try:
            run(*places, 1, 0, 0)
            self.runtime.synchronize()
            got = self.get(places[2], out)
        except Exception:  # MusaError or KernelError
            self.sim.rt.musaSimReset()
            self.free(*places)
            return FAILED
        self.free(*places)
        return int(np.sum(~(got == stored(expected, asked.out.layout.order))))
