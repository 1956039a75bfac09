"""The plugin on a real Hopper GPU, through torch's memory and streams. Skips where there is none."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import test_bf16x3 as bf16x3
from gemmhub_hopper.backend import HopperBackend
from gemmhub_hopper.candidates import gemv
from gemmhub_hopper.candidates.candidate import named, runnable
from gemmhub_hopper.launches.launch import streamed
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants.config import Form, Shape, Variant
from gemmhub_hopper.variants.shapes import (
    F16_PLANES_SHAPES,
    F16_REGISTER_SHAPES,
    SHAPES,
    SMALL_SHAPES,
    SPLIT_SHAPES,
    shapes,
)
from gemmhub_nvidia import clusters
from gemmhub_nvidia.scratch import COUNTERS
from gemmhub_nvidia.testing.torch_cuda import (
    TorchMemory,
    TorchProduct,
    check_equal_results,
    check_fresh_thread,
    check_graph,
    check_graphs_that_are_gone,
    check_nested_calls,
    check_other_context,
    check_streams_and_threads,
    check_users_in_fresh_threads,
)
from hopper_card import WITH_KEPT_KERNELS, torch
from problems import problem
from products import (
    BF16X3_PRODUCTS,
    BY_ROWS_PRODUCTS,
    F16_PRODUCTS,
    PRODUCTS,
    SHIFTED_PRODUCTS,
    SLICES,
    Bf16x3Product,
    Product,
    loaded,
    stored,
)
from test_f16_planes import FAMILIES, family
from test_float32 import data, ratio, specials
from vectors import VECTORS, vector

from gemmhub.accuracy import problem_model, reference
from gemmhub.testing import ConformanceSuite, check
from gemmhub.testing.cases import draw_few_kernels

pytestmark = WITH_KEPT_KERNELS

LIMIT = 2**30
"""Bytes of workspace: more than the default of any card, for which candidates are ranked."""
PARTS = 16
"""Of the random problems, for pytest-xdist."""


class TestOnDevice(ConformanceSuite):
    backend = HopperBackend
    memory = TorchMemory()


def put(x, order="row"):
    return None if x is None else torch.from_numpy(stored(x, order)).cuda()


def run(backend, product, seed=0, values=None):
    """(result, exact) of the product's own values; of ``values`` only the result, and None."""
    given, values = values is not None, values or product.data(seed)
    a, b, c, bias = (put(x, order) for x, order in zip(values, (product.a, product.b, product.d, "row")))
    dtype = product.problem.out.dtype
    columns = product.problem.out_columns
    size = int(np.prod((*product.batch, product.m, columns))) * dtype.itemsize
    offset = product.offset * dtype.itemsize
    out = torch.full((size + offset,), 0xFF, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    others = {name: x.data_ptr() for name, x in (("c", c), ("bias", bias)) if x is not None}
    stream = torch.cuda.current_stream().cuda_stream
    launch = product.launch(backend)
    launch.run(a.data_ptr(), b.data_ptr(), out.data_ptr() + offset, product.alpha, product.beta, stream, **others)
    torch.cuda.synchronize()
    data = out.cpu().numpy()[offset:]
    result = loaded(data, dtype, product.batch, product.m, columns, product.d)
    return result, None if given else product.exact(*values)


@pytest.mark.parametrize(
    "product",
    [*PRODUCTS, *SHIFTED_PRODUCTS, *BF16X3_PRODUCTS, *F16_PRODUCTS, *BY_ROWS_PRODUCTS, *SLICES, *VECTORS],
    ids=str,
)
def test_product(backend, product):
    result, exact = run(backend, product)
    assert not product.wrong(result, exact).any()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize(("dtype", "out"), [("bfloat16", None), ("float16", None), ("bfloat16", "float32")])
def test_every_shape(backend, shape, dtype, out):
    """Several work tiles of a CTA, every major-ness, swapped or not."""
    for a in ("row", "col"):
        for b in ("row", "col"):
            for swapped in (False, True):
                product = Product(shape, 1032, 2056, 456, a=a, b=b, dtype=dtype, out=out, swapped=swapped)
                result, exact = run(backend, product)
                assert not product.wrong(result, exact).any(), product


@pytest.mark.parametrize("shape", SPLIT_SHAPES, ids=lambda shape: shape.name)
def test_every_shape_of_planes(backend, shape):
    for a in ("row", "col"):
        for b in ("row", "col"):
            for swapped in (False, True):
                for n in (2055, 2056):  # stored by warps, and by TMA
                    product = Product(shape, 1032, n, 453, a=a, b=b, dtype="float32", swapped=swapped)
                    result, exact = run(backend, product)
                    assert not product.wrong(result, exact).any(), product


@pytest.mark.parametrize("shape", F16_PLANES_SHAPES, ids=lambda shape: shape.name)
def test_every_shape_of_float16_planes(backend, shape):
    """Of several work tiles; the same operands, with an element that is rejected, run by bfloat16 planes."""
    for a in ("row", "col"):
        for b in ("row", "col"):
            for swapped in (False, True):
                for n in (2055, 2056):  # stored by warps, and by TMA
                    given = {"a": a, "b": b, "dtype": "f16x3", "swapped": swapped}
                    form = Product(Shape(64, 64, 2, consumers=1), 1032, n, 453, **given).choice.lowering.form
                    if Variant(shape, form).refusal is None:
                        product = Product(shape, 1032, n, 453, **given)
                        result, exact = run(backend, product)
                        assert not product.wrong(result, exact).any(), product


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_every_shape_of_two_bfloat16_planes(backend, shape):
    for a, b, swapped in (("row", "row", False), ("row", "col", False), ("col", "row", True), ("col", "col", False)):
        product = Bf16x3Product(shape, 519, 1032, 517, a=a, b=b, swapped=swapped)
        result, exact = run(backend, product)
        assert not product.wrong(result, exact).any(), product


@pytest.mark.parametrize("shape", [Shape(64, 64, 9, consumers=1), Shape(128, 256, 4)], ids=str)
@pytest.mark.parametrize("splits", [1, 3])
def test_special_values_of_two_bfloat16_planes(backend, shape, splits):
    """Infinities, NaN, overflow of small products, and wide exponents, against the error bound."""
    rng = np.random.default_rng(splits)
    wide = np.ldexp(rng.standard_normal((72, 300)), rng.integers(-60, 60, (72, 300))).astype(np.float32)
    for a, b in (bf16x3.specials(), bf16x3.overflowing(0), bf16x3.overflowing(-2), (wide, wide.T)):
        product = Bf16x3Product(shape, *a.shape[:1], *b.shape[1:], a.shape[1], splits=splits)
        result, _ = run(backend, product, values=(a, b, None, None))
        assert reference(a, b, model=problem_model(product.problem)).ratio(result).max() <= 1


@pytest.mark.parametrize("product", [*F16_PRODUCTS, *BY_ROWS_PRODUCTS], ids=str)
def test_operands_that_float16_planes_do_not_hold(backend, product):
    """The fallback: before and after it a product of float16 planes, in the same workspace."""
    run_again = product.launch(backend).run
    for values in (product.data(), product.rejected(), product.data(1)):
        a, b, c, bias = (put(x, order) for x, order in zip(values, (product.a, product.b, product.d, "row")))
        dtype = product.problem.out.dtype
        out = torch.empty(int(np.prod((*product.batch, product.m, product.n))) * dtype.itemsize, dtype=torch.uint8)
        out = out.fill_(0xFF).cuda()
        others = {name: x.data_ptr() for name, x in (("c", c), ("bias", bias)) if x is not None}
        stream = torch.cuda.current_stream().cuda_stream
        run_again(a.data_ptr(), b.data_ptr(), out.data_ptr(), product.alpha, product.beta, stream, **others)
        result = loaded(out.cpu().numpy(), dtype, product.batch, product.m, product.n, product.d)
        assert not product.wrong(result, product.exact(*values)).any()


@pytest.mark.parametrize("dtype", ["tf32", "float32", "f16x3"])
def test_every_shape_through_registers(backend, dtype):
    kind = "split" if dtype == "float32" else dtype
    for shape in shapes(Form(True, False, kind, "float32", registers_a=True)):
        for a in ("row", "col"):
            for b in ("row", "col"):
                for swapped in (False, True):
                    if dtype == "tf32" and (b == "col" if swapped else a == "row"):
                        continue  # which is read where it lies
                    asked = {"a": a, "b": b, "dtype": dtype, "swapped": swapped, "registers": True}
                    first = Shape(128, 64, 8) if dtype == "f16x3" else Shape(64, 16, 4, consumers=1)
                    lowering = Product(first, 1032, 2056, 456, **asked).choice.lowering
                    if Variant(shape, lowering.form).refusal is None:
                        product = Product(shape, 1032, 2056, 456, **asked)
                        result, exact = run(backend, product)
                        assert not product.wrong(result, exact).any(), product


@pytest.mark.parametrize("shape", SMALL_SHAPES, ids=lambda shape: shape.name)
def test_every_shape_that_splits_b(backend, shape):
    """Several work tiles of a CTA where K is not shared, of either order, with and without split-K."""
    for a in ("row", "col"):
        for b in ("row", "col"):
            for swapped in (False, True):
                for m, n, k, splits in ((520, 1032, 456, 1), (8, 72, 1032, 1), (8, 72, 1032, 3)):
                    if splits > 1 and shape.n == 96 and shape.cluster_k > 1:
                        continue  # there are no registers
                    given = {"a": a, "b": b, "swapped": swapped, "splits": splits}
                    product = Product(shape, m, n, k, dtype="float32", registers=True, split_planes_b=True, **given)
                    result, exact = run(backend, product)
                    assert not product.wrong(result, exact).any(), product


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("b", ["row", "col"])
def test_every_division_of_k_among_threads(backend, dtype, m, b):
    """Many CTAs, K of several steps and a remainder; loads of every width."""
    for a in ("row", "col"):
        for n, k in ((2056, 4104), (2055, 4101), (2052, 4100)):
            lowering = lower.lowerings(problem(m, n, k, dtype, None, (), a, b))
            for choice in gemv.choices(lowering):
                product = vector(m, n, k, a=a, b=b, dtype=dtype, spread=choice.name.removeprefix("gemv"))
                result, exact = run(backend, product)
                assert not product.wrong(result, exact).any(), product


def dtype_of(rng, epilogue):
    return "bfloat16" if epilogue else str(rng.choice(["bfloat16", "float16", "float32"]))


@pytest.mark.parametrize("part", range(PARTS))
def test_random_problems(backend, request, part):
    """``--random-problems N``: sizes, orders, epilogues, against the error bound of gemmhub."""
    memory, count = TorchMemory(), request.config.getoption("--random-problems")
    cases = list(draw_few_kernels(count, dtype_of, aligned=0.8))[part::PARTS]
    refused = sum(not check(backend, case, memory).accepted for case in cases)
    assert refused <= 0.5 * len(cases)


SPLIT = Product(Shape(128, 128, 6), 256, 256, 16384, out="float32", splits=8)


def tensors(seed):
    """Operands of SPLIT."""
    generator = torch.Generator("cuda").manual_seed(seed)
    a = torch.randn(SPLIT.m, SPLIT.k, device="cuda", generator=generator).bfloat16()
    b = torch.randn(SPLIT.k, SPLIT.n, device="cuda", generator=generator).bfloat16()
    return TorchProduct(a, b, torch.float32, tolerance=0.05)


def test_graph_capture(backend):
    check_graph(SPLIT.launch(backend).run, tensors(0))


def test_graphs_that_are_gone(backend):
    check_graphs_that_are_gone(SPLIT.launch(backend).run, tensors(0), backend.machine.gpus[0])


def test_split_k_is_deterministic(backend):
    product = tensors(0)
    check_equal_results(SPLIT.launch(backend).run, product)
    assert product.right


def test_streams_and_threads(backend):
    check_streams_and_threads(SPLIT.launch(backend).run, [tensors(i) for i in range(4)])


def test_addresses_change(backend):
    """The tensor maps follow."""
    asked = problem(256, 256, 256)
    kernel = backend.prepare(asked, backend.offer(asked).first.name, LIMIT)
    for _ in range(10):
        a, b = (torch.randint(-2, 3, (256, 256), device="cuda").bfloat16() for _ in range(2))
        out = torch.empty(256, 256, device="cuda", dtype=torch.bfloat16)
        stream = torch.cuda.current_stream().cuda_stream
        kernel.run(a.data_ptr(), b.data_ptr(), out.data_ptr(), 1, 0, stream)
        assert torch.equal(out.double(), (a.double() @ b.double()).bfloat16().double())


def test_results_that_do_not_stay_in_l2(backend):
    """They are stored with a hint."""
    asked = problem(16384, 8192, 72)
    assert streamed(lower.lowerings(asked)[0])
    a, b = torch.randint(-2, 3, (16384, 72), device="cuda"), torch.randint(-2, 3, (72, 8192), device="cuda")
    exact = (a.double() @ b.double()).bfloat16()
    a, b, out = a.bfloat16(), b.bfloat16(), torch.empty_like(exact)
    for candidate in backend.offer(asked).names[:3]:
        kernel = backend.prepare(asked, candidate, LIMIT)
        out.fill_(math.nan)
        stream = torch.cuda.current_stream().cuda_stream
        kernel.run(a.data_ptr(), b.data_ptr(), out.data_ptr(), 1, 0, stream)
        assert torch.equal(out, exact)


@pytest.mark.parametrize("size", [(72, 40, 840), (256, 512, 4096), (1031, 776, 1000), (16, 4096, 2056)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "tf32"])
def test_equal_orders_have_equal_bits(backend, dtype, size):
    """Of all candidates, with operands of either storage order: swapped or not, of every shape, through registers."""
    torch.manual_seed(0)
    kind, (m, n, k) = torch.float32 if dtype == "tf32" else getattr(torch, dtype), size
    a, b = (
        torch.randn(*shape, device="cuda") * torch.randn(shape[1], device="cuda").exp2() for shape in ((m, k), (k, n))
    )
    a, b, out, seen = a.to(kind), b.to(kind), torch.empty(m, n, device="cuda"), {}
    for of_a, of_b in itertools.product(("row", "col"), repeat=2):
        asked = problem(m, n, k, str(kind).removeprefix("torch."), "float32", a=of_a, b=of_b)
        asked = replace(asked, precision="tf32" if dtype == "tf32" else asked.precision)
        x, y = (z if of == "row" else z.t().contiguous() for z, of in ((a, of_a), (b, of_b)))
        offer = backend.offer(asked)
        for candidate in offer.candidates:
            if candidate.order is not None:
                run = backend.prepare(asked, candidate.name, offer.workspace).run
                run(x.data_ptr(), y.data_ptr(), out.data_ptr(), 1, 0, torch.cuda.current_stream().cuda_stream)
                name, bits = seen.setdefault(candidate.order, (candidate.name, out.clone()))
                assert torch.equal(bits.view(torch.int32), out.view(torch.int32)), (candidate, name, of_a, of_b)
    assert seen


@pytest.mark.parametrize("m", [1, 5, 64, 1024])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "tf32"])
def test_products_that_follow_each_other(backend, dtype, m):
    """Each reads what the one before has written, and overwrites what that one has read. Kernels begin before the one
    before them ends: by each candidate. Factors are permutations, so results are exact.
    """
    n, kind = 1024, torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    generator = torch.Generator("cuda").manual_seed(m)
    steps = [
        torch.eye(n, device="cuda", dtype=kind)[torch.randperm(n, device="cuda", generator=generator)] for _ in range(8)
    ]
    precision = "tf32" if dtype == "tf32" else "ieee"
    of_x, of_p = (
        replace(problem(rows, n, n, str(kind).removeprefix("torch.")), precision=precision) for rows in (m, n)
    )

    def runs(asked):
        return [backend.prepare(asked, name, LIMIT).run for name in backend.offer(asked).names]

    by_x, by_p = runs(of_x), runs(of_p)
    x, p = ([torch.empty(rows, n, device="cuda", dtype=kind) for _ in range(2)] for rows in (m, n))
    start = torch.randint(-9, 10, (m, n), device="cuda", generator=generator).to(kind)
    identity = torch.eye(n, device="cuda", dtype=torch.float64)
    exact, factor = start.double(), identity
    for step in steps:
        factor = step.double() @ factor
        exact = exact @ factor

    def chain(run_x, run_p):
        stream = torch.cuda.current_stream().cuda_stream
        x[0].copy_(start)
        p[0].copy_(identity)
        for i, step in enumerate(steps):
            old, new = i % 2, (i + 1) % 2
            run_p(step.data_ptr(), p[old].data_ptr(), p[new].data_ptr(), 1, 0, stream)
            run_x(x[old].data_ptr(), p[new].data_ptr(), x[new].data_ptr(), 1, 0, stream)

    for turn in range(max(len(by_x), len(by_p))):
        run_x, run_p = by_x[turn % len(by_x)], by_p[turn % len(by_p)]
        chain(run_x, run_p)
        assert torch.equal(x[len(steps) % 2].double(), exact), turn
        graph = torch.cuda.CUDAGraph()  # the host is too slow for kernels to follow closely
        with torch.cuda.graph(graph):
            chain(run_x, run_p)
        for _ in range(3):
            x[len(steps) % 2].fill_(math.nan)
            graph.replay()
            assert torch.equal(x[len(steps) % 2].double(), exact), turn


