"""Quantization scales as kernels read them: their use, their strides, and batches that have no even stride."""

from __future__ import annotations

import pytest
from gemmhub_nvidia import scales
from gemmhub_nvidia.scales import ScaleAccess

from gemmhub.operands import Scale
from gemmhub.testing.problems import problem


def scaled(batch=(), **operands):
    return problem(300, 400, 500, "float8_e4m3fn", "float32", batch).having(**operands)


@pytest.mark.parametrize(
    ("operands", "use"),
    [
        ({}, None),
        ({"scale_a": Scale(None)}, "results"),
        ({"scale_a": Scale("m"), "scale_b": Scale("n")}, "results"),
        ({"scale_b": Scale("n blocks")}, "results"),
        ({"scale_a": Scale("m"), "scale_b": Scale("n blocks", 1, True, 4)}, "blocks"),
        ({"scale_a": Scale(None, 1, True, 1)}, "blocks"),
    ],
)
def test_use(operands, use):
    assert scales.use(scaled(**operands)) == use


def test_access():
    asked = scaled((2, 3), scale_a=Scale("m", 4, True, 1, (3600, 1200)), scale_b=Scale("n blocks", 5, True, 7))
    assert scales.access(asked, "a") == ScaleAccess("scale_a", 4, 1, 1200, 0)
    assert scales.access(asked, "b") == ScaleAccess("scale_b", 5, 7, 0, 7)
    assert scales.access(scaled(scale_a=Scale(None, 9)), "a") == ScaleAccess("scale_a", 0, 0, 0, 0)
    assert scales.access(scaled(scale_a=Scale("m")), "b") is None


def test_the_parameter_of_a_kernel():
    found = ScaleAccess("scale_b", 5, 7, 11, 7).fields
    assert (found.at, found.stride, found.depth, found.batch, found.shift) == (0, 5, 7, 11, 7)


@pytest.mark.parametrize("strides", [(3600, 1200), (0, 0), ()])
def test_even_batches(strides):
    assert scales.refusal(scaled((2, 3), scale_a=Scale("m", 4, True, 1, strides))) is None


def test_uneven_batches():
    found = scales.refusal(scaled((2, 3), scale_b=Scale("n", 1, batch_strides=(400, 0))))
    assert "the batch of scale_b is not evenly spaced" in found.reason
    assert "contiguous scale_b" in found.remedy
