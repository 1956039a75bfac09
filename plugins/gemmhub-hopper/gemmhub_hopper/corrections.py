"""What measurements teach beyond the analytic models: one small network for each kind of product and card.

A network predicts log(measured / modelled seconds) of a candidate from features. They are counts and rates, never
names, so that a shape that was not measured is corrected as those like it. :mod:`gemmhub.kit.corrections` finds the
network of a card; elsewhere the models alone serve.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from gemmhub.capability import Refusal
from gemmhub.kit import corrections
from gemmhub.kit.corrections import Correction, Described
from gemmhub.problem import GemmProblem
from gemmhub_hopper import gemv, gemv_model, lower, model
from gemmhub_hopper.candidate import Choice, named, runnable
from gemmhub_hopper.gemv import GemvChoice
from gemmhub_hopper.model import Card, Work
from gemmhub_hopper.operands import Reading

DATA = Path(__file__).with_name("data")
"""Folder with one folder of networks for each card."""
KINDS = ("half", "tf32", "float32", "vectors")
"""Products of bfloat16 or float16, of tf32, of float32 split into planes; and few vectors by a matrix, of any dtype."""
_KINDS = {"bfloat16": "half", "float16": "half", "tf32": "tf32", "split": "float32"}
CORRECTED = 48
"""Candidates of a problem that are corrected, the first by the model. Those further behind are seldom the fastest."""
WORKSPACE = 300 * 2**20
"""Bytes of workspace that :func:`describe` assumes: what a card of 80 GB has by default."""
_LINE = 128
"""Bytes of a line of L2: rows at multiples of it are as good as any."""
_ROW = 512
"""The same for the kernel for vectors, which reads up to so many bytes of a row at a time."""


def kind_of(choice: Choice | GemvChoice) -> str:
    """The kind of correction for ``choice``."""
    return "vectors" if isinstance(choice, GemvChoice) else _KINDS[choice.way.form.input]


def find(kind: str, card: Card) -> Correction | None:
    """The correction of ``kind`` for ``card``; None where it was not measured."""
    return corrections.find(DATA, kind, card.name, card.sms, card.bandwidth)


def describe(problem: GemmProblem, card: Card, names: Iterable[str], workspace: int = WORKSPACE) -> list[Described]:
    """Describe candidates of ``problem`` by name, as they are when the plugin chooses on ``card``.

    Kernels for matrices and for vectors are of different kinds: the list has at most one entry of either. Names that
    there is no kernel for, or that do not run in ``workspace`` bytes, are left out.
    """
    ways = lower.lowered(problem)
    if isinstance(ways, Refusal):
        return []
    vectors = {choice.name: choice for choice in gemv.choices(ways)}
    found: dict[str, Described] = {}
    for name in names:
        choice: Choice | GemvChoice
        if name in vectors:
            choice = vectors[name]
            seconds = gemv_model.seconds(choice, card)
            row = vector_features(choice, seconds, card)
        else:
            try:
                choice = named(ways, name)
            except ValueError:
                continue
            cut = runnable(choice, workspace)
            if isinstance(cut, str):
                continue
            seconds = model.seconds(choice, cut, card)
            row = features(choice, model.work(choice, cut, card), seconds, card)
        kind = kind_of(choice)
        described = found.setdefault(kind, Described(kind, [], [], []))
        described.names.append(name)
        described.modelled.append(seconds)
        described.rows.append(row)
    return list(found.values())


def features(choice: Choice, work: Work, seconds: float, card: Card) -> list[float]:
    """The features of a kernel for matrices whose modelled time is ``seconds``; m, n, a and b are the kernel's own."""
    way, shape, form = choice.way, choice.shape, choice.way.form
    tiles = choice.tiles
    covered = tiles[0] * shape.m * shape.cluster_m * tiles[1] * shape.n * shape.cluster_n
    waves = work.full + work.rest
    rounds = math.ceil(waves)
    return [
        # The product: sizes, orders, alignment of rows, what is copied, and how the result is stored.
        math.log(way.m), math.log(way.n), math.log(way.k), math.log(way.batch),
        form.a_mn, form.b_mn, form.transposed, form.a_registers + form.b_split,
        _row_alignment(way.a), _row_alignment(way.b), math.log1p(work.copied), form.tma_store,
        form.output_bytes,
        # The shape; wgmma, swizzles and stores prefer widths that are multiples of powers of two.
        shape.m, shape.n, math.log2(math.gcd(shape.n, 64)), shape.consumers, shape.pingpong, shape.stages,
        math.log2(shape.cluster_m), math.log2(shape.cluster_n), math.log2(shape.cluster_k), math.log2(choice.splits),
        # How it covers the product: the share of tiles within it, waves, and what is idle in the last one.
        way.m * way.n / covered, math.log(waves), rounds - waves, math.log(max(1, work.blocks)),
        math.log(choice.group(card)),
        # The modelled time, and the rates that it means: operations and bytes a second.
        math.log(seconds), math.log(2 * way.m * way.n * way.k * way.batch / seconds),
        math.log((work.read + work.written) / seconds),
    ]  # fmt: skip


def _row_alignment(reading: Reading) -> float:
    """log2 of the bytes, up to a line, that divide the address of every row of the caller's operand."""
    to_next = max(map(abs, reading.strides[:2]))
    return math.log2(math.gcd(_LINE, reading.alignment, to_next * reading.size))


def vector_features(choice: GemvChoice, seconds: float, card: Card) -> list[float]:
    """The features of a kernel for vectors whose modelled time is ``seconds``."""
    kernel, way = choice.kernel, choice.way
    waves = choice.grid / card.sms
    return [
        # The product.
        math.log(way.m), math.log(way.n), math.log(way.k), math.log(way.batch), way.b.size, kernel.n_major,
        kernel.x_strided, math.log2(math.gcd(choice.pitch, _ROW)),
        # The kernel: vectors, bytes of a load, and how many threads and CTAs share K.
        kernel.vectors, kernel.ahead, math.log2(kernel.load), math.log2(kernel.spread), math.log2(kernel.cluster),
        math.log2(choice.run),
        # How it covers the product: what of the last steps, and of the last CTA's results, is needed; waves, and what
        # is idle in the last one, with one to four CTAs on a multiprocessor.
        choice.steps * kernel.sharers * kernel.at_once / way.k, choice.strips * kernel.columns / way.n,
        math.log(choice.steps), math.log(waves), *(math.ceil(waves / x) - waves / x for x in (1, 2, 4)),
        # The modelled time, the bytes a second that it means, and the bytes of a CTA.
        math.log(seconds), math.log(choice.moved / seconds), math.log(choice.moved / choice.grid),
    ]  # fmt: skip
