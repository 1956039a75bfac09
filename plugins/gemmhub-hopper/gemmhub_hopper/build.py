"""``gemmhub build hopper``: compiles the kernels of plain products and the pre-passes into the user's cache.

Plain products have no c, bias or activation, a row-major a and result, b of either order, and rows aligned to
16 bytes. With and without swapped operands, these are compiled:

* bfloat16, float16, tf32 and float32: every shape; of two bfloat16 planes, and of 8-bit operands, the pre-pass only;
* split-K only where a goes through registers, and where b is not split in shared memory;
* one vector of each wider dtype by a matrix of either order; two to eight by a matrix that is contiguous along K.

What the wheel has (shipped.py) is left out. All other kernels are compiled when they are first needed.
"""

from __future__ import annotations

from collections.abc import Iterator

from gemmhub_nvidia import nvrtc
from gemmhub_nvidia.images import Images
from gemmhub_nvidia.nvrtc import Source
from gemmhub_nvidia.probe import cubins_of

from gemmhub.cli.build import Job
from gemmhub.kit.native import cache
from gemmhub_hopper.variants import gemv_kernel, sources
from gemmhub_hopper.variants.config import BF16X3, EIGHT_BIT, F16X3, Form, Variant
from gemmhub_hopper.variants.gemv_kernel import GemvKernel
from gemmhub_hopper.variants.shapes import shapes
from gemmhub_hopper.variants.sources import PREPASSES


def forms(input_type: str) -> Iterator[Form]:
    """Yield the forms of plain products for an input of ``input_type``."""
    output = input_type if input_type.endswith("16") else "float32"
    # tf32 operands are read contiguous along K, from a copy if need be; only the kernel's a may go through registers.
    for mn_major_b in (False,) if input_type == "tf32" else (False, True):
        yield Form(False, mn_major_b, input_type, output)
        yield Form(mn_major_b, False, input_type, output, transposed_d=True)
    if input_type == "tf32":
        yield Form(True, False, input_type, output, transposed_d=True, registers_a=True)
    if input_type in (
        F16X3,
        "split",
    ):  # a in registers as float16 planes, and what multiplies a that these do not hold
        for mn_major_a, transposed in ((False, False), (False, True), (True, True)):
            again = input_type == "split"
            yield Form(mn_major_a, False, input_type, output, transposed_d=transposed, registers_a=True, rescaled=again)
    if input_type == "split":
        for mn_major_b in (False, True):
            for split_planes_b in (False, True):
                yield Form(False, mn_major_b, input_type, output, registers_a=True, split_planes_b=split_planes_b)
                yield Form(
                    mn_major_b, False, input_type, output, transposed_d=True, registers_a=True,
                    split_planes_b=split_planes_b,
                )  # fmt: skip


def variants() -> list[Variant]:
    """Return the variants of the kernel for matrices that are compiled."""
    candidates = [
        Variant(shape, form, split)
        for input_type in (*PREPASSES, F16X3)
        if input_type not in (BF16X3, *EIGHT_BIT)
        for form in forms(input_type)
        for shape in shapes(form)
        for split in ((False, True) if form.registers_a and not (form.split_planes_b or form.rescaled) else (False,))
    ]
    return [variant for variant in candidates if variant.refusal is None]


def vectors() -> list[GemvKernel]:
    """Return the kernels for vectors that are compiled."""
    return [
        kernel
        for input_type in gemv_kernel.BYTES
        for count in gemv_kernel.VECTORS
        for n_major in ((False, True) if count == 1 else (False,))
        for kernel in gemv_kernel.kernels(input_type, count, n_major, gemv_kernel.MAX_LOAD_BYTES)
    ]


def jobs() -> list[Job]:
    """Return one job for each kernel. Raises CompilerError without NVRTC."""
    nvrtc.load()
    copiers = {number: input_type for input_type, number in PREPASSES.items()}
    jobs = [Job(f"pre-pass {input_type}", _prepass, (input_type,)) for input_type in copiers.values()]
    jobs.append(Job(f"pre-pass {F16X3}", _f16_prepass, ()))
    jobs += [Job(_gemv_name(kernel), _gemv, (kernel,)) for kernel in vectors()]
    return jobs + [Job(_name(variant), _kernel, (variant,)) for variant in variants()]


def _name(variant: Variant) -> str:
    form = variant.form
    orders = "".join("m" if mn else "k" for mn in (form.mn_major_a, form.mn_major_b))
    words = [variant.shape.name + form.letters, form.input, orders + ("t" if form.transposed_d else "")]
    return " ".join(words + ["split-K"] * variant.split_k + ["rescaled"] * form.rescaled)


def _gemv_name(kernel: GemvKernel) -> str:
    order = "n" if kernel.n_major else "k"
    return f"{kernel.name} {kernel.input} {order} {kernel.vectors}"


def _gemv(kernel: GemvKernel) -> str:
    return _compiled(sources.gemv(kernel))


def _prepass(input_type: str) -> str:
    return _compiled(sources.prepass(input_type))


def _f16_prepass() -> str:
    return _compiled(sources.f16_prepass())


def _kernel(variant: Variant) -> str:
    return _compiled(sources.source(variant))


def _compiled(source: Source) -> str:
    """Compile into the cache. Raises CompilerError where that fails, OSError where the cache cannot be written."""
    compiler = nvrtc.load()
    if Images(compiler, cubins_of("gemmhub_hopper")).shipped(source):
        return "in the wheel"
    name = nvrtc.file_name(compiler, source)
    if cache.find(name) is not None:
        return "already there"
    folder = cache.folder()
    if folder.note:
        raise OSError(folder.note)
    nvrtc.cubin(compiler, source)
    if cache.find(name) is None:
        raise OSError(f"{folder.path / name} could not be written")
    return "compiled"
