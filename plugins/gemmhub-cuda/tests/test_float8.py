"""8-bit floats in the backend: what is offered and refused, the parameters of launches, the estimates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fakes import FakeMemory, Home
from gemmhub_cuda import lower
from gemmhub_cuda.candidate import PROMOTED, named
from gemmhub_cuda.cost import model
from gemmhub_cuda.launch import params
from gemmhub_cuda.lower import Lowering, lowered
from gemmhub_cuda.variants import batch
from problems import bias, operand, problem

from benchmarks.lib.nvidia_cards import EVERY, H100
from gemmhub.backend import Offer
from gemmhub.capability import Refusal
from gemmhub.dtypes import as_dtype
from gemmhub.layout import MatrixLayout
from gemmhub.operands import Scale

ADA, LIMIT = (8, 9), 64 * 2**20
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
ROWS = {"scale_a": Scale("m"), "scale_b": Scale("n", 3)}
BLOCKS = {"scale_a": Scale("m", 5, True, 1), "scale_b": Scale("n blocks", 1, True, 7)}


def float8(m=64, n=64, k=300, formats=(E4M3, E4M3), out="bfloat16", scales=(), **changes):
    """A product of 8-bit floats."""
    asked = problem(m, n, k, formats[0], out, **changes)
    asked = replace(asked, b=replace(asked.b, dtype=as_dtype(formats[1])), compute_dtype=np.dtype(np.float32))
    return asked.having(**dict(scales)) if scales else asked


def run(asked, capability=ADA):
    found = lowered(asked, capability)
    assert isinstance(found, Lowering), found
    return found


@pytest.mark.parametrize("capability", [(8, 9), (9, 0), (12, 0)])
@pytest.mark.parametrize("out", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("pair", [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)])
def test_cards_formats_and_results(capability, out, pair):
    form = run(float8(formats=pair, out=out, scales=ROWS), capability).form
    names = {E4M3: "e4m3", E5M2: "e5m2"}
    assert (form.input, form.output, form.scales) == (".".join(names[x] for x in pair), out, "results")


def test_a_column_major_result_exchanges_formats_and_scales():
    lowering = run(float8(formats=(E4M3, E5M2), d="col", scales=ROWS))
    assert lowering.swapped
    assert lowering.form.input == "e5m2.e4m3"
    assert [x.name for x in lowering.scales] == ["scale_b", "scale_a"]
    assert [x.stride for x in lowering.scales] == [3, 1]


def test_parameters_of_scales():
    lowering = run(float8(300, 400, 500, scales=BLOCKS))
    assert lowering.form.scales == "blocks"
    choice = model.choices(lowering, EVERY["L4"], LIMIT)[0][1]
    assert choice.variant.macros["SCALES"] == 2
    found = params(choice, 58)
    rows, columns = found.row_scales, found.column_scales
    assert (rows.at, rows.stride, rows.depth, rows.batch, rows.shift) == (0, 5, 1, 0, 0)
    assert (columns.at, columns.stride, columns.depth, columns.batch, columns.shift) == (0, 1, 7, 0, 7)


@pytest.mark.parametrize(
    ("asked", "words", "remedy"),
    [
        (float8(out=E4M3), "a result of float8_e4m3fn", "out_dtype="),
        (float8(formats=(E4M3, "bfloat16")), "no kernel for float8_e4m3fn by bfloat16", "two float8"),
        (float8(c=operand("float32", 64, 64)), "c is float32", "convert c"),
        (float8(bias=bias("float64")), "the bias is float64", "convert it"),
        (problem(dtype="bfloat16").having(**ROWS), "bfloat16 by bfloat16 has no quantization scales", "float8"),
        (problem(dtype="int8", out="int32").having(**ROWS), "int8 by int8 has no quantization scales", "float8"),
        (
            float8(batch=(2, 3), scales={"scale_a": Scale("m", 1, batch_strides=(64, 0))}),
            "the batch of scale_a is not evenly spaced", "contiguous scale_a",
        ),
    ],
)  # fmt: skip
def test_refusals(asked, words, remedy):
    found = lowered(asked, ADA)
    assert isinstance(found, Refusal)
    assert words in found.reason
    assert remedy in found.remedy


@pytest.mark.parametrize("name", ["T4", "A100", "RTX 3090"])
def test_older_cards_have_no_such_instruction(name):
    found = lowered(float8(scales=ROWS), EVERY[name].capability)
    assert isinstance(found, Refusal)
    assert "float8 needs compute capability 8.9 or later; this card is {}.{}".format(*EVERY[name].capability) in (
        found.reason
    )
    assert "float16" in found.remedy


def test_scales_of_each_matrix_in_a_batch_that_takes_several_launches(monkeypatch):
    """Refused, as a launch has one address of scales; those that all matrices share are not."""
    own = {"scale_a": Scale("m", 1, batch_strides=(64,))}
    monkeypatch.setattr(batch, "_MAX_TILES", 8)
    assert not model.choices(run(float8(batch=(9,), scales=own)), EVERY["L4"], LIMIT)
    assert model.choices(run(float8(batch=(9,), scales=ROWS)), EVERY["L4"], LIMIT)
    assert model.choices(run(float8(batch=(2,), scales=own)), EVERY["L4"], LIMIT)
    uneven = float8(batch=(2, 3), scales={"scale_a": Scale("m", 1, batch_strides=(192, 64))})
    uneven = replace(uneven, b=replace(uneven.b, layout=MatrixLayout(300, 64, 64, 1, (2, 3), (0, 300 * 64))))
    assert "batch of the operands" in lowered(uneven, ADA).reason


@pytest.mark.parametrize("size", [(1, 1, 1), (33, 500, 700), (4096, 4096, 4096)])
@pytest.mark.parametrize("name", ["L4", "RTX 4090", "RTX 5090", "H100"])
def test_every_candidate_fits_and_has_the_order(name, size):
    card = EVERY[name]
    lowering = run(float8(*size, scales=BLOCKS), card.capability)
    choices = model.choices(lowering, card, LIMIT)
    assert choices
    for seconds, choice in choices:
        assert choice.order == PROMOTED
        assert choice.name.startswith("float8.")
        assert named(lowering, choice.name) == choice
        assert choice.variant.ctas_per_sm(card.sm) >= 1
        assert seconds > 0
        assert not model.measured(choice, card)


@pytest.mark.parametrize("name", ["L4", "RTX 4090", "RTX 5090"])
def test_estimates_of_large_products(name):
    """Below the published peak, which the tiles of single warps do not reach."""
    card = EVERY[name]
    seconds = model.choices(run(float8(8192, 8192, 8192, scales=BLOCKS), card.capability), card, LIMIT)[0][0]
    assert 0.25 < 8192**3 / seconds / (card.rates.float8 * card.sms * card.clock) < 1


@pytest.mark.parametrize("size", [(1, 4096, 4096), (16, 16, 16), (64, 64, 64), (33, 65, 4000), (2048, 2048, 2048)])
def test_gemmhub_hopper_is_estimated_faster_on_its_card(size):
    """Of single products with operands that are contiguous along K: others it copies."""
    choose = pytest.importorskip("gemmhub_hopper.cost.choose", reason="gemmhub-hopper is not installed")
    from gemmhub_hopper.cost.model import Card
    from gemmhub_hopper.lowering.lower import lowerings

    asked = float8(*size, scales=ROWS, b="col")
    card = Card(H100.sms, H100.clock, H100.bandwidth, name=H100.name)
    seconds = model.choices(run(asked, (9, 0)), H100, LIMIT)[0][0]
    assert choose.choices(lowerings(asked), card, 2**40)[0][0] < seconds


@pytest.mark.emulator
@pytest.mark.parametrize("d", ["row", "col"])
def test_addresses_of_scales_may_change(d):
    """On a card of compute capability 8.9, by the emulator."""
    home = Home(attributes={75: 8, 76: 9, 97: 99 * 1024, 81: 100 * 1024, 39: 1536, 106: 24})
    backend = home.backend()
    asked = float8(32, 32, 32, out="float32", scales={"scale_a": Scale("m"), "scale_b": Scale(None)}, d=d)
    offer = backend.offer(asked)
    assert isinstance(offer, Offer)
    kernel, memory = backend.prepare(asked, offer.first.name, LIMIT), FakeMemory(home)
    rng = np.random.default_rng()
    for _ in range(2):
        values = [rng.integers(-4, 5, (32, 32)).astype(as_dtype(E4M3)) for _ in range(2)]
        scales = [np.exp2(rng.integers(-3, 4, size)).astype(np.float32) for size in ((32, 1), (1, 1))]
        places = []
        for x in (*values, *scales):
            place = memory.empty(x.nbytes)
            place[:] = x.reshape(-1).view(np.uint8)
            places.append(place)
        out = memory.empty(32 * 32 * 4).view(np.float32)
        out[:] = np.nan
        addresses = [x.ctypes.data for x in (places[0], places[1], out)]
        kernel.run(*addresses, 1, 0, 0, scale_a=places[2].ctypes.data, scale_b=places[3].ctypes.data)
        exact = values[0].astype(np.float32) * scales[0] @ (values[1].astype(np.float32) * scales[1])
        assert np.array_equal(out.reshape(32, 32).T if d == "col" else out.reshape(32, 32), exact)


def test_the_longest_batch_of_a_launch_is_the_kernels_own():
    """Batches of one dimension are one launch, whatever gridDim.z is."""
    lowering = run(float8(16, 16, 16, batch=(lower.MAX_BATCH + 1,)))
    assert model.choices(lowering, EVERY["L4"], LIMIT)[0][1].launches == 1
