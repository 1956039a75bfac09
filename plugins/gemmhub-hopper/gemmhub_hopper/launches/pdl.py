"""Programmatic dependent launch (PDL): decides when the next kernel of the stream may begin.

CTAs of a kernel that begins early occupy the SMs that are free, which may be an uneven distribution. A kernel that is
slowed down so may lose more than the early start gains, the more the longer it takes. The rules were determined by
measurement (benchmarks/run/hopper_early.py).
"""

from __future__ import annotations

import os
from functools import cache

from gemmhub_nvidia.pdl import Next

from gemmhub_hopper.candidates.candidate import Choice, Occupancy
from gemmhub_hopper.candidates.gemv import GemvChoice
from gemmhub_hopper.lowering.f16_planes import ONLY_REJECTED
from gemmhub_hopper.variants.config import F16X3

_SHORT = 2**26
"""Bytes above which a product of vectors takes so long that an early start gains nothing."""

VARIABLE = "GEMMHUB_HOPPER_PDL"
"""The environment variable that turns PDL "on" or "off"."""


@cache
def allowed() -> bool:
    """Return whether PDL is on. The environment variable is read once; raises ValueError for other values.

    A kernel that begins early waits until the one before it in the stream has ended, and a kernel of this plugin has
    itself waited for the one before. Another library's kernel that was launched early, lets the next one begin and
    never waits may end before its predecessor: then the results of that predecessor are read too early.
    """
    value = os.environ.get(VARIABLE, "on")
    if value not in ("on", "off"):
        raise ValueError(f"the environment variable {VARIABLE} is {value!r}; allowed: on, off")
    return value == "on"


def gemm(choice: Choice, k_blocks: int, card: Occupancy, redo: int = 0) -> Next:
    """Return the moment for gemm_kernel.cu, with ``k_blocks`` blocks of K.

    ``redo``: bits of :data:`f16_planes.ONLY_REJECTED`, with which the kernel multiplies only operands that float16
    planes do not hold, and as a rule has nothing to do, and of :data:`f16_planes.BY_TILES`.
    """
    if redo & ONLY_REJECTED:
        return Next.STARTED
    if choice.splits > 1:
        # Split-K reduces in the last CTA of each tile, or in CTAs that wait for each other: CTAs of the next kernel
        # slow them down.
        return Next.ENDED
    if choice.copied:
        # The next kernel often is a pre-pass, whose many small CTAs would crowd the SMs; but after float16 planes it
        # looks for rejected operands only.
        return Next.SUMMED if choice.lowering.form.input == F16X3 else Next.ENDED
    shape = choice.shape
    if choice.lowering.groups:
        return Next.LOADED  # a CTA does not know its last work tile before it looks for another one
    one_work_tile = choice.work_tiles * shape.cluster_size <= choice.grid(card)
    return Next.LOADED if one_work_tile and k_blocks <= shape.stages * shape.cluster_k else Next.SUMMED


def gemv(choice: GemvChoice, sms: int) -> Next:
    """Return the moment for gemv_kernel.cu: at once where the CTAs of two kernels fit."""
    if choice.moved_bytes >= _SHORT:
        return Next.ENDED
    return Next.STARTED if 2 * choice.grid <= choice.kernel.min_ctas_per_sm * sms else Next.SUMMED
