"""Packing on devices: by the backend whose packed product is the fastest, or b kept as it is, ordered with all work."""

from __future__ import annotations

import numpy as np
import pytest
from address_backend import Addresses, add, small

import gemmhub
from gemmhub.errors import AllocationError, DeviceError


class Packs(Addresses):
    """A backend with a packed form: the address of b."""

    def __init__(self, name, unpacked, packed):
        super().__init__(name)
        self.times = {False: unpacked, True: packed}

    def offer(self, problem):
        self.seconds = self.times[problem.packed_by is not None]
        return super().offer(problem)

    def pack(self, b, problem):
        return b


@pytest.fixture
def pair(library, rng):
    return library.array(small(rng, (5, 6))), library.array(small(rng, (6, 7)))


@pytest.mark.parametrize("first", ["slow", "quick"])
def test_the_backend_with_the_fastest_packed_product_packs(library, machine, pair, first):
    made = {"slow": Packs("slow", 1e-6, 9e-7), "quick": Packs("quick", 2e-6, 5e-7)}
    for backend in (made.pop(first), *made.values()):
        add(backend)
    packed = gemmhub.pack(pair[1])
    assert (packed.backend, str(packed.device)) == ("quick", "cuda:0")
    assert np.array_equal(gemmhub.matmul(pair[0], packed).host, pair[0].host @ pair[1].host)
    assert gemmhub.explain(pair[0], packed).packing == "0.5 us estimated by quick; b itself 1 us estimated by slow"


LAYOUTS = {
    "row": lambda b: b,
    "column": np.asfortranarray,
    "strided": lambda b: np.repeat(np.repeat(b, 2, 0), 3, 1)[::2, ::3],
    "repeated": lambda b: np.broadcast_to(b[:1], b.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_b_is_kept_as_it_is_where_packing_would_be_slower(library, backend, machine, rng, layout):
    packer = add(Packs("packer", 3e-6, 2e-6))
    x = small(rng, (5, 6))
    for name in dict.fromkeys(("row", layout)):
        a, b = library.array(x), library.array(LAYOUTS[name](small(rng, (6, 7))))
        expected = x @ b.host
        machine.log.clear()
        packed = gemmhub.pack(b)
        waits = [entry[0] for entry in machine.log if "synchronize" in entry[0]]
        assert len(waits) >= 2, "work on other streams may still write b, and may read the copy"
        assert packed.backend is None
        assert "kept as it is" in gemmhub.explain(a, packed).packing
        if name != "repeated":
            b.host[...] = 0
        planned = gemmhub.plan(a, packed)
        for _ in range(2):
            assert np.array_equal(gemmhub.matmul(a, packed).host, expected)
            assert np.array_equal(gemmhub.matmul(a, packed, stream=0x40).host, expected)
            assert np.array_equal(planned(a, packed).host, expected)
        out = library.array(np.zeros((5, 7), np.float32))
        for _ in range(2):
            assert gemmhub.matmul(a, packed, out=out) is out
        assert np.array_equal(out.host, expected)
        assert not {call[1] for call in backend.calls} & {b.host.ctypes.data}
        with pytest.raises(DeviceError, match="packed on cuda:0"):
            gemmhub.matmul(library.array(x, 1), packed)
        assert gemmhub.tune(a, packed).best.seconds > 0
        assert gemmhub.compare(a, packed)
        with gemmhub.use(tune="first"):
            assert np.array_equal(gemmhub.matmul(a[:3], packed).host, expected[:3])
    assert packer.calls  # any backend takes it
    assert gemmhub.pack(b, backend="packer").backend == "packer"


def test_a_full_device_keeps_nothing(library, backend, machine, pair):
    add(Packs("packer", 3e-6, 2e-6))
    machine.room = 0
    with pytest.raises(AllocationError):
        gemmhub.pack(pair[1])


def test_a_foreign_array_is_kept(fakejax, cupy, backend, rng):
    add(Packs("packer", 3e-6, 2e-6))
    x, y = small(rng, (3, 4)), small(rng, (4, 5))
    packed = gemmhub.pack(fakejax.array(y))
    assert packed.backend is None
    for _ in range(2):
        assert np.array_equal(gemmhub.matmul(fakejax.array(x), packed).host, x @ y)
