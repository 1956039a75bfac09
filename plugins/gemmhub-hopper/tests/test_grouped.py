"""Grouped products by the kernel on the emulator: groups of any sizes, from any row on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import fake_cuda
import numpy as np
import pytest
from fakes import FakeMemory, Home, mutated
from gemmhub_hopper import grouped_proof
from gemmhub_hopper.candidates.candidate import Choice
from gemmhub_hopper.cost.grouped import more_tiles
from gemmhub_hopper.lowering import groups
from gemmhub_hopper.variants.config import Shape
from grouped_products import LIMIT, GroupedProduct, ScaledGroups
from problems import problem
from products import loaded, stored
from runs import address

from gemmhub.backend import Kernel, Offer
from gemmhub.capability import Refusal
from gemmhub.errors import KernelError
from gemmhub.problem import Groups

pytestmark = pytest.mark.emulator
HOME = Home()
GUARD = 4096
"""Bytes before and behind a result."""
_ONE = {"consumers": 1}
SMALL = Shape(64, 64, 3, **_ONE)
MIXED = (1, 1, 131, 138, 338, 338, 403)
"""Ends of groups of one row, none, more than two tiles, few, many, none, and one tile and a row."""
UNEVEN = GroupedProduct(SMALL, MIXED, 411, 136, 200)
ACROSS = GroupedProduct(Shape(64, 32, 3, **_ONE), MIXED, 411, 136, 200, swapped=True)
DEPTH = GroupedProduct(SMALL, MIXED, 411, 72, 136, "k", a="col")
FLOAT32 = {"dtype": "float32"}
ADDED = GroupedProduct(SMALL, MIXED, 411, 136, 200, beta=1, c_is_out=True)
ROWS32 = GroupedProduct(Shape(128, 32, 2), MIXED, 411, 72, 100, **FLOAT32)
DEPTH32 = GroupedProduct(Shape(128, 48, 2), MIXED, 412, 136, 72, "k", a="col", **FLOAT32)
PRODUCTS = (
    UNEVEN,
    ACROSS,
    GroupedProduct(Shape(128, 64, 3), (64, 128), 128, 136, 72, b="col"),
    GroupedProduct(Shape(128, 64, 3, cluster_m=2), MIXED, 403, 136, 200, b="col", out="float32"),
    GroupedProduct(Shape(64, 64, 3, pingpong=True), MIXED, 420, 136, 200),
    GroupedProduct(Shape(128, 96, 3), (0, 0, 5, 300), 301, 136, 136),
    GroupedProduct(Shape(256, 64, 3), (128, 255, 384, 385), 400, 72, 72, dtype="float16"),
    # Results without TMA: of odd columns, contiguous along the divided dimension, and both.
    GroupedProduct(SMALL, MIXED, 411, 73, 200, b="col"),
    GroupedProduct(SMALL, MIXED, 411, 136, 72, d="col"),
    GroupedProduct(Shape(64, 32, 3, **_ONE), MIXED, 411, 73, 72, b="col", d="col", swapped=True, out="float32"),
    # Epilogues; zeros behind the last end take none of them.
    GroupedProduct(SMALL, MIXED, 411, 136, 72, alpha=0.5, bias="n", activation="relu"),
    GroupedProduct(SMALL, MIXED, 411, 136, 72, bias="batch n", activation="silu", out="float32"),
    GroupedProduct(Shape(64, 32, 3, **_ONE), MIXED, 411, 136, 72, bias="batch n", activation="gelu", swapped=True),
    GroupedProduct(SMALL, MIXED, 411, 136, 72, bias="m"),
    GroupedProduct(SMALL, (3, 70), 80, 72, 0, bias="n"),
    # Columns of b divided, as they are and swapped.
    GroupedProduct(Shape(64, 32, 3, **_ONE), MIXED, 411, 136, 72, "n", b="col", d="col", bias="n"),
    GroupedProduct(Shape(128, 64, 3), MIXED, 411, 72, 136, "n", True, b="col", d="row", a="col"),
    # Elements of k divided: several stages and remainders, with an end of a group in every one of them.
    DEPTH,
    GroupedProduct(Shape(128, 64, 3), MIXED, 403, 136, 72, "k", True, a="col", out="float32"),
    GroupedProduct(Shape(64, 64, 3, pingpong=True), MIXED, 420, 200, 72, "k", a="col", bias="batch n"),
    GroupedProduct(Shape(128, 192, 3, cluster_m=2), (64, 127, 129, 129), 130, 264, 200, "k", a="col", alpha=0.5),
    GroupedProduct(Shape(256, 64, 3), (0, 0), 64, 264, 72, "k", a="col", bias="m", dtype="float16"),
    # 8-bit operands, with scales of rows and of blocks, for each group and for the whole array.
    ScaledGroups(SMALL, MIXED, 411, 136, 272),
    ScaledGroups(SMALL, MIXED, 411, 136, 272, granularity="rows", out="float32"),
    ScaledGroups(Shape(64, 32, 3, **_ONE), MIXED, 411, 136, 272, swapped=True, granularity="rows", bias="batch n"),
    ScaledGroups(Shape(128, 192, 3), MIXED, 411, 264, 400, granularity="blocks", out="float32"),
    ScaledGroups(Shape(64, 32, 3, **_ONE), MIXED, 411, 264, 400, swapped=True, granularity="blocks"),
    ScaledGroups(Shape(64, 64, 3, **_ONE), MIXED, 411, 72, 400, "n", d="col", granularity="blocks", out="float32"),
    ScaledGroups(SMALL, MIXED, 411, 136, 272, dtype="int8", out="int32"),
    # Results of 8-bit floats.
    ScaledGroups(SMALL, MIXED, 411, 144, 272, granularity="rows", out="float8_e5m2"),
    ScaledGroups(Shape(64, 32, 3, **_ONE), MIXED, 411, 73, 272, swapped=True, out="float8_e5m2"),
    GroupedProduct(SMALL, MIXED, 411, 72, 144, "k", a="col", out="float8_e5m2"),
    # Float32, both operands of which the kernel splits; groups of rows, of columns, and of elements of k.
    ROWS32,
    DEPTH32,
    GroupedProduct(SMALL, MIXED, 403, 73, 136, b="col", **FLOAT32, bias="batch n", activation="relu", alpha=0.5),
    GroupedProduct(Shape(64, 32, 3, **_ONE), MIXED, 411, 136, 72, swapped=True, **FLOAT32),
    GroupedProduct(Shape(64, 96, 2, **_ONE), MIXED, 411, 136, 72, b="col", d="col", swapped=True, **FLOAT32, bias="m"),
    GroupedProduct(SMALL, MIXED, 411, 72, 68, "n", b="col", out="bfloat16", **FLOAT32),
    GroupedProduct(Shape(64, 16, 3, **_ONE), (1, 3, 7, 40, 72, 136, 137), 140, 72, 40, "k", True, a="col", **FLOAT32),
    # c, also where it is the result, contiguous along the divided dimension, of unaligned rows, and of float32.
    ADDED,
    GroupedProduct(Shape(64, 32, 3, **_ONE), MIXED, 411, 136, 72, swapped=True, beta=-0.5, alpha=2, bias="batch n"),
    GroupedProduct(SMALL, MIXED, 411, 136, 72, d="col", beta=1, out="float32", c_is_out=True),
    GroupedProduct(SMALL, MIXED, 412, 136, 72, d="col", beta=1, activation="relu"),
    GroupedProduct(SMALL, MIXED, 411, 73, 200, b="col", beta=0.5),
    GroupedProduct(Shape(128, 64, 3), MIXED, 411, 72, 136, "n", True, b="col", a="col", beta=1, dtype="float16"),
    GroupedProduct(Shape(64, 64, 3, pingpong=True), MIXED, 420, 200, 72, "k", a="col", beta=1, c_is_out=True),
    GroupedProduct(Shape(128, 32, 2), MIXED, 411, 72, 100, beta=0.5, **FLOAT32),
    # tf32: from shared memory where it is contiguous along k, else the kernel's a through registers.
    GroupedProduct(SMALL, MIXED, 411, 136, 72, b="col", dtype="tf32"),
    GroupedProduct(SMALL, MIXED, 411, 136, 72, swapped=True, registers=True, dtype="tf32"),
    GroupedProduct(
        Shape(64, 64, 3, pingpong=True), MIXED, 420, 136, 72, "n", a="col", b="col", registers=True, dtype="tf32"
    ),
    # Groups of the array beyond which there is nothing, one group, and none that has rows.
    GroupedProduct(SMALL, (65,), 65, 72, 72),
    GroupedProduct(SMALL, (0, 0, 0), 70, 72, 72, bias="n"),
    # Ends out of order, negative, and beyond the operand.
    GroupedProduct(SMALL, (-5, 70, 30, 71, 2000, 100, 2**31 - 1), 90, 72, 72),
    GroupedProduct(Shape(64, 32, 3, **_ONE), (70, 30, 71, 2000, 100), 90, 72, 72, swapped=True),
)


@pytest.fixture(scope="module", autouse=True)
def _built(request):
    """The variants of the products that will run, compiled two at a time."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    products = [x["product"] for x in parameters if isinstance(x.get("product"), GroupedProduct)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(fake_cuda.emulator, [product.choice.variant.macros for product in products]))


