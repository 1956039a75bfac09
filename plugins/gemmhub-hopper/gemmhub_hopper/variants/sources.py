"""The sources and compiler options of each kernel."""

from __future__ import annotations

from gemmhub_nvidia import sources
from gemmhub_nvidia.nvrtc import Source

from gemmhub_hopper.variants import config, wgmma
from gemmhub_hopper.variants.config import EIGHT_BIT, Form, Variant
from gemmhub_hopper.variants.gemv_kernel import GemvKernel

ARCH = "sm_90a"
KERNEL = "gemm"
"""Name of the function in gemm_kernel.cu; likewise in the other two sources."""
PREPASS = "prepass"
GEMV = "gemv"
F16_PREPASS = "f16_prepass"
PREPASSES = {"split": 0, "tf32": 1, "bfloat16": 2, "float16": 2, "bf16x3": 3, **dict.fromkeys(EIGHT_BIT, 4)}
"""``kFormat`` of prepass.cu by the kernel's input."""
_PTX_FILES = ("ptx.cuh", "ptx_memory.cuh", "types.cuh")
_PREPASS_FILES = ("prepass.cu", "source_element.cuh", "split_planes.cuh", *_PTX_FILES)
_F16_PREPASS_FILES = ("f16_prepass.cu", "source_element.cuh", "f16_planes.cuh", "split_planes.cuh", *_PTX_FILES)
_GEMV_FILES = ("gemv_kernel.cu", "elements.cuh", *_PTX_FILES)
_OTHERS = ("prepass.cu", "f16_prepass.cu", "gemv_kernel.cu")
"""Files that gemm_kernel.cu does not include."""


def name(what: str) -> str:
    """Return the name of the source of a kernel for a shape, or of one for vectors of that name."""
    return f"hopper-{what}"


def source(variant: Variant) -> Source:
    """Return the source of a variant; the headers wgmma.cuh and activations.cuh are generated."""
    files = {name: text for name, text in _files().items() if name not in _OTHERS}
    files |= {"wgmma.cuh": wgmma.header(variant), **activations(variant.form.activation)}
    return _source(name(variant.shape.name), "gemm_kernel.cu", files, variant.macros)


def activations(activation: str | None = None) -> dict[str, str]:
    """Return the header of the activations in a kernel for ``activation``: its name and its text."""
    names = config.activations(activation)
    count = f"constexpr int kNumActivations = {len(names)};\n"
    return {name: text + count for name, text in sources.activations(names).items()}


def copier(form: Form) -> int:
    """Return the format of the pre-pass of a form: of a key of :data:`PREPASSES`."""
    return PREPASSES["tf32" if form.split_planes_b else form.input]


def prepass(input_type: str) -> Source:
    """Return the source of the pre-pass for an input of ``input_type``."""
    number = PREPASSES[input_type]
    files = {name: _files()[name] for name in _PREPASS_FILES}
    return _source(f"hopper-prepass-{number}", "prepass.cu", files, {"PREPASS_FORMAT": number})


def f16_prepass() -> Source:
    """Return the source of the pre-pass that splits float32 into float16 planes."""
    files = {name: _files()[name] for name in _F16_PREPASS_FILES}
    return _source("hopper-f16-prepass", "f16_prepass.cu", files, {"F16_PREPASS": 1})


def gemv(kernel: GemvKernel) -> Source:
    """Return the source of a kernel for vectors."""
    files = {name: _files()[name] for name in _GEMV_FILES} | activations(kernel.added)
    return _source(name(kernel.name), "gemv_kernel.cu", files, kernel.macros)


def _source(title: str, main: str, files: dict[str, str], macros: dict[str, int]) -> Source:
    return sources.source(title, main, files, ARCH, macros)


def _files() -> dict[str, str]:
    return sources.files("gemmhub_hopper")
