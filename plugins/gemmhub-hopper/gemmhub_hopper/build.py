"""``gemmhub build hopper``: compiles the kernels of plain products and the pre-passes into the user's cache.

Plain: alpha 1, no c, bias or activation; row-major a and result, b of either order, rows at multiples of 16 bytes.
Built are, for either orientation:

* bfloat16: every shape; float16 and tf32: the shapes that are chosen most often (:data:`COMMON`);
* float32: every shape;
* split-K only where a goes through registers, and where b is not split in shared memory;
* one vector of each dtype by a matrix of either order; two to eight by a matrix that is contiguous along K.

All other kernels are compiled when they are first needed.
"""

from __future__ import annotations

from collections.abc import Iterator

from gemmhub.cli.build import Job
from gemmhub.kit import nvrtc
from gemmhub.kit.native import cache
from gemmhub.kit.nvrtc import Source
from gemmhub_hopper import gemv, sources
from gemmhub_hopper.config import Form, Variant
from gemmhub_hopper.gemv import GemvKernel
from gemmhub_hopper.prepass import KINDS
from gemmhub_hopper.shapes import shapes

COMMON = frozenset((
    "64x16x12", "64x16x12k2", "64x16x12k4", "64x16x12k8", "64x32x12", "64x32x12k2", "64x32x12k4", "64x64x12",
    "64x64x12k2", "64x64x12k4", "64x96x8", "64x128x8", "64x128x8p", "64x160x6", "64x192x6p", "128x16x8",
    "128x112x6p", "128x128x6p", "128x144x5", "128x160x5", "128x160x5p", "128x176x5p", "128x192x4p", "128x192x5",
    "128x192x5pc2x1", "128x208x4", "128x224x4", "128x256x4",
))  # fmt: skip
"""Names of the shapes that are the fastest for more than one random product in a hundred."""


def forms(kind: str) -> Iterator[Form]:
    """The forms of plain products whose tensor cores multiply ``kind``."""
    output = kind if kind.endswith("16") else "float32"
    # tf32 operands are read contiguous along K, from a copy if need be; only the kernel's a may go through registers.
    for b_mn in (False,) if kind == "tf32" else (False, True):
        yield Form(False, b_mn, kind, output)
        yield Form(b_mn, False, kind, output, transposed=True)
    if kind == "tf32":
        yield Form(True, False, kind, output, transposed=True, a_registers=True)
    if kind == "split":
        for b_mn in (False, True):
            for b_split in (False, True):
                yield Form(False, b_mn, kind, output, a_registers=True, b_split=b_split)
                yield Form(b_mn, False, kind, output, transposed=True, a_registers=True, b_split=b_split)


def variants() -> list[Variant]:
    """What is compiled, pre-passes aside."""
    found = [
        Variant(shape, form, split)
        for kind in KINDS
        for form in forms(kind)
        for shape in shapes(form)
        if kind in ("bfloat16", "split") or shape.name in COMMON
        for split in ((False, True) if form.a_registers and not form.b_split else (False,))
    ]
    return [variant for variant in found if variant.refusal is None]


def vectors() -> list[GemvKernel]:
    """The kernels of vectors."""
    return [
        kernel
        for kind in gemv.INPUTS
        for count in gemv.VECTORS
        for n_major in ((False, True) if count == 1 else (False,))
        for kernel in gemv.kernels(kind, count, n_major, gemv.WIDEST)
    ]


def jobs() -> list[Job]:
    """Raises CompilerError where there is no NVRTC."""
    nvrtc.load()
    copiers = {number: kind for kind, number in KINDS.items()}
    made = [Job(f"pre-pass {kind}", _prepass, (kind,)) for kind in copiers.values()]
    made += [Job(_gemv_name(kernel), _gemv, (kernel,)) for kernel in vectors()]
    return made + [Job(_name(variant), _kernel, (variant,)) for variant in variants()]


def _name(variant: Variant) -> str:
    form = variant.form
    orders = "".join("m" if mn else "k" for mn in (form.a_mn, form.b_mn))
    shape = variant.shape.name + "r" * form.a_registers + "s" * form.b_split
    words = [shape, form.input, orders + ("t" if form.transposed else "")]
    return " ".join(words + (["split-K"] if variant.split else []))


def _gemv_name(kernel: GemvKernel) -> str:
    order = "n" if kernel.n_major else "k"
    return f"{kernel.name} {kernel.input} {order} {kernel.vectors}"


def _gemv(kernel: GemvKernel) -> str:
    return _compiled(sources.gemv(kernel))


def _prepass(kind: str) -> str:
    return _compiled(sources.prepass(kind))


def _kernel(variant: Variant) -> str:
    return _compiled(sources.source(variant))


def _compiled(source: Source) -> str:
    """CompilerError where it does not compile, OSError where it cannot be kept."""
    compiler = nvrtc.load()
    name = nvrtc.file_name(compiler, source)
    if cache.find(name) is not None:
        return "already there"
    place = cache.folder()
    if place.note:
        raise OSError(place.note)
    nvrtc.cubin(compiler, source)
    if cache.find(name) is None:
        raise OSError(f"{place.path / name} could not be written")
    return "compiled"
