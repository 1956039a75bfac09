"""Allowed imports: one direction, and no circles, annotations and imports inside functions included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import gemmhub

ROOT = Path(gemmhub.__file__).parent
LAYERS = (
    # The public words, and what they are printed, read and computed with.
    {"_base", "accuracy", "backend", "buckets", "capability", "config", "dtypes", "epilogues", "errors", "hookspecs",
     "layout", "operands", "packed", "problem", "verdict"},
    {"array_library", "kit", "lowering", "records"},
    {"_arrays", "numpy_backend"},
    {"_choice"},
    {"_call"},
    {"_check"},
    {"_measure"},
    {"api"},
    {"_doors"},
    {"gemmhub", "torch", "jax", "numpy", "distributed", "testing", "_measure.bench", "_measure.contenders"},
    {"cli", "__main__"},
)  # fmt: skip
"""The lowest first. A module may import from its own layer and those below; one named here is not of its folder's."""


def modules() -> dict[str, Path]:
    """Every module, without those that are only old names of others."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        if "_moved" not in parts:
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of gemmhub that a file imports, wherever it does so."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in known:
                    yield full
                elif node.module in known:
                    yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)


def layer(module: str) -> int:
    name = module.partition(".")[2] or module
    for part in (name, name.partition(".")[0]):
        for index, layer in enumerate(LAYERS):
            if part in layer:
                return index
    raise AssertionError(f"{module} is in no layer: list it")


KNOWN = modules()
IMPORTS = {module: sorted(set(imported(path, KNOWN)) - {module}) for module, path in KNOWN.items()}


@pytest.mark.parametrize("module", KNOWN)
def test_a_module_imports_from_its_layer_and_those_below(module):
    above = [x for x in IMPORTS[module] if layer(x) > layer(module)]
    assert not above


def circles(imports: dict[str, list[str]]) -> list[list[str]]:
    """Groups of modules that import one another (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in imports[module]:
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            at = stack.index(module)
            found.append(stack[at:])
            del stack[at:]

    for module in imports:
        if module not in index:
            visit(module)
    return [group for group in found if len(group) > 1]


def test_no_modules_import_one_another():
    assert circles(IMPORTS) == []
    assert circles({"a": ["b"], "b": ["c"], "c": ["a"]}) == [["a", "b", "c"]]  # so that they would be found


def test_rooms_of_the_library_itself_have_an_underscore():
    """A folder without one is public: the public words, the kit for backends, and modules that users import."""
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(("_", "."))}
    assert folders == {"cli", "kit", "numpy_backend", "testing"}


@pytest.mark.parametrize("module", KNOWN)
def test_the_first_line_of_a_module_is_a_sentence(module):
    text = ast.get_docstring(ast.parse(KNOWN[module].read_text(encoding="utf-8")))
    first = (text or "").partition("\n\n")[0]
    assert first.endswith(".")
    assert first[0].isupper() or first[0] in '`"'
