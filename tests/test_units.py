"""Numbers as they are printed, with enough digits to compare them with their bounds."""

from __future__ import annotations

import pytest

from gemmhub._base import units
from gemmhub.errors import InputError


@pytest.mark.parametrize(
    ("x", "bound", "text"),
    [
        (-26.939157485961914, 0.0237, "-26.9392"),
        (26.939157485961914, 3.2e-6, "26.9391575"),
        (1.0, 1e-15, "1"),
        (1.0 + 2.0**-52, 1e-15, "1.0000000000000002"),
        (1.5e-300, 1e300, "1.5e-300"),
        (1.5e300, 1e-300, "1.5000000000000001e+300"),
        (complex(1 / 3, -26.939157485961914), 0.0237, "0.333333-26.9392j"),
        (float("nan"), 0.1, "nan"),
        (-float("inf"), 0.1, "-inf"),
        (0.0, 0.1, "0"),
        (2**60 + 1, 0.0, "1152921504606846977"),
        (1 / 3, 0.0, "0.3333333333333333"),
        (1 / 3, float("inf"), "0.3333333333333333"),
        (True, 0.0, "True"),
    ],
)
def test_numbers_have_the_digits_that_resolve_their_bound(x, bound, text):
    assert units.resolved(x, bound) == text


@pytest.mark.parametrize(
    ("value", "size"),
    [(7, 7), ("7", 7), ("1GiB", 2**30), ("1.5 MiB", 3 * 2**19), (" 512MB ", 512 * 10**6), ("2 kB", 2000), ("3B", 3),
     ("1TiB", 2**40)],
)  # fmt: skip
def test_memory(value, size):
    assert units.memory(value, "memory") == size


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1 gib", "1G", "GiB", "1e9", "0.1B", "-1GiB", "", "1_000"])
def test_what_is_no_size_of_memory(value):
    with pytest.raises(InputError, match=r"memory: .*; allowed: a positive number .* KiB, MiB, GiB, TiB\. .*1GiB"):
        units.memory(value, "memory")