def test_maps_have_an_address_word(backend):
    """Otherwise every call with new operands encodes its maps again, which takes microseconds."""
    launch = Product(SHAPES[0], 256, 256, 256).launch(backend)
    assert None not in launch.gemm.words


LAUNCHES = {
    "plain": Product(Shape(128, 128, 6), 256, 256, 512),
    "split": Product(Shape(128, 128, 6), 256, 256, 4096, splits=8),
    "planes": Product(SPLIT_SHAPES[0], 256, 320, 512, dtype="float32"),
    "slabs": Product(SPLIT_SHAPES[0], 256, 320, 512, dtype="float32", limit=COUNTERS + 2**20),
    "float16 planes": Product(F16_PLANES_SHAPES[0], 256, 320, 512, dtype="f16x3"),
    "float16 planes by rows": Product(F16_REGISTER_SHAPES[-1], 512, 160, 512, dtype="f16x3", registers=True),
    "vectors": vector(1, 256, 512, spread=32),
}
"""One of each kind."""


def small_integers(product, seed=0):
    """Operands whose product is exact."""
    kind, generator = getattr(torch, product.problem.out.dtype.name), torch.Generator("cuda").manual_seed(seed)
    a, b = (
        torch.randint(-2, 3, size, device="cuda", generator=generator).to(kind)
        for size in ((product.m, product.k), (product.k, product.n))
    )
    return TorchProduct(a, b, kind)


