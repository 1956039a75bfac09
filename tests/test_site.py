"""The site: it builds without a warning, its reference has every public name, and its links have the form of links."""

from __future__ import annotations

import ast
import dataclasses
import html
import inspect
import json
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import gemmhub
from gemmhub import problem
from gemmhub._call import options

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {x.relative_to(DOCS).as_posix(): x.read_text(encoding="utf-8") for x in sorted(DOCS.rglob("*.md"))}
LINKED = {**PAGES, **{name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md")}}
PACKAGE = Path(gemmhub.__file__).parent
SETTINGS = PACKAGE / "config.py"
"""The one module without an underscore that no page shows: what users set is in docs/configuration.md."""
NVIDIA = ROOT / "plugins" / "gemmhub-nvidia" / "gemmhub_nvidia"
"""For authors of plugins, too."""
ALIASES = {"Array", "DType", "GROUP", "hookspec"}


def public_names() -> list[str]:
    """The names without a leading underscore: of each public module its ``__all__``, or else all that it defines.
    Modules are read, not imported: the frameworks need not be there.
    """
    found = [f"gemmhub.{name}" for name in gemmhub.__all__]
    modules = [*PACKAGE.glob("[a-z]*.py"), *PACKAGE.glob("kit/[a-z]*.py"), *PACKAGE.glob("kit/native/__init__.py")]
    for path in [*modules, PACKAGE / "testing" / "__init__.py"]:
        if path == SETTINGS:
            continue
        folder = path.parent if path.stem == "__init__" else path.with_suffix("")
        module = ".".join(folder.relative_to(PACKAGE.parent).parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for name in _exported(tree) or _defined(tree):
            within = f"{name}.{name}" if (folder / f"{name}.py").is_file() else name  # build() is in build.py
            if name not in ALIASES and f"gemmhub.{name}" not in found:
                found.append(f"{module}.{within}")
    for path in NVIDIA.glob("[a-z]*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [f"gemmhub_nvidia.{path.stem}.{name}" for name in _defined(tree)]
    for kind in (problem.GemmProblem, problem.Operand, problem.Bias):
        found += [f"{kind.__module__}.{kind.__name__}.{field.name}" for field in dataclasses.fields(kind)]
    return found


def _exported(tree: ast.Module) -> list[str]:
    lists = [node.value for name, node in _assigned(tree) if name == "__all__"]
    return list(ast.literal_eval(lists[0])) if lists else []


def _defined(tree: ast.Module) -> list[str]:
    """Functions, classes and constants of a module. Type variables have one letter."""
    names = [x.name for x in tree.body if isinstance(x, (ast.FunctionDef, ast.ClassDef))]
    names += [name for name, _ in _assigned(tree) if len(name) > 1]
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.Assign | ast.AnnAssign]]:
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((target.id, node) for target in targets if isinstance(target, ast.Name))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the site, and what was wrong with it."""
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if line.startswith(("WARNING", "ERROR", "  - "))]
    return folder, complaints or [f"exit code {done.returncode}"] * bool(done.returncode)


@pytest.fixture(scope="module")
def site(built):
    if not (built[0] / "objects.inv").is_file():
        pytest.fail("there is no site")
    return built[0]


def test_the_site_builds_without_a_warning(built):
    assert not built[1]


def test_the_reference_has_every_public_name(site):
    """objects.inv lists what other documentation may link to: all that the reference has."""
    *_, packed = (site / "objects.inv").read_bytes().split(b"\n", 4)
    inventory = {line.partition(" ")[0] for line in zlib.decompress(packed).decode().splitlines()}
    names = public_names()
    assert {"gemmhub.matmul", "gemmhub.backend.CONTRACT", "gemmhub.kit.native.build.build"} <= set(names)
    assert not sorted(set(names) - inventory)


@pytest.mark.parametrize("kind", [problem.GemmProblem, problem.Operand, problem.Bias], ids=lambda kind: kind.__name__)
def test_each_field_of_a_problem_is_described(kind):
    tree = ast.parse(inspect.getsource(kind)).body[0]
    described = {
        before.target.id
        for before, after in zip(tree.body, tree.body[1:])
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    }
    assert described == {field.name for field in dataclasses.fields(kind)}


def test_the_version_is_on_each_page(site):
    for page in ("index.html", "reference/products/index.html"):
        assert f"gemmhub {gemmhub.__version__}" in (site / page).read_text(encoding="utf-8")


def test_a_product_has_its_options(site):
    """Each with its default and a description, in the signature and in the list of parameters."""
    page = (site / "reference" / "products" / "index.html").read_text(encoding="utf-8")
    product = html.unescape(re.sub(r"<[^>]+>", "", page.partition('id="gemmhub.matmul"')[2].partition("<h3")[0]))
    for name, default in options.DEFAULTS.items():
        assert re.search(rf"\b{name}: [^=]+ = {default!r}\b", product)
        assert re.search(rf"\b{name}\s+\([^)]*default:\s+{default!r}\s*\)\s+\u2013\s+\S", product)


@pytest.mark.parametrize(("word", "page"), [
    ("quantized", "how-to/quantized-inference/"), ("autotune", "plans-packing-tuning/"), ("autotune", "choosing/"),
    ("per-channel", "how-to/quantized-inference/"), ("drop-in", "numpy/"), ("logging", "logging/"),
    ("int4", "how-to/quantized-inference/"), ("int4", "matmul/"), ("TN", "layouts/"), ("tuning cache", "choosing/"),
])  # fmt: skip
def test_search_finds_words_of_the_field(word, page, site):
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    sections = [entry for entry in index["docs"] if entry["location"].partition("#")[0] == page]
    assert any(word in f"{entry['title']} {entry['text']}" for entry in sections)


def test_the_first_screen(site):
    """The definition, the figure, code and the installation stand before the first heading of the landing page."""
    screen = (site / "index.html").read_text(encoding="utf-8").partition("<h1")[2].partition("<h2")[0]
    text = html.unescape(re.sub(r"<[^>]+>", "", screen))
    for needed in ("reports why it was chosen", "c = gemmhub.matmul(a, b)", "spot_check(a, b, c)", "pip install"):
        assert needed in text
    assert 'src="figures/h100.svg"' in screen
    assert len(text.split()) < 150


def test_tables_of_the_comparison_have_short_cells():
    """Marks alone, so that all columns fit a screen of 1366 pixels; a narrower one scrolls beside the first column."""
    rows = [line for line in PAGES["comparison.md"].splitlines() if line.count("|") > 10]
    assert len(rows) > 40
    for row in rows:
        first, *cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(first) <= 36, row
        assert {cell for cell in cells if len(cell) > 10} == set(), row
    style = (DOCS / "site.css").read_text(encoding="utf-8")
    assert "position: sticky" in style.partition(".marks td:first-child")[2].partition("}")[0]


@pytest.mark.parametrize(("page", "source"), [
    ("changelog", "CHANGELOG.md"), ("contributing", "CONTRIBUTING.md"), ("security", "SECURITY.md"),
    *((f"notebooks/{path.stem}", path.relative_to(ROOT)) for path in sorted(DOCS.glob("notebooks/*.ipynb"))),
])  # fmt: skip
def test_pages_of_other_files(page, source, site):
    """They have the text of the files, which are not copied, and are in the navigation."""
    text = (ROOT / source).read_text(encoding="utf-8")
    if page.startswith("notebooks/"):
        text = "".join(json.loads(text)["cells"][-1]["source"])
    words = re.sub(r"<[^>]+>|&\w+;", "", (site / page / "index.html").read_text(encoding="utf-8"))
    last = re.findall(r"[A-Za-z]{4,}", text)[-1]
    assert last in words
    assert f'href="{page}/"' in (site / "index.html").read_text(encoding="utf-8")


def test_internals_are_left_out(site):
    """Attributes of decisions that only gemmhub's caches read."""
    page = (site / "reference" / "products" / "index.html").read_text(encoding="utf-8")
    assert 'id="gemmhub.Decision.race"' in page
    assert not re.findall(r"\b(?:layout_free|chosen_layout_free|bucketed|size_free|cacheable|any_layout)\b", page)


def test_see_also_leads_to_the_other_names(site):
    page = (site / "reference" / "products" / "index.html").read_text(encoding="utf-8")
    product = page.partition('id="gemmhub.matmul"')[2].partition("<h3")[0]
    assert "See Also" in product
    assert 'href="../checking/#gemmhub.spot_check"' in product
    assert "Notes" in product


def test_no_role_of_sphinx_is_left(site):
    for page in (site / "reference").rglob("*.html"):
        assert not re.findall(r":(?:func|class|meth|mod|attr|data|exc):", page.read_text(encoding="utf-8")), page


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_a_sentence(page):
    """One about its subject: search engines and the site's own search show it as the preview."""
    text = re.sub(r"\A---\n.*?\n---\n", "", PAGES[page], flags=re.DOTALL).strip()
    title, _, rest = text.partition("\n")
    assert title.startswith("# ")
    assert re.match(r"[*`\[]*[A-Za-z]", rest.strip())
    assert "after this page" not in text.lower()


@pytest.mark.parametrize("page", LINKED)
def test_links_to_other_sites(page):
    prose = _prose(LINKED[page])
    for link in re.findall(r"\]\(((?!#)[^)\s]*://[^)]*)\)", prose):
        parts = urlsplit(link)
        assert parts.scheme == "https", link
        assert re.fullmatch(r"[\w.-]+\.[a-z]{2,}", parts.netloc), link
        assert not re.search(r"\s|[.,;:]$", link), link
    bare = re.sub(r"\]\([^)]*\)|<https://[^>\s]+>", "", prose)
    assert not re.findall(r"\bhttps?://\S+", bare)


@pytest.mark.parametrize("page", LINKED)
def test_issues_are_links(page):
    """An issue or pull request of another project that is cited is a link to it."""
    prose = re.sub(r"\[[^\]]*\]\([^)]*\)", "", _prose(LINKED[page]))
    assert not re.findall(r"(?:\b[Ii]ssues?|\bpull requests?|\bPR) #?\d{2,}|(?<![\w#&])#\d{2,}", prose)


def _prose(text: str) -> str:
    """A page without code."""
    return re.sub(r"`[^`\n]+`", "", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