class Run:
    """A grouped product in memory of a fake device, between guards."""

    def __init__(self, product, home=HOME, seed=0, operands=None):
        """``operands``: a and b, without a bias; None for those that the product draws."""
        self.product, self.home = product, home
        a, b, bias = (*operands, None) if operands else product.data(seed)
        c = None if operands else product.addend(seed)
        self.exact = product.exact(a, b, bias, c)
        self.run = home.backend().launch(0, product.choice, LIMIT).run
        memory = FakeMemory(home)

        def put(x, order="row"):
            data = stored(x, order)
            buffer = memory.empty(max(1, data.size))
            buffer[: data.size] = data
            return buffer

        self.a, self.b, self.offsets = put(a, product.a), put(b, product.b), put(np.array(product.ends, np.int32))
        self.others = {} if bias is None else {"bias": put(bias)}
        self.others |= {} if c is None else {"c": put(c, product.d)}
        self.others |= {name: put(x) for name, x in product.scales().items()}
        self.dtype = product.problem.out.dtype
        self.out = memory.empty(self.exact.size * self.dtype.itemsize + 2 * GUARD)

    def __call__(self):
        """Return the result; assert that nothing outside it was written."""
        p, nbytes = self.product, self.out.size - 2 * GUARD
        self.out[:] = 0xFF
        others = {**{name: address(x) for name, x in self.others.items()}, "offsets": address(self.offsets)}
        if p.c_is_out:
            self.out[GUARD : GUARD + nbytes] = self.others["c"][:nbytes]
            others["c"] = address(self.out) + GUARD
        self.home.cuda.complaints.clear()
        self.run(address(self.a), address(self.b), address(self.out) + GUARD, p.alpha, p.beta, 0, **others)
        assert self.home.cuda.complaints == []
        assert (self.out[:GUARD] == 0xFF).all()
        assert (self.out[GUARD + nbytes :] == 0xFF).all()
        return loaded(
            self.out[GUARD : GUARD + nbytes].copy(), self.dtype, self.exact.shape[:-2], *self.exact.shape[-2:], p.d
        )

    def check(self):
        wrong = self.product.wrong(self(), self.exact)
        assert not wrong.any(), f"{wrong.sum()} wrong, the first at {np.argwhere(wrong)[0]}"