@pytest.mark.parametrize("product", LAUNCHES.values(), ids=LAUNCHES)
def test_a_fresh_thread(backend, product):
    check_fresh_thread(product.launch(backend).run, small_integers(product))


@pytest.mark.parametrize("product", LAUNCHES.values(), ids=LAUNCHES)
def test_another_context(backend, product):
    check_other_context(product.launch(backend).run, small_integers(product), backend.machine.gpus[0])


@pytest.mark.parametrize("product", LAUNCHES.values(), ids=LAUNCHES)
def test_nested_calls(backend, product):
    assert product is not LAUNCHES["slabs"] or product.passes.count > 1
    check_nested_calls(product.launch(backend).run, small_integers(product), small_integers(product, 1))


def test_users_in_fresh_threads():
    check_users_in_fresh_threads("hopper", ["bfloat16", "float16", "float32"])


def test_clusters_at_once(backend):
    """The driver reports no more clusters than fit; the estimate, of an H200, is close to that."""
    gpu = backend.machine.gpus[0]
    asked = clusters.asked(gpu)
    print("clusters at once, by size:", asked)
    for size in (2, 4, 8):
        assert gpu.sms // size - 4 <= asked[size] <= gpu.sms // size
        assert abs(asked[size] - clusters.estimated(gpu.sms, size)) <= 4


