"""The learned corrections of the cost models: one small network for each class of products and card.

A network predicts log(measured / modelled seconds) of a candidate from features. Features are counts and rates, never
names, so that a shape that was not measured is corrected like similar ones. :mod:`gemmhub.kit.corrections` finds the
network of a card; on other cards the models serve alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from gemmhub.capability import Refusal
from gemmhub.kit import corrections
from gemmhub.kit.corrections import Correction, Described
from gemmhub.problem import GemmProblem
from gemmhub_hopper.candidates import gemv
from gemmhub_hopper.candidates.candidate import Choice, named, runnable
from gemmhub_hopper.candidates.columns import Numbers
from gemmhub_hopper.candidates.gemv import GemvChoice
from gemmhub_hopper.cost import gemv_model, model
from gemmhub_hopper.cost.model import Card, Work
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.lowering.lower import Lowering
from gemmhub_hopper.lowering.operands import OperandAccess
from gemmhub_hopper.variants.config import BF16X3, BY_ROWS, INT8, SHIFTED, SHIFTED_TF32, Shape

DATA = Path(__file__).parents[1] / "data"
"""Folder with one folder of networks for each card."""
KINDS = ("half", "odd", "tf32", "tf32_odd", "float32", "f16x3", "rows", "vectors", "float8", "float8_blocks", "int8")
"""Names of the networks, by classes of products: 16-bit, 16-bit of odd sizes (:func:`_odd`) or with shifted rows, tf32,
tf32 with shifted rows, float32 split into bfloat16 planes, into float16 planes, or into those with a in registers
("rows"), a few vectors by a matrix of any dtype, 8-bit floats, those with scales for blocks of K, and int8.
"""
_INSTEAD = {"odd": "half"}
"""The network that serves on cards that have none of this name."""
_KINDS = {
    "bfloat16": "half", "float16": "half", "tf32": "tf32", "split": "float32", "f16x3": "f16x3", BY_ROWS: "rows",
    SHIFTED: "odd", SHIFTED_TF32: "tf32_odd", BF16X3: "half", "float8": "float8", INT8: "int8",
}  # fmt: skip
HANDLED = (12,)
"""The feature that may differ from the one value that a network was fitted to: the element size of the result, whose
bytes the model counts.
"""
CORRECTED = 48
"""Number of candidates of a problem that are corrected: the fastest by the model. Others are seldom the fastest."""
WORKSPACE = 300 * 2**20
"""Bytes of workspace that :func:`describe` assumes: what a card of 80 GB has by default."""
_ODD = 64
"""Shortest side of products of the network "odd"."""
_LINE = 128
"""Bytes of a line of L2: a larger alignment of rows gains nothing."""
_ROW = 512
"""The same for the kernel for vectors, which reads up to so many bytes of a row at once."""


def network_of(choice: Choice | GemvChoice) -> str:
    """Return the name of the network for ``choice``."""
    if isinstance(choice, GemvChoice):
        return "vectors"
    if choice.lowering.form.symmetric:
        return "symmetric"
    network = _KINDS[choice.lowering.form.scheme]
    if network == "float8" and choice.lowering.form.scales == "blocks":
        return "float8_blocks"
    return "odd" if network == "half" and _odd(choice.lowering) else network


def _odd(lowering: Lowering) -> bool:
    """Return whether TMA cannot take rows of an operand or of the result.

    Batches and products with a short side do not count: the network for odd sizes is not fitted to them.
    """
    if lowering.form.input == BF16X3:  # planes are copies of any sizes
        return False
    by_rows = lowering.copied or not lowering.form.tma_store
    return bool(by_rows) and lowering.batch == 1 and min(lowering.m, lowering.n, lowering.k) >= _ODD


def find(network: str, card: Card) -> Correction | None:
    """Return the correction of ``network`` for ``card``; None where none was measured."""
    for name in (network, _INSTEAD.get(network)):
        correction = corrections.find(DATA, name, card.name, card.sms, card.bandwidth) if name else None
        if correction is not None:
            return correction
    return None


def describe(problem: GemmProblem, card: Card, names: Iterable[str], workspace: int = WORKSPACE) -> list[Described]:
    """Describe candidates of ``problem`` by name, with the features by which the plugin ranks them on ``card``.

    Kernels for matrices and for vectors have different networks: the list has at most one entry of each. Names without
    a kernel, and candidates that do not run in ``workspace`` bytes, are left out.
    """
    lowerings = lower.lowerings(problem)
    if isinstance(lowerings, Refusal):
        return []
    vectors = {choice.name: choice for choice in gemv.choices(lowerings)}
    by_network: dict[str, Described] = {}
    for name in names:
        choice = vectors.get(name) or named(lowerings, name)
        if choice is None:
            continue
        if isinstance(choice, GemvChoice):
            if choice.kernel.staged:  # the model alone estimates them
                continue
            seconds = gemv_model.seconds(choice, card)
            row = vector_features(choice, seconds, card)
        else:
            passes = runnable(choice, workspace)
            # No network is fitted to two bfloat16 planes: that of 16-bit products serves.
            if isinstance(passes, str) or choice.lowering.form.input == BF16X3:
                continue
            seconds = model.seconds(choice, passes, card)
            row = features(choice, model.work(choice, passes, card), seconds, card)
            seconds += model.epilogue(choice.lowering)  # which features do not have
        network = network_of(choice)
        described = by_network.setdefault(
            network, Described(network, [], [], [], () if isinstance(choice, GemvChoice) else HANDLED)
        )
        described.names.append(name)
        described.modelled.append(seconds)
        described.rows.append(row)
    return list(by_network.values())


def features(choice: Choice, work: Work, seconds: float, card: Card) -> list[float]:
    """Return the features of a kernel for matrices whose modelled time is ``seconds``: a row of :func:`rows`."""
    row: list[float] = rows([choice], work, np.array([seconds]), card)[0].tolist()
    return row


def rows(choices: Sequence[Choice], work: Work, seconds: Numbers, card: Card) -> Numbers:
    """Return the features of kernels for matrices, a row for each of ``choices``; a and b are the kernel's own.

    ``seconds`` are the modelled times, and ``work`` is what they were derived from. With two bfloat16 planes features
    are those of a 16-bit product, and ``seconds`` are without the pre-pass.
    """
    lowerings = {id(choice.lowering): choice.lowering for choice in choices}
    products = {key: _product(lowering) for key, lowering in lowerings.items()}
    m, n, k, batch, *product = np.array([products[id(choice.lowering)] for choice in choices], float).T
    shape = np.array([_shape(choice.shape) for choice in choices], float).T
    height, width, cluster_size = shape[:3]
    vertical, horizontal = np.ceil(m / height), np.ceil(n / width)
    copied = 0.0 if choices[0].lowering.form.input == BF16X3 else work.copied_bytes  # as of a product of planes
    waves = work.full_waves + work.last_wave
    full_waves = np.ceil(waves)
    at_once = np.array([card.max_active_clusters(int(size)) for size in cluster_size])
    columns = [
        # The product: sizes, orders, alignment of rows, bytes of copies, and how the result is stored.
        np.log(m), np.log(n), np.log(k), np.log(batch), *product[:6], np.log1p(copied), *product[6:],
        # The shape; wgmma, swizzles and stores prefer widths that are multiples of powers of two.
        *shape[3:], np.log2([choice.splits for choice in choices]),
        # The tiling: the share of tiles within the product, waves, and the idle share of the last one.
        m * n / (vertical * height * horizontal * width), np.log(waves), full_waves - waves,
        np.log(np.maximum(1, work.k_blocks)), np.log(_group(vertical, height, width, at_once)),
        # The modelled time, and the rates that follow from it: operations and bytes a second.
        np.log(seconds), np.log(2 * m * n * k * batch / seconds),
        np.log((work.read_bytes + work.written_bytes) / seconds),
    ]  # fmt: skip
    return np.array(np.broadcast_arrays(*columns)).T


def _product(lowering: Lowering) -> tuple[float, ...]:
    """Return m, n, K of all products of planes, the batch, and the features that the lowering alone determines."""
    form = lowering.form
    return (
        lowering.m, lowering.n, lowering.k * form.plane_products, lowering.batch, form.mn_major_a, form.mn_major_b,
        form.transposed_d, form.registers_a + form.split_planes_b, _row_alignment(lowering.a),
        _row_alignment(lowering.b), form.tma_store, form.output_bytes,
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _shape(shape: Shape) -> tuple[float, ...]:
    """Return the height and the width of a cluster tile, the CTAs of a cluster, and the features of a shape."""
    return (
        shape.m * shape.cluster_m, shape.n * shape.cluster_n, shape.cluster_size,
        shape.m, shape.n, math.log2(math.gcd(shape.n, 64)), shape.consumers, shape.pingpong, shape.stages,
        math.log2(shape.cluster_m), math.log2(shape.cluster_n), math.log2(shape.cluster_k),
    )  # fmt: skip


def _group(vertical: Numbers, height: Numbers, width: Numbers, at_once: Numbers) -> Numbers:
    """Return :meth:`Choice.group` for tiles of ``height`` x ``width``, of which ``vertical`` cover M."""
    sizes = np.array([1, 2, 4, 8, 16, 32])[:, None]
    high = np.minimum(sizes, vertical)
    return sizes[np.argmin(high * height + np.ceil(at_once / high) * width, axis=0), 0]


def _row_alignment(access: OperandAccess) -> float:
    """Return log2 of the alignment in bytes, up to a line, of all rows of the caller's operand."""
    to_next = max(map(abs, access.strides[:2]))
    return math.log2(math.gcd(_LINE, access.alignment, to_next * access.size))


