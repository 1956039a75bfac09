"""The functions that end a product, each generated from its object in gemmhub.epilogues."""

from __future__ import annotations

import numpy as np
import pytest
from gemmhub_musa import from_numpy
from gemmhub_musa.testing import operand
from gemmhub_musa_kernels import sources
from gemmhub_musa_kernels.backend import MusaKernelsBackend
from gemmhub_musa_kernels.sources import PIPELINED, SCALAR, WMMA
from simulator import problem

import gemmhub
from conftest import INSTALLED
from gemmhub import accuracy
from gemmhub.backend import Kernel, Offer, answer
from gemmhub.capability import Refusal
from gemmhub.epilogues import EPILOGUES, Epilogue

pytestmark = pytest.mark.skipif(INSTALLED, reason="needs the simulator")

FINITE = np.concatenate([np.linspace(-14, 14, 281), [0.0, 1e-30, -1e-30, 2e4, -2e4, 1e30, -1e30]]).astype(np.float32)
LIMITS = np.array([np.nan, np.inf, -np.inf], np.float32)


@pytest.fixture
def backend():
    made = MusaKernelsBackend()
    assert made.probe()
    return made


def ended(backend, kernel, activation, x, expected):
    """Return the epilogue of ``x``, as the addend of a product of zeros; ``expected`` gets the reference."""
    asked = problem(*x.shape, 1, out="float32", c=operand("float32", *x.shape), activation=activation)
    offer = answer(backend, asked)
    assert isinstance(offer, Offer), offer
    name = next(name for name in offer.names if name.startswith(kernel))
    zeros = [np.zeros(shape, np.float16) for shape in ((x.shape[0], 1), (1, x.shape[1]))]
    a, b, c, out = (from_numpy(each) for each in (*zeros, x, np.empty_like(x)))
    backend.prepare(asked, name, 2**26).run(a.data.ptr, b.data.ptr, out.data.ptr, 1, 1, 0, c=c.data.ptr)
    model = accuracy.problem_model(asked)
    expected.append(accuracy.reference(*zeros, model=model, beta=1, c=x, activation=activation, out_dtype=out.dtype))
    return out.numpy()


@pytest.mark.parametrize("kernel", [PIPELINED, WMMA, SCALAR])
@pytest.mark.parametrize("activation", sources.activations())
def test_every_activation_is_within_its_bound(sim, backend, kernel, activation):
    for columns in (32, 9):  # in vectors, and one by one
        expected = []
        got = ended(backend, kernel, activation, FINITE.reshape(-1, columns), expected)
        assert (expected[0].ratio(got) <= 1).all()
        limits = ended(backend, kernel, activation, np.tile(LIMITS, (3, columns // 3 + 1))[:, :columns].copy(), [])
        assert np.array_equal(limits[0, :3], EPILOGUES[activation](LIMITS), equal_nan=True)


def test_a_registered_epilogue_has_a_library_for_its_own_products(sim, backend):
    """Nothing of the kernels names it, and the text of the libraries of other products stays."""
    before = {kernel: sources.text(kernel) for kernel in (PIPELINED, WMMA, SCALAR)}
    gemmhub.register_epilogue(
        "twice_tanh",
        lambda x, functions: 2 * functions.tanh(x),
        gradient=lambda x, functions: 2 - 2 * functions.tanh(x) ** 2,
        slope=2.0,
        evaluation=8.0,
        expression="2.0f * tanhf(x)",
        accurate=True,
    )
    try:
        for kernel, text in before.items():
            assert sources.text(kernel) == text
            for activation in ("gelu", "twice_tanh", "gelu"):
                expected = []
                got = ended(backend, kernel, activation, FINITE.reshape(-1, 32), expected)
                assert (expected[0].ratio(got) <= 1).all()
    finally:
        gemmhub.unregister_epilogue("twice_tanh")


def test_a_registered_epilogue_that_does_not_compile_is_refused(sim, backend, monkeypatch):
    """With the compiler's message, and the kernels of other products run."""
    broken = Epilogue("broken", "", lambda x, functions: x, None, 1.0, 1.0, "no_such_function(x)")
    monkeypatch.setitem(EPILOGUES, "broken", broken)
    asked = problem(16, 16, 8, activation="broken")
    for name in answer(backend, asked).names[:1]:
        refused = backend.prepare(asked, name, 2**26)
        assert isinstance(refused, Refusal)
        assert "no_such_function" in f"{refused.reason} {refused.traceback}"
    assert isinstance(backend.prepare(problem(16, 16, 8, activation="relu"), name, 2**26), Kernel)
