"""Descriptions of candidates, for remarks and kernels."""

from __future__ import annotations

from gemmhub_hopper.candidates.candidate import Choice
from gemmhub_hopper.candidates.gemv import GemvChoice
from gemmhub_hopper.lowering.k_passes import KPasses
from gemmhub_hopper.variants.config import BF16X3, F16X3

_SCHEMES = {
    "split": "three bfloat16 planes, six products",
    BF16X3: "two bfloat16 planes, three products",
    F16X3: "two float16 planes, three products; by bfloat16 planes where exponents differ too much",
}
"""Descriptions of planes, by the kernel's input."""


def of_matrices(choice: Choice, passes: KPasses | None = None) -> str:
    """Return the description of ``choice``, in these K passes unless None."""
    shape, lowering, form = choice.shape, choice.lowering, choice.lowering.form
    words = ["symmetric: half the products"] * form.symmetric + [f"tile {shape.m}x{shape.n}, {shape.stages} stages"]
    if shape.pingpong:
        words.append("ping-pong")
    if shape.cluster_size > 1:
        shared = f", K shared by {shape.cluster_k} CTAs" if shape.cluster_k > 1 else ""
        words.append(f"cluster {shape.cluster_m}x{shape.cluster_n}{shared}")
    if lowering.swapped:
        words.append("operands swapped")
    if choice.splits > 1:
        words.append(f"split-K of {choice.splits}")
    if form.registers_a:
        rows = ", as TMA cannot take its rows" if form.shifted else ""
        words.append(f"{lowering.a.name} through registers{rows}")
    if form.stored_planes > 1:
        words.append(f"float32 split into {_SCHEMES[form.input]}")
        words += [f"planes of {x.name} made by a pre-pass" for x in lowering.copied]
        words += [f"planes of {lowering.b.name} made in shared memory"] if form.split_planes_b else []
    else:
        words += [f"{x.name} {x.why}" for x in lowering.copied]
    if form.float8:
        words.append("sums of each 128 along K promoted to float32")
    if form.scales:
        words.append("quantization scales as factors of " + {"results": "results", "blocks": "these sums"}[form.scales])
    if passes is not None and passes.count > 1:
        words.append(f"{passes.count} K passes for a small workspace")
    if not form.tma_store and not form.shifted:
        words.append("result stored without TMA: its address, rows or strides are not aligned to 16 bytes")
    return ", ".join(words)


def of_vectors(choice: GemvChoice) -> str:
    """Return the description of ``choice``."""
    words = f"few vectors by a matrix, {choice.kernel.threads_per_result} threads per result"
    words += f", cluster {choice.kernel.cluster_size}" if choice.kernel.cluster_size > 1 else ""
    return words + (", loads by cp.async" if choice.kernel.cp_async else "")


def of(choice: Choice | GemvChoice) -> str:
    """Return the description of ``choice``, for matrices or for vectors."""
    return of_vectors(choice) if isinstance(choice, GemvChoice) else of_matrices(choice)
