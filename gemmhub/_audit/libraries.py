"""The libraries that an audit knows: a table of implementations, each an adapter of a few lines.

Claims follow the documentation of each library; notes name the page. What a library raises an exception for is refused,
not a fault.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from gemmhub._audit.claims import Claims, Note, products
from gemmhub._audit.implementation import Implementation, named_arguments, plain_scalar
from gemmhub.testing.axes import LAYOUTS
from gemmhub.testing.case import Case

_LAYOUTS = frozenset(LAYOUTS)
_FORWARD = _LAYOUTS - {"reversed"}  # torch has no negative strides
_WRAPS = Note("Integer products have the operands' dtype and wrap modulo its width.", "observed; not documented")


class Library(NamedTuple):
    """A row of the table of libraries."""

    modules: tuple[str, ...]
    """Modules that have to be installed."""
    device: str
    """Type of the device that it multiplies on: "cpu" or "cuda"."""
    make: Callable[[str, str], Implementation]
    """Function of the row's name and the device, such as "cuda:1", that makes the implementation."""

    @property
    def installed(self) -> bool:
        return all(importlib.util.find_spec(module) for module in self.modules)


def _versions(*names: str) -> Callable[[], Mapping[str, str]]:
    def versions() -> dict[str, str]:
        found = {}
        for name in ("numpy", *names):
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        return found

    return versions


def _numpy(name: str, device: str) -> Implementation:
    claims = Claims(
        products(
            "f16 f32 f64 c64 c128 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 bf16->f32 e4m3->f32 e5m2->f32"
        ),
        features=frozenset({"out", "alias", "batch"}),
        notes=(
            Note("Integer products have the operands' dtype and wrap modulo its width.",
                 "https://numpy.org/doc/stable/user/basics.types.html#overflow-errors"),
            Note("out may overlap the operands: the result is as if it did not.",
                 "https://numpy.org/doc/stable/reference/ufuncs.html"),
            Note("float16 sums are accumulated in float32; bfloat16 and float8 of ml_dtypes become float32.",
                 "observed; not documented"),
        ),
    )  # fmt: skip

    def call(case: Case) -> str:
        return "np.matmul(a, b, out=out)" if implementation.writes(case) else "np.matmul(a, b)"

    implementation = Implementation(name, claims, call, "import numpy as np", _versions("ml_dtypes"))
    return implementation


_TORCH = """\
import ml_dtypes, numpy as np, torch
def tensor(x):
    return torch.from_numpy(x.view("i2")).view(torch.bfloat16) if x.dtype == ml_dtypes.bfloat16 else torch.from_numpy(x)
def array(x):
    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()"""
_TORCH_CUDA = """\
import ml_dtypes, numpy as np, torch
torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
def tensor(x):
    whole = x
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    size, dtype = x.itemsize, getattr(torch, x.dtype.name)
    first = (x.__array_interface__["data"][0] - whole.__array_interface__["data"][0]) // size
    flat = torch.from_numpy(whole.reshape(-1).view("u1")).to(DEVICE)
    return flat[: len(flat) // size * size].view(dtype).as_strided(x.shape, [s // size for s in x.strides], first)
def array(x):
    x = x.cpu()
    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()"""
_TORCH_FLOATS = "f16 bf16 f32 f64 c64 c128"
_TORCH_NOTES = (
    Note("With beta = 0 NaN and infinities in the addend are not propagated.",
         "https://docs.pytorch.org/docs/stable/generated/torch.addmm.html"),
    Note("Results of equal products are not promised to have equal bits, nor those of a slice of a batch.",
         "https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html"),
    _WRAPS,
)  # fmt: skip


def _torch_call(case: Case) -> str:
    """torch's call for a case, by the functions of the setup."""
    return f"array({_torch_product(case, lambda name: f'tensor({name})')})"


