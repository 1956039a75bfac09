"""Products that are written into stores: larger than memory, interrupted, damaged, and on disks that are full."""

from __future__ import annotations

import errno
import subprocess
import sys

import numpy as np
import pytest
from products import F16, F32, draw, ratio

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

import gemmhub  # noqa: E402
from gemmhub import distributed as gd  # noqa: E402
from gemmhub.errors import InputError, OutputError  # noqa: E402


@pytest.fixture(autouse=True)
def _small_blocks():
    with dask.config.set({"array.chunk-size": "1kiB", "scheduler": "sync"}):
        yield


@pytest.fixture
def operands(rng):
    return draw(rng, (64, 100), F32), draw(rng, (100, 48), F32)


def product(a, b):
    return gemmhub.matmul(da.from_array(a, chunks=(16, 32)), da.from_array(b, chunks=(32, 16)))


def held(target):
    if str(target).endswith(".npy"):
        return np.load(target, mmap_mode="r+")
    return pytest.importorskip("zarr").open_array(str(target), mode="r+")


@pytest.mark.parametrize("name", ["c.npy", "c.zarr"])
def test_a_product_is_written_in_rounds_and_a_second_run_keeps_it(name, operands, tmp_path):
    if name == "c.zarr":
        pytest.importorskip("zarr")
    target = tmp_path / name
    done = gd.store(product(*operands), target, memory="30kB")
    assert (done.written, done.kept, done.repaired) == (12, 0, 0)
    assert done.rounds > 1
    assert ratio(np.asarray(held(target)[:]), *operands) <= 1
    assert str(gd.store(product(*operands), target)) == "blocks: 0 written, 12 kept, 0 repaired; rounds: 0"


def test_a_damaged_block_is_computed_again(operands, tmp_path):
    target = tmp_path / "c.npy"
    gd.store(product(*operands), target)
    held(target)[20, 20] += 1
    again = gd.store(product(*operands), target)
    assert (again.written, again.kept, again.repaired) == (1, 11, 1)
    assert ratio(np.asarray(held(target)), *operands) <= 1


class Disk:
    """An array that is full after some writes."""

    def __init__(self, array, room):
        self.array, self.room = array, room
        self.shape, self.dtype = array.shape, array.dtype

    def __setitem__(self, where, block):
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= 1
        self.array[where] = block

    def __getitem__(self, where):
        return self.array[where]


def test_a_full_disk_is_named_and_the_next_run_goes_on(operands, tmp_path):
    journal, out = tmp_path / "journal", np.zeros((64, 48), F32)
    disk = Disk(out, 7)
    with pytest.raises(OSError, match=r"on process \d+: OSError: \[Errno 28\] No space left") as caught:
        gd.store(product(*operands), disk, journal=journal, memory=30000)
    assert caught.value.errno == errno.ENOSPC
    with open(journal, "a") as file:
        file.write('{"block": [3')  # what an interruption leaves
    done = gd.store(product(*operands), Disk(out, 99), journal=journal, memory=30000)
    assert done.kept >= 4
    assert done.kept + done.written == 12
    assert ratio(out, *operands) <= 1
    assert gd.store(product(*operands), Disk(out, 0), journal=journal).written == 0


