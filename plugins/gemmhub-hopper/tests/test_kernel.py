"""The kernel itself, compiled for the host and run by the emulator, in many interleavings."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import fake_cuda
import numpy as np
import pytest
from fakes import mutated
from gemmhub_hopper.launches import launch
from gemmhub_hopper.lowering import lower
from problems import problem
from products import PRODUCTS, SMALL, TURNS, Product, Shape, stored
from runs import Run

from gemmhub.epilogues import ELEMENTWISE, EPILOGUES
from gemmhub.errors import KernelError

pytestmark = pytest.mark.emulator


@pytest.fixture(scope="module", autouse=True)
def _built(request):
    """The variants of all products that will run, compiled two at a time."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    products = [values["product"] for values in parameters if isinstance(values.get("product"), Product)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(fake_cuda.emulator, [macros for product in products for macros in product.macros]))


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_product(product):
    run = Run(product)
    for _ in range(2 if product.shape == SMALL else 1):
        run.check()


@pytest.mark.parametrize(
    "product",
    [
        Product(Shape(64, 64, 2, consumers=1), 200, 72, 520),
        Product(Shape(128, 64, 2), 264, 72, 392, b="col"),
        Product(Shape(128, 64, 2, cluster_m=2), 264, 72, 392),
        Product(Shape(128, 64, 2, cluster_n=2), 136, 136, 392, a="col", splits=2),
        Product(Shape(64, 64, 2, pingpong=True), 136, 200, 392),
        Product(Shape(64, 64, 2, cluster_n=2, pingpong=True), 136, 264, 328, splits=2),
        Product(Shape(64, 64, 2, consumers=1, cluster_m=2, cluster_n=2), 264, 136, 328, splits=2),
        Product(Shape(64, 64, 2, consumers=1, cluster_m=4), 264, 136, 328),
        Product(Shape(64, 64, 2, consumers=1, cluster_m=2, cluster_k=2), 136, 72, 392),
    ],
    ids=str,
)
def test_interleavings(product):
    """A ring of two stages and several work tiles of a CTA show a lost or early signal."""
    run = Run(product)
    for _ in range(4):
        run.check()


@pytest.mark.parametrize("k", [8, 200, 456])
@pytest.mark.parametrize(("m", "n"), [(64, 64), (64, 264), (72, 264), (200, 200)])
def test_ping_pong(m, n, k):
    """1 to 4 work tiles of a CTA, some with one more; 1 to 8 blocks of K in 3 stages."""
    Run(Product(TURNS, m, n, k)).check()


def test_split_k_is_deterministic():
    """The bits do not depend on the last split to arrive, and the counters are left at zero."""
    product = Product(SMALL, 72, 72, 1000, splits=4, out="float32")
    run = Run(product)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((product.m, product.k)).astype(run.values[0].dtype)
    run.a[: a.nbytes] = stored(a, "row")
    results = {run().tobytes() for _ in range(5)}
    assert len(results) == 1


def test_alpha_zero_forgets_the_product():
    product = Product(SMALL, 72, 72, 72, alpha=0, bias="n")
    run = Run(product)
    run.a[:] = 0xFF  # NaN
    run.check()


def test_relu_keeps_nan():
    product = Product(SMALL, 72, 72, 72, activation="relu")
    run = Run(product)
    run.a[2 * (72 * 5 + 3) :][:2] = 0xFF
    result = run()
    assert np.isnan(result[5].astype(float)).all()
    assert not product.wrong(result, run.exact)[[0, 1, 71]].any()


@pytest.mark.parametrize("activation", ELEMENTWISE)
def test_activation_of_extremes(activation):
    """Infinities make the limits, NaN stays, large arguments do not overflow on the way."""
    product = Product(SMALL, 8, 72, 8, activation=activation, out="float32")
    run = Run(product)
    a = np.zeros((8, 8), run.values[0].dtype)
    a[:, 0] = [np.inf, -np.inf, np.nan, 3e38, -3e38, 60, -60, -0.0]
    b = np.zeros((8, 72), a.dtype)
    b[0] = 1
    run.a[: a.nbytes], run.b[: b.nbytes] = stored(a, "row"), stored(b, "row")
    # Elsewhere 0 * inf would be NaN: b's other rows meet a's zeros.
    with np.errstate(over="ignore"):
        expected = EPILOGUES[activation](a[:, 0].astype(np.float32))
    np.testing.assert_allclose(run()[:, 0], expected, rtol=2e-7, atol=1e-20)


