"""The contract of grouped products on devices: the problem, its names and keys, and what a backend must take for it."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from address_backend import Addresses

from gemmhub import buckets
from gemmhub.backend import Offer, answer
from gemmhub.capability import Device, Refusal
from gemmhub.operands import Bias, Scale
from gemmhub.problem import Groups
from gemmhub.testing.problems import problem

CUDA = Device("cuda", 0)
DIVIDED = ("m", "k", "n")


def grouped(divides, count=3, **changes):
    return problem(100, 48, 64, "float16", groups=Groups(count, divides), device=CUDA, **changes)


@pytest.mark.parametrize("divides", DIVIDED)
def test_one_array_has_a_matrix_for_each_group(divides):
    made = grouped(divides)
    batches = {name: getattr(made, name).layout.batch for name in ("a", "b", "out")}
    whole = {"m": "b", "k": "out", "n": "a"}[divides]
    assert batches == {name: (3,) if name == whole else () for name in ("a", "b", "out")}
    assert made.batch == ()
    assert not made.plain
    assert not made.empty
    sizes = {"a": 100 * 64, "b": 64 * 48, "out": 100 * 48}
    assert made.nbytes == sum(size * 2 * (3 if name == whole else 1) for name, size in sizes.items())
    assert made.flops == 2 * 100 * 48 * 64
    assert pickle.loads(pickle.dumps(made)) == made


def test_keys_tell_groups_apart():
    keys = [grouped(x).key for x in DIVIDED] + [grouped("m", 4).key, problem(100, 48, 64, "float16", device=CUDA).key]
    assert len({*keys}) == 5
    assert keys[0].endswith("groups=3:m")
    assert str(grouped("m")) == f"{keys[0]} on cuda:0"
    biases = [Bias(np.dtype(np.float16), "n"), Bias(np.dtype(np.float16), "n", 1, (48,))]
    assert [x.form for x in biases] == ["n", "batch n"]
    shared, own = (grouped("m", bias=x).key for x in biases)
    assert "epilogue=bias_n " in shared
    assert "epilogue=bias_batch_n " in own


@pytest.mark.parametrize("divides", DIVIDED)
def test_what_a_backend_was_not_written_for_is_refused(divides):
    backend, asked = Addresses(), grouped(divides)
    refusal = answer(backend, asked)
    assert isinstance(refusal, Refusal)
    assert refusal.any_size
    assert refusal.reason == f"it has no grouped products whose offsets divide {divides}"
    backend.takes = {**backend.takes, "groups": frozenset(DIVIDED) - {divides}}
    assert " or ".join(sorted(set(DIVIDED) - {divides})) in answer(backend, asked).reason
    for forms in (frozenset({divides}), None):
        backend.takes = {**backend.takes, "groups": forms}
        assert isinstance(answer(backend, asked), Offer)
    own = answer(backend, asked.having(bias=Bias(np.dtype(np.float16), "n", 1, (48,))))
    assert "'batch n'" in own.reason
    assert isinstance(answer(backend, asked.having(scale_b=Scale("n", batch_strides=(48,)))), Refusal)


def test_rows_that_groups_divide_are_bucketed():
    one, other = (buckets.representative(replace(grouped("m"), m=m)) for m in (1001, 1023))
    assert one.m == other.m == 1024
    assert one.b.layout.batch == (3,)
    for divides in ("k", "n"):
        assert buckets.representative(grouped(divides)) == grouped(divides)


def test_the_canonical_problem_has_no_groups():
    """So the order of its sums is that of the product of each group."""
    assert grouped("m", reproducible="batch").canonical == replace(
        problem(100, 48, 64, "float16", device=CUDA, reproducible="batch"), batch=()
    ).canonical  # fmt: skip
