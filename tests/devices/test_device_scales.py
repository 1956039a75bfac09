"""Scales of operands on devices: a kernel gets their addresses by name; a backend without them is not asked."""

from __future__ import annotations

from typing import ClassVar

import address_backend
import numpy as np
import pytest
from address_backend import small
from machine import at

import gemmhub
from gemmhub import Kernel
from gemmhub.backend import BASIC
from gemmhub.errors import InputError, NoBackendError

F32 = np.dtype(np.float32)


class Scaled(address_backend.Addresses):
    takes: ClassVar = {**BASIC, "scale_a": frozenset({"row"}), "scale_b": frozenset({"tensor"})}

    def prepare(self, problem, candidate, workspace_limit):
        inner = super().prepare(problem.having(scale_a=None, scale_b=None), candidate, workspace_limit)

        def run(a, b, out, alpha, beta, stream, scale_a=None, scale_b=None, **others):
            """Writes nonsense into out, and then the product, before it reads the scales; without them it is wrong."""
            inner.run(a, b, out, alpha, beta, stream, **others)
            result = address_backend.matrix(problem.out, out)
            if scale_a is not None:
                result *= at(scale_a, F32, (problem.m,), (4 * problem.operands["scale_a"].stride,)).copy()[:, None]
            if scale_b is not None:
                result *= at(scale_b, F32, (1,), (4,))

        return Kernel(run, "scaled")


@pytest.fixture
def scaled(machine):
    made = address_backend.add(Scaled("scaled"))
    yield made
    assert not made.violations


def test_a_kernel_gets_the_addresses(library, scaled, rng):
    planned = None
    for turn in range(4):
        x, y, r = small(rng, (4, 6)), small(rng, (6, 5)), small(rng, (8,)) + 1
        one = np.full((), 2.0 + turn, F32)
        given = {"scale_a": library.array(r[::2]), "scale_b": library.array(one)}
        a, b = library.array(x), library.array(y)
        wanted = (x @ y) * r[::2, None] * one
        questions = scaled.questions
        assert np.array_equal(gemmhub.matmul(a, b, **given).host, wanted)
        assert turn == 0 or scaled.questions == questions
        planned = planned or gemmhub.plan(a, b, **given)
        for _ in range(2):
            assert np.array_equal(planned(a, b, **given).host, wanted)
        with pytest.raises(InputError, match="scale_b"):
            planned(a, b, scale_a=given["scale_a"])


def test_out_over_a_scale(library, scaled, rng):
    x, y, r = small(rng, (4, 4)), small(rng, (4, 4)), small(rng, (4,)) + 1
    memory = library.machine.allocate(64, 0)
    out = library.at(memory, 0, F32, (4, 4), (16, 4))
    scale = library.at(memory, 16, F32, (4,), (4,))
    one = library.array(np.ones(1, F32))
    for _ in range(2):
        scale.host[...] = r
        gemmhub.matmul(library.array(x), library.array(y), out=out, scale_a=scale, scale_b=one)
        assert np.array_equal(out.host, (x @ y) * r[:, None])


def test_a_backend_without_scales_is_not_asked(library, backend, rng):
    a, b = library.array(small(rng, (4, 4))), library.array(small(rng, (4, 4)))
    scale = library.array(np.ones(4, F32))
    gemmhub.matmul(a, b)
    questions = backend.questions
    for _ in range(2):
        with pytest.raises(NoBackendError) as caught:
            gemmhub.matmul(a, b, scale_a=scale)
        assert caught.value.decision["addresses"].reason == "it does not take quantization scales (scale_a=)"
    assert backend.questions == questions


def test_scales_lie_with_the_operands(library, scaled, rng):
    a, b = library.array(small(rng, (4, 4))), library.array(small(rng, (4, 4)))
    with pytest.raises(InputError, match="scale_a"):
        gemmhub.matmul(a, b, scale_a=np.ones(4, F32))
    with pytest.raises(InputError, match="scale_a"):
        gemmhub.matmul(a, b, scale_a=library.array(np.ones(4, F32), offset=1))
