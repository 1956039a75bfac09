"""Quantization by the backend on a fake libcuda, and the launches that tasks get."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from fakes import FakeMemory, Home
from gemmhub_cuda.quantize import BLOCKS, GIVEN, ROWS, Quantizer, Variant, facts, plan
from quantizing import GRANULARITIES, dtype, hard_numbers, reference, same

from gemmhub.array_library import DeviceView
from gemmhub.backend import Quantization
from gemmhub.capability import Device, Refusal
from gemmhub.errors import KernelError

emulated = pytest.mark.emulator


@pytest.fixture(scope="module")
def home():
    return Home()


@pytest.fixture(scope="module")
def backend(home):
    return home.backend()


class Call:
    """One task in the memory of a fake device."""

    def __init__(self, home, x, target, granularity, index=0):
        self.given, self.memory = (x, target, granularity), FakeMemory(home, index)
        expected, of_x = reference(*self.given)
        self.x, self.q, self.scale = (self._array(y) for y in (x, expected, of_x))
        self.q.view(np.uint8)[...] = 0xA5
        self.scratches = []
        views = [DeviceView(y.ctypes.data, y.dtype, y.shape, y.strides, y) for y in (self.x, self.q, self.scale)]
        self.task = Quantization(Device("cuda", index), *views, granularity, False, FakeMemory.stream, self._scratch)

    def _array(self, x):
        made = self.memory.empty(max(1, x.nbytes)).view(x.dtype)[: x.size].reshape(x.shape)
        made[...] = x
        return made

    def _scratch(self, nbytes):
        self.scratches.append(self.memory.empty(nbytes))
        return self.scratches[-1].ctypes.data

    def check(self):
        same(self.q, self.scale, *reference(*self.given))


@emulated
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_the_launches_of_a_call(home, backend, granularity):
    """On the task's stream, also while it is captured: nothing is allocated or waited for."""
    rng = np.random.default_rng()
    for capture in (False, True):
        call = Call(home, hard_numbers(rng, (150, 200), "bfloat16"), "float8_e4m3fn", granularity)
        launches, calls = len(home.cuda.launches), len(home.cuda.calls)
        if capture:
            home.cuda.captures[FakeMemory.stream] = 1
        try:
            assert backend.quantize(call.task) is None
        finally:
            home.cuda.captures.clear()
        call.check()
        made = home.cuda.launches[launches:]
        assert len(made) == (2 if granularity in ("tensor", "column") else 1)
        assert len(call.scratches) == len(made) - 1
        assert {stream for _, _, stream in made} == {FakeMemory.stream}
    # The second call finds its kernels.
    assert not {"cuModuleLoadData", "cuMemAlloc_v2", "cuStreamSynchronize"} & set(home.cuda.calls[calls:])
    assert home.cuda.complaints == []
    assert home.cuda.stack == []


class Shifted(Call):
    """A task in memory that is aligned to its elements alone."""

    def _array(self, x):
        made = self.memory.empty(x.nbytes + x.itemsize).view(x.dtype)[1 : x.size + 1].reshape(x.shape)
        made[...] = x
        return made


@emulated
@pytest.mark.parametrize("granularity", ["row", "tensor"])
def test_equal_tasks_share_a_plan(home, monkeypatch, granularity):
    """Whatever their addresses, but for alignments."""
    backend, rng, planned = home.backend(), np.random.default_rng(), []
    monkeypatch.setattr("gemmhub_cuda.quantize.plan", lambda *given: planned.append(given) or plan(*given))
    for kind, count in ((Call, 1), (Call, 1), (Shifted, 2), (Call, 2), (Shifted, 2)):
        call = kind(home, hard_numbers(rng, (70, 96), "bfloat16"), "int8", granularity)
        assert backend.quantize(call.task) is None
        call.check()
        assert len(planned) == count
    assert home.cuda.complaints == []


