"""einsum: shapes and values as NumPy's, dtypes and bounds as a product's, views, and what is refused."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from products import BF16, BOOL, C64, C128, F16, F32, F64, I8, I16, I32, I64, U8, draw, ratio, relaid

import gemmhub
from gemmhub._contractions import contract, path
from gemmhub._contractions.equation import Equation, parse
from gemmhub.errors import DeviceError, DTypeError, InputError, ShapeError

EQUATIONS = (
    "ij,jk->ik", "ij,jk->ki", "ij , kj -> ik", "ij,jk", "kj,ji", "bij,bjk->bik", "bij,bkj->kbi", "abc,dbc->ad",
    "acb,dc->abd", "i,i", "i,i->", "ij,j->i", "ab,cab->c", "i,j->ij", "i,j->ji", "ij,ij->ij", "ij,ij->", "ij,ji->",
    "ij,ij->i", "ij,kj->", "ij,kj->i", "ij,jk->", "ii,ij->j", "ii,ii->", "iij,jkk->ik", "iji,jk->ki", "ii->i", "ii",
    "iii->i", "ij->ji", "ij->i", "ij->", "ijk->ki", "bi,b->bi", "b,bi->ib", "bij,j->bi", "ijk,kji->", "Ab,bA->A",
    "->", ",", ",i->i", "i,->i", "abcd,dcbe->ae", "xiy,yjx->ij", "...ij,...jk->...ik", "...i,...i->...",
    "i...,i...->...", "i...j,jk->...ik", "...,...", "...", "...i", "...ii->...i", "...j,kj", "ij,jk,kl->il",
    "ij,jk,kl,lm->mi", "ab,bc,ca->", "i,i,i->", "ij,ij,ij->ij", "a,b,c->cab", "ij,,jk->ik", "...i,ij,...j->...",
    "ij,jk,lm->im", "ij,jj,jk->k", "ab,ab,cb,dc,ad->",
)  # fmt: skip
SIZES = dict(zip("abcdeijklmxyA", (2, 3, 4, 5, 2, 3, 1, 5, 6, 2, 3, 2, 3)))
REAL = (F16, BF16, F32, F64, I8, U8, I16, I64)


def operands(rng, equation, sizes, dtype=F64):
    """Random operands of an equation, whose ellipses broadcast."""
    return [numbers(rng, shape, dtype) for shape in shapes(rng, equation, sizes)]


def shapes(rng, equation, sizes):
    texts = equation.replace(" ", "").partition("->")[0].split(",")
    rest = [sizes["a"], sizes["b"]]
    for i, text in enumerate(texts):
        free = [x if rng.random() < 0.7 else 1 for x in rest][int(rng.integers(0, 2)) * (i > 0) :]
        head, dots, tail = text.partition("...")
        yield [sizes[x] for x in head] + free * bool(dots) + [sizes[x] for x in tail]


def numbers(rng, shape, dtype):
    """Whole numbers so small that no sum of a few hundred of their products is rounded, in float32 either."""
    return rng.integers(0 if np.dtype(dtype).kind in "ub" else -2, 3, shape).astype(dtype)


@pytest.fixture(params=["opt_einsum", "greedy"])
def order(request, monkeypatch):
    """The order of more than two operands, with and without opt_einsum."""
    if request.param == "opt_einsum":
        pytest.importorskip("opt_einsum", reason="opt_einsum is not installed")
    else:
        monkeypatch.setitem(sys.modules, "opt_einsum.paths", None)


@pytest.fixture
def products(monkeypatch):
    """The operands of each product of gemmhub."""
    seen = []

    class Spy:
        @staticmethod
        def matmul(a, b, **options):
            seen.append((a, b))
            return gemmhub.matmul(a, b, **options)

    monkeypatch.setattr(contract, "api", Spy)
    return seen


@pytest.mark.parametrize("equation", EQUATIONS)
def test_values_and_shapes_are_numpys(equation, order, rng):
    for _ in range(3):
        sizes = {x: int(rng.integers(1, 7)) for x in SIZES}
        given = operands(rng, equation, sizes)
        expected = np.einsum(equation, *given)
        relaid_operands = [relaid(rng, x)[0] for x in given]
        for ours in (given, relaid_operands):
            got = gemmhub.einsum(equation, *ours)
            assert got.shape == expected.shape
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "equation", ["ij,jk->ik", "bij,bjk->bik", "ij,kj->", "ij,jk,kl->il", "ii,ij->j", "ij->i", "ij,ij->i"]
)
@pytest.mark.parametrize("empty", ["i", "j", "ij", "b", "k"])
def test_empty_operands(equation, empty, order, rng):
    sizes = {x: 0 if x in empty else 3 for x in SIZES}
    given = operands(rng, equation, sizes)
    expected = np.einsum(equation, *given)
    got = gemmhub.einsum(equation, *given)
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("equation", ["ij,ij->ij", "ij,jk->ik", "ij,ij->", "ijk,jk->i", "ii,ii->i"])
def test_a_size_of_1_broadcasts(equation, rng):
    texts = equation.partition("->")[0].split(",")
    for dropped in set(texts[0]):
        sizes = dict.fromkeys("ijk", 4)
        first = [sizes[x] for x in texts[0]]
        second = [1 if x == dropped else sizes[x] for x in texts[1]]
        x, y = numbers(rng, first, F64), numbers(rng, second, F64)
        full = np.broadcast_to(y, [sizes[x] for x in texts[1]])
        np.testing.assert_array_equal(gemmhub.einsum(equation, x, y), np.einsum(equation, x, full))


CONTRACTIONS = {
    "ij,jk->ik": ("", "i", "j", "k"), "ij,jk->ki": ("", "i", "j", "k"), "abc,dbc->ad": ("", "a", "bc", "d"),
    "acb,dc->dba": ("", "ab", "c", "d"), "bij,bkj->kbi": ("b", "i", "j", "k"), "bi,bi->b": ("b", "", "i", ""),
    "i,i->": ("", "", "i", ""), "abij,bjka->kaib": ("ab", "i", "j", "k"), "ij,j->i": ("", "i", "j", ""),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64, C64, C128, I8, U8, I16, I64], ids=str)
@pytest.mark.parametrize("equation", CONTRACTIONS)
def test_a_product_has_the_bound_and_the_dtype_of_matmul(equation, dtype, rng):
    """The reference is the product of the matrices that NumPy makes of the operands."""
    batch, rows, inner, columns = CONTRACTIONS[equation]
    sizes = {x: int(rng.integers(1, 40 if x in inner[:1] else 6)) for x in batch + rows + inner + columns}
    terms, _, out = equation.partition("->")
    left, right = terms.split(",")
    x, y = (draw(rng, [sizes[i] for i in term], dtype) for term in (left, right))

    def matrix(z, letters, first, second):
        size = [math.prod(sizes[i] for i in group) for group in (first, second)]
        return z.transpose([letters.index(i) for i in batch + first + second]).reshape([sizes[i] for i in batch] + size)

    got = np.asarray(gemmhub.einsum(equation, x, y))
    assert got.shape == tuple(sizes[i] for i in out)
    product = matrix(got, out, rows, columns)
    assert ratio(product, matrix(x, left, rows, inner), matrix(y, right, inner, columns)) <= 1


@pytest.mark.parametrize("dtype", [F16, F32, F64], ids=str)
@pytest.mark.parametrize("equation", ["ij,jk,kl->il", "ij,kj->", "ij->i", "ii,ij,jk->k", "ij,ij->i", "ij,ij->ij"])
def test_sums_and_chains_have_the_bound_of_their_operations(equation, dtype, order, rng):
    """Each element is within (operations + 1) roundings of the accumulator, and one of the result."""
    sizes = {x: int(rng.integers(1, 30)) for x in SIZES}
    given = [draw(rng, shape, dtype) for shape in shapes(rng, equation, sizes)]
    exact = np.einsum(equation, *(x.astype(np.longdouble) for x in given))
    size = np.einsum(equation, *(abs(x).astype(np.longdouble) for x in given))
    got = gemmhub.einsum(equation, *given)
    assert got.dtype == dtype
    operations = sum(map(sum, (x.shape for x in given))) + 3 * len(given)
    accumulator = np.finfo(np.float64 if dtype == F64 else np.float32)
    u = operations * accumulator.eps / 2
    bound = u / (1 - u) * size
    bound = bound + (abs(exact) + bound) * np.finfo(dtype).eps + np.finfo(dtype).smallest_subnormal
    assert (abs(got.astype(np.longdouble) - exact) <= bound).all()


def test_a_chain_of_half_precision_is_rounded_once(order):
    """300 times 300 overflows float16; its product by a small number does not."""
    x = np.full((1, 1), 300, F16)
    assert gemmhub.einsum("ij,jk,kl->il", x, x, np.full((1, 1), 1e-3, F16)).item() == F16.type(
        90000 * float(F16.type(1e-3))
    )
    assert gemmhub.einsum("ij,kl->", np.full((1, 300), 300, F16), np.full((1, 1), 1e-3, F16)).dtype == F16


@pytest.mark.parametrize(
    ("equation", "kinds", "result"),
    [("ij,jk->ik", (I8, I8), I32), ("ij,kj->", (I8, U8), I32), ("ij,ij->ij", (I8, I8), I32), ("ij->", (I8,), I32),
     ("ij->ji", (I8,), I8), ("ii->i", (F16,), F16), ("ij->", (F16,), F16), ("ij,jk,kl->il", (I8, I8, I8), I32),
     ("ij,jk,kl->il", (F16, F16, F32), F32), ("ij,jk->ik", (F16, BF16), F32), ("ij,ij->ij", (F16, BF16), F32),
     ("ij,jk,kl->il", (I8, I8, BF16), F64), ("ij,jk,kl->il", (I16, I16, F32), F32),
     ("ij,jk,kl->il", (F32, C64, F32), C64), ("ij,jk,kl->il", (I8, I8, C64), C128), ("ij,kj->", (BOOL, BOOL), BOOL),
     ("ij,jk,kl->il", (BOOL, BOOL, I8), I8),
     ("ij,kj->", (I32, F32), F64), ("ij,jk,kl->il", (F16, F64, F16), F64)],
)  # fmt: skip
def test_dtypes_are_those_of_products_from_left_to_right(equation, kinds, result, order, rng):
    texts = equation.partition("->")[0].split(",")
    given = [numbers(rng, (3,) * len(text), kind) for text, kind in zip(texts, kinds)]
    got = gemmhub.einsum(equation, *given)
    assert got.dtype == result
    wide = np.result_type(*(x.dtype if x.dtype != BF16 else F32 for x in given), F64 if result != BOOL else BOOL)
    expected = np.einsum(equation, *(x.astype(wide) for x in given))
    np.testing.assert_array_equal(got, expected.astype(result))


@pytest.mark.parametrize("equation", ["ij,jk->ik", "ij,ij->ij", "ij->i", "ij,jk,kl->il", "ij,kj->"])
def test_out_dtype(equation, order, rng):
    texts = equation.partition("->")[0].split(",")
    given = [numbers(rng, (3, 3), F16) for _ in texts]
    got = gemmhub.einsum(equation, *given, out_dtype="float64")
    assert got.dtype == F64
    np.testing.assert_array_equal(got, np.einsum(equation, *(x.astype(F64) for x in given)))
    for wrong in ("int32", "no dtype"):
        with pytest.raises(DTypeError, match="out_dtype"):
            gemmhub.einsum(equation, *given, out_dtype=wrong)


def test_float8_needs_out_dtype(rng):
    import ml_dtypes

    x = numbers(rng, (3, 3), ml_dtypes.float8_e4m3fn)
    for equation in ("ij,jk->ik", "ij,ij->ij", "ij,jk,kl->il"):
        given = [x] * (equation.count(",") + 1)
        with pytest.raises(DTypeError, match="out_dtype"):
            gemmhub.einsum(equation, *given)
        got = gemmhub.einsum(equation, *given, out_dtype="float32")
        np.testing.assert_array_equal(got, np.einsum(equation, *(y.astype(F32) for y in given)))


@pytest.mark.parametrize(
    "equation",
    [
        "ij,jk->ik",
        "ij,kj->ki",
        "bij,bjk->bik",
        "abc,dbc->ad",
        "abc,bcd->ad",
        "abc,cd->abd",
        "bqhd,bkhd->bhqk",
        "ii,ij->j",
    ],
)
def test_no_operand_is_copied_where_its_strides_let_letters_merge(equation, products, rng):
    sizes = dict.fromkeys("abcdijkqh", 3)
    given = [numbers(rng, [sizes[x] for x in text], F64) for text in equation.partition("->")[0].split(",")]
    reversed_axes = [x[:, ::-1] if equation[:3] != "abc" else x for x in given]  # two axes that do not merge
    for ours in (given, [np.asfortranarray(x) for x in given], reversed_axes):
        products.clear()
        gemmhub.einsum(equation, *ours)
        ((a, b),) = products
        assert all(any(np.shares_memory(x, y) for y in ours) for x in (a, b))


def test_the_larger_operand_is_not_copied(products, rng):
    """Only one order of the inner letters keeps both: that of the operand with more dimensions."""
    x, y = numbers(rng, (5, 6, 3, 4), F64), numbers(rng, (4, 3), F64)
    gemmhub.einsum("abij,ji->ab", x, y)
    ((a, _),) = products
    assert np.shares_memory(a, x)


def test_a_view_of_one_operand_shares_memory(rng):
    x = numbers(rng, (3, 3), F64)
    for equation in ("ij->ji", "ii->i", "ij", "ij->ij"):
        assert np.shares_memory(gemmhub.einsum(equation, x), x)


def test_the_last_dimension_of_a_result_is_contiguous(rng):
    x, y = numbers(rng, (3, 4), F64), numbers(rng, (4, 5), F64)
    for equation in ("ij,jk->ik", "ij,jk->ki"):
        assert gemmhub.einsum(equation, x, y).flags.c_contiguous


def test_options_reach_each_product(rng):
    x = numbers(rng, (3, 3), F32)
    for equation in ("ij,jk->ik", "ij,jk,kl->il", "ij,ij->ij", "ij->i"):
        given = [x] * (equation.count(",") + 1)
        options = {"precision": "tf32", "reproducible": "run", "backend": "numpy"}
        np.testing.assert_array_equal(gemmhub.einsum(equation, *given, **options), np.einsum(equation, *given))
        with pytest.raises(InputError, match="precision"):
            gemmhub.einsum(equation, *given, precision="half")
        with pytest.raises(TypeError, match="'bias'"):
            gemmhub.einsum(equation, *given, bias=x[0])


def test_numbers_and_sequences(rng):
    assert gemmhub.einsum("i,i->", [1.0, 2.0], [3.0, 4.0]) == 11
    assert gemmhub.einsum(",i->i", 2.0, [3.0, 4.0]).tolist() == [6, 8]


REFUSED = {
    "a letter of no operand": ("ij,jk->ix", [(2, 3), (3, 2)], InputError, r"'x' of the result is in no operand"),
    "a sign": ("ij,j%->i", [(2, 3), (3, 2)], InputError, r"equation: '%' in 'ij,j%->i'; allowed: letters"),
    "two arrows": ("ij->j->i", [(2, 3)], InputError, r"equation: '-' in"),
    "a semicolon": ("ij;jk->ik", [(2, 3), (3, 2)], InputError, r"equation: ';' in 'ij;jk->ik'; allowed: letters"),
    "a lone dot": ("i.j->ij", [(2, 3)], InputError, r"equation: '\.' in"),
    "two ellipses": ("...i...->i", [(2, 3)], InputError, r"'\.\.\.i\.\.\.' of .* has two ellipses"),
    "twice in the result": ("i,j->ii", [(2,), (2,)], InputError, r"'i' occurs twice in the result of 'i,j->ii'"),
    "no ellipsis in the result": ("...i->i", [(2, 3)], InputError, r"the result of '\.\.\.i->i' has no ellipsis"),
    "too few operands": ("ij,jk->ik", [(2, 3)], InputError, r"has 2 operands; 1 was passed"),
    "too many operands": ("ij->ik", [(2, 3), (3, 2)], InputError, r"has 1 operand; 2 were passed"),
    "no operands": ("ij", [], InputError, r"has 1 operand; 0 were passed"),
    "too few letters": ("ij,jk", [(2, 3), (3, 2, 2)], ShapeError, r"operands\[1\]: 3 dimensions, but 'jk' of .* 2"),
    "too many letters": ("ij...,jk", [(2,), (3, 2)], ShapeError, r"operands\[0\]: 1 dimension, .* names 2; .*or more"),
    "sizes": ("ij,jk", [(2, 3), (4, 2)], ShapeError, r"operands\[0\], operands\[1\]: sizes 3 and 4 of the letter 'j'"),
    "sizes of the third": ("i,ij,jk", [(2,), (2, 3), (4, 2)], ShapeError, r"operands\[1\], operands\[2\]: sizes 3 and"),
    "sizes after one": ("i,i,i", [(1,), (3,), (4,)], ShapeError, r"operands\[1\], operands\[2\]: sizes 3 and 4"),
    "no square": ("ii", [(2, 3)], ShapeError, r"operands\[0\]: sizes 2 and 3 of the letter 'i'; allowed: equal"),
    "a row as a square": ("ii,i", [(1, 3), (3,)], ShapeError, r"operands\[0\]: sizes 1 and 3 of the letter 'i'"),
    "ellipses": ("...i,...i", [(2, 5, 3), (4, 3)], ShapeError, r"sizes 5 and 4 of dimension 1 of the ellipsis"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_mistakes_are_named(name):
    equation, given, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        gemmhub.einsum(equation, *map(np.ones, given))
    with pytest.raises(ValueError):  # noqa: PT011  (NumPy refuses each, in words of its own)
        np.einsum(equation, *map(np.ones, given))


def test_operands_that_are_refused():
    x = np.ones((2, 2))
    with pytest.raises(InputError, match=r"equation: an int; allowed: a string like .* comes first, as a string"):
        gemmhub.einsum(3, x)
    for others in ([0, 1], "ij"):  # NumPy's order without an equation, and the wrong way round
        with pytest.raises(InputError, match=r"^equation: an ndarray; allowed: .* comes first, as a string"):
            gemmhub.einsum(x, others, x)
    with pytest.raises(InputError, match=r"operands\[1\]: a str, which has no methods"):
        gemmhub.einsum("i,i", x[0], "ab")
    with pytest.raises(InputError, match=r"operands\[1\]: .*MaskedArray"):
        gemmhub.einsum("ij,ij->ij", x, np.ma.array(x))
    with pytest.raises(InputError, match=r"operands\[0\]: a PackedB"):
        gemmhub.einsum("ij,ij->ij", gemmhub.pack(x.astype(F16)), x)
    for equation in ("ij,ij->ij", "ij,jk", "ij->i"):
        with pytest.raises(DTypeError, match=r"dtype object|array of objects"):
            gemmhub.einsum(equation, *[x.astype(object)] * (equation.count(",") + 1))


class Permuted:
    """An array that torch's tensors resemble."""

    shape = (2, 2)
    permute = reshape = None