def test_streams_have_numbers(backend):
    """Also the default one, and the per-thread one; those of different streams differ."""
    driver = backend.machine.driver
    with backend.machine.gpus[0]:
        handles = [0, 2, *(torch.cuda.Stream().cuda_stream for _ in range(3))]
        numbers = [driver.stream(handle)[2] for handle in handles]
    assert len(set(numbers)) == len({*handles})


def fits(lowerings, name, limit):
    """Whether a candidate runs in ``limit`` bytes of workspace."""
    return gemv.named(lowerings, name) is not None or not isinstance(runnable(named(lowerings, name), limit), str)


def product_of(backend, a, b, limit=LIMIT, name=None):
    """float32 tensors, multiplied at float32's accuracy by the candidate of that name, or the first one that runs."""
    asked = problem(a.shape[0], b.shape[1], a.shape[1], dtype="float32")
    out = torch.empty(asked.m, asked.n, device="cuda")
    lowerings = lower.lowerings(asked)
    names = [name] if name else [x for x in backend.offer(asked).names if fits(lowerings, x, limit)]
    kernel = backend.prepare(asked, names[0], limit)
    stream = torch.cuda.current_stream().cuda_stream
    kernel.run(a.data_ptr(), b.data_ptr(), out.data_ptr(), 1, 0, stream)
    return out


