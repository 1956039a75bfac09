"""Allowed imports: one direction, and no circles, annotations and imports inside functions included.

The rooms of a plugin have their order in test_plugin_rooms.py.
"""

from __future__ import annotations

import ast
import re

import pytest
from import_graph import IMPORTS, MODULES, PACKAGES, circles, package_of

ROOT = PACKAGES["gemmhub"]
CORE = [module for module in MODULES if package_of(module) == "gemmhub"]
LAYERS = (
    # The public words, and what they are printed, read and computed with.
    {"_base", "accuracy", "backend", "buckets", "capability", "config", "dtypes", "epilogues", "errors", "hookspecs",
     "layout", "operands", "packed", "problem", "scale_layouts", "verdict"},
    {"array_library", "kit", "lowering"},
    {"_arrays", "numpy_backend"},
    {"_choice"},
    {"_call", "quantization"},
    {"_check"},
    {"_measure"},
    {"api", "registered_epilogues", "registration"},
    {"_contractions", "_grouped"},
    {"_doors"},
    {"gemmhub", "torch", "jax", "numpy", "distributed", "testing", "_audit"},
    {"array_api"},
    {"cli", "__main__"},
)  # fmt: skip
"""The lowest first. A module may import from its own layer and those below."""


def layer(module: str) -> int:
    name = module.partition(".")[2] or module
    for part in (name, name.partition(".")[0]):
        for index, layer in enumerate(LAYERS):
            if part in layer:
                return index
    raise AssertionError(f"{module} is in no layer: list it")


@pytest.mark.parametrize("module", CORE)
def test_a_module_imports_from_its_layer_and_those_below(module):
    above = [x for x in IMPORTS[module] if package_of(x) != "gemmhub" or layer(x) > layer(module)]
    assert not above


def test_no_modules_import_one_another():
    """Neither within a package nor across packages."""
    assert circles(IMPORTS) == []
    assert circles({"a": ["b"], "b": ["c"], "c": ["a"]}) == [["a", "b", "c"]]  # so that they would be found


def test_no_folders_of_a_plugin_import_one_another():
    rooms: dict[str, set[str]] = {}
    for module, others in IMPORTS.items():
        if package_of(module) != "gemmhub":
            room = ".".join(module.split(".")[:2])
            reached = {".".join(x.split(".")[:2]) for x in others if package_of(x) == package_of(module)}
            rooms.setdefault(room, set()).update(reached - {room})
    assert circles(rooms) == []


PLUGINS = sorted(PACKAGES.keys() - {"gemmhub"})
FOR_PLUGINS = (
    *(name for name in LAYERS[0] if not name.startswith("_")), "array_library", "kit", "lowering", "numpy_backend",
    "testing",
    "cli.build", "cli.doctor_advice", "cli.doctor_report",  # what entry points of a plugin return
    "_base.evicting",  # bounded tables
    "_choice.registry",  # gemmhub_musa.doctor reports on the backends of other plugins
)  # fmt: skip
"""Modules and folders of the core from which a plugin may import; from ``gemmhub`` itself, its version."""


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_plugin_imports_what_the_core_has_for_plugins(plugin):
    allowed = {"gemmhub", *(f"gemmhub.{name}" for name in FOR_PLUGINS)}

    def may_import(module: str) -> bool:
        return module in allowed or any(module.startswith(f"{name}.") for name in allowed - {"gemmhub"})

    used = {x for module, others in IMPORTS.items() if package_of(module) == plugin for x in others}
    assert not [x for x in sorted(used) if package_of(x) == "gemmhub" and not may_import(x)]


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_plugin_depends_on_the_distributions_that_it_imports(plugin):
    metadata = (PACKAGES[plugin].parent / "pyproject.toml").read_text(encoding="utf-8")
    (line,) = re.findall(r"^dependencies = \[(.*?)\]", metadata, re.MULTILINE | re.DOTALL)
    named = {name.replace("-", "_") for name in re.findall(r'"([\w-]+)', line)}
    used = {package_of(x) for module, others in IMPORTS.items() if package_of(module) == plugin for x in others}
    assert used - {plugin} <= named


def test_rooms_of_the_library_itself_have_an_underscore():
    """A folder without one is public: the public words, the kit for backends, and modules that users import."""
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(("_", "."))}
    assert folders == {"cli", "kit", "numpy_backend", "testing"}


@pytest.mark.parametrize("module", CORE)
def test_the_first_line_of_a_module_is_a_sentence(module):
    text = ast.get_docstring(ast.parse(MODULES[module].read_text(encoding="utf-8")))
    first = (text or "").partition("\n\n")[0]
    assert first.endswith(".")
    assert first[0].isupper() or first[0] in '`"'