# fmt: off
MUTATIONS = {
    "a stage is released before it is read": (
        "mainloop.cuh", "if (block > 0) ctx.release(before);", "ctx.release(pipe.stage);"),
    "the last stage is not released": (
        "mainloop.cuh", "    pin_all(acc);\n    ctx.release(before);", "    pin_all(acc);"),
    "nobody waits for wgmma": ("mainloop.cuh", "wgmma_wait<0>();", ""),
    "wgmma is not fenced": ("mainloop.cuh", "wgmma_fence();", ""),
    "wgmma is fenced once a piece": (
        "mainloop.cuh", "wgmma_fence();\n#pragma unroll\n        for (u32 step",
        "if (block == 0) wgmma_fence();\n#pragma unroll\n        for (u32 step"),
    "new barriers are not fenced": ("gemm_kernel.cu", "barrier_init_fence();", ""),
    "new barriers are fenced by another thread": (
        "gemm_kernel.cu", "        barrier_init_fence();\n    }",
        "    }\n    if (threadIdx.x == 32) barrier_init_fence();"),
    "no sync after new barriers": ("cluster.cuh", "        block_sync();", "        ;"),
    "too few arrivals expected": (
        "gemm_kernel.cu", "4 * kWarpgroupsPerTile * kNumMulticast)", "2 * kWarpgroupsPerTile * kNumMulticast)"),
    "too many arrivals expected": (
        "gemm_kernel.cu", "4 * kWarpgroupsPerTile * kNumMulticast)", "5 * kWarpgroupsPerTile * kNumMulticast)"),
    "too few bytes expected": (
        "gemm_kernel.cu", "expect(full, SMEM_STAGE_BYTES)", "expect(full, SMEM_STAGE_BYTES - 16)"),
    "the producer waits for the wrong parity": ("gemm_kernel.cu", "pipe.parity ^ 1", "pipe.parity"),
    "the consumers do": ("mainloop.cuh", "stage), pipe.parity);", "stage), pipe.parity ^ 1);"),
    "the parity does not flip": ("pipeline.cuh", "parity ^= 1;", ""),
    "no fence before the store": ("epilogue.cuh", "async_fence();", ""),
    "only the thread that stores fences": (
        "epilogue.cuh", "async_fence();  // by every", "if (stores) async_fence();  // by every"),
    "no sync before the store": (
        "epilogue.cuh", "named_sync(1 + ctx.warpgroup, 128);\n            if (stores)", "if (stores)"),
    "a staging buffer is written too early": ("epilogue.cuh", "if (stores) tma_store_wait_read();", ""),
    "stores of the first buffer outlive the block": (
        "gemm_kernel.cu", "kTmaStore && ctx.lane == 0", "kTmaStore && ctx.warp > 0"),
    "those of the second one do": ("gemm_kernel.cu", "kTmaStore && ctx.lane == 0", "kTmaStore && ctx.warp == 0"),
    "another swizzle of the staging buffer": ("smem_desc.cuh", "(offset >> 3) &", "(offset >> 4) &"),
    "a wrong stride in the descriptor": ("smem_desc.cuh", "stride << 32", "stride / 2 << 32"),
    "a wrong leading offset": ("smem_desc.cuh", "mn_major ? FRAGMENT_BYTES / 16 : 1", "1"),
    "a wrong step along k": ("smem_desc.cuh", "16 * MN_ROW_BYTES : 32", "16 * MN_ROW_BYTES : 64"),
}
# Of taking turns: (file, old, new), the product's k and parts of it, perhaps another old and new. Epilogues meet where
# main loops are short.
_SKIP = "pipe.skip(kNumProducts * work.k_blocks)"
TURN_MUTATIONS = {
    "a stage too many is skipped": (
        "gemm_kernel.cu", _SKIP, "pipe.skip(kNumProducts * work.k_blocks + 1)", 200, 1),
    "all parts of k are taken for equal": (
        "gemm_kernel.cu", _SKIP, "pipe.skip(p.schedule.k_blocks_per_split)", 200, 3),
    "both consumers are to release a stage": (
        "gemm_kernel.cu", "4 * kWarpgroupsPerTile * kNumMulticast)", "4 * kNumConsumers * kNumMulticast)", 200, 1),
    "nobody waits for a turn": ("mainloop.cuh", "order.wait();", "", 392, 1),
    "a turn is given up before the main loop": (
        "mainloop.cuh", "order.arrive(ctx.lane);", ";", 392, 1, "order.wait();",
        "order.wait(), order.arrive(ctx.lane);"),
    "turns are not given up": ("mainloop.cuh", "order.arrive(ctx.lane);", "", 200, 1),
    "a turn's parity is the other's": ("pingpong.cuh", "passed / 2 % 2 ^ 1", "passed / 2 % 2", 200, 1),
    "the staging buffer is shared": (
        "epilogue.cuh", "SMEM_STORE_OFFSET + ctx.warpgroup * kNumStoreStages * SMEM_STORE_BYTES",
        "SMEM_STORE_OFFSET", 8, 1),
    "the named barrier is shared": ("epilogue.cuh", "named_sync(1 + ctx.warpgroup, 128)", "named_sync(1, 128)", 8, 1),
    "the flag of split k is shared": (
        "split_k.cuh", "SMEM_FLAG_OFFSET + 4 * ctx.warpgroup", "SMEM_FLAG_OFFSET", 128, 2),
}
# Of fragments in registers.
_LOADS = "#pragma unroll\n            for (u32 step = 0; step < HALF; ++step)\n#pragma unroll\n"
_LOADS += "                for (u32 i = 0; i < kNumFragments; ++i)\n                    loader"
FENCE_MUTATIONS = {
    "registers are written after the fence": (
        ("            wgmma_fence();\n", ""), (_LOADS, "            wgmma_fence();\n" + _LOADS)),
    "the fence is left out": (("            wgmma_fence();\n", ""),),
}
# Of blocks that share k.
CLUSTER_MUTATIONS = {
    "slices come where others still multiply": ("cluster_wait();\n", "\n"),
    "nobody waits for slices": ("barrier_wait(ctx.smem + SMEM_SUM_OFFSET, 0);", ""),
    "a slice is not waited for": (
        "SMEM_SUM_OFFSET, kClusterK * SENT_BYTES", "SMEM_SUM_OFFSET, (kClusterK - 1) * SENT_BYTES"),
    "all slices come to one place": ("mine + part * SLICE_BYTES", "mine"),
}
# fmt: on


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda name: name.replace(" ", "-"))
def test_the_emulator_notices(mutation, monkeypatch, tmp_path):
    """Faults that a card might hide for long."""
    file, *change = MUTATIONS[mutation]
    notices(Product(Shape(64, 256, 2, consumers=1), 328, 264, 328), file, [change], monkeypatch, tmp_path)


