"""Products of 8-bit operands on a real Hopper GPU, through torch's memory. Skips where there is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gemmhub_hopper.backend import HopperBackend
from gemmhub_hopper.candidates import gemv
from gemmhub_hopper.candidates.candidate import Choice, runnable
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants.config import EIGHT_BIT
from gemmhub_hopper.variants.shapes import EIGHT_BIT_SHAPES
from gemmhub_nvidia.testing.torch_cuda import TorchMemory
from hopper_card import WITH_KEPT_KERNELS, torch
from problems import problem
from products import EIGHT_BIT_PRODUCTS, FLOAT8_RESULTS, EightBitProduct, loaded, stored
from vectors import EIGHT_BIT_VECTORS, eight_bit

from gemmhub.accuracy import problem_model, reference
from gemmhub.backend import Offer
from gemmhub.testing import Case, check

pytestmark = WITH_KEPT_KERNELS
FLOATS, MIXED = {"dtype": "float8_e4m3fn"}, {"dtype": "float8_e5m2", "dtype_b": "float8_e4m3fn"}
INTEGERS = {"dtype": "int8"}
RANGE = {"scale_out": "tensor", "amax": "tensor"}
BLOCKS, ROWS = {"scale_a": "1x128", "scale_b": "128x128"}, {"scale_a": "row", "scale_b": "column"}


@pytest.mark.parametrize("input_type", EIGHT_BIT)
def test_the_first_products_are_right(backend, input_type):
    assert backend._proofs.of(0, backend.machine.gpus[0], input_type) is None


def test_the_first_products_may_run_during_a_capture():
    """On a stream of their own; the captured one stays valid."""
    backend, asked = HopperBackend(), problem(64, 64, 128, "float8_e4m3fn", "bfloat16", b="col")
    backend.probe()
    x, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        offer = backend.offer(asked)
    assert isinstance(offer, Offer)
    graph.replay()
    assert (y == 2).all()


def result_of(backend, product, a, b, c=None, bias=None, **facts):
    """Return the product of these operands on the card; assert that nothing behind it was written."""
    held = {
        name: torch.from_numpy(stored(x, order)).cuda()
        for name, x, order in (("a", a, product.a), ("b", b, product.b), ("c", c, product.d), ("bias", bias, "row"))
        if x is not None
    }
    for name, scales in product.scales().items():
        by_columns = scales.size > 1 and scales.strides[-1] != 4
        memory = np.swapaxes(scales, -1, -2) if by_columns else scales
        held[name] = torch.from_numpy(np.ascontiguousarray(memory)).cuda()
    held |= facts
    dtype, columns = product.problem.out.dtype, product.problem.out_columns
    size, offset = (
        int(np.prod((*product.batch, product.m, columns))) * dtype.itemsize,
        product.offset * dtype.itemsize,
    )
    out = torch.full((offset + size + 256,), 0xFF, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    addresses = {name: x.data_ptr() for name, x in held.items()}
    first, second, to = addresses.pop("a"), addresses.pop("b"), out.data_ptr() + offset
    stream = torch.cuda.current_stream().cuda_stream
    product.launch(backend).run(first, second, to, product.alpha, product.beta, stream, **addresses)
    torch.cuda.synchronize()
    data = out.cpu().numpy()
    assert (data[offset + size :] == 0xFF).all()
    return loaded(data[offset : offset + size].copy(), dtype, product.batch, product.m, columns, product.d)


@pytest.mark.parametrize("asked", [*EIGHT_BIT_PRODUCTS, *EIGHT_BIT_VECTORS], ids=str)
def test_exact_products(backend, asked):
    values = asked.data(0)
    assert not asked.wrong(result_of(backend, asked, *values), asked.exact(*values)).any()


@pytest.mark.parametrize("asked", FLOAT8_RESULTS, ids=str)
def test_exact_results_of_float8(backend, asked):
    values, facts = asked.data(0), {}
    if asked.scale_out:
        facts["scale_out"] = torch.full((1,), asked.scale_out, dtype=torch.float32, device="cuda")
    if asked.amax:
        facts["amax"] = torch.full((1,), torch.nan, dtype=torch.float32, device="cuda")
    exact = asked.exact(*values)
    assert not asked.wrong(result_of(backend, asked, *values, **facts), exact).any()
    assert not asked.amax or facts["amax"].item() == np.abs(exact).max(initial=0)


def ratios(backend, asked, a, b):
    """Return errors over the bound."""
    problem = asked.problem
    expected = reference(a, b, model=problem_model(problem), out_dtype=problem.out.dtype, **asked.scales())
    return expected.ratio(result_of(backend, asked, a, b))


@pytest.mark.parametrize("more", [{**FLOATS, **BLOCKS}, {**MIXED, **ROWS}, FLOATS, {**INTEGERS, **ROWS}], ids=str)
@pytest.mark.parametrize("shape", EIGHT_BIT_SHAPES, ids=lambda x: x.name)
@pytest.mark.parametrize("swapped", [False, True])
def test_every_shape_on_random_data(backend, shape, swapped, more):
    rng = np.random.default_rng(EIGHT_BIT_SHAPES.index(shape))
    m, n, k = (int(x) for x in rng.integers(1, 900, 3))
    asked = EightBitProduct(shape, m, n, max(k, 128 * shape.cluster_k), swapped=swapped, out="bfloat16", **more)
    lowering = next(x for x in lower.lowerings(asked.problem) if x.swapped == swapped)
    if isinstance(refusal := runnable(Choice(lowering, shape, 1), asked.limit), str):
        pytest.skip(refusal)

    def draw(dtype, *size):
        x = rng.standard_normal(size) * (40 if dtype == np.int8 else 2.0 ** rng.integers(-6, 3, size))
        return np.clip(x, -127, 127).astype(dtype)

    a, b = draw(asked.problem.a.dtype, m, asked.k), draw(asked.problem.b.dtype, asked.k, n)
    assert ratios(backend, asked, a, b).max() <= 1


@pytest.mark.parametrize("more", [{**FLOATS, **BLOCKS}, {**MIXED, **ROWS}, FLOATS, {**INTEGERS, **ROWS}], ids=str)
@pytest.mark.parametrize("order", ["col", "row"])
@pytest.mark.parametrize("m", [1, 2, 3, 8])
def test_every_vector_kernel_on_random_data(backend, m, order, more):
    rng = np.random.default_rng()
    n, k = (int(x) for x in rng.integers(1, 3000, 2))
    asked = eight_bit(m, n, k, b=order, **{"out": "bfloat16", **more})
    shapes = (asked.problem.a.dtype, m, k), (asked.problem.b.dtype, k, n)
    a, b = (np.clip(rng.standard_normal(size) * 40, -127, 127).astype(dtype) for dtype, *size in shapes)
    choices = gemv.choices(lower.lowerings(asked.problem))
    assert choices or "128" in str(asked.scale_a)
    for choice in choices:
        assert ratios(backend, replace(asked, spread=choice.name.removeprefix("gemv")), a, b).max() <= 1, choice.name


@pytest.mark.parametrize("k", [4096, 65536])
def test_long_sums_of_one_sign(backend, k):
    """Sums in 14 bits, as tensor cores keep them, would lose most of it."""
    asked = EightBitProduct(EIGHT_BIT_SHAPES.by_name["128x128x6"], 256, 256, k, b="col", **FLOATS)
    rng = np.random.default_rng(0)
    a, b = (np.abs(rng.standard_normal(x)).astype(asked.problem.a.dtype) for x in ((256, k), (k, 256)))
    assert ratios(backend, asked, a, b).max() <= 1


@pytest.mark.parametrize(
    "case",
    [
        Case(300, 520, 1000, *("float8_e4m3fn",) * 2, "bfloat16", operands=BLOCKS, data="nonfinite"),
        Case(300, 520, 1000, "float8_e5m2", "float8_e4m3fn", "float32", operands=ROWS, data="wide", threads=4),
        Case(65, 72, 40, *("float8_e4m3fn",) * 2, "float16", a="col", b="row_padded", reproducible="batch"),
        Case(300, 520, 1000, *("int8",) * 2, "int32", threads=4),
        Case(300, 520, 1000, *("int8",) * 2, "float32", operands=ROWS, bias="n", activation="gelu"),
        Case(20, 30, 70, *("float8_e4m3fn",) * 2, "bfloat16", packed=True),
        Case(300, 520, 1000, *("float8_e4m3fn",) * 3, operands={**RANGE, **BLOCKS}, bias="n", activation="gelu"),
        Case(
            301, 515, 1000, "float8_e4m3fn", "float8_e5m2", "float8_e5m2", operands=RANGE, data="nonfinite", threads=4
        ),
        Case(1, 1000, 2000, *("float8_e4m3fn",) * 2, "bfloat16", b="col", operands=ROWS, data="wide", threads=4),
        Case(4, 1000, 2000, *("float8_e4m3fn",) * 2, "float32", b="col", operands=BLOCKS, data="nonfinite"),
        Case(1, 1000, 2000, *("int8",) * 2, "int32", b="row", threads=4),
        Case(300, 520, 999, *("bfloat16",) * 2, "float8_e4m3fn", operands=RANGE, batch=(3,)),
    ],
    ids=str,
)
def test_the_kit(case):
    check(HopperBackend(), case, TorchMemory())