def detected(run, interleavings=3):
    """Whether one of so many interleavings ends in an error of the emulator or in a wrong result."""
    for _ in range(interleavings):
        try:
            run.check()
        except (AssertionError, KernelError):
            return True
    return False


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_product(product):
    Run(product).check()


@pytest.mark.parametrize("product", [UNEVEN, ACROSS, DEPTH], ids=str)
def test_random_groups(product):
    """Fresh sizes: half of the groups are empty or have a row; others have up to three tiles."""
    rng = np.random.default_rng()
    for _ in range(3):
        counts = np.where(rng.random(7) < 0.5, rng.integers(0, 2, 7), rng.integers(0, 200, 7))
        ends = np.cumsum(counts).astype(int)
        extent = int(ends[-1] + rng.integers(0, 80)) or 1
        other = replace(product, ends=tuple(ends.tolist()), extent=extent)
        Run(other, seed=int(rng.integers(2**31))).check()


# fmt: off
MUTATIONS = {
    "a store of rows is not masked": ("tile_context.cuh", "return kDivided == ROWS ? end : p.m;", "return p.m;"),
    "TMA stores the last tile of a group": ("epilogue.cuh", "if (!at.inside_group()) {", "if (false) {"),
    "an end is off by one": ("group_cursor.cuh", "const int end = ends[group];", "const int end = ends[group] + 1;"),
    "ends that decrease are not mended": ("group_cursor.cuh", "end < begin ? begin : end <", "end <"),
    "ends beyond the operand are not mended": ("group_cursor.cuh", "end < extent ? end : extent", "end"),
    "no zeros behind the last end": ("gemm_kernel.cu", "clear_behind_groups(p, cursor.end, ctx);", ";"),
    "a group has the matrix of the next one": ("group_cursor.cuh", "work.batch = group;", "work.batch = group + 1;"),
    "what is added begins at an aligned element": ("addend.cuh", "static_cast<u32>(first) : 0", "0 : 0"),
    "rows begin at the group before": ("group_cursor.cuh", "begin + along * HIGH", "along * HIGH"),
}
# fmt: on
DEPTHS = {
    "the last stage is not cleared": ("mainloop.cuh", "clear_behind_depth(ctx, stage, depth);", ";"),
    "A is not cleared": ("group_depth.cuh", "store_staged(a + box", "store_staged(b + box"),
    "B is not cleared": ("group_depth.cuh", "store_staged(b + box", "store_staged(a + box"),
    "one element too few is cleared": ("group_depth.cuh", "u32 k = depth + ctx.warp", "u32 k = depth + 1 + ctx.warp"),
    "one element too many is cleared": ("group_depth.cuh", "u32 k = depth + ctx.warp", "u32 k = depth - 1 + ctx.warp"),
    "what was cleared is not fenced": ("group_depth.cuh", "    async_fence();\n", ""),
    "warps do not wait for each other": ("group_depth.cuh", "    named_sync(1 + ctx.warpgroup, 128);\n", ""),
    "stages begin at the first group": ("tma_load.cuh", "kDivided == DEPTH ? work.begin : 0", "0"),
}
UNALIGNED = GroupedProduct(SMALL, (1, 70), 80, 72, 72, d="col", beta=1)
OUT_OF_ORDER = GroupedProduct(SMALL, (70, 30, 71, 100), 90, 72, 72)


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation(name, monkeypatch, tmp_path):
    """Each is found by one of two products."""
    file, *pair = MUTATIONS[name]
    home = mutated(monkeypatch, tmp_path, file, tuple(pair))
    products = (UNALIGNED,) if file == "addend.cuh" else (UNEVEN, OUT_OF_ORDER)
    assert any(detected(Run(product, home)) for product in products)


