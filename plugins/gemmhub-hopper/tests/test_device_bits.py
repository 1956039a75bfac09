"""reproducible="batch" on a real Hopper GPU, through gemmhub.matmul of torch tensors. Skips where there is none.

A row of the result has the bits that it has among 8192 rows, whatever else is multiplied with it. ``pytest -s`` prints
a SHA-256 of the results of fixed operands for each dtype, which are equal on all cards if their arithmetic is.

Kernels of all products are compiled beforehand, in as many processes as there are cores.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from compilations import compile_all
from gemmhub_hopper.backend import HopperBackend
from gemmhub_hopper.candidates.candidate import named, runnable
from gemmhub_hopper.cost import shortlist
from gemmhub_hopper.lowering import lower
from hopper_card import ON_CARD, torch

import gemmhub
from gemmhub.backend import answer

pytestmark = ON_CARD

DEVICE = "cuda"
MOST = 8192
"""Rows of each a."""
BATCH = {"reproducible": "batch"}
SEED = int(os.environ.get("TEST_SEED", "1"))
"""Seed of sizes and operands."""
DTYPES = {
    "bfloat16": ("bfloat16", {}), "float16": ("float16", {}), "tf32": ("float32", {"precision": "tf32"}),
    "float32": ("float32", {}), "bf16x3": ("float32", {"precision": "bf16x3"}),
}  # fmt: skip
"""The dtype of the operands, and options."""
ROWS = (1, 2, 7, 16, 63, 64, 300, 1024)
FEW_ROWS = (1, 7, 300)
EVERY = {"bfloat16": 300, "float32": 7}
"""Groups all of whose candidates are run, and the number of rows."""


def probed() -> HopperBackend:
    backend = HopperBackend()
    backend.probe()
    return backend


@pytest.fixture(autouse=True, scope="module")
def isolated(tmp_path_factory) -> Iterator[None]:
    """One cache and one process state for the module: each kernel is compiled once."""
    folder = tmp_path_factory.mktemp("bits")
    (folder / "empty.toml").touch()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("GEMMHUB_")]:
            patch.delenv(name)
        patch.setenv("GEMMHUB_CONFIG", str(folder / "empty.toml"))
        patch.setenv("GEMMHUB_RECORDS", str(folder / "records.jsonl"))
        patch.setenv("GEMMHUB_CACHE_DIR", str(folder / "cache"))
        gemmhub.reload()
        needed = all_codes(probed())
        compile_all(needed)
        print(f"\n{len(needed)} kernels of gemmhub-hopper")
        yield
    gemmhub.reload()


# --- layouts of some rows of a: each returns a tensor with the values of ``x`` ----------------------------------------


def dense(x):
    return x


def transposed(x):
    return x.t().contiguous().t()


def padded(extra: int, offset: int = 0) -> Callable[[Any], Any]:
    """Rows that are ``extra`` elements further apart, from an address that is ``offset`` elements further on."""

    def layout(x):
        m, k = x.shape
        memory = torch.zeros(m * (k + extra) + offset, dtype=x.dtype, device=x.device)
        view = memory[offset:].as_strided((m, k), (k + extra, 1))
        view.copy_(x)
        return view

    return layout


LAYOUTS = (dense, transposed, padded(8), padded(1), padded(8, 1))


@dataclass
class Group:
    """Products of rows of one a with one b, each of whose rows has one value."""

    name: str
    dtype: str
    n: int
    k: int
    rows: tuple[int, ...] = ROWS
    layouts: tuple[Callable[[Any], Any], ...] = (dense,)
    backend: str | None = "hopper"
    epilogue: str = ""
    b_order: str = "row"
    most: int = MOST
    values: dict[str, Any] = field(default_factory=dict)

    def operands(self) -> dict[str, Any]:
        """Return a, b and the operands of the epilogue, drawn on the host: the same on every card."""
        if not self.values:
            generator = torch.Generator().manual_seed(SEED)
            dtype = getattr(torch, DTYPES[self.dtype][0])

            def draw(*shape):  # no function of a library whose last bits depend on the processor
                numbers = torch.randint(-(2**23), 2**23, shape, generator=generator, dtype=torch.int32)
                return (numbers.to(DEVICE).float() * 2.0**-22).to(dtype)

            self.values = {"a": draw(self.most, self.k), "b": draw(self.k, self.n)}
            if self.b_order == "col":
                self.values["b"] = transposed(self.values["b"])
            if "bias" in self.epilogue:
                self.values["bias"] = draw(self.n)
            if "c" in self.epilogue.split("+"):
                self.values["c"] = draw(self.most, self.n)
        return self.values

    def call(self, first: int, m: int, layout: Callable[[Any], Any] = dense) -> tuple[Any, Any, dict[str, Any]]:
        """Return a, b and the options of the product of ``m`` rows from ``first`` on."""
        values = self.operands()
        options = {**BATCH, **DTYPES[self.dtype][1], "backend": self.backend}
        if "bias" in values:
            options["bias"] = values["bias"]
        if "c" in values:
            options |= {"c": values["c"][first : first + m], "beta": 0.5}
        for name in ("gelu", "silu"):
            if name in self.epilogue:
                options["activation"] = name
        return layout(values["a"][first : first + m]), values["b"], options

    def each(self) -> Iterator[tuple[int, int, Callable[[Any], Any]]]:
        """Yield the first row, the number of rows and the layout of each product."""
        generator = torch.Generator().manual_seed(SEED + 1)
        for m in self.rows:
            for layout in self.layouts:
                yield int(torch.randint(self.most - m + 1, (), generator=generator)), m, layout

    def calls(self) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
        yield self.call(0, self.most)
        for one in self.each():
            yield self.call(*one)


def sizes(number: int, odd: bool = False) -> tuple[int, int]:
    """Return n and k, multiples of 8 or odd."""
    generator = torch.Generator().manual_seed(100 * SEED + number)
    n, k = (8 * int(torch.randint(64, 300, (), generator=generator)) for _ in range(2))
    return (n + 1, k + 1) if odd else (n, k)


GROUPS = [
    *(Group(x, x, *sizes(i), rows=ROWS if x in EVERY else (1, 7, 63, 300)) for i, x in enumerate(DTYPES)),
    Group("chosen by the hub", "bfloat16", *sizes(0), rows=FEW_ROWS, backend=None),
    Group("b as weights", "bfloat16", *sizes(5), rows=FEW_ROWS, b_order="col"),
    Group("float32, b as weights", "float32", *sizes(6), rows=FEW_ROWS, b_order="col"),
    Group("layouts", "bfloat16", *sizes(0), rows=(2, 300), layouts=LAYOUTS),
    Group("float32, layouts", "float32", *sizes(3), rows=(2, 300), layouts=LAYOUTS),
    Group("tf32, layouts", "tf32", *sizes(2), rows=(300,), layouts=LAYOUTS),
    Group("odd", "bfloat16", *sizes(7, odd=True), rows=(1, 64, 300), layouts=(dense, transposed)),
    Group("float32, odd", "float32", *sizes(8, odd=True), rows=(1, 300), layouts=(dense, transposed)),
    Group("bf16x3, odd", "bf16x3", *sizes(4, odd=True), rows=(300,)),
    Group("bias+gelu", "bfloat16", *sizes(0), rows=FEW_ROWS, epilogue="bias+gelu"),
    Group("bias+silu", "bfloat16", *sizes(0), rows=FEW_ROWS, epilogue="bias+silu"),
    Group("c", "bfloat16", *sizes(0), rows=FEW_ROWS, epilogue="c"),
    Group("float32, c+bias+gelu", "float32", *sizes(3), rows=FEW_ROWS, epilogue="c+bias+gelu"),
    Group("cuda", "bfloat16", *sizes(0), rows=FEW_ROWS, backend="cuda", most=2048),
    Group("cuda, layouts", "bfloat16", *sizes(0), rows=(300,), layouts=LAYOUTS, backend="cuda", most=2048),
    Group("cuda, float32", "float32", *sizes(3), rows=FEW_ROWS, backend="cuda", most=2048),
    Group("cuda, bias+gelu", "float16", *sizes(0), rows=(1, 300), epilogue="bias+gelu", backend="cuda", most=2048),
]  # fmt: skip


# --- compilation ------------------------------------------------------------------------------------------------------


def codes(backend: HopperBackend, call: tuple[Any, Any, dict[str, Any]], every: bool = False) -> Iterator[Any]:
    """Yield the kernels of gemmhub-hopper for a call: of the candidate that runs, or of every one."""
    a, b, options = call
    decision = gemmhub.explain(a, b, **options)
    if decision.chosen != "hopper":
        return
    problem = decision.problem
    offer = answer(backend, problem)
    lowerings = lower.lowerings(problem)
    for name in offer.names if every else (decision["hopper"].candidate,):
        choice = named(lowerings, name)
        yield from shortlist.code(choice, runnable(choice, offer.workspace), backend._card_of(0))


def all_codes(backend: HopperBackend) -> set[Any]:
    """Return the kernels of gemmhub-hopper for the calls of all groups."""
    needed = {code for group in GROUPS for call in group.calls() for code in codes(backend, call)}
    for group in GROUPS:
        if group.name in EVERY:
            needed |= set(codes(backend, group.call(0, EVERY[group.name]), every=True))
    return needed


# --- tests ------------------------------------------------------------------------------------------------------------


def bits(x):
    return x.contiguous().view(torch.int16 if x.element_size() == 2 else torch.int32)


def assert_equal_bits(x, y, what):
    differing = int((bits(x) != bits(y)).sum())
    assert differing == 0, f"{what}: {differing} of {y.numel()} elements have other bits"


def result(call, **more):
    a, b, options = call
    return gemmhub.matmul(a, b, **options, **more)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_a_row_has_the_same_bits_in_every_product(group):
    """At every number of rows, position and layout of a, with and without out."""
    a, b, options = group.call(0, group.most)
    every = gemmhub.matmul(a, b, **options)
    a, b, options = group.call(0, 300)
    assert gemmhub.spot_check(a, b, every[:300], **{x: y for x, y in options.items() if x != "backend"})
    for first, m, layout in group.each():
        call = group.call(first, m, layout)
        what = f"{group.name} {group.n} x {group.k}: {m} rows from {first}, strides {tuple(call[0].stride())}"
        assert_equal_bits(result(call), every[first : first + m], what)
        out = torch.empty(m, group.n, dtype=every.dtype, device=DEVICE)
        assert_equal_bits(result(call, out=out), every[first : first + m], f"{what}, with out")


@pytest.mark.parametrize("name", EVERY)
def test_all_candidates_share_bits(name):
    """Each that is offered for the product, whatever is chosen."""
    group = next(x for x in GROUPS if x.name == name)
    a, b, options = group.call(0, EVERY[name])
    expected = gemmhub.matmul(a, b, **options)
    backend = probed()
    problem = gemmhub.explain(a, b, **options).problem
    offer = answer(backend, problem)
    assert len({x.order for x in offer.candidates}) == 1
    for candidate in offer.names:
        out = torch.full_like(expected, float("nan"))
        stream = torch.cuda.current_stream().cuda_stream
        backend.prepare(problem, candidate, offer.workspace).run(
            a.data_ptr(), b.data_ptr(), out.data_ptr(), 1, 0, stream
        )
        assert_equal_bits(out, expected, candidate)


def test_tuning_changes_no_bit():
    group = GROUPS[0]
    call = group.call(5, EVERY[group.name])
    before = result(call)
    a, b, options = call
    assert gemmhub.tune(a, b, **options)
    assert_equal_bits(result(call), before, "tuned")
    assert_equal_bits(result(group.call(5, 1)), before[:1], "one row of the tuned product")


def test_stacks_and_vectors():
    """Each matrix of a stack has the bits of its own product, with a b of its own or one for all; a vector those of a
    row.
    """
    group = GROUPS[0]
    a, b, options = group.call(0, 5 * 33)
    every = gemmhub.matmul(a, b, **options)
    stack = a.reshape(5, 33, group.k)
    assert_equal_bits(gemmhub.matmul(stack, b, **options).reshape(every.shape), every, "one b for all")
    own = torch.stack([b.roll(i, 0) for i in range(5)])
    for i, x in enumerate(gemmhub.matmul(stack, own, **options)):
        assert_equal_bits(x, gemmhub.matmul(stack[i], own[i], **options), f"matrix {i} of a stack")
    assert_equal_bits(gemmhub.matmul(a[7], b, **options), every[7], "a vector")


def test_digests():
    """They are printed, for comparison with other cards."""
    for dtype in DTYPES:
        group = next(x for x in GROUPS if x.name == dtype)
        values = result(group.call(0, 300))
        digest = hashlib.sha256(bits(values).cpu().numpy().tobytes()).hexdigest()
        print(f"\n{torch.cuda.get_device_name()} {dtype} {group.n} x {group.k}: {digest}", end="")
