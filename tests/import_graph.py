"""The imports between modules of the core and of the plugins, read from the files: annotations' and functions' too."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import gemmhub

ROOT = Path(gemmhub.__file__).parents[1]
PACKAGES: dict[str, Path] = {
    "gemmhub": ROOT / "gemmhub",
    **{path.parent.name: path.parent for path in sorted((ROOT / "plugins").glob("gemmhub-*/gemmhub_*/__init__.py"))},
}
"""The folder of each package."""


def _modules(package: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = {module: path for package in PACKAGES.values() for module, path in _modules(package)}
"""The file of each module."""


def _imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, wherever it does so."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


IMPORTS = {module: sorted({*_imported(path)} & MODULES.keys() - {module}) for module, path in MODULES.items()}
"""The modules that each module imports."""


def package_of(module: str) -> str:
    """Return the package of a module."""
    return module.partition(".")[0]


def circles(imports: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the groups of modules that import one another (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups = []

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
            groups.append(stack[at:])
            del stack[at:]

    for module in imports:
        if module not in index:
            visit(module)
    return [group for group in groups if len(group) > 1]
