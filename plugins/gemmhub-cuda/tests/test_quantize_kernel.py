"""The kernel for quantization, compiled for the host and run by the emulator: NumPy's bits."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from gemmhub_cuda.quantize import BLOCKS, CONVERT, GIVEN, MAXIMA, ROWS, plan
from quantizing import GRANULARITIES, INPUTS, TARGETS, Emulated, halfway, hard_numbers, reference

pytestmark = pytest.mark.emulator

SHAPES = [(1, 1), (129, 131), (70, 264), (3, 130, 140), (2, 2, 65, 129)]
CASES = [
    (granularity, given, name, TARGETS[(i + j + given) % 3])
    for given in (False, True)
    for (i, granularity), (j, name) in product(enumerate(GRANULARITIES), enumerate(INPUTS))
]
"""Each granularity with each dtype of x, computed and given scales; the dtype of codes in turn."""


@pytest.fixture
def rng():
    return np.random.default_rng()


def steps(launch):
    """The steps that run."""
    return [variant.step for variant, _ in plan(launch.task()[0], launch.sms).launches]


@pytest.mark.parametrize(("granularity", "given", "name", "target"), CASES)
def test_bits(granularity, given, name, target, rng):
    for i, shape in enumerate(SHAPES):
        x = halfway(rng, shape, name, target) if i == 2 else hard_numbers(rng, shape, name)
        scale = None
        if given:
            scale = reference(x, target, granularity)[1]
            scale = (scale * np.exp2(rng.integers(-3, 3, scale.shape))).astype(np.float32)
        Emulated(x, target, granularity, scale).check(int(rng.integers(100)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", INPUTS)
def test_scales_of_the_callers(name, target, rng):
    """Negative ones, zeros, infinities, NaN, subnormal numbers, and numbers at which the power of 2 changes."""
    sizes = (0, np.inf, np.nan, 1e-45, 1e-39, 2.0**-126, 2.0**-80, 2.0**80, 3e38, 1, 1 / 3, 448)
    scale = np.array([sign * np.float32(x) for x in sizes for sign in (1, -1)], np.float32)
    scale = np.concatenate([scale, np.nextafter(scale, np.float32(0))])[:, np.newaxis]
    for _ in range(2):
        Emulated(hard_numbers(rng, (len(scale), 40), name), target, "row", scale).check()


@pytest.mark.parametrize("target", TARGETS)
def test_quotients_beside_the_middle_of_codes(target, rng):
    """A wrong last bit of a quotient is a wrong code. The scales are those at which a power of 2 is multiplied, too."""
    powers = [*rng.uniform(-3, 3, 40), *rng.uniform(-126, 118, 40), *rng.uniform(-81, -79, 8), *rng.uniform(79, 81, 8)]
    scale = np.exp2(np.array(powers))[:, np.newaxis].astype(np.float32)
    scale = np.concatenate([scale, -scale, scale[:8] * np.float32(2.0**-140)])
    Emulated(halfway(rng, (len(scale), 256), "float32", target, scale), target, "row", scale).check()


def test_strides(rng):
    """Transposed matrices and stacks, rows apart, addresses that are aligned to their elements alone."""
    for granularity in GRANULARITIES:
        whole = hard_numbers(rng, (2, 3, 140, 150), "bfloat16")
        for x in (
            whole[0, 0].T, whole.swapaxes(-1, -2), whole[..., 1:-2], whole[..., 16:144], whole[:, 1, ::2],
            whole[1, 2, 5:, 8:].T, whole.transpose(1, 0, 2, 3)[:, :1], np.broadcast_to(whole[0, 0, :1], (7, 150)),
        ):  # fmt: skip
            offset = int(rng.choice([0, 0, 1, 4]))
            Emulated(x, "float8_e4m3fn", granularity, offset=offset).check()


def test_vectors(rng):
    for size in (1, 127, 128, 1000, 16384, 16385, 50001):
        Emulated(hard_numbers(rng, (size,), "float16"), "int8", "tensor").check()
        Emulated(
            hard_numbers(rng, (size + 1,), "bfloat16")[1:], "float8_e5m2", "tensor", np.array(3, np.float32)
        ).check()


@pytest.mark.parametrize("name", ["bfloat16", "float32"])
def test_long_rows(name, rng):
    """A warp's, a CTA's, and longer ones than a CTA keeps; and of a matrix whose rows are not aligned."""
    for columns in (200, 1024, 1025, 4097, 16384, 16385, 40011):
        launch = Emulated(hard_numbers(rng, (3, columns), name), "float8_e4m3fn", "row")
        assert steps(launch) == [ROWS]
        launch.check()
    Emulated(hard_numbers(rng, (3, 40000), name)[:, 3:], "float8_e4m3fn", "row").check()


@pytest.mark.parametrize("granularity", ["tensor", "column"])
def test_groups_larger_than_a_tile(granularity, rng):
    """Parts of them, more and fewer than tiles; the largest number anywhere."""
    for sms, shape in ((1, (900, 140)), (8, (900, 140)), (2, (3, 500, 129))):
        x = rng.standard_normal(shape).astype(np.float32)
        x[tuple(rng.integers(0, n) for n in shape)] = 100
        launch = Emulated(x, "int8", granularity, sms=sms)
        assert steps(launch) == [MAXIMA, CONVERT]
        launch.check()


def test_what_fits_in_a_tile_is_read_once(rng):
    for shape, granularity in (
        ((128, 128), "tensor"),
        ((16384,), "tensor"),
        ((128, 500), "column"),
        ((500, 128), "row"),
    ):
        launch = Emulated(hard_numbers(rng, shape, "bfloat16"), "float8_e4m3fn", granularity)
        assert steps(launch) == [BLOCKS]
        launch.check()


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_any_order_of_threads(granularity, rng):
    """The same bits for every interleaving."""
    launch = Emulated(hard_numbers(rng, (200, 300), "float32"), "float8_e4m3fn", granularity)
    for seed in range(6):
        launch.check(seed)


def test_offsets_beyond_2_31(rng):
    """Two rows are far apart, in x and in q."""
    apart = 2**31 + 64
    try:
        memory = [np.zeros(apart * size + 1024, np.uint8) for size in (2, 1)]  # of which few pages are touched
    except MemoryError:
        pytest.skip("too little address space")
    numbers = hard_numbers(rng, (2, 300), "float16")
    x = np.ndarray((2, 300), np.float16, memory[0], 0, (2 * apart, 2))
    x[...] = numbers
    q = np.ndarray((2, 300), np.int8, memory[1], 0, (apart, 1))
    for granularity, given, step in (("row", False, ROWS), ("1x128", False, BLOCKS), ("row", True, GIVEN)):
        expected, of_x = reference(numbers, "int8", granularity)
        launch = Emulated(x, "int8", granularity, of_x if given else None, q=q)
        assert steps(launch) == [step]
        got, scale = launch.run()
        assert np.array_equal(got, expected)
        assert np.array_equal(scale, of_x, equal_nan=True)