@pytest.mark.parametrize("kind", ["normal", "positive", "wide", "cancelling", "worst"])
@pytest.mark.parametrize(("m", "n", "k"), [(1024, 1024, 1024), (256, 256, 65536), (4096, 4096, 4096), (1, 4096, 65536)])
def test_errors_compared_with_cublas(backend, kind, m, n, k):
    """Relative to |A| |B|, at most 4 times SGEMM's on the same data."""
    a, b = (torch.from_numpy(np.ascontiguousarray(x)).cuda() for x in data(kind, m, n, k))
    torch.backends.cuda.matmul.allow_tf32 = False
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    ours, theirs = (float(((x.double() - exact).abs() / size).max()) for x in (product_of(backend, a, b), a @ b))
    print(f"{kind} {m}x{n}x{k}: {ours:.2e}, cuBLAS {theirs:.2e}")
    assert ours <= 4 * theirs + 2.0**-24


@pytest.mark.parametrize("kind", ["normal", "positive", "wide", "cancelling", "worst"])
@pytest.mark.parametrize(
    ("n", "name"),
    [(64, "64x64x10r"), (64, "128x64x7r/4"), (2048, "128x96x5rt"), (64, "64x48x8rs"), (64, "64x32x8k4rs/3")],
)
def test_errors_through_registers(backend, kind, n, name):
    """The same bounds hold for an operand that is split in registers."""
    a, b = (torch.from_numpy(np.ascontiguousarray(x)).cuda() for x in data(kind, 1024, n, 4096))
    torch.backends.cuda.matmul.allow_tf32 = False
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    results = product_of(backend, a, b, name=name), a @ b
    ours, theirs = (float(((x.double() - exact).abs() / size).max()) for x in results)
    assert ours <= 4 * theirs + 2.0**-24