def test_an_interrupted_run_goes_on(operands, tmp_path, monkeypatch):
    from gemmhub._doors.dask import store as module

    rounds, compute = [], module._compute

    def interrupted(*arguments):
        rounds.append(arguments[1])
        if len(rounds) == 3:
            raise KeyboardInterrupt
        return compute(*arguments)

    monkeypatch.setattr(module, "_compute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gd.store(product(*operands), tmp_path / "c.npy", memory=30000)
    written = sum(map(len, rounds[:2]))
    done = gd.store(product(*operands), tmp_path / "c.npy", memory=30000)
    assert (done.kept, done.written) == (written, 12 - written)
    assert ratio(np.asarray(held(tmp_path / "c.npy")), *operands) <= 1


def test_a_journal_of_another_product_is_refused(operands, tmp_path):
    a, b = operands
    gd.store(product(a, b), tmp_path / "c.npy")
    with pytest.raises(InputError, match=r"journal: .*of another product"):
        gd.store(product(a + 1, b), tmp_path / "c.npy")
    assert gd.store(product(a + 1, b), tmp_path / "c.npy", overwrite=True).written == 12
    assert ratio(np.asarray(held(tmp_path / "c.npy")), a + 1, b) <= 1


class DirectoryStore:
    """The store of zarr 2, which the Python of these tests may be too new for."""

    def __init__(self, path):
        self.path = str(path)


class Zarr2:
    """An array of zarr 2 in such a store, as far as storing uses it."""

    def __init__(self, folder):
        self.store, self.path, self.chunks = DirectoryStore(folder), "", (16, 16)
        self.memory = np.zeros((64, 48), F32)
        self.shape, self.dtype = self.memory.shape, self.memory.dtype

    def __setitem__(self, place, value):
        self.memory[place] = value

    def __getitem__(self, place):
        return self.memory[place]


def test_an_array_of_zarr_2_has_its_journal_beside_its_folder(operands, tmp_path):
    target = Zarr2(tmp_path / "c")
    assert gd.store(product(*operands), target).written == 12
    assert (tmp_path / "c.gemmhub.jsonl").exists()
    assert gd.store(product(*operands), target).kept == 12


def test_targets_that_cannot_take_the_result(operands, tmp_path):
    result = product(*operands)
    with pytest.raises(OutputError, match=r"target: float64 of shape \(64, 48\); allowed: float32"):
        gd.store(result, np.zeros((64, 48)))
    with pytest.raises(InputError, match="result: an ndarray"):
        gd.store(np.zeros((64, 48)), np.zeros((64, 48)))
    zarr = pytest.importorskip("zarr")
    shared = zarr.open_array(str(tmp_path / "z"), mode="w", shape=(64, 48), chunks=(24, 16), dtype="f4")
    with pytest.raises(OutputError, match=r"chunks of 24 along axis 0.*rechunk"):
        gd.store(result, shared)
    whole = zarr.open_array(str(tmp_path / "y"), mode="w", shape=(64, 48), chunks=(8, 16), dtype="f4")
    assert gd.store(result, whole).written == 12
    assert gd.store(result, whole).kept == 12
    memory = np.lib.format.open_memmap(tmp_path / "m.npy", "w+", F32, (64, 48))
    assert gd.store(result, memory).written == 12
    assert ratio(np.asarray(memory), *operands) <= 1
    with pytest.raises(OutputError, match="a part of a file"):
        gd.store(result[:32], memory[:32])


def test_other_arrays_of_dask_are_stored_too(operands, tmp_path):
    result = product(*operands) + np.float32(1)
    assert gd.store(result, tmp_path / "c.npy").rounds > 1
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), result.compute())


OUT_OF_CORE = """
import resource, sys, tracemalloc
import numpy as np, dask, dask.array as da, zarr
import gemmhub, gemmhub.distributed as gd
from dask.array import from_zarr

folder, = sys.argv[1:]
m, n, k, edge = 3072, 3072, 4096, 512
rng = np.random.default_rng(0)
for name, shape in (("a", (m, k)), ("b", (k, n))):
    store = zarr.open_array(f"{folder}/{name}", mode="w", shape=shape, chunks=(edge, edge), dtype="f4")
    for row in range(0, shape[0], edge):
        store[row : row + edge] = rng.standard_normal((edge, shape[1]), np.float32)
x, y = from_zarr(f"{folder}/a"), from_zarr(f"{folder}/b")
small = np.ones((4, 4), np.float32)
gemmhub.matmul(da.from_array(small, chunks=2), small).compute(scheduler="sync")  # what first calls import
whole = (m * k + k * n + m * n) * 4
with dask.config.set({"scheduler": "threads", "num_workers": 2, "array.chunk-size": "1MiB"}):
    product = gemmhub.matmul(x, y)
    tracemalloc.start()
    print(gd.store(product, f"{folder}/c", memory=whole // 8))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < whole / 4, (peak, whole)
    assert gemmhub.spot_check(x, y, from_zarr(f"{folder}/c")).compute()
print("bounded", peak, whole)
"""


def test_operands_and_result_four_times_larger_than_memory(tmp_path):
    """The peak of all that is allocated stays below a quarter of what is read and written."""
    pytest.importorskip("zarr")
    done = subprocess.run([sys.executable, "-c", OUT_OF_CORE, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "bounded" in done.stdout


def test_half_goes_through_stores(rng, tmp_path):
    a, b = draw(rng, (64, 100), F16), draw(rng, (100, 48), F16)
    gd.store(product(a, b), tmp_path / "c.npy")
    assert ratio(np.load(tmp_path / "c.npy"), a, b) <= 1
