"""Quantization scales: the modes that granularities become, what is refused, and products on the fake library."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fake_lt import A_MODE, A_SCALE, B_MODE, B_SCALE, D_SCALE, FAST
from fakes import Arrays, FakeMemory, Home, bias, operand, problem
from gemmhub_cublas import model, scales
from gemmhub_cublas.backend import CublasBackend
from gemmhub_cublas.lower import lowered
from gemmhub_cublas.scales import BLOCK128, OUTER, SCALAR, VEC128, Scaling
from scaled import E4M3, E5M2, GRANULARITIES, ScaledProduct

from gemmhub.backend import Offer, answer
from gemmhub.buckets import representative
from gemmhub.capability import Refusal
from gemmhub.errors import InputError
from gemmhub.operands import Scale
from gemmhub.testing.memory import Placed

LIMIT = 64 * 2**20
SCALED = [name for name in GRANULARITIES if name != "none"]


def prepared(backend, asked, candidate=None):
    offer = answer(backend, asked)
    assert isinstance(offer, Offer), offer
    kernel = backend.prepare(asked, candidate or offer.first.name, LIMIT)
    assert not isinstance(kernel, Refusal), kernel
    return kernel


@pytest.fixture(scope="module")
def shared():
    """A machine whose algorithms are proved once."""
    home = Home()
    yield home, home.backend()
    assert home.cuda.complaints == []


def float8(m=32, n=64, k=256, out="bfloat16", **changes):
    return problem(m, n, k, **{"dtype": E4M3, "out": out, "b": "col", **changes})


def refusal(asked, home=None):
    answered = answer((home or Home()).backend(), asked)
    assert isinstance(answered, Refusal), answered
    assert answered.remedy
    return answered


def scale(axis=None, stride=1, depth_stride=None):
    return Scale(axis, stride, depth_stride is not None, depth_stride or 0)


# Modes


@pytest.mark.parametrize("d", ["row", "col"])
@pytest.mark.parametrize(("granularity", "of_a", "of_b"), [
    ("tensor", SCALAR, SCALAR), ("tensor of a", SCALAR, None), ("tensor of b", None, SCALAR), ("row", OUTER, OUTER),
    ("1x128 by 128x128", VEC128, BLOCK128), ("1x128 by 128x1", VEC128, VEC128),
])  # fmt: skip
def test_modes(home, granularity, of_a, of_b, d):
    """Scales of a are those of the library's B where the result is row-major."""
    asked = ScaledProduct(FakeMemory(home), 48, 272, 400, granularity, d=d).problem
    found = lowered(asked)
    assert found.swapped == (d == "row")
    assert found.main.scaling == (Scaling(of_b, of_a) if d == "row" else Scaling(of_a, of_b))


@pytest.mark.parametrize(("m", "n", "k", "of_a", "of_b", "modes"), [
    # A single row, column, or block has a simpler form, and several modes.
    (1, 64, 256, scale(), scale("n"), (OUTER, OUTER)),
    (64, 1, 256, scale("m"), scale(), (OUTER, OUTER)),
    (4, 64, 256, scale("m", 1, 4), scale(depth_stride=1), (VEC128, BLOCK128)),
    (4, 256, 64, scale("m"), scale("n blocks", 4), (VEC128, BLOCK128)),
    (64, 4, 256, scale(depth_stride=1), scale("n", 1, 4), (BLOCK128, VEC128)),
    (64, 64, 64, scale("m"), scale("n"), (OUTER, OUTER)),
    (64, 64, 64, scale(), scale(), (SCALAR, SCALAR)),
    (64, 64, 64, scale("m"), scale(), (VEC128, BLOCK128)),
])  # fmt: skip
def test_granularities_of_few_elements(m, n, k, of_a, of_b, modes):
    found = scales.scaling(float8(m, n, k, scale_a=of_a, scale_b=of_b), False)
    assert found[:2] == modes


