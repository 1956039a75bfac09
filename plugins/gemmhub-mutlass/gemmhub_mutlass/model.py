"""Estimates the time of a product: whole tiles' arithmetic or memory traffic, whichever takes longer, and launches.

The estimate ranks MUTLASS among other backends before anything is measured; tuning replaces it. gemmhub has measured
nothing on a card. The rates are a fraction of those published for the cards' libraries, so that MUTLASS, whose kernels
take half a minute to compile, is not tried untuned where an installed library can run a problem.
"""

from __future__ import annotations

from gemmhub_mutlass.lower import Lowered
from gemmhub_mutlass.variants import SIMT, TF32, Configuration

LAUNCH = 1e-5
"""Seconds for a launch, host time included."""
_SHARE = 0.7

_RATE = {
    # Operations a second of tensor cores in 16 bits, in int8, in TF32; of float32 without them (what MUTLASS 0.1's own
    # profiler printed in its documentation); bytes a second.
    "mp_22": (86e12, 200e12, 50e12, 11.7e12, 768e9),  # MTT S4000
    "mp_31": (296e12, 446e12, 158e12, 24e12, 1422e9),  # MTT S5000
}


def seconds(configuration: Configuration, lowered: Lowered, nbytes: float) -> float:
    """Return the seconds for a call whose operands and result have ``nbytes``."""
    half, byte, tf32, single, bandwidth = _RATE[configuration.arch]
    rate = {SIMT: single, TF32: tf32}.get(configuration.math, byte if configuration.dtype == "int8" else half)
    form, tile = lowered.form, configuration.tile
    m, n = -(-form.m // tile.m) * tile.m, -(-form.n // tile.n) * tile.n
    launches = len(lowered.offsets)
    flops = 2.0 * m * n * form.k * form.count * launches
    return max(flops / (_SHARE * rate), nbytes / bandwidth) + LAUNCH * launches
