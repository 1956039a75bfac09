"""C expressions: what is read, what is refused, and values that equal those of a C compiler."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from gemmhub._base.c_expression import FUNCTIONS, ExpressionError, evaluate
from gemmhub.epilogues import ELEMENTWISE, EPILOGUES

X = np.array([-2.0, -0.5, 0.0, 0.25, 1.0, 3.0], np.float32)
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def test_every_built_in_expression_is_of_the_language():
    x = np.linspace(-12, 12, 4801, dtype=np.float32)
    for name in ELEMENTWISE:
        function = EPILOGUES[name]
        value = evaluate(function.expression, x)
        assert value.dtype == np.float32
        wide = x.astype(np.float64)
        bound = function.bound((wide,), (0 * wide,), function.evaluation * 2.0**-24, 0.0, 2.0**-126)
        assert np.all(np.abs(value - function(wide)) <= bound), name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x - 1.0f - 2.0f", X - 3),
        ("8.0f / 2.0f / 2.0f + 0.0f * x", X * 0 + 2),
        ("1.0f + x * 2.0f", 1 + X * 2),
        ("(1.0f + x) * 2.0f", (1 + X) * 2),
        ("-x * x", -(X**2)),
        ("x - -x", 2 * X),
        ("x < 0.0f ? -1.0f : x == 0.0f ? 0.0f : 1.0f", np.sign(X)),
        ("x > -1.0f && x < 1.0f || x == 3.0f ? 1.0f : 0.0f", np.float32([0, 1, 1, 1, 0, 1])),
        ("x == 3.0f || x > -1.0f && x < 1.0f ? 1.0f : 0.0f", np.float32([0, 1, 1, 1, 0, 1])),
        ("!(x < 0.0f) ? x : 0.0f", np.maximum(X, 0)),
        ("fminf(fmaxf(x, 0.0f), 1.0f)", np.clip(X, 0, 1)),
        ("1e1f*x+.5f+2.f", 10 * X + 2.5),
        ("  fabsf ( x )\n", np.abs(X)),
        ("3.0f", X * 0 + 3),
    ],
)
def test_precedence_and_meaning(text, expected):
    assert np.array_equal(evaluate(text, X), expected)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it ends where a value is needed"),
        ("x *", "it ends where a value is needed"),
        ("0.5 * x", "'0.5 * x' cannot be read; literals are floats such as 0.5f"),
        ("1 * x", "literals are floats"),
        ("1f * x", "literals are floats"),
        ("0.5fx", "literals are floats"),
        ("1e60f * x", "beyond the range"),
        ("exp(x)", "'exp' is no function of the language"),
        ("y", "'y' is no function"),
        ("tanhf x", "'(' is missing before 'x'"),
        ("tanhf(x, x)", "takes 1 argument, not 2"),
        ("fmaxf(x)", "takes 2 arguments, not 1"),
        ("x x", "'x' follows a complete expression"),
        ("(x", "')' is missing at its end"),
        ("x < 0.0f ? x", "':' is missing at its end"),
        ("x ? x : x", "a number stands where a comparison is needed"),
        ("x && x", "a number stands where a comparison is needed"),
        ("x < 0.0f", "a comparison stands where a number is needed"),
        ("(x < 0.0f) * x", "a comparison stands where a number is needed"),
        ("x--x", "cannot be read"),
        ("x++", "cannot be read"),
        ("x = 1.0f", "cannot be read"),
        ("x; }", "cannot be read"),
        ("x // y", "'/' stands where a value is needed"),
        ("x /* y */", "'*' stands where a value is needed"),
        ("x\\\n", "cannot be read"),
        ('"x"', "cannot be read"),
        ("#x", "cannot be read"),
        ("x\u00b2", "'\\xb2' cannot be read: it is not ASCII"),
        ("x\u00a0", "'\\xa0' cannot be read: it is not ASCII"),
        ("\u2003x", "it is not ASCII"),
        ("x\x1c", "'\\x1c' cannot be read"),
        ("(" * 3000, "3000 characters"),
        ("(" * 1990, "nested too deeply"),
    ],
)
def test_what_is_refused(text, reason):
    with pytest.raises(ExpressionError) as caught:
        evaluate(text, X)
    assert reason in str(caught.value)


def drawn(rng, depth=4):
    """A random expression of what is rounded in one way only."""
    if depth == 0 or rng.random() < 0.1:
        return "x" if rng.random() < 0.6 else f"{rng.integers(1, 99)}.{rng.integers(0, 9)}e{rng.integers(-3, 3)}f"
    parts = [drawn(rng, depth - 1) for _ in range(4)]
    comparison = f"{parts[0]} {rng.choice(['<', '<=', '>', '>=', '==', '!='])} {parts[1]}"
    forms = [
        *(f"{parts[0]} {sign} {parts[1]}" for sign in "+-*/+-*/"),
        f"({parts[0]} {rng.choice(['+', '-'])} {parts[1]})", f"-({parts[0]})", f"fabsf({parts[0]})",
        f"sqrtf({parts[0]})", f"({comparison} ? {parts[2]} : {parts[3]})",
        f"(!({comparison}) && {parts[2]} < {parts[3]} || x > 1.0f ? {parts[3]} : {parts[1]})",
    ]  # fmt: skip
    return forms[rng.integers(len(forms))]


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
def test_values_equal_those_of_a_c_compiler(rng, tmp_path):
    """Bit by bit, but for the signs of NaN and zero; and each function to a few roundings."""
    texts = [x for x in (drawn(rng) for _ in range(60)) if len(x) <= 2000]
    calls = [f"{name}({', '.join('x'[:count] for count in [1] * FUNCTIONS[name][0])})" for name in FUNCTIONS]
    calls = [x for x in calls if not x.startswith(("gated", "normal_weighted"))]
    source = "#include <math.h>\n" + "".join(
        f"void f{i}(const float* a, float* b, int n) {{\n"
        f"  for (int j = 0; j < n; j++) {{ float x = a[j]; b[j] = {text}; }}\n}}\n"
        for i, text in enumerate(texts + calls)
    )
    (tmp_path / "f.c").write_text(source)
    command = [COMPILER, "-O1", "-ffp-contract=off", "-fno-builtin", "-shared", "-fPIC", "f.c", "-o", "f.so", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    library = ctypes.CDLL(str(tmp_path / "f.so"))
    x = np.concatenate([rng.standard_normal(200) * 2.0 ** rng.integers(-20, 20, 200), X, [np.inf, -np.inf, np.nan]])
    x = x.astype(np.float32)
    for i, text in enumerate(texts + calls):
        expected = np.empty_like(x)
        library[f"f{i}"](x.ctypes.data_as(ctypes.c_void_p), expected.ctypes.data_as(ctypes.c_void_p), len(x))
        if text in calls:
            np.testing.assert_allclose(evaluate(text, x), expected, rtol=1e-6, atol=1e-38)
        else:
            assert np.array_equal(evaluate(text, x), expected, equal_nan=True), text
