"""symmetric=True: half of the products, results that are symmetric bit for bit, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from products import BF16, C64, C128, E4M3, F16, F32, F64, I8, I16, I64, draw, ratio, relaid

import gemmhub
from gemmhub import dtypes
from gemmhub.backend import BASIC, answer
from gemmhub.errors import InputError, ShapeError
from gemmhub.numpy_backend import symmetric
from gemmhub.numpy_backend.backend import NumpyBackend
from gemmhub.testing.problems import problem

DTYPES = [BF16, F16, F32, F64, C64, C128, E4M3, I8, I16, I64]


def operands(rng, n, k, dtype, batch=()):
    """A matrix and an array of its transpose's values, each with strides of its own, and a symmetric addend."""
    a = draw(rng, (*batch, n, k), dtype)
    half = draw(rng, (*batch, n, n), dtype)
    if dtype.kind == "i":
        half = half.astype(dtypes.result_dtype(dtype, dtype))
    c = np.where(np.tri(n, dtype=bool), half, np.swapaxes(half, -1, -2))
    return relaid(rng, a)[0], relaid(rng, np.swapaxes(a, -1, -2).copy())[0], relaid(rng, c)[0]


def is_symmetric(x):
    """Whether the bits of x are those of its transpose."""
    bits = np.ascontiguousarray(x).view(np.uint8).reshape(*x.shape, x.itemsize)
    return np.array_equal(bits, np.swapaxes(bits, -2, -3))


def checked(a, b, **options):
    result = gemmhub.matmul(a, b, symmetric=True, backend="numpy", **options)
    assert is_symmetric(result)
    assert ratio(result, a, b, **{**options, "out_dtype": result.dtype}) <= 1
    return result


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products(dtype, rng):
    """Of sizes that are one block, several, and none, from matrices and stacks of any strides."""
    saturating = {"out_dtype": F32} if dtype == E4M3 else {}
    for n, k, batch in (
        (1, 5, ()),
        (0, 3, ()),
        (7, 0, ()),
        (130, 9, (2,)),
        (257, 33, ()),
        (600, 5, ()),
        (300, 4, (2, 1)),
    ):
        a, b, c = operands(rng, n, k, dtype, batch)
        checked(a, b, **saturating)
        if dtype != E4M3:
            scalars = (3, -2) if dtype.kind == "i" else (0.5, -1.25)
            checked(a, b, alpha=scalars[0], beta=scalars[1], c=c, **saturating)


@pytest.fixture
def blocks(monkeypatch):
    """The sizes of the results that were computed in parts."""
    sizes = []
    monkeypatch.setattr(symmetric, "parts", lambda n: sizes.append(n) or parts(n))
    return sizes


parts = symmetric.parts


def unaligned(x):
    """The same numbers at an address that is no multiple of their size."""
    memory = np.empty(x.nbytes + 1, np.uint8)[1:]
    memory[:] = np.frombuffer(x.tobytes(), np.uint8)
    return memory.view(x.dtype).reshape(x.shape)


@pytest.mark.parametrize("dtype", [F32, F64, C64, C128], ids=str)
def test_a_matrix_by_its_own_transpose(dtype, rng, blocks):
    """NumPy calls syrk, unless the operand is not aligned: the result is mirrored then, too."""
    whole = draw(rng, (2, 300, 70), dtype)
    for x in (whole[0], whole[1].T, whole, whole[:, :290, 3:60], whole[0][:, :1], whole[0][:1], unaligned(whole[0])):
        plan = gemmhub.plan(x, np.swapaxes(x, -1, -2), symmetric=True, backend="numpy")
        del blocks[:]  # its preparation lists the parts
        result = plan(x, np.swapaxes(x, -1, -2))
        assert blocks == []
        assert is_symmetric(result)
        assert ratio(result, x, np.swapaxes(x, -1, -2), out_dtype=result.dtype) <= 1
        out = np.full((*result.shape[:-1], 2 * result.shape[-1]), np.nan, dtype)[..., ::2]
        gemmhub.matmul(x, np.swapaxes(x, -1, -2), out=out, symmetric=True, backend="numpy")
        assert is_symmetric(out)
        assert ratio(out, x, np.swapaxes(x, -1, -2), out_dtype=result.dtype) <= 1


def test_what_syrk_does_not_compute(rng, blocks):
    """Other memory, strides that the BLAS cannot address, an epilogue, a promise on bits, and converted operands."""
    x = draw(rng, (300, 140), F64)
    c = np.eye(300)
    cases = [
        (x, x.T.copy(), {}), (x[:, ::2], x[:, ::2].T, {}), (x, x.T, {"alpha": 0.5}),
        (x, x.T, {"beta": 1.0, "c": c}), (x, x.T, {"reproducible": "run"}),
    ]  # fmt: skip
    for a, b, options in cases:
        plan = gemmhub.plan(a, b, symmetric=True, backend="numpy", **options)
        del blocks[:]
        more = {"c": c} if "c" in options else {}
        assert is_symmetric(plan(a, b, **more))
        assert blocks == [300]
        if "reproducible" not in options:
            checked(a, b, **options)


