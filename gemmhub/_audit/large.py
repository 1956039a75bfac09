"""A product of more than 2**31 elements: indices of 32 bits overflow there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from gemmhub import accuracy, dtypes
from gemmhub._audit.backends import PREFIX
from gemmhub._audit.implementation import Implementation
from gemmhub._audit.result import Fault

_ROWS, _K = 1021, 32
"""Different rows, a prime number, so that an index modulo a power of two meets other values; and the length of k."""
_ELEMENTS = 2**31 + 2**20


def faults(implementation: Implementation, refused: Counter[str]) -> tuple[Fault, ...]:
    """Multiply a tall matrix of more than 2**31 elements of the smallest claimed dtype; return what is wrong.

    Where memory is short, or the implementation is a backend of gemmhub or has a limit of trials, that is counted in
    ``refused``.
    """
    claims = implementation.claims
    dense = [x for x in sorted(claims.products) if x[0] == x[1] and dtypes.as_dtype(x[0]).kind != "b"]
    size = {x: dtypes.as_dtype(x[0]).itemsize + dtypes.as_dtype(x[2]).itemsize / _K for x in dense}
    if not dense or implementation.limit is not None or implementation.name.startswith(PREFIX):
        refused["a product of more than 2**31 elements was not tried"] += 1
        return ()
    product = min(dense, key=lambda x: (size[x], x))
    free = _free()
    if free < 2.5 * size[product] * _ELEMENTS:
        refused[f"more than 2**31 elements: {free / 2**30:.0f} GiB of memory are free"] += 1
        return ()
    return _tall(implementation, product, refused)


def _tall(implementation: Implementation, product: tuple[str, str, str], refused: Counter[str]) -> tuple[Fault, ...]:
    a_dtype, b_dtype, out_dtype = (dtypes.as_dtype(x) for x in product)
    rng = np.random.default_rng(0)
    few = rng.integers(0, 3, (_ROWS, _K)).astype(a_dtype)
    b = rng.integers(0, 2, (_K, 1)).astype(b_dtype)
    count = _ELEMENTS // _K // _ROWS + 1
    a = np.tile(few, (count, 1))
    try:
        got = np.asarray(implementation.product(a, b))
    except Exception as error:  # of any library
        refused[f"more than 2**31 elements: {type(error).__name__}"] += 1
        return ()
    model = accuracy.error_model(a_dtype, b_dtype, out_dtype, dtypes.compute_dtype(a_dtype, b_dtype, out_dtype))
    want = accuracy.reference(few, b, model=model, out_dtype=out_dtype)
    ratio = np.asarray(want.ratio(got.reshape(count, _ROWS, 1)))
    if ratio.max() <= 1.0:
        return ()
    first = int(np.argmax(ratio.reshape(-1) > 1.0))
    text = f"{int((ratio > 1).sum())} of {ratio.size} rows are off, the first {first}"
    shape = f"a is {a.shape} {a_dtype}, b is {b.shape}"
    return (Fault("value", "large", shape, shape, text, 1),)


def _free() -> float:
    """Bytes of memory that are free, as far as the system reports them; 0 where it does not."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return next((float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), 0.0)