@pytest.mark.parametrize(("changes", "words"), [
    ({"scale_a": scale("m"), "scale_b": scale()}, "granularities 'row' (a) and 'tensor' (b)"),
    ({"scale_a": scale("m")}, "pass scale_b= of ones"),
    ({"scale_b": scale("n")}, "pass scale_a= of ones"),
    ({"scale_a": scale("m", 1, 32), "scale_b": scale("n")}, "granularities '1x128' (a) and 'column' (b)"),
    ({"scale_a": scale("m", 2), "scale_b": scale("n")}, "scale_a has strides of 2 elements along m"),
    ({"scale_a": scale("m"), "scale_b": scale("n", 3)}, "scale_b has strides of 3 elements along n"),
    ({"scale_a": scale("m", 2, 1), "scale_b": scale("n", 1, 64)}, "a row-major (2, 32) array, transposed"),
    ({"scale_a": scale("m", 1, 36), "scale_b": scale("n", 1, 64)}, "contiguous along m, 32 elements apart along k"),
    ({"scale_a": scale("m", 1, 32), "scale_b": scale("n", 2, 1)}, "scale_b of a row-major (2, 64) array"),
    ({"n": 256, "scale_a": scale("m", 1, 32), "scale_b": scale("n blocks", 2, 1)}, "4 elements apart along n"),
    ({"n": 256, "scale_a": scale("m", 1, 32), "scale_b": scale("n blocks", 1, 2)}, "a row-major (2, 4) array, transp"),
    ({"m": 30, "scale_a": scale("m", 1, 30), "scale_b": scale("n", 1, 64)}, "takes multiples of 4"),
    ({"dtype": "bfloat16", "scale_a": scale()}, "scales float8 operands only"),
    ({"dtype": "int8", "out": "float32", "scale_a": scale()}, "int8 products in int32 alone"),
    ({"scale_out": scale()}, "for float8 results only"), ({"amax": scale()}, "for float8 results only"),
    ({"out": E4M3, "amax": scale(), "m": 0}, "without elements"),
    ({"out": E5M2}, "no float8_e4m3fn by float8_e4m3fn with a result of float8_e5m2"),
    ({"out": E4M3, "c": operand("float32", 32, 64)}, "adds float16, or bfloat16, to a result of float8_e4m3fn"),
    ({"out": E4M3, "c": operand("float16", 32, 64), "bias": bias("bfloat16")}, "c is float16 and the bias is bfloat16"),
    ({"out": E4M3, "bias": bias("bfloat16", stride=2)}, "a stride of 2 elements"),
    ({"out": E4M3, "scale_a": scale("m"), "scale_b": scale("n")}, "results of 16 and 32 bits only"),
    ({"batch": (3,), "scale_a": scale("m"), "scale_b": scale("n")}, "not for batches"),
    ({"batch": (3,), "out": E4M3, "amax": scale()}, "single products, not for batches"),
    ({"scale_a": Scale(None, batch_strides=(1,)), "batch": (3,)}, "of the form 'batch tensor'"),
], ids=str)  # fmt: skip
def test_refusals(changes, words):
    refused = refusal(float8(**changes))
    assert words in f"{refused.reason}; {refused.remedy}"


def test_blocks_of_both_are_refused():
    """The library documents 128 x 128 for one operand only; gemmhub writes a's for up to 128 rows alone."""
    words = refusal(float8(64, 256, 256, scale_a=scale(depth_stride=1), scale_b=scale("n blocks", 4, 1))).reason
    assert "'tensor x 128' (a) and '128x128' (b)" in words


@pytest.mark.parametrize("granularity", SCALED)
@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (10, 0)])
def test_cards(granularity, capability):
    home = Home(attributes={75: capability[0], 76: capability[1]})
    offer = answer(home.backend(), ScaledProduct(FakeMemory(home), 32, 64, 256, granularity).problem)
    taken = capability == (9, 0) or (capability >= (8, 9) and granularity.startswith("tensor"))
    assert isinstance(offer, Offer) == taken
    if not taken:
        assert "8.9 on" in offer.reason or "on compute capability 9.0 only" in offer.reason


@pytest.mark.parametrize("granularity", SCALED)
@pytest.mark.parametrize("version", [120700, 120805, 120900])
def test_versions(home, granularity, version):
    """Before 12.8 the library does not even have the attribute of a mode."""
    home.lt.version = version
    offer = answer(home.backend(), ScaledProduct(FakeMemory(home), 32, 64, 256, granularity).problem)
    taken = version >= 120900 or granularity.startswith("tensor")
    assert isinstance(offer, Offer) == taken
    if not taken:
        assert "came with 12.9" in offer.reason