def _torch_product(case: Case, tensor: Callable[[str], str]) -> str:
    """The expression of torch's result: matmul, or addmm and baddbmm where there is an addend."""
    a, b = tensor("a"), tensor("b")
    if case.c is None and case.bias is None and case.alpha == 1:
        return f"torch.matmul({a}, {b})"
    name = "c" if case.c is not None else "bias"
    beta = plain_scalar(case.beta) if case.c is not None else 1
    addmm = "baddbmm" if case.batch else "addmm"
    addend = tensor(name) if name in case.parts else f"torch.zeros((), dtype={a}.dtype)"
    return f"torch.{addmm}({addend}, {a}, {b}, beta={beta!r}, alpha={plain_scalar(case.alpha)!r})"


def _torch_short(case: Case, dense: bool, device: str = "") -> tuple[str, str] | None:
    """The setup and the expression of a short script, whose bfloat16 results are float32 arrays of equal values."""
    if device and not dense:
        return None
    dtypes = {"a": case.a_dtype, "b": case.b_dtype, "c": case.c_dtype, "bias": case.bias_dtype}
    dtypes = {name: dtype or case.out_dtype for name, dtype in dtypes.items()}
    setup = ["import numpy as np, torch"]
    for dtype, word in (("float16", "fp16"), ("bfloat16", "bf16")):
        if device and dtype in dtypes.values():
            setup.append(f"torch.backends.cuda.matmul.allow_{word}_reduced_precision_reduction = False")

    def tensor(name: str) -> str:
        half = dtypes[name] == "bfloat16"
        text = f'torch.from_numpy({name}.view("i2")).view(torch.bfloat16)' if half else f"torch.from_numpy({name})"
        return f"{text}.to({device!r})" if device else text

    result = _torch_product(case, tensor) + (".cpu()" if device else "")
    return "\n".join(setup), result + (".float().numpy()" if case.out_dtype == "bfloat16" else ".numpy()")


def _torch_claims(integers: str, takes: Mapping[str, frozenset[str]], features: str, precision: str = "ieee") -> Claims:
    return Claims(
        products(f"{_TORCH_FLOATS} {integers}"), _FORWARD, takes, frozenset(features.split(",")), precision=precision,
        notes=_TORCH_NOTES,
    )  # fmt: skip


def _torch_cpu(name: str, device: str) -> Implementation:
    claims = _torch_claims(
        "int8 int16 int32 int64 uint8", {"c": frozenset({"matrix"}), "bias": frozenset({"n"})}, "batch,alpha,zero beta"
    )
    return Implementation(name, claims, _torch_call, _TORCH, _versions("torch", "ml_dtypes"), short=_torch_short)


def _torch_compiled(name: str, device: str) -> Implementation:
    setup = f"{_TORCH}\n@torch.compile(dynamic=False)\ndef product(a, b):\n    return a @ b"
    claims = _torch_claims("int32", {}, "batch")

    def call(case: Case) -> str:
        return "(torch._dynamo.reset(), array(product(tensor(a), tensor(b))))[1]"

    return Implementation(name, claims, call, setup, _versions("torch", "ml_dtypes"), limit=80)


def _cuda_driver() -> str:
    """The version of CUDA that the driver has, as 1000 major + 10 minor; "unknown" on Windows and with ROCm."""
    version = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "unknown"
    driver.cuDriverGetVersion(ctypes.byref(version))
    return str(version.value)


def _torch_cuda(name: str, device: str) -> Implementation:
    import torch

    permitted = bool(torch.backends.cuda.matmul.allow_tf32)
    takes = {"c": frozenset({"matrix"}), "bias": frozenset({"n"})}
    claims = _torch_claims("", takes, "batch,alpha,zero beta", "tf32" if permitted else "ieee")

    def versions() -> dict[str, str]:
        properties = torch.cuda.get_device_properties(device)
        return {
            **_versions("torch", "ml_dtypes")(),
            "cuda": torch.version.cuda or "unknown",
            "driver": _cuda_driver(),
            "card": properties.name,
        }

    return Implementation(
        name, claims, _torch_call, _TORCH_CUDA.replace("DEVICE", repr(device)), versions,
        short=partial(_torch_short, device=device),
    )  # fmt: skip


