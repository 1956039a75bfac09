"""What the tests of the stub libraries share: homes, and their libraries called through ctypes."""

import ctypes
import functools
import tempfile
from pathlib import Path

import numpy as np
from gemmhub_musa_sim import make_home
from gemmhub_musa_sim.enums import enums
from gemmhub_musa_sim.profiles import PROFILES

_OPERANDS = "P15_mublasHandle_t17mublasOperation_tS1_iiiPKv"
_CHOICES = "i19mublasComputeType_t16mublasGemmAlgo_t"
MANGLED = {
    "mublasGemmEx": f"_Z12mublasGemmEx{_OPERANDS}S3_14musaDataType_tiS3_S4_iS3_PvS4_{_CHOICES}",
    "mublasGemmBatchedEx": f"_Z19mublasGemmBatchedEx{_OPERANDS}PKS3_14musaDataType_tiS5_S6_iS3_PKPvS6_i{_CHOICES}",
    "mublasGemmStridedBatchedEx": (
        f"_Z26mublasGemmStridedBatchedEx{_OPERANDS}S3_14musaDataType_tixS3_S4_ixS3_PvS4_ix{_CHOICES}"
    ),
}
"""The vendor's exported names, as public projects load them."""

N, T, C = 111, 112, 113
"""The vendor's operation codes."""


@functools.cache
def home(sdk: str, symbols: str | None = None) -> Path:
    folder = tempfile.TemporaryDirectory(prefix=f"musa-{sdk}-")
    _kept.append(folder)
    return make_home(Path(folder.name), sdk=sdk, symbols=symbols)


_kept: list[tempfile.TemporaryDirectory] = []


class Runtime:
    """The runtime of one home."""

    def __init__(self, sdk: str) -> None:
        self.profile = PROFILES[sdk]
        self.home = home(sdk)
        self.library = ctypes.CDLL(str(self.home / "lib" / self.profile.musart))
        self.library.musaSimExtent.restype = ctypes.c_size_t
        self.numbers = {name: value for enum in enums(self.profile).values() for name, value in enum.items()}
        self._buffers: list[ctypes.c_void_p] = []

    def option(self, name: str, value: int) -> None:
        assert self.library.musaSimSetOption(name.encode(), value)

    def inject(self, spec: str) -> None:
        self.library.musaSimInject(spec.encode())

    def allocate(self, nbytes: int) -> int:
        address = ctypes.c_void_p()
        assert self.library.musaMalloc(ctypes.byref(address), ctypes.c_size_t(nbytes)) == 0
        self._buffers.append(address)
        return address.value

    def upload(self, array: np.ndarray) -> int:
        """A device buffer of exactly the array's bytes, in its order in memory."""
        flat = np.frombuffer(array.tobytes("A"), np.uint8)
        address = self.allocate(max(flat.nbytes, 1))
        host = ctypes.c_void_p(flat.ctypes.data)
        assert self.library.musaMemcpy(ctypes.c_void_p(address), host, ctypes.c_size_t(flat.nbytes), 1) == 0
        return address

    def download(self, address: int, shape: tuple[int, ...], dtype: np.dtype, order: str = "F") -> np.ndarray:
        array = np.empty(shape, dtype, order=order)
        host = ctypes.c_void_p(array.ctypes.data)
        error = self.library.musaMemcpy(host, ctypes.c_void_p(address), ctypes.c_size_t(array.nbytes), 2)
        assert error == 0, error
        return array

    def stream(self) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        assert self.library.musaStreamCreate(ctypes.byref(made)) == 0
        return made

    def close(self) -> None:
        self.library.musaSimReset()
        for address in self._buffers:
            self.library.musaFree(address)


class Mublas:
    """muBLAS of one home, with a handle."""

    def __init__(self, runtime: Runtime, symbols: str | None = None) -> None:
        self.runtime = runtime
        profile = runtime.profile
        self.library = ctypes.CDLL(str(home(profile.sdk, symbols) / "lib" / profile.mublas))
        self.symbols = symbols or profile.mublas_symbols
        self.handle = ctypes.c_void_p()
        self.ok(self.library.mublasCreate(ctypes.byref(self.handle)))

    def ok(self, status: int) -> None:
        assert status == 0, self.name(status)

    def name(self, status: int) -> str:
        text = getattr(self.library, self.runtime.profile.status_text)
        text.restype = ctypes.c_char_p
        return text(status).decode().removeprefix("MUBLAS_STATUS_")

    def function(self, name: str):
        exported = MANGLED[name] if name in MANGLED and self.symbols == "mangled" else name
        return self.library[exported]

    def call(self, name: str, *arguments) -> str:
        """The status by name. int means int, float a host scalar in 32 bits; wrap anything else."""
        keep = []

        def convert(value):
            if isinstance(value, np.ndarray | np.generic):  # a host scalar
                keep.append(np.atleast_1d(value))
                return ctypes.c_void_p(keep[-1].ctypes.data)
            return ctypes.c_int(value) if isinstance(value, int) else value

        return self.name(self.function(name)(self.handle, *map(convert, arguments)))


def pointer(address: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(address)


def long(value: int) -> ctypes.c_longlong:
    return ctypes.c_longlong(value)
