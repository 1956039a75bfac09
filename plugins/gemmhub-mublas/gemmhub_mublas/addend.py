"""Copies c to the result's memory: muBLAS's functions add the product to the content of that memory."""

from __future__ import annotations

from gemmhub_musa.runtime import ON_DEVICE, Runtime

from gemmhub.capability import Copy
from gemmhub.problem import GemmProblem
from gemmhub_mublas.lower import Lowered


def copies(problem: GemmProblem) -> tuple[Copy, ...]:
    """Return the copy as `explain` lists it; only a call shows whether c is the result's own memory."""
    if problem.c is None or problem.empty:
        return ()
    nbytes = problem.batch_count * problem.m * problem.n * problem.out.dtype.itemsize
    return (Copy("c", nbytes, "muBLAS adds to the result in place: c is copied there first, unless it is out itself"),)


class Addend:
    """Copies C to D for one prepared problem."""

    def __init__(self, runtime: Runtime, lowered: Lowered) -> None:
        form = lowered.main or lowered.zero
        assert form is not None
        self._runtime = runtime
        size = form.d.itemsize
        c, d, count = form.c, form.d, form.count
        self._width, self._height = form.m * size, form.n
        self._pitches = d.ld * size, c.ld * size
        starts = [(d.stride * size * i, c.stride * size * i) for i in range(count)]
        # Matrices as far apart as their columns are one wide matrix.
        if count > 1 and c.stride == c.ld * form.n and d.stride == d.ld * form.n:
            self._height *= count
            starts = starts[:1]
        self._starts = [(d_at + d_off, c_at + c_off) for _, _, c_at, d_at in lowered.offsets for d_off, c_off in starts]
        dense = self._pitches == (self._width, self._width) or self._height == 1
        self._dense_bytes = self._width * self._height if dense else 0

    def copy(self, c: int, out: int, stream: int) -> None:
        """Enqueue the copies on ``stream``. Raises MusaError."""
        for to, source in self._starts:
            if self._dense_bytes:
                self._runtime.memcpy_async(out + to, c + source, self._dense_bytes, ON_DEVICE, stream)
            else:
                to_pitch, source_pitch = self._pitches
                self._runtime.memcpy_2d_async(
                    out + to, to_pitch, c + source, source_pitch, self._width, self._height, stream
                )
