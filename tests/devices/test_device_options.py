"""Repeated calls with options: as correct as the first, and one look-up for torch tensors."""

from __future__ import annotations

import numpy as np
import pytest
from address_backend import small
from test_device_warm import entered

import gemmhub
from gemmhub.errors import InputError

F32 = np.dtype(np.float32)


def expected(a, b, c=None, bias=None, alpha=1, beta=0, activation=None):
    result = alpha * (a.astype(float) @ b.astype(float))
    if c is not None and beta:
        result = result + beta * c
    if bias is not None:
        result = result + bias
    return np.maximum(result, 0) if activation else result


def is_fast(library, *arguments, **options):
    """Whether a call is one look-up and the kernel. (cupy's fast path takes plain calls only.)"""
    modules = [name for name, _ in entered(gemmhub.matmul, *arguments, **options)]
    return library.name == "cupy" or "gemmhub._call.bind_device" not in modules


CASES = {
    "bias": ({"bias"}, {}),
    "bias, relu": ({"bias"}, {"activation": "relu"}),
    "alpha": (set(), {"alpha": 0.5}),
    "c": ({"c"}, {"beta": 2.0}),
    "all": ({"c", "bias"}, {"alpha": 0.5, "beta": 2.0, "activation": "relu"}),
    "in place": ({"c in place", "bias"}, {"beta": 1}),
    "named": (set(), {"backend": "addresses", "out_dtype": "float32"}),
}


