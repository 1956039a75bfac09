"""Conversion of blocks by all cores.

NumPy converts float16 at about 0.4 Gelement/s on one core while the BLAS multiplies on all of them; on many
cores the conversion would be what takes the time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmhub_cpu.threads import each

_GRAIN = {True: 1 << 18, False: 1 << 22}
"""Elements worth a thread. NumPy converts float16 (True) by scalar code: these take 0.5 ms, against some 0.03 ms
to hand a piece over and wait for it, more where the BLAS's threads still spin. Everything else it converts by
vector code, limited by memory: two cores gain little.
"""


def grain(*dtypes: Any) -> int:
    """Elements worth a thread, for a conversion between these."""
    return _GRAIN[np.float16 in dtypes]


def copyto(target: Any, source: Any, casting: Any = "unsafe") -> None:
    """``numpy.copyto`` in pieces along the longest of the dimensions that come before the last."""
    worth = grain(target.dtype, source.dtype)
    if target.size < 2 * worth or target.ndim < 2:
        np.copyto(target, source, casting=casting)
        return
    source = np.broadcast_to(source, target.shape)
    axis = max(range(target.ndim - 1), key=lambda i: target.shape[i])
    if target.shape[axis] < 2:
        axis = target.ndim - 1
    lead = (slice(None),) * axis

    def piece(start: int, stop: int) -> None:
        index = (*lead, slice(start, stop))
        # Overflow to infinity is the right answer here; error states do not follow into threads.
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            np.copyto(target[index], source[index], casting=casting)

    each(piece, target.shape[axis], max(1, worth * target.shape[axis] // target.size))
