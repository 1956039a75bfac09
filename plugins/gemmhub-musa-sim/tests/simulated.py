"""What the tests of the runtime and the SIMT engine share: a home without the BLAS stub libraries, memory, kernels."""

import contextlib
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from gemmhub_musa_sim import mcc
from gemmhub_musa_sim.profiles import PROFILES
from gemmhub_musa_sim.runtime import build_driver, build_runtime, include_files

from gemmhub.capability import Refusal

KERNELS = Path(__file__).parent / "kernels"
H2D, D2H, D2D = 1, 2, 3
_folder = tempfile.TemporaryDirectory(prefix="musa-simt-")


def home(sdk="4.3"):
    return _home(sdk)


@functools.cache
def _home(sdk):
    profile = PROFILES[sdk]
    path = Path(_folder.name) / f"sdk-{sdk}"
    (path / "lib").mkdir(parents=True)
    for name, file in include_files(profile).items():
        (path / "include" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, path / "include" / name)
    for soname, built in {profile.musart: build_runtime(profile), "libmusa.so.1": build_driver(profile)}.items():
        assert not isinstance(built, Refusal), built.traceback
        (path / "lib" / soname).symlink_to(built)
        (path / "lib" / (soname.partition(".so")[0] + ".so")).symlink_to(soname)
    mcc.install(path, profile)
    return path


def compiled(source, *, checks=False, arch="mp_22", flags=(), sdk="4.3"):
    """The shared library of a file, or of the text of one, by the home's mcc."""
    return ctypes.CDLL(str(_compiled(source, checks, arch, tuple(flags), sdk)))


@functools.cache
def _compiled(source, checks, arch, flags, sdk):
    if isinstance(source, Path):
        path = source
    else:
        path = Path(tempfile.mkdtemp(dir=_folder.name)) / "kernel.mu"
        path.write_text(source)
    made = Path(tempfile.mkdtemp(dir=_folder.name)) / f"{path.stem}.so"
    command = [home(sdk) / "bin" / "mcc", "-x", "musa", path, "-std=c++17", "-O2", "-fPIC", "-shared"]
    command += [f"--offload-arch={arch}", *flags, "-o", made, f"-L{home(sdk) / 'lib'}", "-lmusart"]
    environment = {**os.environ, "MUSA_SIM_CHECK": str(int(checks))}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return made


class Card:
    """The runtime of one home, with arrays in its memory."""

    def __init__(self, sdk="4.3"):
        self.rt = ctypes.CDLL(str(home(sdk) / "lib" / PROFILES[sdk].musart), mode=ctypes.RTLD_GLOBAL)
        for name in ("musaSimMessage", "musaGetErrorName", "musaGetErrorString"):
            getattr(self.rt, name).restype = ctypes.c_char_p
        for name in ("musaSimExtent", "musaSimLive", "musaSimLiveHandles"):
            getattr(self.rt, name).restype = ctypes.c_size_t
        self.rt.musaSimLimit.argtypes = [ctypes.c_size_t]

    @contextlib.contextmanager
    def options(self, **values):
        old = {}
        for name, value in values.items():
            kept = ctypes.c_int()
            assert self.rt.musaSimGetOption(name.encode(), ctypes.byref(kept))
            old[name] = kept.value
            self.rt.musaSimSetOption(name.encode(), value)
        try:
            yield
        finally:
            for name, value in old.items():
                self.rt.musaSimSetOption(name.encode(), value)

    def malloc(self, nbytes):
        p = ctypes.c_void_p()
        assert self.rt.musaMalloc(ctypes.byref(p), ctypes.c_size_t(nbytes)) == 0
        return p

    def put(self, array):
        array = np.ascontiguousarray(array)
        p = self.malloc(array.nbytes)
        assert self.copy(p, array.ctypes.data, array.nbytes, H2D) == 0
        return p

    def get(self, p, shape, dtype):
        array = np.empty(shape, dtype)
        assert self.copy(array.ctypes.data, p, array.nbytes, D2H) == 0, self.message()
        return array

    def copy(self, to, source, nbytes, kind):
        return self.rt.musaMemcpy(
            ctypes.c_void_p(value(to)), ctypes.c_void_p(value(source)), ctypes.c_size_t(nbytes), kind
        )

    def copy_async(self, to, source, nbytes, kind, stream):
        pointers = ctypes.c_void_p(value(to)), ctypes.c_void_p(value(source))
        return self.rt.musaMemcpyAsync(*pointers, ctypes.c_size_t(nbytes), kind, stream)

    def free(self, *pointers):
        for p in pointers:
            assert self.rt.musaFree(p) == 0

    def stream(self, flags=0):
        s = ctypes.c_void_p()
        assert self.rt.musaStreamCreateWithFlags(ctypes.byref(s), flags) == 0
        return s

    def event(self):
        e = ctypes.c_void_p()
        assert self.rt.musaEventCreate(ctypes.byref(e)) == 0
        return e

    def message(self):
        return self.rt.musaSimMessage().decode()

    def reset(self):
        self.rt.musaSimReset()
        self.rt.musaSimClear()


def value(p):
    return p.value if isinstance(p, ctypes.c_void_p) else p


def gemm(card, launch, a, b):
    """The product of two arrays by a launcher ``(a, b, c, m, n, k, stream)``, in float, or None and what went wrong."""
    m, k = a.shape
    n = b.shape[1]
    operands = [card.put(a) if a.size else None, card.put(b) if b.size else None]
    c = card.malloc(4 * m * n)
    error = launch(*operands, c, m, n, k, None) or card.rt.musaDeviceSynchronize()
    wrong = f"error {error}: {card.message()}" if error else ""
    if error:
        card.rt.musaSimReset()  # findings stay
    product = None if error else card.get(c, (m, n), np.float32)
    card.free(c, *(p for p in operands if p))
    return product, wrong


def exact(rng, shape, dtype):
    """Small multiples of 1/4: their products and sums are exact in float32, whatever the order."""
    return (rng.integers(-8, 9, shape) / 4).astype(dtype)