# Products

SIZES = [(16, 16, 16), (48, 272, 400), (8, 64, 1040), (272, 144, 128), (1, 32, 256), (20, 128, 96), (64, 16, 272)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("d", ["row", "col"])
@pytest.mark.parametrize("granularity", SCALED)
def test_products(shared, granularity, d, sizes):
    home, backend = shared
    if granularity.startswith("1x128") and sizes[0] % 4:
        pytest.skip("the library takes multiples of 4")
    if d == "col":
        sizes = (sizes[1], sizes[0], sizes[2])
        sizes = (-(-sizes[0] // 16) * 16, -(-sizes[1] // 8) * 8, sizes[2])
    else:
        sizes = (-(-sizes[0] // 8) * 8, sizes[1], sizes[2])
    made = ScaledProduct(FakeMemory(home), *sizes, granularity, d=d)
    kernel = prepared(backend, made.problem)
    for seed in (1, 2):
        made.fill(seed)
        made.run(kernel.run)
        assert made.worst() <= 1


@pytest.mark.parametrize("granularity", SCALED)
@pytest.mark.parametrize("options", [
    {"out": "float16"}, {"out": "float32"}, {"alpha": 0.7}, {"bias": "bfloat16"}, {"activation": "relu"},
    {"activation": "gelu_tanh", "bias": "bfloat16"}, {"c": True}, {"dtypes": (E4M3, E5M2)}, {"dtypes": (E5M2, E4M3)},
    {"alpha": 0, "c": True},
], ids=str)  # fmt: skip
def test_epilogues(shared, granularity, options):
    home, backend = shared
    made = ScaledProduct(FakeMemory(home), 32, 144, 272, granularity, **options)
    made.run(prepared(backend, made.problem).run)
    assert made.worst() <= 1


@pytest.mark.parametrize(("dtypes", "out"), [((E4M3, E4M3), E4M3), ((E4M3, E5M2), E5M2), ((E5M2, E4M3), E4M3)])
@pytest.mark.parametrize("options", [
    {}, {"scale_out": True}, {"amax": True}, {"scale_out": True, "amax": True}, {"bias": "float16", "amax": True},
    {"scale_out": True, "amax": True, "activation": "relu"}, {"scale_out": True, "bias": "bfloat16"}, {"alpha": 300},
    {"c": True, "amax": True},
    {"c": True, "bias": "bfloat16"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("granularity", ["none", "tensor"])
def test_float8_results(shared, granularity, options, dtypes, out):
    home, backend = shared
    made = ScaledProduct(FakeMemory(home), 32, 48, 272, granularity, out, dtypes, **options)
    made.run(prepared(backend, made.problem).run)
    assert made.worst() <= 1


def test_a_float8_result_is_no_addend(home):
    """C has another dtype than D, also where nothing but the product is computed, in one call of the library."""
    made = ScaledProduct(FakeMemory(home), 32, 64, 48, "none", E4M3)
    kernel = prepared(home.backend(), made.problem)
    assert not kernel.workspace_bytes
    made.run(kernel.run)
    assert made.worst() <= 1


def test_one_factor_for_a_batch(home):
    """In one launch, and in one for each matrix of a stack that runs backwards."""
    asked = float8(16, 16, 16, batch=(3,), out="float32", scale_a=scale(), scale_b=scale())
    memory, backend = FakeMemory(home), home.backend()
    of_a, of_b = (Placed(memory, np.dtype(np.float32), (1,), (1,), 0, 1) for _ in range(2))
    of_a.fill(np.full(1, 4), None)
    of_b.fill(np.full(1, 0.5), None)
    for steps, launches in ((256, 1), (-256, 3)):
        layout = replace(asked.a.layout, batch_strides=(steps,))
        arrays = Arrays(home, asked)
        kernel = prepared(backend, replace(asked, a=replace(asked.a, layout=layout)))
        home.lt.products.clear()
        a = arrays.a[::-1] if steps < 0 else arrays.a
        places = [x.ctypes.data for x in (a, arrays.b, arrays.out)]
        kernel.run(*places, 1, 0, 0, scale_a=of_a.array, scale_b=of_b.array)
        assert len(home.lt.products) == launches
        b = arrays.b.swapaxes(-1, -2).astype(np.float32)
        assert np.array_equal(arrays.out, 2 * (a.astype(np.float32) @ b))


def test_scales_of_blocks_have_their_estimate(home):
    backend = home.backend()
    plain, blocks = (
        backend.offer(ScaledProduct(FakeMemory(home), 64, 512, 1024, name).problem).first.seconds
        for name in ("tensor", "1x128 by 128x128")
    )
    assert blocks == pytest.approx(model.BLOCKS * plain)


def test_alpha_zero_reads_no_factors(home):
    """0 times an infinite factor would be NaN."""
    made = ScaledProduct(FakeMemory(home), 32, 64, 256, "tensor", alpha=0, c=True)
    made.others["scale_a"].fill(np.inf, None)
    made.run(prepared(home.backend(), made.problem).run)
    assert np.array_equal(made.out.read()[0], (2 * made.others["c"].values.astype(np.float32)).astype("bfloat16"))


def test_another_number_of_rows(home):
    """Derived for tensors, rows and columns; decided anew for blocks, whose layout depends on m."""
    backend = home.backend()
    for granularity in SCALED:
        first, asked = (ScaledProduct(FakeMemory(home), m, 64, 256, granularity) for m in (64, 72))
        kernel = prepared(backend, first.problem)
        run = kernel.with_rows(72)
        assert (run is None) == granularity.startswith("1x128")
        asked.run(run or prepared(backend, asked.problem, backend.offer(first.problem).first.name).run)
        assert asked.worst() <= 1


@pytest.mark.parametrize("granularity", SCALED)
def test_a_bucket_is_ranked_at_its_end(home, granularity):
    """The layout of scales of blocks depends on m: the end of the bucket is offered, and its candidate runs."""
    backend = home.backend()
    made = ScaledProduct(FakeMemory(home), 264, 64, 256, granularity)
    ranked = representative(made.problem)
    assert ranked.m > made.problem.m
    made.run(prepared(backend, made.problem, answer(backend, ranked).first.name).run)
    assert made.worst() <= 1


def test_every_call_has_its_own_addresses(home):
    """One kernel multiplies with other scales each time."""
    backend, memory = home.backend(), FakeMemory(home)
    sets = [ScaledProduct(memory, 32, 64, 256, "1x128 by 128x128", seed=seed) for seed in range(3)]
    kernel = prepared(backend, sets[0].problem)
    for made in (*sets, *sets):
        made.out.fill(None, None)
        made.run(kernel.run)
        assert made.worst() <= 1


def test_factors_of_blocks_at_an_odd_address(home):
    made = ScaledProduct(FakeMemory(home), 32, 64, 256, "1x128 by 128x128")
    kernel = prepared(home.backend(), made.problem)
    made.others["scale_a"].array += 4
    before = made.out.read()[1].copy()
    with pytest.raises(InputError, match=r"scale_a: address 0x[0-9a-f]+; allowed: a multiple of 16"):
        made.run(kernel.run)
    assert np.array_equal(made.out.read()[1], before)


def test_attributes(home):
    """Fast accumulation is off; a mode is set where it is not the only one that old libraries have."""
    for granularity, modes in (("tensor", 0), ("row", 1)):
        backend = home.backend()
        made = ScaledProduct(FakeMemory(home), 32, 64, 256, granularity)
        operation = backend.machine.objects.descriptors(lowered(made.problem).main).operation
        described = home.lt._get(operation.shared.handle, "desc")
        assert described[FAST] == 0
        assert (described[A_MODE], described[B_MODE]) == ((OUTER, OUTER) if modes else (SCALAR, SCALAR))
        assert described[A_SCALE]
        assert described[B_SCALE]
        assert not described[D_SCALE]


def test_nothing_is_set_without_scales(home):
    operation = home.backend().machine.objects.descriptors(lowered(float8()).main).operation
    assert not home.lt._get(operation.shared.handle, "desc")[A_SCALE]
    assert "scale_a" in CublasBackend.takes
