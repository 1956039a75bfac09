"""Recommendations of ``gemmhub doctor``: distributions for the hardware and the frameworks that it finds.

A distribution that can examine hardware more closely names a function in the entry-point group ``gemmhub.hardware``::

    [project.entry-points."gemmhub.hardware"]
    nvidia = "gemmhub_nvidia.hardware:cards"

It takes no arguments, yields :data:`Hardware`, and replaces the function of :data:`LOOKS` that has its name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from gemmhub._base.guard import guarded
from gemmhub._choice.suggestions import of_extra
from gemmhub.capability import Refusal
from gemmhub.kit import install
from gemmhub.numpy_backend.probe import cpu_flags

_log = logging.getLogger("gemmhub")

GROUP = "gemmhub.hardware"

Hardware = tuple[str, tuple[str, ...]]
"""Name of hardware, and the distributions that serve it."""
Look = Callable[[], Iterable[Hardware]]

_UNITS = {
    "amx_bf16": "AMX", "amx_int8": "AMX", "avx512_vnni": "AVX-512 VNNI", "avx_vnni": "AVX VNNI",
    "avx512_bf16": "AVX-512 BF16", "asimddp": "NEON dot product", "i8mm": "NEON int8 matrix product",
}  # fmt: skip
"""Flags of /proc/cpuinfo: instructions for bfloat16 and int8."""
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
    yield f"CPU with {', '.join(units)}" if units else "CPU", of_extra("cpu")


def nvidia(files: tuple[str, ...] = ("/dev/nvidiactl", "/usr/lib/wsl/lib/libcuda.so.1")) -> Iterator[Hardware]:
    """The NVIDIA driver, by its device file, or by its library where Linux runs in Windows."""
    for path in filter(os.path.exists, files):
        yield f"an NVIDIA driver ({path})", of_extra("nvidia")
        return


def musa(folders: tuple[str, ...] = ("/usr/local/musa", "/dev/mtgpu.0")) -> Iterator[Hardware]:
    """The MUSA installation or card."""
    for path in filter(os.path.exists, filter(None, (os.environ.get("MUSA_HOME"), *folders))):
        yield f"a MUSA installation or card ({path})", of_extra("musa")
        return


LOOKS: Mapping[str, Look] = {"cpu": cpu, "nvidia": nvidia, "musa": musa}
"""Functions that find hardware, by name; none loads a vendor's library."""


def looks() -> Iterator[Look]:
    """:data:`LOOKS`, those of installed plugins in place of ours."""
    by_name = dict(LOOKS)
    for point in metadata.entry_points(group=GROUP):
        by_name[point.name] = partial(_plugins, point)
    return iter(by_name.values())


def _plugins(point: metadata.EntryPoint) -> list[Hardware]:
    """The hardware that a plugin detects; none, and a warning, where its code raises: the machine may be broken."""
    hardware = guarded(lambda: list(point.load()()), point.value, "")
    if isinstance(hardware, Refusal):
        _log.warning("%s", hardware.reason)
        return []
    return hardware


def advice(looks: Callable[[], Iterable[Look]] = looks, installed: Callable[[str], bool] = installed) -> list[Advice]:
    """The recommendations for this machine, most specific hardware last. Runs no kernel.

    ``looks`` returns the functions that find hardware; ``installed`` tests for a distribution.
    """
    recommendations = []
    for title, distributions in chain.from_iterable(look() for look in looks()):
        missing = tuple(name for name in distributions if not installed(name))
        if missing:
            recommendations.append(Advice(title, missing, install.command(*missing)))
    for name, (needed, purpose) in _FRAMEWORKS.items():
        if find_spec(name) is not None and find_spec(needed) is None:
            extra = f"gemmhub[{name}]"
            recommendations.append(Advice(f"{name}, without {needed}: {purpose}", (extra,), install.command(extra)))
    return recommendations
