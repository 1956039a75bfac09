"""Tiers of tests by their requirements: markers for ``pytest -m``, and one message where g++ is missing.

``make test-fast`` leaves out what compiles, what runs on an emulator, and the documentation; ``make test`` runs all
that a machine without a GPU can; ``make test-all`` tries more of it. The tiers of files are listed here and not in the
files, so that they are seen in one place.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import hypothesis
import pytest

for _name, _examples in (("fast", 10), ("gemmhub", 60), ("thorough", 1500)):
    # pytest --hypothesis-profile=NAME
    hypothesis.settings.register_profile(_name, deadline=None, print_blob=True, max_examples=_examples)

_WITHOUT_COMPILER = "g++ was not found: it compiles kernels for the emulator, simulated SDKs and small libraries"
_MUSA = (
    "gemmhub-musa",
    "gemmhub-mublas",
    "gemmhub-mudnn",
    "gemmhub-mutlass",
    "gemmhub-musa-kernels",
    "gemmhub-musa-sim",
)
EMULATOR = {
    "gemmhub-hopper": (
        "test_addresses", "test_b_split", "test_backend", "test_bringup", "test_complex", "test_conformance",
        "test_f16_planes", "test_float32", "test_gemv", "test_kernel", "test_mixed", "test_orders", "test_packed",
        "test_pdl", "test_probe", "test_repair", "test_rows", "test_scheduler", "test_shifted_rows", "test_shortlist",
        "test_split_k", "test_tensor_map",
    ),
    "gemmhub-cuda": (
        "test_backend", "test_batch_kernel", "test_batch_mutations", "test_conformance", "test_ladder",
        "test_mma_emulator", "test_mma_kernel", "test_mma_mutations", "test_sgemm_kernel", "test_sgemm_mutations",
    ),
    "gemmhub-mutlass": (), "gemmhub-musa-kernels": (), "gemmhub-musa-sim": (),
}  # fmt: skip
"""Files whose tests run kernels on a g++ emulator, by plugin; all files where none is named."""
COMPILER: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_MUSA, ()),  # homes are compiled
    "gemmhub-hopper": ("test_nvrtc", "test_registers"),
    "gemmhub-cuda": ("test_batch_nvrtc", "test_mma_nvrtc", "test_sgemm_nvrtc"),
}
"""Files whose tests compile something else."""
DEVICE = ("test_device", "test_device_calls", "test_cuda_device", "test_first_call")
"""Files of plugins whose tests need a GPU."""
_CORE = ("native", "test_simt_base")
"""Folders and files of the core's tests that compile."""


def markers(path: Path) -> set[str]:
    """The tier of the tests in a file."""
    found = {"docs"} if path.suffix == ".md" else set()
    parts = path.parts
    plugin = parts[parts.index("plugins") + 1] if "plugins" in parts else ""
    if plugin and path.stem in DEVICE:
        return {"device"}
    for marker, files in (("emulator", EMULATOR), ("compiler", COMPILER)):
        if plugin in files and (not files[plugin] or path.stem in files[plugin]):
            found.add(marker)
    if "emulator" in found or (not plugin and {*parts, path.stem} & {*_CORE}):
        found.add("compiler")
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = shutil.which("g++") is None
    for item in items:
        names = markers(item.path)
        for name in names:
            item.add_marker(name)
        if missing and "compiler" in names:
            item.add_marker(pytest.mark.skip(reason=_WITHOUT_COMPILER))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if shutil.which("g++") is None:
        terminalreporter.write_line(f"{_WITHOUT_COMPILER}. Install it to run these tests.", yellow=True)