@pytest.mark.parametrize(
    "name", ["64x16x10r", "128x32x7r/2", "64x64x10rt", "128x64x7rt/2", "64x16x8rs", "128x32x8k2rst", "64x32x8rs/2"]
)
def test_special_values_through_registers(backend, name):
    a, b = (np.ascontiguousarray(x) for x in specials())
    a, b = np.ascontiguousarray(a[:, :160]), np.ascontiguousarray(b[:160, :132])
    result = product_of(backend, torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda(), name=name)
    assert ratio(result.cpu().numpy(), a, b) <= 1
    rng = np.random.default_rng(0)
    a, b = data("normal", 152, 140, 72)
    tiny = np.ldexp(1 + rng.random(a.shape), rng.integers(-149, -105, a.shape)).astype(np.float32)
    for scale in (1.0, 200.0, 2.0**100):
        large = (b * scale).astype(np.float32)
        for x, y in ((tiny, large), (large.T.copy(), tiny.T.copy())):
            result = product_of(backend, torch.from_numpy(x).cuda(), torch.from_numpy(y).cuda(), name=name)
            assert ratio(result.cpu().numpy(), x, y) <= 1, scale


def test_special_values(backend):
    """Infinities, NaNs, overflow and subnormal numbers, against the error bound."""
    a, b = specials()
    for limit in (LIMIT, COUNTERS + 2**17):
        result = product_of(backend, *(torch.from_numpy(np.ascontiguousarray(x)).cuda() for x in (a, b)), limit)
        assert ratio(result.cpu().numpy(), a, b) <= 1
    rng = np.random.default_rng(0)
    a, b = data("normal", 150, 140, 70)
    tiny = np.ldexp(1 + rng.random(a.shape), rng.integers(-149, -105, a.shape)).astype(np.float32)
    for scale in (1.0, 200.0, 2.0**100):
        x, y = tiny, (b * scale).astype(np.float32)
        result = product_of(backend, *(torch.from_numpy(np.ascontiguousarray(z)).cuda() for z in (x, y)))
        assert ratio(result.cpu().numpy(), x, y) <= 1, scale