def vector_features(choice: GemvChoice, seconds: float, card: Card) -> list[float]:
    """Return the features of a kernel for vectors whose modelled time is ``seconds``."""
    kernel, lowering = choice.kernel, choice.lowering
    waves = choice.grid / card.sms
    return [
        # The product.
        math.log(lowering.m), math.log(lowering.n), math.log(lowering.k), math.log(lowering.batch), lowering.b.size,
        kernel.n_major, kernel.strided_x, math.log2(math.gcd(choice.pitch, _ROW)),
        # The kernel: vectors, bytes of a load, and how many threads and CTAs share K.
        kernel.vectors, kernel.cp_async, math.log2(kernel.load_bytes), math.log2(kernel.split_threads),
        math.log2(kernel.cluster_size), math.log2(choice.row_bytes),
        # The tiling: the share of steps and of columns beyond the product; waves, and the idle share of the last one
        # with one, two and four CTAs per SM.
        choice.steps * kernel.threads_per_result * kernel.k_per_step / lowering.k,
        choice.strips * kernel.block_n / lowering.n,
        math.log(choice.steps), math.log(waves), *(math.ceil(waves / x) - waves / x for x in (1, 2, 4)),
        # The modelled time, the bytes a second that follow from it, and the bytes of a CTA.
        math.log(seconds), math.log(choice.moved_bytes / seconds), math.log(choice.moved_bytes / choice.grid),
    ]  # fmt: skip