@pytest.mark.parametrize("mutation", TURN_MUTATIONS, ids=lambda name: name.replace(" ", "-"))
def test_the_emulator_notices_faults_of_ping_pong(mutation, monkeypatch, tmp_path):
    file, old, new, k, splits, *more = TURN_MUTATIONS[mutation]
    notices(
        Product(TURNS, 136, 264, k, splits=splits), file, ((old, new), *([more] if more else [])), monkeypatch, tmp_path
    )


@pytest.mark.parametrize("mutation", CLUSTER_MUTATIONS, ids=lambda name: name.replace(" ", "-"))
def test_the_emulator_notices_of_clusters(mutation, monkeypatch, tmp_path):
    product = Product(Shape(64, 32, 2, consumers=1, cluster_k=2), 72, 40, 328)
    notices(product, "cluster.cuh", [CLUSTER_MUTATIONS[mutation]], monkeypatch, tmp_path)


@pytest.mark.parametrize("mutation", FENCE_MUTATIONS, ids=lambda name: name.replace(" ", "-"))
def test_the_emulator_notices_of_fragments(mutation, monkeypatch, tmp_path):
    product = Product(SMALL, 72, 136, 132, a="col", b="col", dtype="tf32", registers=True)
    notices(product, "mainloop.cuh", FENCE_MUTATIONS[mutation], monkeypatch, tmp_path)


def notices(product, file, changes, monkeypatch, tmp_path):
    home = mutated(monkeypatch, tmp_path, file, *changes)
    run = Run(product, home)
    for _ in range(12):
        try:
            if product.wrong(run(), run.exact).any():
                return
        except KernelError:
            assert home.cuda.complaints
            return
    pytest.fail("not detected by the emulator or by a wrong result")


def test_parameters_are_those_of_the_kernel():
    """ctypes' idea of Params is the compiler's: the emulated launch checks the size, products the order."""
    from gemmhub_hopper.launches.launch import Arguments, Params

    assert ctypes.sizeof(Params) == 488
    assert Arguments.p.offset == 384


def test_results_that_need_not_stay_in_l2():
    """Results are streamed where they are larger than L2 and K is so short that storing takes longer."""

    def streamed(m, n, k, dtype="bfloat16", out=None):
        return launch.streamed(lower.lowerings(problem(m, n, k, dtype, out))[0])

    assert streamed(16384, 8192, 256)
    assert not streamed(16384, 8192, 320)
    assert not streamed(8192, 8192, 256)
    assert streamed(16384, 8192, 512, out="float32")
    assert not streamed(16384, 8192, 128, dtype="float32")
