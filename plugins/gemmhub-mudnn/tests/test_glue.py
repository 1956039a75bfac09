"""The glue of the C++ API against a small muDNN in a header, whole and with functions missing."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_size_t, c_void_p
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gemmhub_mudnn import library
from gemmhub_mudnn.library import CXX, IN_PLACE, NO_ADDEND, SEPARATE, Grow, Library, MudnnError
from gemmhub_mudnn.lower import Form, Tensor
from gemmhub_musa.compile import host_compiler

from gemmhub.kit import native
from gemmhub.kit.native import Recipe

GLUE = Path(library.__file__).parent / "glue"
HEADERS = Path(__file__).parent / "headers"
FULL = 1 | 2 | 4 | 8 | 16
M, N, K = 5, 7, 3


def build(*flags):
    recipe = Recipe(
        host_compiler(), ("-std=c++17", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-Wl,-Bsymbolic",
                           "-fno-gnu-unique", f"-I{HEADERS}", *flags),
        (GLUE / "cxx_api.cpp",), (GLUE / "glue.h", HEADERS / "mudnn.h"), name="fake",
    )  # fmt: skip
    built = native.build(recipe)
    assert isinstance(built, Path), built
    return ctypes.CDLL(str(built))


class Fake:
    """The library behind the glue, a handle of it, and operands of a product."""

    def __init__(self, *flags):
        self.glue = build(*flags)
        self.library = Library(self.glue, CXX, "a header")
        self.glue.fake_log.restype = c_char_p
        self.glue.fake_piece.argtypes, self.glue.fake_piece.restype = [c_size_t], c_void_p
        self.asked = []
        self.gives = None
        self.meanwhile = lambda nbytes: None
        self._grow = Grow(self.grow)
        self.set()
        self.handle = self.library.create(3, self._grow)
        rng = np.random.default_rng(0)
        self.a, self.b, self.c, self.d, self.bias = (
            rng.integers(-4, 5, shape).astype(np.float32) for shape in ((M, K), (K, N), (M, N), (M, N), (N,))
        )

    def grow(self, nbytes):
        self.asked.append(nbytes)
        self.meanwhile(nbytes)
        return self.gives

    def set(self, fails=0, says=0, wants=()):
        self.glue.fake_set(fails, c_size_t(says), (c_size_t * len(wants))(*wants), c_size_t(len(wants)))

    @property
    def log(self):
        return self.glue.fake_log().decode().splitlines()

    def run(self, plan, alpha=1.0, beta=0.0, workspace=0, nbytes=0):
        places = [x.ctypes.data for x in (self.a, self.b, self.c, self.d, self.bias)]
        self.library.run(plan, *places, alpha, beta, 0x5EA, workspace, nbytes)

    def piece(self, which):
        return self.glue.fake_piece(which)


def form(**changes):
    a, b, d = (Tensor(1, rows, cols, cols, rows * cols) for rows, cols in ((M, K), (K, N), (M, N)))
    return replace(Form("float32", "float32", False, False, False, a, b, d, d, False), **changes)


@pytest.fixture(scope="module")
def whole_glue():
    """Compiled at once, not in the first test of each."""
    return build(), build("-DBARE")


@pytest.fixture
def fake(whole_glue):
    return Fake()


@pytest.fixture
def bare(whole_glue):
    return Fake("-DBARE")


def test_features_are_those_of_the_header(fake, bare):
    assert fake.library.features == FULL
    assert bare.library.features == library.BIAS | library.BIAS_ON_ADDEND


def test_the_handle_is_of_the_device(fake):
    assert fake.log == ["Handle 3", "SetStream 0"]


def test_a_product_by_ieee_rules(fake):
    plan = fake.library.plan(fake.handle, form(), NO_ADDEND)
    fake.run(plan, alpha=2.0, beta=5.0)
    assert np.array_equal(fake.d, 2 * fake.a @ fake.b)
    assert fake.log[2:] == ["SCALAR", "SetDeterministic 0", f"SetStream {0x5EA}", "SetAllowTF32 0", "Run"]
    fake.library.forget(plan)


def test_tf32_is_allowed_where_it_is_asked_for_and_off_again_after_it(fake):
    tensor = fake.library.plan(fake.handle, form(tensor_math=True, deterministic=True), NO_ADDEND)
    scalar = fake.library.plan(fake.handle, form(), NO_ADDEND)
    for plan in (tensor, scalar, tensor):
        fake.run(plan)
    assert fake.log[2:4] == ["TENSOR", "SetDeterministic 1"]
    assert [line for line in fake.log if "TF32" in line] == [f"SetAllowTF32 {x}" for x in (1, 0, 1)]


def test_addends_and_bias(fake):
    before = fake.d.copy()
    fake.run(fake.library.plan(fake.handle, form(addend=True), IN_PLACE), 0.5, 2.0)
    right = 0.5 * fake.a @ fake.b + 2 * before
    assert np.array_equal(fake.d, right)
    fake.run(fake.library.plan(fake.handle, form(addend=True), SEPARATE), 0.5, 2.0)
    assert np.array_equal(fake.d, 0.5 * fake.a @ fake.b + 2 * fake.c)
    fake.run(fake.library.plan(fake.handle, form(addend=True, bias=True), SEPARATE), 0.5, 2.0)
    assert np.array_equal(fake.d, 0.5 * fake.a @ fake.b + 2 * fake.c + fake.bias)
    before = fake.d.copy()
    fake.run(fake.library.plan(fake.handle, form(addend=True, bias=True), IN_PLACE), 0.5, 2.0)
    assert np.array_equal(fake.d, 0.5 * fake.a @ fake.b + 2 * before + fake.bias)
    calls = [line for line in fake.log if line.startswith("Run")]
    assert calls == ["Run", "RunWithBiasAdd apart", "RunWithBiasAdd apart", "RunWithBiasAdd in place"]


def test_a_bare_header_multiplies_and_refuses_the_rest(bare):
    plan = bare.library.plan(bare.handle, form(bias=True), NO_ADDEND)
    assert bare.library.workspace(plan) == 0
    bare.run(plan)
    assert np.array_equal(bare.d, bare.a @ bare.b + bare.bias)
    with pytest.raises(MudnnError, match="no SetDeterministic"):
        bare.library.plan(bare.handle, form(deterministic=True), NO_ADDEND)
    with pytest.raises(MudnnError, match="no bfloat16"):
        bare.library.plan(bare.handle, form(dtype="bfloat16", result="bfloat16"), NO_ADDEND)
    with pytest.raises(MudnnError, match="no such RunWithBiasAdd"):
        bare.run(bare.library.plan(bare.handle, form(addend=True), SEPARATE))


def test_the_buffer_is_what_the_library_gets(fake):
    fake.set(says=4096, wants=(1000, 0, 100))
    plan = fake.library.plan(fake.handle, form(), NO_ADDEND)
    assert fake.library.workspace(plan) == 4096
    fake.run(plan, workspace=0x10000, nbytes=4096)
    assert [fake.piece(i) for i in range(3)] == [0x10000, None, 0x10000 + 1024]  # none overlaps, each aligned
    assert fake.asked == []
    fake.run(plan, workspace=0x20000, nbytes=4096)
    assert fake.piece(0) == 0x20000  # a run begins with the whole buffer again


def test_more_memory_than_reported_is_requested(fake):
    fake.set(wants=(1000, 5000))
    plan = fake.library.plan(fake.handle, form(), NO_ADDEND)
    fake.gives = 0x70000
    fake.run(plan, workspace=0x10000, nbytes=4096)
    assert (fake.asked, fake.piece(0), fake.piece(1)) == ([5000], 0x10000, 0x70000)


def test_a_product_while_more_is_asked_for_is_refused(fake):
    """The library is in the middle of another one, with the same handle."""
    plan, other = (fake.library.plan(fake.handle, form(), NO_ADDEND) for _ in range(2))
    fake.set(wants=(5000,))
    fake.gives, refused = 0x70000, []

    def nested(nbytes):
        for begin in (lambda: fake.run(other), lambda: fake.library.workspace(other)):
            with pytest.raises(MudnnError) as raised:
                begin()
            refused.append(str(raised.value))

    fake.meanwhile = nested
    fake.run(plan)
    assert refused == ["muDNN was called while it asked for more memory for a product that it had begun"] * 2
    assert np.array_equal(fake.d, fake.a @ fake.b)
    fake.meanwhile = lambda nbytes: None
    fake.run(other)


def test_no_more_memory_is_reported(fake):
    fake.set(wants=(1000, 5000))
    plan = fake.library.plan(fake.handle, form(), NO_ADDEND)
    with pytest.raises(MudnnError, match=r"Run: INVALID_PARAMETER \(0\) \(no room for a workspace of 1000 bytes\)"):
        fake.run(plan)


def test_failures_have_names_where_the_header_has_them(fake):
    plan = fake.library.plan(fake.handle, form(), NO_ADDEND)
    for fails, says in (
        (1, r"Run: NOT_SUPPORTED \(41\)"),
        (2, r"Run: status \(42\)"),
        (3, "an exception: out of luck"),
    ):
        fake.set(fails)
        with pytest.raises(MudnnError, match=says):
            fake.run(plan)


def test_what_the_header_does_not_describe_is_refused_when_it_is_planned(fake):
    with pytest.raises(MudnnError, match=r"SetType: NOT_SUPPORTED \(41\)"):
        fake.library.plan(fake.handle, form(dtype="float16"), NO_ADDEND)