@pytest.mark.parametrize(("m", "n", "k"), [(256, 256, 8192), (2048, 16, 8192), (96, 1024, 8192)])
def test_recomputed_float32_is_deterministic(backend, m, n, k):
    """The splits of a tile inform each other of what must be recomputed."""
    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda") * 1000
    a[m // 2 :, ::977] = 2.0**-120
    asked = problem(m, n, k, dtype="float32")
    for name in backend.offer(asked).names:
        check_equal_results(backend.prepare(asked, name, LIMIT).run, TorchProduct(a, b, torch.float32, tolerance=1e-2))


def test_float32_in_a_graph(backend):
    """A graph holds the pre-pass and the kernel of every K pass, and is replayed with new operands."""
    a, b = (torch.randn(512, 512, device="cuda") for _ in range(2))
    product = Product(Shape(128, 128, 4), 512, 512, 512, dtype="float32", limit=COUNTERS + 2**20)
    assert product.passes.count > 1
    run = product.launch(backend).run
    out, graph = torch.empty(512, 512, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stream = torch.cuda.current_stream().cuda_stream
        run(a.data_ptr(), b.data_ptr(), out.data_ptr(), 1, 0, stream)
    for _ in range(3):
        a.normal_()
        graph.replay()
        exact = a.double() @ b.double()
        assert float((out.double() - exact).abs().max()) < 1e-3


def test_packed(backend):
    a, b = (torch.randn(300, 300, device="cuda") for _ in range(2))
    asked = problem(300, 300, 300, dtype="float32")
    made, exact = backend.pack(b.data_ptr(), asked), a.double() @ b.double()
    b.zero_()
    for precision, tolerance in (("ieee", 1e-4), ("tf32", 0.1)):
        later = replace(asked, packed_by="hopper", precision=precision)
        out = torch.empty(300, 300, device="cuda")
        run = backend.prepare(later, backend.offer(later).first.name, LIMIT).run
        run(a.data_ptr(), made, out.data_ptr(), 1, 0, torch.cuda.current_stream().cuda_stream)
        assert float((out.double() - exact).abs().max()) < tolerance


F16_NAMES = (
    "128x128x6h", "128x128x6ht", "128x96x7ht", "64x64x12h", "64x64x12ht", "64x64x12h/2", "128x96x7hr", "128x112x6hrt",
    "128x64x8hr/2",
)  # fmt: skip
"""Of candidates by float16 planes, of row-major operands."""


def f16_names(m, n, k):
    """Return the names that have a kernel for this product: a goes through registers only where TMA reads it."""
    lowerings = lower.lowerings(problem(m, n, k, dtype="float32"))
    there = {(x.form.letters, x.swapped) for x in lowerings}
    return [x for x in F16_NAMES if (re.sub("[^hrs]", "", x), "t" in x) in there]


@pytest.mark.parametrize("kind", [*FAMILIES, "worst"])
@pytest.mark.parametrize(("m", "n", "k"), [(2048, 1536, 1024), (1031, 777, 519)])
def test_families_of_float32(backend, kind, m, n, k):
    """Within the bound, and no worse than four times cuBLAS; the same bits each time, whatever came before."""
    a, b, _ = family(kind, m, n, k)
    x, y = (torch.from_numpy(np.ascontiguousarray(z)).cuda() for z in (a, b))
    others = [torch.from_numpy(np.ascontiguousarray(z)).cuda() for z in family("undone", m, n, k)[:2]]
    torch.backends.cuda.matmul.allow_tf32 = False
    exact, size = x.double() @ y.double(), x.double().abs() @ y.double().abs()
    theirs = float(((x @ y).double() - exact).abs().div(size).nan_to_num().max())
    for name in f16_names(m, n, k):
        result = product_of(backend, x, y, name=name)
        assert ratio(result.cpu().numpy(), a, b) <= 1, name
        if not kind.startswith(("near", "zeros", "sentinels")):  # elements of |A| |B| that are 0
            ours = float((result.double() - exact).abs().div(size).max())
            assert ours <= 4 * theirs + 2.0**-24, name
        product_of(backend, *others, name=name)
        assert torch.equal(product_of(backend, x, y, name=name).view(torch.int32), result.view(torch.int32)), name


@pytest.mark.parametrize("part", range(PARTS))
def test_random_products_of_float16_planes(backend, request, part):
    """``--random-float32 N``: sizes, families and candidates, against the error bound of float32."""
    for i in range(part, request.config.getoption("--random-float32"), PARTS):
        rng = np.random.default_rng(i)
        m, n, k = (int(2 ** rng.uniform(low, 10.5)) for low in (0, 0, 6))
        kind, name = str(rng.choice(FAMILIES)), str(rng.choice(f16_names(m, n, k)))
        a, b, _ = family(kind, m, n, k, i)
        x, y = (torch.from_numpy(np.ascontiguousarray(z)).cuda() for z in (a, b))
        result = product_of(backend, x, y, name=name)
        assert ratio(result.cpu().numpy(), a, b) <= 1, (i, kind, name, m, n, k)