@pytest.mark.parametrize("with_out", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_products_with_options(library, backend, name, with_out, rng):
    """Each call has other operands, at other addresses; a plan takes the same."""
    arrays, options = CASES[name]
    planned = None
    for turn in range(4):
        x, y, z = (small(rng, (4, 4)) for _ in range(3))
        v = small(rng, (4,))
        given = dict(options)
        out = library.array(np.zeros((4, 4), F32)) if with_out or "c in place" in arrays else None
        c = z if arrays & {"c", "c in place"} else None
        if "c in place" in arrays:
            out.host[...] = z
            given["c"] = out
        elif c is not None:
            given["c"] = library.array(z)
        if "bias" in arrays:
            given["bias"] = library.array(v)
        a, b = library.array(x), library.array(y)
        numbers = {key: given[key] for key in ("alpha", "beta", "activation") if key in given}
        wanted = expected(x, y, c, v if "bias" in arrays else None, **numbers)
        questions = backend.questions
        if turn > 1:
            assert is_fast(library, a, b, out=out, **given)
            if "c in place" in arrays:
                out.host[...] = z
        result = gemmhub.matmul(a, b, out=out, **given)
        assert result.host.dtype == F32
        assert np.array_equal(result.host, wanted)
        assert out is None or result is out
        assert turn < 2 or backend.questions == questions
        if "c in place" in arrays:
            out.host[...] = z
        planned = planned or gemmhub.plan(a, b, out=out, **given)
        if "c in place" in arrays:
            out.host[...] = z
        taken = {key: given[key] for key in ("c", "bias") if key in given}
        assert np.array_equal(planned(a, b, out, **taken).host, wanted)


def test_scalars_that_change(library, backend, rng):
    x, y = small(rng, (4, 4)), small(rng, (4, 4))
    a, b, c = library.array(x), library.array(y), library.array(small(rng, (4, 4)))
    values = (1, 2, 0.5, 1.0, -3.0, 0, np.float32(0.25))
    pairs = [(alpha, beta) for alpha in values for beta in (0, 1, 0.5, 0.0, -1)]
    for chosen in (pairs, pairs, [(alpha, 1) for alpha in (1, 2, 0.5, 1)] * 2):
        for alpha, beta in chosen:
            result = gemmhub.matmul(a, b, c=c, alpha=alpha, beta=beta)
            assert np.array_equal(result.host, expected(x, y, c.host, alpha=float(alpha), beta=beta))
    with pytest.raises(InputError):
        gemmhub.matmul(a, b, alpha="2")
    with pytest.raises(InputError):
        gemmhub.matmul(a, b, alpha=1e300)


def test_c_is_not_read_where_beta_is_0(library, backend, rng):
    x, y = small(rng, (4, 4)), small(rng, (4, 4))
    a, b = library.array(x), library.array(y)
    for value in (1.0, np.nan):
        c = library.array(np.full((4, 4), value, F32))
        for beta in (1.0, 0.0, 0):
            result = gemmhub.matmul(a, b, c=c, beta=beta).host
            assert np.isnan(result).all() == (np.isnan(value) and beta == 1)


@pytest.mark.parametrize("name", ["bias", "c"])
def test_what_differs_in_an_option_is_seen(library, backend, name, rng):
    """Each time after calls that were right: another shape, dtype, stride or device of the array."""
    a, b = library.array(small(rng, (4, 4))), library.array(small(rng, (4, 4)))
    shape, more = ((4,), {}) if name == "bias" else ((4, 4), {"beta": 1})
    for _ in range(3):
        gemmhub.matmul(a, b, **{name: library.array(small(rng, shape))}, **more)
    for wrong in (library.array(np.zeros((3,), F32)), library.array(np.zeros(shape, F32), device=1), "x", None):
        if wrong is None and name == "bias":
            continue
        with pytest.raises(InputError):
            gemmhub.matmul(a, b, **{name: wrong}, **more)
    spaced = np.zeros((*shape[:-1], 8), F32)[..., ::2]
    spaced[...] = small(rng, shape)
    result = gemmhub.matmul(a, b, **{name: library.array(spaced)}, **more)
    assert np.array_equal(result.host, a.host @ b.host + spaced)


@pytest.mark.parametrize("name", ["a", "bias", "c"])
def test_an_out_that_overlaps(library, backend, name, rng):
    """After calls of the same kind, aligned alike, where it did not."""
    shape, strides = (16, 16), (64, 4)
    x, y, v, z = small(rng, shape), small(rng, shape), small(rng, (16,)), small(rng, shape)
    for _ in range(3):
        a, b, c, bias = library.array(x), library.array(y), library.array(z), library.array(v)
        gemmhub.matmul(a, b, out=library.array(np.zeros(shape, F32)), bias=bias, c=c, beta=2)
    memory = library.machine.allocate(2048, 0)
    out = library.at(memory, 0, F32, shape, strides)
    if name == "a":
        a = library.at(memory, 256, F32, shape, strides)
        a.host[...] = x
    elif name == "bias":
        bias = library.at(memory, 256, F32, (16,), (4,))
        bias.host[...] = v
    else:
        c = library.at(memory, 256, F32, shape, strides)
        c.host[...] = z
    wanted = expected(a.host.copy(), y, c.host.copy(), bias.host.copy(), beta=2)
    gemmhub.matmul(a, b, out=out, bias=bias, c=c, beta=2)
    assert np.array_equal(out.host, wanted)


def test_other_values_of_an_option(library, backend, rng):
    x, y, z = small(rng, (4, 4)), -small(rng, (4, 4)), small(rng, (4, 4)) - 2
    a, b = library.array(x), library.array(y)
    for turn in range(12):
        activation = (None, "relu")[turn % 2]
        c = library.array(z, offset=4 * (turn // 2 % 2))  # its kernel may count on the alignment of the first
        result = gemmhub.matmul(a, b, activation=activation, c=c, beta=1)
        assert np.array_equal(result.host, expected(x, y, z, beta=1, activation=activation))


def test_a_bias_and_c_that_are_sometimes_none(library, backend, rng):
    """As in a loop over layers some of which have none."""
    x, y, z, v = small(rng, (4, 4)), small(rng, (4, 4)), small(rng, (4, 4)), small(rng, (4,))
    a, b = library.array(x), library.array(y)
    for turn in range(12):
        bias, c = v if turn % 2 else None, z if turn % 3 else None
        given = {"bias": bias if bias is None else library.array(v), "c": c if c is None else library.array(z)}
        result = gemmhub.matmul(a, b, beta=0 if c is None else 1, **given)
        assert np.array_equal(result.host, expected(x, y, c, bias, beta=1))


def test_options_under_other_settings(library, backend, rng):
    a, b, v = library.array(small(rng, (4, 4))), library.array(small(rng, (4, 4))), library.array(small(rng, (4,)))
    for _ in range(3):
        gemmhub.matmul(a, b, bias=v)
    with gemmhub.use(backend="numpy"), pytest.raises(gemmhub.NoBackendError):
        gemmhub.matmul(a, b, bias=v)
    assert is_fast(library, a, b, bias=v)


def test_a_bias_that_requires_grad(library, backend, rng):
    if library.name != "torch":
        pytest.skip("cupy has no gradients")
    a, b, v = library.array(small(rng, (4, 4))), library.array(small(rng, (4, 4))), library.array(small(rng, (4,)))
    for _ in range(3):
        gemmhub.matmul(a, b, bias=v)
    v.requires_grad = True
    with pytest.raises(InputError, match="requires grad"):
        gemmhub.matmul(a, b, bias=v)
