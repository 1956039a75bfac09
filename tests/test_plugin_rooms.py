"""The same file name for the same job in every plugin; what else a plugin has is listed here."""

from __future__ import annotations

from pathlib import Path

import pytest

import gemmhub

PLUGINS = Path(gemmhub.__file__).parents[1] / "plugins"
COMMON = {
    "__init__": "the package",
    "plugin": "describes the plugin, imports nothing heavy",
    "probe": "looks at the machine",
    "backend": "offer, prepare, pack",
    "lower": "from a problem to the call of a library or kernel",
    "model": "estimates",
    "corrections": "the features of the learned corrections",
    "choose": "candidates and their ranking",
    "launch": "runs a kernel",
    "workspace": "scratch memory",
    "library": "loads a library of compiled code",
    "proof": "tries a vendor's library out",
    "packed": "the packed form of b",
    "sources": "what a kernel is compiled from",
}
"""Module -> its job. A plugin without the job has no such module."""
OWN = {
    "gemmhub-cpu": {
        "convert", "finishing", "limits", "native_engine", "numkong_engine", "panels", "threads", "torch_engine",
        "units",
    },
    "gemmhub-cublas": {"descriptors"},
    "gemmhub-cuda": {"batch", "batch_model", "fitted", "form", "mma", "sgemm", "variant", "wave_model"},
    "gemmhub-hopper": {
        "build", "candidate", "columns", "compiled", "complex_operands", "config", "f16_planes", "f16_staged", "fitted",
        "gemv", "gemv_launch", "gemv_model", "k_passes", "operands", "pdl", "prepass", "shapes", "shortlist", "staged",
        "tensor_map", "tile_schedule", "wgmma", "words",
    },
    "gemmhub-mublas": {"addend", "enums", "handles", "lt", "pointers", "symbols"},
    "gemmhub-mudnn": {"engine"},
    "gemmhub-musa": {
        "array", "attested", "child", "compile", "devices", "dlpack", "doctor", "first_run", "guard", "runtime", "sdk",
        "selftest", "testing",
    },
    "gemmhub-musa-kernels": {"copies", "parameters", "source"},
    "gemmhub-mutlass": {"installation", "profiler"},
}  # fmt: skip
"""What a plugin has beside these: the parts of its own library or kernels."""
SIMULATORS = {"gemmhub-musa-sim"}
"""No plugins for backends, but what stands in for an SDK."""
FOLDERS = {"kernels", "data", "glue", "lt", "self_check", "__pycache__"}


@pytest.mark.parametrize("plugin", sorted(path.name for path in PLUGINS.glob("gemmhub-*")))
def test_a_job_has_the_same_file_name_in_every_plugin(plugin):
    if plugin in SIMULATORS:
        return
    (package,) = (path.parent for path in (PLUGINS / plugin).glob("gemmhub_*/__init__.py"))
    modules = {path.stem for path in package.glob("*.py")}
    folders = {path.name for path in package.iterdir() if path.is_dir() and any(path.iterdir())}
    assert modules - set(COMMON) - OWN[plugin] == set()
    assert OWN[plugin] - modules - folders == set()  # the list is of what is there
    assert folders <= FOLDERS
    assert modules & {"plugin", "backend"} == {"plugin", "backend"} or plugin == "gemmhub-musa"