def test_the_addend_may_be_the_result(rng):
    a, b, c = operands(rng, 300, 40, F32)
    out = c.copy()
    assert gemmhub.matmul(a, b, symmetric=True, alpha=0.5, beta=2, c=out, out=out, backend="numpy") is out
    assert is_symmetric(out)
    assert ratio(out, a, b, alpha=0.5, beta=2, c=c) <= 1


def test_the_upper_triangle_is_not_read(rng):
    """Of c and of out: whatever they hold there."""
    a, b, c = operands(rng, 300, 40, F64)
    expected = gemmhub.matmul(a, b, symmetric=True, beta=1, c=c, backend="numpy")
    spoiled = c.copy()
    rows, columns = np.triu_indices(300, 1)
    above = (rows >= 160) != (columns >= 160)  # blocks on the diagonal are computed whole
    spoiled[rows[above], columns[above]] = np.nan
    out = np.full((300, 300), np.nan)
    gemmhub.matmul(a, b, symmetric=True, beta=1, c=spoiled, out=out, backend="numpy")
    assert np.array_equal(out, expected)


def test_nonfinite_results_are_mirrored():
    a = np.zeros((300, 4), F32)
    a[3, 0], a[290, 1] = np.inf, np.nan
    result = gemmhub.matmul(a, a.T.copy(), symmetric=True, backend="numpy")
    assert is_symmetric(result)
    assert result[3, 3] == np.inf
    assert np.isnan(np.delete(result[3], 3)).all()
    assert np.isnan(result[290]).all()


@pytest.mark.parametrize("n", [1, 2, 63, 64, 256, 257, 512, 700, 1025])
def test_parts_cover_the_lower_triangle_once(n):
    seen = np.zeros((n, n), int)
    for rows, columns in symmetric.parts(n):
        assert rows == columns or rows.start >= columns.stop
        seen[rows, columns] += 1
    assert (seen[np.tril_indices(n)] == 1).all()
    assert n < 512 or seen.sum() < 0.8 * n * n


def test_warm_calls_and_plans(rng):
    for n in (40, 300, 40, 41, 300):
        a, b, c = operands(rng, n, 20, F32)
        assert is_symmetric(gemmhub.matmul(a, b, symmetric=True))
        assert is_symmetric(gemmhub.plan(a, b, symmetric=True)(a, b))
        planned = gemmhub.plan(a, b, c=c, beta=2, symmetric=True)
        assert is_symmetric(planned(a, b, c=c, beta=2))


def test_sizes_that_do_not_fit_are_refused_cold_and_warm(rng):
    a = draw(rng, (6, 4), F32)
    for _ in range(2):
        gemmhub.matmul(a, a.T, symmetric=True)
        for left, right in ((a, a.T[:, :5]), (a[:5], a.T), (a[0], a.T), (a, a[0])):
            with pytest.raises(ShapeError, match="symmetric: True for shapes"):
                gemmhub.matmul(left, right, symmetric=True)


@pytest.mark.parametrize(
    ("options", "argument"),
    [({"bias": np.ones(6, F32)}, "bias"), ({"activation": "relu"}, "activation"), ({"symmetric": 1}, "symmetric"),
     ({"scale_a": np.ones(1, F32)}, "scale_a"), ({"amax": np.zeros(1, F32)}, "amax"),
     ({"reproducible": "batch"}, "reproducible")],
)  # fmt: skip
def test_other_options_are_refused(options, argument):
    a = np.ones((6, 4), F32)
    with pytest.raises(InputError) as raised:
        gemmhub.matmul(a, a.T, **{"symmetric": True, **options})
    assert raised.value.argument == argument


def test_a_packed_operand_is_refused():
    a = np.ones((6, 4), F32)
    with pytest.raises(InputError, match="symmetric"):
        gemmhub.matmul(a, gemmhub.pack(a.T), symmetric=True)


def test_decisions_state_it():
    a = np.ones((300, 4), F32)
    found = gemmhub.explain(a, a.T, symmetric=True)
    assert "symmetric: half the products" in str(found)
    assert "symmetric" in found.problem.key
    small = gemmhub.explain(a[:20], a[:20].T, symmetric=True)
    assert "symmetric: computed whole, and mirrored" in str(small)
    assert small["numpy"].seconds > gemmhub.explain(a[:20], a[:20].T)["numpy"].seconds
    assert "symmetric" not in gemmhub.explain(a, a.T).problem.key


def test_backends_that_were_not_written_for_it_are_refused():
    class Without(NumpyBackend):
        takes = BASIC

    asked = problem(16, 16, 16, symmetric=True)
    assert answer(Without(), asked).reason == "it does not compute one triangle of a symmetric product"


def test_a_false_promise_is_found(rng):
    a, b = draw(rng, (300, 40), F32), draw(rng, (40, 300), F32)
    result = gemmhub.matmul(a, b, symmetric=True)
    assert is_symmetric(result)
    assert not gemmhub.spot_check(a, b, result, symmetric=True)
    assert gemmhub.spot_check(a, a.T, gemmhub.matmul(a, a.T, symmetric=True), symmetric=True)


def test_reproducible_runs_are_equal(rng):
    a, b, _ = operands(rng, 300, 40, F16)
    first = gemmhub.matmul(a, b, symmetric=True, reproducible="run")
    assert np.array_equal(first, gemmhub.matmul(a, b, symmetric=True, reproducible="run"))
