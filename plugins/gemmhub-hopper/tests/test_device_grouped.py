"""Grouped products on a real Hopper GPU, through torch's memory. Skips where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from gemmhub_hopper.candidates.candidate import runnable
from gemmhub_hopper.variants.shapes import GROUPED_SHAPES, GROUPED_SMALL_SHAPES
from grouped_products import LIMIT, GroupedProduct
from hopper_card import WITH_KEPT_KERNELS, torch
from products import loaded, stored
from test_grouped import PRODUCTS
from test_grouped_float32 import PRODUCTS as FLOAT32_PRODUCTS
from test_grouped_float32 import drawn, largest

pytestmark = WITH_KEPT_KERNELS


class Held:
    """A grouped product in the card's memory, between guards."""

    GUARD = 4096

    def __init__(self, backend, product, seed, operands=None):
        """``operands``: a and b, without a bias and c; None for those that the product draws."""
        self.product = product
        a, b, bias = (*operands, None) if operands else product.data(seed)
        c = None if operands else product.addend(seed)
        self.exact = product.exact(a, b, bias, c)
        self.run = backend.launch(0, product.choice, LIMIT).run
        self.a, self.b = (torch.from_numpy(stored(x, order)).cuda() for x, order in ((a, product.a), (b, product.b)))
        self.offsets = torch.tensor(np.array(product.ends, np.int32), device="cuda")
        self.others = {} if bias is None else {"bias": torch.from_numpy(bias).cuda()}
        self.others |= {} if c is None else {"c": torch.from_numpy(stored(c, product.d)).cuda()}
        self.others |= {name: torch.from_numpy(x).cuda() for name, x in product.scales().items()}
        self.dtype = product.problem.out.dtype
        self.out = torch.empty(self.exact.size * self.dtype.itemsize + 2 * self.GUARD, dtype=torch.uint8, device="cuda")

    def start(self):
        """Launch on torch's stream, into a poisoned result."""
        self.out.fill_(0xFF)
        p, others = self.product, {name: x.data_ptr() for name, x in self.others.items()}
        stream = torch.cuda.current_stream().cuda_stream
        out = self.out.data_ptr() + self.GUARD
        if p.c_is_out:
            self.out[self.GUARD : -self.GUARD] = self.others["c"]
            others["c"] = out
        self.run(
            self.a.data_ptr(),
            self.b.data_ptr(),
            out,
            p.alpha,
            p.beta,
            stream,
            offsets=self.offsets.data_ptr(),
            **others,
        )

    def result(self):
        """What was written; assert that nothing beside it was."""
        data = self.out.cpu().numpy()
        assert (data[: self.GUARD] == 0xFF).all()
        assert (data[-self.GUARD :] == 0xFF).all()
        return loaded(
            data[self.GUARD : -self.GUARD].copy(),
            self.dtype,
            self.exact.shape[:-2],
            *self.exact.shape[-2:],
            self.product.d,
        )

    def check(self):
        """Compare what was written."""
        wrong = self.product.wrong(self.result(), self.exact)
        assert not wrong.any(), f"{self.product}: {wrong.sum()} wrong, the first at {np.argwhere(wrong)[0]}"


def ends_of(rng, groups, most):
    """Return ends of groups that are empty, of one row, or of up to ``most``, and the rows of all and some more."""
    counts = rng.integers(0, most + 1, groups)
    counts = np.where(rng.random(groups) < 0.4, rng.integers(0, 2, groups), counts)
    ends = np.cumsum(counts)
    return tuple(ends.tolist()), int(ends[-1] + rng.integers(1, 300))


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_product(backend, product):
    held = Held(backend, product, 0)
    held.start()
    held.check()


@pytest.mark.parametrize("product", FLOAT32_PRODUCTS, ids=str)
def test_float32_within_its_bound(backend, product):
    rng = np.random.default_rng()
    for kind in ("normal", "positive", "wide", "worst"):
        a, b = drawn(product, kind, rng)
        held = Held(backend, product, 0, operands=(a, b))
        held.start()
        assert largest(product, a, b, held.result()) <= 1


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [*((x, "bfloat16") for x in GROUPED_SHAPES), *((x, "float32") for x in GROUPED_SMALL_SHAPES)],
    ids=lambda x: str(getattr(x, "name", x)),
)
@pytest.mark.parametrize("swapped", [False, True])
def test_every_shape(backend, shape, dtype, swapped):
    """With an epilogue where one compiles; fresh groups, more work tiles than CTAs."""
    rng = np.random.default_rng()
    few, many = {"bias": "batch n", "activation": "gelu", "dtype": dtype}, {"dtype": dtype}
    for count, most, across, more in ((5, 700, 328, few), (70, 300, 328, many), (256, 20, 136, many)):
        ends, extent = ends_of(rng, count, most)
        product = GroupedProduct(shape, ends, extent, across, 200, swapped=swapped, **more)
        if isinstance(runnable(product.unchecked, LIMIT), str):
            continue
        held = Held(backend, product, int(rng.integers(2**31)))
        held.start()
        held.check()


def test_graph_capture_reads_new_offsets(backend):
    """A replay runs with the offsets that are in memory then."""
    rng = np.random.default_rng()
    product = GroupedProduct(GROUPED_SHAPES.by_name["128x128x6p"], *ends_of(rng, 9, 500), 264, 328, b="col")
    held, graph = Held(backend, product, 1), torch.cuda.CUDAGraph()
    held.start()
    with torch.cuda.graph(graph):
        held.start()
    for _ in range(3):
        ends = np.sort(rng.integers(0, product.extent + 1, 9))
        other = product.with_ends(ends.tolist())
        a, b, bias = other.data(1)
        held.exact, held.product = other.exact(a, b, bias), other
        held.a.copy_(torch.from_numpy(stored(a, product.a)))
        held.offsets.copy_(torch.from_numpy(ends.astype(np.int32)))
        graph.replay()
        held.check()


def test_offsets_of_the_kernel_before(backend):
    """Offsets that the kernel before this one in the stream writes, without a wait."""
    rng = np.random.default_rng()
    product = GroupedProduct(GROUPED_SHAPES.by_name["64x64x12"], *ends_of(rng, 60, 90), 136, 200, b="col")
    held = Held(backend, product, 2)
    ends = held.offsets.clone()
    big = torch.randn(4096, 4096, device="cuda")
    for _ in range(10):
        held.offsets.fill_(2**30)
        torch.mm(big, big)
        held.offsets.copy_(ends)
        held.start()
        held.check()
