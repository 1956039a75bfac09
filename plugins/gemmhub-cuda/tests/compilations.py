"""Variants compiled by NVRTC, two at a time. A case is a variant and a compute capability."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from functools import cache

from gemmhub_cuda import quantize
from gemmhub_cuda.variants import limits, sources
from gemmhub_nvidia import nvrtc
from gemmhub_nvidia.nvrtc import Compiled, CompilerError
from tiers import half

LIMITS = {x: limits.SMS[x].shared_per_block for x in ((8, 0), (8, 6), (8, 9), (9, 0), (12, 0))}
"""Bytes of shared memory of a CTA, by compute capability."""


def source(variant, capability):
    """Return the source of a variant of a product, or of quantization."""
    if isinstance(variant, quantize.Variant):
        return variant.source(capability)
    return sources.source(variant, capability)


def compiled(case):
    """Return what NVRTC makes of ``case``, or the compiler's message: errors do not leave its process."""
    try:
        return nvrtc.load().compile(source(*case), verbose=True)
    except CompilerError as error:
        return str(error)


def sample(cases):
    """The cases that are compiled."""
    return half(cases, source(*cases[0]).files)


@cache
def _all_compiled(cases):
    with ProcessPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        return dict(zip(cases, pool.map(compiled, cases)))


def one_of(cases, case):
    """Return what NVRTC makes of ``case``; the first call compiles all ``cases``."""
    made = _all_compiled(tuple(cases))[case]
    assert isinstance(made, Compiled), made
    assert made.cubin[:4] == b"\x7fELF"
    assert made.registers > 0, made.log
    return made


def check_resources(made, case):
    """Nothing spills, and the registers, allocated in eights, suffice for the CTAs that an SM of the card runs."""
    (variant, capability), ctas = case, case[0].ctas_per_sm(limits.of(case[1]))
    assert made.spilled == 0, made.log
    assert ctas >= 1, capability
    assert -(-made.registers // 8) * 8 * variant.threads * ctas <= 65536