def _cupy(name: str, device: str) -> Implementation:
    index = int(device.partition(":")[2] or 0)
    setup = f"""\
import cupy, numpy as np
cupy.cuda.Device({index}).use()
def tensor(x):
    whole = x
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    flat = cupy.asarray(whole.reshape(-1).view("u1"))
    first = x.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return cupy.ndarray(x.shape, x.dtype, flat.data + first, x.strides)"""
    claims = Claims(
        products("f16 f32 f64 c64 c128 int8 int32 int64"), features=frozenset({"batch"}),
        notes=(Note("cupy.matmul follows numpy.matmul.",
                    "https://docs.cupy.dev/en/stable/reference/generated/cupy.matmul.html"),),
    )  # fmt: skip
    names = ("cupy", "cupy-cuda12x", "cupy-cuda13x")
    short = f"import cupy, numpy as np\ncupy.cuda.Device({index}).use()"
    return Implementation(
        name, claims, lambda case: "cupy.matmul(tensor(a), tensor(b)).get()", setup, _versions(*names),
        short=lambda case, dense: (short, "cupy.matmul(cupy.asarray(a), cupy.asarray(b)).get()") if dense else None,
    )  # fmt: skip


def _jax(name: str, device: str) -> Implementation:
    claims = Claims(
        products("f16 bf16 f32 c64 bool int8 uint8 int16 int32"), features=frozenset({"batch"}),
        notes=(
            Note("On a CPU the default precision of float32 products is float32.",
                 "https://docs.jax.dev/en/latest/jax.lax.html#jax.lax.Precision"),
            _WRAPS,
        ),
    )  # fmt: skip
    setup = "import jax.numpy as jnp, numpy as np"
    return Implementation(
        name, claims, lambda case: "np.asarray(jnp.matmul(jnp.asarray(a), jnp.asarray(b)))", setup,
        _versions("jax", "jaxlib"), limit=1200,
    )  # fmt: skip


def _dask(name: str, device: str) -> Implementation:
    claims = Claims(
        products("f32 f64 c64 c128 int8 int32 int64"), features=frozenset({"batch"}),
        notes=(
            Note("dask.array.matmul follows numpy.matmul; an array has the dtype that it states.",
                 "https://docs.dask.org/en/stable/generated/dask.array.matmul.html"),
            Note("Products of blocks along k are added in the operands' dtype: 16-bit products are not claimed.",
                 "observed; not documented"),
        ),
    )  # fmt: skip
    setup = """\
import dask, dask.array as da, numpy as np
def blocks(x):
    return da.from_array(x, chunks=(1,) * (x.ndim - 2) + (37, 37), asarray=False)"""
    call = 'da.matmul(blocks(a), blocks(b)).compute(scheduler="synchronous")'
    return Implementation(name, claims, lambda case: call, setup, _versions("dask"), limit=2500)


def _gemmhub(name: str, device: str) -> Implementation:
    from gemmhub._audit.backends import claims_of

    def call(case: Case) -> str:
        words = [*named_arguments(case, implementation.writes(case)), f"out_dtype={case.out_dtype!r}"]
        words += [f"{operand}={operand}" for operand in case.operands]
        for word, value in (("precision", case.precision), ("reproducible", case.reproducible)):
            words += [f"{word}={value!r}"] if value not in ("ieee", None) else []
        return f"gemmhub.matmul({', '.join(words)})"

    versions = _versions("gemmhub", "gemmhub-cpu", "ml_dtypes")
    implementation = Implementation(name, claims_of(None), call, "import gemmhub, numpy as np", versions)
    return implementation


LIBRARIES: dict[str, Library] = {
    "numpy": Library((), "cpu", _numpy),
    "torch": Library(("torch",), "cpu", _torch_cpu),
    "torch-compiled": Library(("torch",), "cpu", _torch_compiled),
    "torch-cuda": Library(("torch",), "cuda", _torch_cuda),
    "cupy": Library(("cupy",), "cuda", _cupy),
    "jax": Library(("jax",), "cpu", _jax),
    "dask": Library(("dask",), "cpu", _dask),
    "gemmhub": Library((), "cpu", _gemmhub),
}
"""Implementations that are no backends of gemmhub, and gemmhub's own call, by name."""