def test_libraries_do_not_mix():
    with pytest.raises(DeviceError, match=r"operands\[0\] is an ndarray, operands\[1\] is a tensor of torch"):
        gemmhub.einsum("ij,ij->ij", np.ones((2, 2)), Permuted())


def test_infinities_are_silent(order):
    with np.errstate(all="raise"):
        x = np.array([6e4, -6e4], F16)
        assert np.isinf(gemmhub.einsum("i,i->i", x, x)).all()
        assert np.isinf(gemmhub.einsum("i->", abs(x)))
        assert np.isinf(gemmhub.einsum("i,j,k->ijk", x, x, x)).all()


def test_the_greedy_order_multiplies_the_smallest_first():
    equation = Equation(("ab", "bc", "cd"), "ad")
    assert path.greedy(equation, dict(zip("abcd", (100, 2, 100, 2)))) == [(1, 2), (0, 1)]
    assert path.greedy(equation, dict(zip("abcd", (2, 100, 2, 100)))) == [(0, 1), (0, 1)]


def test_an_equation_spells_its_ellipsis():
    parsed = parse("...ij,jk", (4, 2))
    assert parsed.out == parsed.terms[0][:2] + "ik"
    assert parsed.product
    assert not parse("ij,jk->", (2, 2)).product
    assert not parse("ij,kl->ijkl", (2, 2)).product
    assert not parse("ii,ij->j", (2, 2)).product