@pytest.mark.parametrize("name", DEPTHS)
def test_mutation_of_depth(name, monkeypatch, tmp_path):
    file, *pair = DEPTHS[name]
    assert detected(Run(DEPTH, mutated(monkeypatch, tmp_path, file, tuple(pair))))


def asked(groups=8, m=512, n=264, k=136, divides="m", **changes):
    """A problem of groups."""
    return problem(m, n, k, "bfloat16", groups=Groups(groups, divides), **changes)


@pytest.mark.parametrize(("m", "swapped"), [(40, True), (8192, False)])
def test_offer(m, swapped):
    """Few rows of a group swap operands; the first candidate is prepared and runs as it is."""
    backend = HOME.backend()
    offer = backend.offer(asked(m=m, n=1032))
    assert isinstance(offer, Offer), offer
    name = min(offer.candidates, key=lambda x: x.seconds).name
    assert name.endswith("t") == swapped
    assert all("/" not in x and "k" not in x for x in offer.names)
    assert {x.order for x in offer.candidates} == {"wgmma.k16"}
    assert {x.copies for x in offer.candidates} == {()}
    kernel = backend.prepare(asked(m=m, n=1032), name, offer.workspace)
    assert isinstance(kernel, Kernel)
    assert kernel.workspace_bytes == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"a": "col"}, "a is contiguous along m"),
        ({"divides": "n"}, "b is contiguous along n"),
        ({"divides": "k"}, "a is contiguous along k"),
        ({"divides": "k", "a": "col", "b": "col"}, "b is contiguous along k"),
        ({"n": 263}, "b would be copied first"),
        ({"k": 0, "divides": "k", "a": "col"}, "no elements along k"),
        ({"reproducible": "wgmma.k16/s2"}, "adds in the order"),
    ],
)
def test_refusal(changes, reason):
    refusal = HOME.backend().offer(asked(**changes))
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason


def test_refusal_of_dtypes():
    offered = HOME.backend().offer(problem(64, 64, 64, "complex64", groups=Groups(2, "m")))
    assert isinstance(offered, Refusal)
    assert "groups of complex64" in offered.reason


@pytest.mark.parametrize("name", ["128x192x5/2", "64x16x12k2", "nothing"])
def test_unknown_candidates(name):
    assert isinstance(HOME.backend().prepare(asked(), name, 2**26), Refusal)


def test_other_rows():
    """A kernel for another m of the same family, by one that was prepared."""
    run = Run(replace(UNEVEN, extent=500))
    kernel = HOME.backend().prepare(replace(UNEVEN, extent=411).problem, "64x64x12", LIMIT)
    assert isinstance(kernel, Kernel)
    assert kernel.with_rows is not None
    run.run = kernel.with_rows(500)
    run.check()


def test_groups_are_proven_once():
    home = Home()
    backend = home.backend()
    assert isinstance(backend.offer(asked()), Offer)
    launches = len(home.cuda.launches)
    assert launches == len([*grouped_proof.trials(grouped_proof.GROUPS, None)])
    assert isinstance(backend.offer(asked(m=700)), Offer)
    assert len(home.cuda.launches) == launches
    assert home.cuda.complaints == []


@pytest.mark.parametrize(
    "name", ["TMA stores the last tile of a group", "no zeros behind the last end", "an end is off by one"]
)
def test_wrong_kernels_are_refused(name, monkeypatch, tmp_path):
    file, *pair = MUTATIONS[name]
    refusal = mutated(monkeypatch, tmp_path, file, tuple(pair)).backend().offer(asked())
    assert isinstance(refusal, Refusal)
    assert "the first grouped product" in refusal.reason


def test_wrong_depths_are_refused(monkeypatch, tmp_path):
    file, *pair = DEPTHS["the last stage is not cleared"]
    refusal = mutated(monkeypatch, tmp_path, file, tuple(pair)).backend().offer(asked())
    assert isinstance(refusal, Refusal)
    assert "the first grouped product" in refusal.reason


@pytest.mark.parametrize(
    ("rows", "tile", "least", "most"), [(64, 64, 1.2, 1.4), (8192, 64, 1.0, 1.01), (4, 64, 1.0, 1.0)]
)
def test_unequal_groups_have_more_tiles(rows, tile, least, most):
    """Only where tiles are about as high as groups; never fewer."""
    lowerings = groups.even_lowerings(asked(groups=10, m=10 * rows))
    assert isinstance(lowerings, tuple)
    factor = more_tiles(Choice(lowerings[0], Shape(tile, 64, 4, consumers=1), 1))
    assert least <= factor <= most + 1e-6
