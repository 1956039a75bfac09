"""Packing and what depends on how operands lie: the packed form, few rows and few columns, for every unit."""

from __future__ import annotations

import calls
import numpy as np
import pytest
from test_native import emulator, finishes, laid_out, operands, right, rng, run, unit  # noqa: F401  fixtures

pytestmark = pytest.mark.compiler


def packed_bytes(library, which, b) -> bytes:
    """The packed form of ``b``, which is written as a whole."""
    poisons = []
    for poison in (0, 0xFF):
        memory = np.full(1 << 23, poison, np.uint8)
        packed = calls.packed(library, which, b, memory)
        assert (memory[packed.nbytes :] == poison).all()
        poisons.append(packed.memory.tobytes())
    assert poisons[0] == poisons[1]
    return poisons[0]


def test_the_packed_form_does_not_depend_on_strides(unit, rng) -> None:  # noqa: F811
    """Contiguous along either dimension or neither, whole micro-panels and not; k in several walks."""
    library, which = unit
    sizes = [(1, 1), (3, 500), (64, 33), (700, 1), (1100, 50), (37, 193), (1537, 24)]
    for k, n in [*sizes, *(tuple(int(x) for x in rng.integers(1, 600, 2)) for _ in range(6))]:
        _, b, _ = operands(rng, which, 1, n, k)
        expected = packed_bytes(library, which, np.ascontiguousarray(b))
        for how in (1, 2):
            assert packed_bytes(library, which, laid_out(b, how)) == expected, (k, n, how)
        wide = np.zeros((k, n + 5), b.dtype)
        wide[:, 3:-2] = b
        assert packed_bytes(library, which, wide[:, 3:-2]) == expected


def test_few_rows_and_few_columns(unit, rng) -> None:  # noqa: F811
    """Where the large operand is read in place, with the bits of a packed b."""
    library, which = unit
    sizes = [(2, 33, 64), (5, 129, 320), (17, 300, 1088), (32, 64, 640), (33, 70, 64), (4, 200, 77), (3, 32, 1024)]
    sizes += [(n, m, k) for m, n, k in sizes] + [
        (130, 16, 65),
        (65, 2, 128),
        (64, 3, 128),
        (257, 17, 64),
        (100, 32, 192),
    ]
    for m, n, k in sizes:
        a, b, sums = operands(rng, which, m, n, k)
        for i in range(2):
            left, right_operand = laid_out(a, int(rng.integers(3))), laid_out(b, 1 - i)
            whole = np.full((m + 2, n + 3), 77, sums)
            out = whole[1:-1, 1:-2]
            run(library, which, left, right_operand, out, 1 << 23, threads=1 + i)
            assert right(a, b, out), (m, n, k)
            again = np.empty((m, n), sums)
            if 1 not in (m, n):
                run(library, which, left, calls.packed(library, which, right_operand), again, 1 << 23)
                assert np.array_equal(again.view(np.uint8), np.ascontiguousarray(out).view(np.uint8)), (m, n, k)
            out[...] = 77
            assert (whole == 77).all()


def test_few_rows_and_few_columns_with_an_epilogue(unit, rng) -> None:  # noqa: F811
    library, which = unit
    if not finishes(which):
        pytest.skip("finished by NumPy")
    for m, n, k in ((7, 150, 192), (150, 7, 192)):
        a, b, _ = operands(rng, which, m, n, k)
        c = laid_out(rng.standard_normal((m, n)).astype(np.float32), int(rng.integers(3)))
        bias = rng.standard_normal([(m, 1), (1, n)][int(rng.integers(2))]).astype(np.float32)
        options = {"c": c, "bias": np.broadcast_to(bias, (m, n)), "activation": "relu", "alpha": 0.5, "beta": -2.0}
        out, again = np.full((m, n), 9, np.float32), np.full((m, n), 9, np.float32)
        run(library, which, a, np.asfortranarray(b), out, **options)
        run(library, which, a, calls.packed(library, which, b), again, **options)
        assert np.array_equal(out, again)
        assert out.max() > 0
