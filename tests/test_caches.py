"""Every cache that exists as long as the process has a bound, which is listed here."""

from __future__ import annotations

import ast
from pathlib import Path

import gemmhub

ROOT = Path(gemmhub.__file__).parents[1]

ONE = "one value"
DTYPES = "supported dtypes, and pairs and triples of them; others raise, and what raises is not kept"
DEVICES = "devices and array libraries of the machine"
FILES = "files of the package"
CONFIGURATIONS = "kernels that the package lists"
SDKS = "SDKs and compilers of the machine, and their versions"

BOUNDS = {
    "gemmhub/_base/registered.py": {"libraries": "types of arrays", "deferring": "types of arrays"},
    "gemmhub/config.py": {"_interned": "_MAX_ENTRIES", "_root": ONE},
    "gemmhub/kit/corrections.py": {"find": "kinds and cards"},
    "gemmhub/_choice/answers.py": {"_failures": "4096 problems"},
    "gemmhub/_choice/records.py": {"_opened": "files that settings name, which keep them"},
    "gemmhub/_doors/torch/override.py": {"_replaced": ONE},
    "gemmhub/quantization.py": {"_compiled": ONE},
    "gemmhub/_choice/pins.py": {"_pins": "256 dtypes, features and settings"},
    "gemmhub/_arrays/torch/operands.py": {"torch_dtypes": ONE, "torch_arrays": DEVICES},
    "gemmhub/_arrays/cupy/operands.py": {"cupy_arrays": DEVICES},
    "gemmhub/_arrays/plugin_arrays.py": {"plugin_arrays": ONE},
    "gemmhub/dtypes.py": {"info": DTYPES, "compute_dtype": DTYPES},
    "gemmhub/_arrays/dlpack/operands.py": {"dlpack_arrays": DEVICES},
    "gemmhub/_arrays/torch/host.py": {"torch_host_arrays": ONE, "_bits": ONE},
    "gemmhub/_arrays/dlpack/adopted.py": {"adopted_arrays": DEVICES},
    "gemmhub/kit/install.py": {"origin": ONE},
    "gemmhub/kit/native/build.py": {"_failures": "_MAX_ENTRIES"},
    "gemmhub/kit/native/cache.py": {
        "temporary_folders": "one a process",
        "verified": "MAX_VERIFIED",
        "swept": "cache folders used",
    },
    "gemmhub/_choice/registry.py": {"_objects": "backends that the process registers", "_registry": ONE},
    "gemmhub/registered_epilogues.py": {"_known": "epilogues that the process registers"},
    "gemmhub/_choice/suggestions.py": {"known": ONE, "_required": ONE},
    "gemmhub/testing/allocations.py": {"large": ONE},
    "gemmhub/testing/case.py": {"_facts": DTYPES},
    "gemmhub/testing/suite.py": {"_probed": "backends under test", "_fresh_seed": ONE},
    "gemmhub/_arrays/torch/tensors.py": dict.fromkeys(
        (
            "increment_version",
            "autocast_test",
            "dispatch_depth",
            "dispatch_modes",
            "forward_ad",
            "recording_test",
            "transform_test",
            "_mapped_test",
            "any_autocast",
        ),
        ONE,
    ),
    "gemmhub/_doors/torch/repeated.py": {"_kept": "LIMIT"},
    "gemmhub/_doors/jax/target.py": {
        "_register": "functions of the package, and platforms",
        "_calls": "kinds of calls that were traced",
    },
    "gemmhub_nvidia/graph.py": {"_libc": ONE},
    "gemmhub_nvidia/sources.py": {"files": FILES},
    "gemmhub_hopper/cost/choose.py": {"_for_rejected": "_KEPT"},
    "gemmhub_hopper/candidates/columns.py": {"_tables": "_KEPT"},
    "gemmhub_hopper/variants/config.py": {"store_block_n": CONFIGURATIONS, "variant": CONFIGURATIONS},
    "gemmhub_hopper/launches/pdl.py": {"allowed": ONE},
    "gemmhub_nvidia/tma.py": {
        "_words": "drivers, and _KEPT kinds of maps of each",
        "_encoded": "drivers, and _KEPT maps of each",
    },
    "gemmhub_musa/array.py": {"_arrays_on": DEVICES},
    "gemmhub_musa/compile.py": {"_identity": SDKS, "_digest": SDKS},
    "gemmhub_musa/runtime.py": {"_load": SDKS, "_counted": SDKS},
    "gemmhub_musa/sdk.py": {"_find": SDKS},
    "gemmhub_musa/workspace.py": {"of": DEVICES},
    "gemmhub_musa_sim/cuda/gpu.py": {"capability": ONE},
    "gemmhub_musa_sim/runtime/toolchain.py": {"processor_flags": ONE},
}
"""The bounds of functions with a cache without ``maxsize``, and of containers of modules that are empty at first."""


def unbounded(tree):
    """The names of such functions and containers in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(map(_is_cache, node.decorator_list)):
            yield node.name
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and _is_empty(node.value):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield ast.unparse(target)


def _is_cache(decorator):
    if isinstance(decorator, ast.Call):
        limits = [*decorator.args, *(k.value for k in decorator.keywords if k.arg == "maxsize")]
        name = ast.unparse(decorator.func)
        # Without one, lru_cache keeps 128.
        return name.endswith("lru_cache") and any(getattr(limit, "value", 1) is None for limit in limits)
    return ast.unparse(decorator) in ("cache", "functools.cache")


def _is_empty(value):
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.List):
        return not value.elts
    return isinstance(value, ast.Call) and not value.args and ast.unparse(value.func) in (
        "dict", "list", "set", "defaultdict", "OrderedDict", "WeakKeyDictionary", "WeakValueDictionary",
    )  # fmt: skip


def test_every_cache_has_a_bound():
    folders = [ROOT / "gemmhub", *sorted(path for path in ROOT.glob("plugins/gemmhub-*/gemmhub_*") if path.is_dir())]
    found = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            names = set(unbounded(ast.parse(path.read_text(encoding="utf-8"))))
            if names:
                found[path.relative_to(folder.parent).as_posix()] = names
    known = {module: set(names) for module, names in BOUNDS.items()}
    assert found == known, "bound what is new (a number of entries, or lru_cache), and list it here with its bound"


def test_the_scan_sees_what_it_should():
    text = (
        "@cache\ndef a(): ...\n@functools.lru_cache(maxsize=None)\ndef b(): ...\n@lru_cache(64)\ndef c(): ...\n"
        "d = {}\ne: dict[int, int] = {}\nf = set()\ng = {1: 2}\nclass X:\n    @cache\n    def h(self): ...\n"
        "@lru_cache\ndef i(): ...\n@lru_cache(None)\ndef j(): ...\nk, l = [], 3\nm = []\n"
    )
    assert set(unbounded(ast.parse(text))) == {"a", "b", "d", "e", "f", "h", "j", "m"}


def test_no_other_dtype_enters_the_caches_of_dtypes():
    """Dtypes that differ only in metadata are equal, and so one entry."""
    import numpy as np

    from gemmhub.dtypes import info

    before = info.cache_info().currsize
    for number in range(50):
        info(np.dtype(np.float32, metadata={"unit": number}))
    assert info.cache_info().currsize <= before + 1
