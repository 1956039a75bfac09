"""The conformance kit's check of ``Kernel.groups``: one that is right passes, and each fault is reported."""

from __future__ import annotations

import numpy as np
import pytest

from gemmhub.backend import Kernel
from gemmhub.testing.case import Case
from gemmhub.testing.host_groups import check_host_groups
from gemmhub.testing.operands import Operands


def right(axes, ends, a, b, out):
    assert axes == (0, -1, 0)
    for i, (start, end) in enumerate(zip([0, *ends], ends)):
        if end > start:
            np.matmul(a[start:end], b[i], out[start:end])
    return True


def swapped(axes, ends, a, b, out):
    return right(axes, ends, a, b[::-1], out)


def incomplete(axes, ends, a, b, out):
    return right(axes, ends[:-1], a, b[:-1], out)


def beyond(axes, ends, a, b, out):
    right(axes, ends, a, b, out)
    out[ends[-1] :] = 0
    return True


def unfinished(axes, ends, a, b, out):
    return False


def multiply(a, b, out, alpha, beta, stream):
    np.matmul(a, b, out)


def checked(groups, **facts):
    operands = Operands(Case(m=6, n=5, k=7, **facts))
    operands.fill(1)
    check_host_groups(operands, Kernel(multiply, "numpy.matmul", any_size=True, groups=groups), "default")


@pytest.mark.parametrize("groups", [right, unfinished, None])
def test_groups_that_are_right_pass(groups):
    checked(groups)


@pytest.mark.parametrize(
    ("groups", "words"),
    [(swapped, "other bits"), (incomplete, "group 3 has other bits"), (beyond, "beyond the last end was written")],
)
def test_faults_are_reported(groups, words):
    with pytest.raises(AssertionError, match=words):
        checked(groups)


def test_groups_of_a_product_with_an_epilogue_are_reported():
    with pytest.raises(AssertionError, match="not plain"):
        checked(right, bias="n")
