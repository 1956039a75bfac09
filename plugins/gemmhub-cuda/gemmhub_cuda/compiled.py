"""The kernels of the devices of a machine: loaded in this process, in the wheel, in the cache, or compiled."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from gemmhub_nvidia.driver import Gpu
from gemmhub_nvidia.images import Images

from gemmhub._base.evicting import keep
from gemmhub.kit import locks
from gemmhub_cuda.variants import sources
from gemmhub_cuda.variants.variant import Variant

_KEPT = 4096
"""The number of kernels of which it is kept whether the wheel has them."""


def uniform(variant: Variant) -> Variant:
    """Return the variant that loads both operands by the narrower of their two loads, as the wheel's kernels do.

    It runs the same products, in the same order of addition, by the same launch. Estimates depend on the narrower load.
    """
    alignment = variant.form.alignment
    return replace(variant, form=replace(variant.form, a_alignment=alignment, b_alignment=alignment))


class Kernels:
    """The kernels of the devices of a machine, each loaded once."""

    def __init__(self, images: Images, gpus: Sequence[Gpu]) -> None:
        self.images, self._gpus = images, gpus
        self._loading = locks.lock()
        self._functions: dict[tuple[int, Variant], int] = {}
        """Handles by device index and variant."""
        self._in_wheel: OrderedDict[tuple[tuple[int, int], Variant], bool] = OrderedDict()
        """Whether the wheel has a variant for a compute capability."""

    def function(self, index: int, variant: Variant) -> int:
        """Return the handle of a variant on a device. Raises CompilerError, DriverError.

        Where neither the wheel nor the cache has it, the wheel's kernel with :func:`uniform` loads runs instead.
        """
        key = index, variant
        with self._loading:
            if key not in self._functions:
                gpu = self._gpus[index]
                source = sources.source(variant, gpu.capability)
                if not self.images.ready(source) and self.shipped(index, uniform(variant)):
                    source = sources.source(uniform(variant), gpu.capability)
                self._functions[key] = self.images.function(gpu, source, sources.KERNEL, variant.shared_bytes)
            return self._functions[key]

    def ready(self, index: int, variant: Variant) -> bool:
        """Return whether a variant runs on a device without a compiler."""
        if (index, variant) in self._functions or self.shipped(index, variant):
            return True
        capability = self._gpus[index].capability
        if self.shipped(index, uniform(variant)):
            return True
        name = sources.name(variant, capability)
        known = self.images.known(name, sources.architecture(capability))
        return known and self.images.ready(sources.source(variant, capability))

    def shipped(self, index: int, variant: Variant) -> bool:
        """Return whether the wheel has a variant for a device."""
        capability = self._gpus[index].capability
        shipped = self._in_wheel.get((capability, variant))
        if shipped is None:
            known = self.images.known(sources.name(variant, capability), sources.architecture(capability))
            shipped = known and self.images.shipped(sources.source(variant, capability))
            keep(self._in_wheel, (capability, variant), shipped, _KEPT)
        return shipped
