"""The compiled kernels: loaded in this process, in the wheel, or in the user's cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from gemmhub_nvidia.driver import Gpu
from gemmhub_nvidia.images import Images
from gemmhub_nvidia.nvrtc import Source

from gemmhub._base.evicting import keep
from gemmhub.kit import locks
from gemmhub_hopper.variants import sources
from gemmhub_hopper.variants.config import Variant
from gemmhub_hopper.variants.gemv_kernel import GemvKernel

Code = Variant | GemvKernel | int
"""A kernel: of matrices, of vectors, or a pre-pass by its number in ``sources.PREPASSES``."""
F16_PREPASS = -1
"""Number of the pre-pass that makes float16 planes."""
_KEPT = 4096
"""The number of kernels of which it is kept whether they need a compiler."""


def source_of(what: Code) -> tuple[Source, str, int]:
    """Return the source of a kernel, its name there, and the bytes of its dynamic shared memory."""
    if isinstance(what, Variant):
        return sources.source(what), sources.KERNEL, what.shared_bytes
    if isinstance(what, GemvKernel):
        return sources.gemv(what), sources.GEMV, what.shared_bytes
    if what == F16_PREPASS:
        return sources.f16_prepass(), sources.F16_PREPASS, 0
    input_type = next(input_type for input_type, number in sources.PREPASSES.items() if number == what)
    return sources.prepass(input_type), sources.PREPASS, 0


class Kernels:
    """The kernels of the devices of a machine, each compiled and loaded once."""

    def __init__(self, images: Images, gpus: Sequence[Gpu]) -> None:
        self.images, self._gpus = images, gpus
        self._loading = locks.lock()
        self._functions: dict[tuple[int, Code], int] = {}
        """Handles by device index and kernel."""
        self._there: OrderedDict[Code, bool] = OrderedDict()
        """Whether a kernel was loaded, or had a stored image when it was first looked up."""
        self._in_wheel: OrderedDict[Code, bool] = OrderedDict()
        """Whether the wheel has a kernel."""

    @property
    def ships(self) -> bool:
        """Whether the wheel has kernels."""
        return self.images.count(sources.ARCH) > 0

    def function(self, index: int, what: Code) -> int:
        """Return the handle of a kernel on a device. Raises CompilerError, DriverError."""
        key = index, what
        handle = self._functions.get(key)
        if handle is not None:
            return handle
        with self._loading:  # a lock of its own: analysing other problems need not wait for a compiler
            if key not in self._functions:
                source, name, shared = source_of(what)
                self._functions[key] = self.images.function(self._gpus[index], source, name, shared)
                keep(self._there, what, True, _KEPT)
            return self._functions[key]

    def compiled(self, what: Code) -> bool:
        """Return whether a kernel needs no compiler: it is loaded, or stored. That is looked up once for a kernel."""
        there = self._there.get(what)
        if there is None:
            there = self.images.known(_name(what), sources.ARCH) and self.images.ready(source_of(what)[0])
            keep(self._there, what, there, _KEPT)
        return there

    def shipped(self, what: Code) -> bool:
        """Return whether the wheel has a kernel."""
        shipped = self._in_wheel.get(what)
        if shipped is None:
            shipped = self.images.known(_name(what), sources.ARCH) and self.images.shipped(source_of(what)[0])
            keep(self._in_wheel, what, shipped, _KEPT)
        return shipped


def _name(what: Code) -> str:
    """Return ``Source.name`` of a kernel, by which the names of its files begin."""
    if isinstance(what, Variant):
        return sources.name(what.shape.name)
    if isinstance(what, GemvKernel):
        return sources.name(what.name)
    return source_of(what)[0].name