def test_plans_differ_by_what_they_depend_on(home):
    call = Call(home, np.ones((70, 96), np.float32), "int8", "row")
    task, x, q, scale = call.task, call.task.x, call.task.q, call.task.scale

    def other(view, **changes):
        return DeviceView(**{name: changes.get(name, getattr(view, name)) for name in DeviceView.__slots__})

    changed = [
        replace(task, granularity="column"),
        replace(task, given=True),
        replace(task, x=other(x, dtype=dtype("bfloat16"))),
        replace(task, x=other(x, shape=(96, 70))),
        replace(task, x=other(x, strides=(400, 4))),
        replace(task, x=other(x, address=x.address + 4)),
        replace(task, q=other(q, dtype=dtype("float8_e5m2"))),
        replace(task, q=other(q, strides=(100, 1))),
        replace(task, q=other(q, address=q.address + 4)),
        replace(task, scale=other(scale, strides=(8, 4))),
    ]
    assert len({facts(x) for x in [task, *changed]}) == 1 + len(changed)
    assert facts(replace(task, x=other(x, address=x.address + 256), stream=7)) == facts(task)


def test_plans_are_bounded(home, backend, monkeypatch):
    monkeypatch.setattr("gemmhub_cuda.quantize._KEPT", 3)
    quantizer = Quantizer()
    gpu, images = backend.machine.gpus[0], backend.machine.images
    monkeypatch.setattr(home.cuda, "execute", lambda kernel, launch: "")
    for rows in range(1, 9):
        assert quantizer.run(Call(home, np.ones((rows, 4), np.float32), "int8", "row").task, gpu, images) is None
        assert len(quantizer._ready) <= 3


@emulated
def test_threads_without_a_context(home, backend):
    """And several at once: each call has parameters of its own."""
    rng = np.random.default_rng()
    calls = [Call(home, hard_numbers(rng, (70, 30 * n), "float32"), "int8", "128x128") for n in range(1, 5)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda call: backend.quantize(call.task), calls)) == [None] * 4
    for call in calls:
        call.check()
    assert home.cuda.stack == []


@emulated
def test_a_nested_call(home, backend):
    rng = np.random.default_rng()
    outer, inner = (Call(home, hard_numbers(rng, (130, 300), "float32"), "int8", "tensor") for _ in range(2))

    def interrupt():
        home.cuda.interrupt = None
        assert backend.quantize(inner.task) is None

    home.cuda.interrupt = interrupt
    assert backend.quantize(outer.task) is None
    assert home.cuda.interrupt is None
    outer.check()
    inner.check()


@emulated
def test_a_failed_launch(home, backend):
    call = Call(home, np.ones((3, 4), np.float32), "int8", "row")
    home.cuda.faults["cuLaunchKernelEx"] = 719
    try:
        with pytest.raises(KernelError, match="unspecified launch failure"):
            backend.quantize(call.task)
    finally:
        home.cuda.faults.clear()
    assert backend.quantize(call.task) is None
    call.check()


@emulated
def test_the_second_device():
    home = Home(devices=2)
    call = Call(home, np.ones((3, 4), np.float32), "int8", "row", 1)
    assert home.backend().quantize(call.task) is None
    call.check()
    assert home.cuda.stack == []


# Plans of arrays that need no memory


def view(shape, name="bfloat16", strides=None, address=4096):
    size = dtype(name).itemsize
    if strides is None:
        strides = tuple(int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape)))
    return DeviceView(address, dtype(name), shape, tuple(size * step for step in strides))


def task(x, granularity="row", target="int8", q=None, scale=None, given=False):
    if scale is None:
        scale = view((*x.shape[:-1], 1), "float32")
    q = q or view(x.shape, target)
    return Quantization(Device("cuda"), x, q, scale, granularity, given, 0, lambda nbytes: 0)


