"""The number of resident clusters: the driver's answer, else an estimate."""

from __future__ import annotations

import pytest
from gemmhub_nvidia import clusters
from gemmhub_nvidia.driver import KERNELS, Driver, Gpu
from gemmhub_nvidia.testing.fake_kernels import FakeKernels


@pytest.fixture
def cuda():
    fake = FakeKernels()
    yield fake
    assert fake.complaints == []
    assert fake.stack == []


def asked(cuda):
    return clusters.asked(Gpu(Driver(cuda, KERNELS), 0))


@pytest.mark.parametrize(("sms", "size", "expected"), [
    (132, 1, 132), (132, 2, 66), (132, 4, 30), (132, 8, 15), (114, 4, 25), (2, 1, 2), (16, 8, 1), (1, 2, 1),
])  # fmt: skip
def test_estimated(sms, size, expected):
    assert clusters.estimated(sms, size) == expected


def test_the_answers_of_the_driver(cuda):
    """Limited by the multiprocessors; each size is queried once, with the largest shared memory of a CTA."""
    cuda.clusters = {2: 65, 3: 40, 4: 31, 5: 24, 6: 20, 7: 17, 8: 99}
    assert asked(cuda) == (132, 132, 65, 40, 31, 24, 20, 17, 16)
    assert cuda.calls.count("cuOccupancyMaxActiveClusters") == 7
    assert cuda.calls.count("cuModuleLoadData") == 1


def test_while_a_stream_is_captured(cuda):
    cuda.clusters, cuda.captures = {4: 31}, {7: 1}
    assert asked(cuda)[4] == 31
    assert cuda.invalidated == set()


def test_estimates_where_the_driver_has_no_answer(cuda):
    """For some sizes, or for all."""
    expected = tuple(clusters.estimated(132, max(1, size)) for size in range(9))
    cuda.clusters = {4: 0}
    assert asked(cuda) == expected
    cuda.faults["cuModuleLoadData"] = 221  # no compiler of PTX
    cuda.clusters = {4: 31}
    assert asked(cuda) == expected
    cuda.faults.clear()
    del cuda.cuOccupancyMaxActiveClusters
    assert asked(cuda) == expected
