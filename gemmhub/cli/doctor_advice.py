"""Recommendations of ``gemmhub doctor``: distributions for the hardware and the frameworks that it finds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from gemmhub.capability import Absent
from gemmhub.kit import cuda, install
from gemmhub.numpy_backend.probe import cpu_flags

Hardware = tuple[str, tuple[str, ...]]
"""Name of hardware, and the distributions that serve it."""

_UNITS = {
    "amx_bf16": "AMX", "amx_int8": "AMX", "avx512_vnni": "AVX-512 VNNI", "avx_vnni": "AVX VNNI",
    "avx512_bf16": "AVX-512 BF16", "asimddp": "NEON dot product", "i8mm": "NEON int8 matrix product",
}  # fmt: skip
"""Flags of /proc/cpuinfo: instructions for bfloat16 and int8."""
_HOPPER = (9, 0)
_MUSA = ("gemmhub-mublas", "gemmhub-mudnn", "gemmhub-mutlass", "gemmhub-musa-kernels")
_FRAMEWORKS = {"jax": ("jax_tvm_ffi", "jit, grad and vmap of JAX"), "dask": ("distributed", "clusters of Dask")}
"""The module that gemmhub needs with a framework, and its purpose."""


@dataclass(frozen=True)
class Advice:
    """Distributions that this machine can use and that are not installed."""

    found: str
    """Hardware or framework that they serve."""
    distributions: tuple[str, ...]
    command: str


def installed(distribution: str) -> bool:
    """Whether a distribution is installed."""
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def cpu(*cpuinfo: Path) -> Iterator[Hardware]:
    """The processor, with its instructions for bfloat16 and int8."""
    words = cpu_flags(*cpuinfo)
    if not words:
        return
    units = dict.fromkeys(name for flag, name in _UNITS.items() if flag in words)
    yield f"CPU with {', '.join(units)}" if units else "CPU", ("gemmhub-cpu",)


def nvidia(open_driver: Callable[[], cuda.Driver] = cuda.load) -> Iterator[Hardware]:
    """The NVIDIA GPUs, one of each kind."""
    seen = cuda.look(open_driver, "525", "an NVIDIA GPU")
    if isinstance(seen, Absent):
        return
    for name, capability in dict.fromkeys((gpu.name, gpu.capability) for gpu in seen[1]):
        hopper = ("gemmhub-hopper",) if capability == _HOPPER else ()
        yield (
            f"{name}, compute capability {capability[0]}.{capability[1]}",
            ("gemmhub-cublas", "gemmhub-cuda", *hopper),
        )


def musa(folders: tuple[str, ...] = ("/usr/local/musa", "/dev/mtgpu.0")) -> Iterator[Hardware]:
    """The MUSA installation or card."""
    for place in filter(None, (os.environ.get("MUSA_HOME"), *folders)):
        if Path(place).exists():
            yield f"a MUSA installation or card ({place})", _MUSA
            return


def advice(
    looks: Sequence[Callable[[], Iterable[Hardware]]] = (cpu, nvidia, musa),
    installed: Callable[[str], bool] = installed,
) -> list[Advice]:
    """The recommendations for this machine, most specific hardware last. Imports nothing and runs no kernel.

    ``looks`` find the hardware, ``installed`` tests for a distribution.
    """
    found = []
    for title, distributions in chain.from_iterable(look() for look in looks):
        missing = tuple(name for name in distributions if not installed(name))
        if missing:
            found.append(Advice(title, missing, install.command(*missing)))
    for name, (needed, purpose) in _FRAMEWORKS.items():
        if find_spec(name) is not None and find_spec(needed) is None:
            extra = f"gemmhub[{name}]"
            found.append(Advice(f"{name}, without {needed}: {purpose}", (extra,), install.command(extra)))
    return found
