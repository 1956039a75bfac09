"""Old names of moved modules: they work until gemmhub 0.3, and warn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gemmhub

MOVED = Path(gemmhub.__file__).parent / "_moved"
NAMES = sorted(
    ".".join(path.relative_to(MOVED).with_suffix("").parts)
    for path in MOVED.rglob("*.py")
    if path.parent != MOVED or path.stem != "__init__"
)
LAYOUT = "BatchDim", "BlasCall", "collapse", "fold_batch", "lower"


def run(code):
    """The output of a fresh interpreter, with every warning shown."""
    command = [sys.executable, "-W", "always::DeprecationWarning", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True)


@pytest.mark.parametrize("name", [name.removesuffix(".__init__") for name in NAMES])
def test_a_moved_module_is_found_and_warns(name):
    found = run(f"import gemmhub.{name} as module; print(module.__name__)")
    assert f"gemmhub.{name} is now gemmhub." in found.stderr
    assert "<string>:1: DeprecationWarning" in found.stderr  # where it was imported, not in the import system
    assert found.stdout


def test_the_names_are_the_same_objects():
    found = run(
        "from gemmhub.native.cuda import Gpu; from gemmhub.kit import cuda; assert Gpu is cuda.Gpu\n"
        "from gemmhub.decision import Decision; import gemmhub; assert Decision is gemmhub.Decision\n"
        "from gemmhub.views import DeviceView\n"
        "from gemmhub import array_library; assert array_library.DeviceView is DeviceView"
    )
    assert found.stderr.count("DeprecationWarning") >= 3


@pytest.mark.parametrize("name", LAYOUT)
def test_what_left_layout(name):
    found = run(f"from gemmhub.layout import {name}; from gemmhub import lowering; assert {name} is lowering.{name}")
    assert f"gemmhub.layout.{name} is now gemmhub.lowering.{name}" in found.stderr


def test_what_never_was_is_not_found():
    with pytest.raises(ImportError):
        from gemmhub.layout import nothing  # noqa: F401
    with pytest.raises(ModuleNotFoundError):
        import gemmhub.nothing  # noqa: F401