@pytest.mark.parametrize(
    ("x", "q", "wide"),
    [
        (view((4, 256)), None, 1), (view((4, 256), address=4098), None, 0), (view((4, 256), address=4104), None, 0),
        (view((4, 252)), None, 0), (view((4, 260), "float32"), None, 1), (view((4, 258), "float32"), None, 0),
        (view((4, 256)), view((4, 256), "int8", address=4100), 0), (view((1, 257)), None, 1),
        (view((4, 256), "float32"), view((4, 256), "int8", address=4100), 1),
        (view((4, 248), strides=(256, 1)), None, 1), (view((4, 256), strides=(260, 1)), None, 0),
    ],
)  # fmt: skip
def test_16_bytes_at_once_where_all_rows_are_aligned(x, q, wide):
    assert plan(task(x, q=q), 2).params.wide == wide


def test_sizes_beyond_31_bits():
    params = plan(task(view((2**37,)), "tensor", scale=view((), "float32")), 132).params
    assert (params.rows, params.columns, params.last, params.x_ld) == (2**30, 128, 128, 128)
    params = plan(task(view((2**20, 2**20)), "column", scale=view((1, 2**20), "float32")), 132).params
    assert (params.rows, params.x_ld) == (2**20, 2**20)
    for x, granularity in (
        (view((2**30 + 1, 200)), "row"),
        (view((1, 2**30 + 1)), "row"),
        (view((2**37 + 1,)), "tensor"),
    ):
        refusal = plan(task(x, granularity), 132)
        assert isinstance(refusal, Refusal)
        assert "more than" in refusal.reason


def test_a_batch_of_rows_is_one_matrix():
    """A row of each matrix of a batch would be a tile of its own."""
    x = view((1000, 1, 4096))
    planned = plan(task(x, "1x128", scale=view((1000, 1, 32), "float32")), 132)
    assert (planned.params.batch, planned.params.rows, planned.params.x_ld) == (1, 1000, 4096)
    apart = view((10, 3, 4096), strides=(5 * 4096, 4096, 1))
    assert plan(task(apart, "row"), 132).params.batch == 10


def test_launches_of_several_tiles_run_at_once():
    for granularity, shape in (("tensor", ()), ("column", (1, 4096))):
        planned = plan(task(view((8192, 4096)), granularity, scale=view(shape, "float32")), 132)
        for variant, grid in planned.launches:
            assert grid <= 132 * variant.ctas_per_sm
        assert planned.scratch_bytes == 4 * planned.launches[0][1] * (128 if shape else 1)
    planned = plan(task(view((8192, 4096)), given=True), 132)
    assert [(variant.step, grid) for variant, grid in planned.launches] == [(GIVEN, 132 * 3)]


def test_a_variant_for_each_kernel():
    """Sizes and strides are parameters: a new size compiles nothing."""
    seen = {plan(task(view((m, n))), 132).launches[0][0] for m in (1, 100, 5000) for n in (2000, 3000, 4001)}
    assert seen == {Variant(ROWS, (1, 0), "bfloat16", "int8", 128)}
    small = {plan(task(view((m, 90))), 132).launches[0][0] for m in (1, 100, 5000)}
    assert small == {Variant(BLOCKS, (1, 128), "bfloat16", "int8")}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (task(view((4, 4), "float64")), "does not quantize float64 to int8"),
        (task(view((4, 4), "float8_e4m3fn")), "does not quantize float8_e4m3fn"),
        (task(view((0, 4))), "no elements"),
        (task(view((4, 4), strides=(8, 2))), "contiguous along neither"),
        (task(view((4, 4), strides=(1, 8))), "contiguous along neither"),  # as x, but not as q
        (task(view((2, 3, 4, 200), strides=(9000, 2000, 200, 1)), scale=view((2, 3, 4, 1), "float32")), "not evenly"),
        (replace(task(view((4, 4))), x=DeviceView(4096, dtype("bfloat16"), (4, 4), (9, 2))), "aligned to their size"),
    ],
)
def test_refusals(backend, asked, words):
    refusal = backend.quantize(asked)
    assert isinstance(refusal, Refusal)
    assert words in refusal.reason
    assert refusal.remedy


def test_another_device(backend):
    refusal = backend.quantize(replace(task(view((4, 4))), device=Device("cuda", 3)))
    assert "cuda:3, for which there are no kernels" in refusal.reason
