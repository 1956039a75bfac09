"""The documentation names everything public, and nothing that does not exist."""

from __future__ import annotations

import importlib.util
import inspect
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest

import gemmhub
from benchmarks.pages import figure, scaling, tables
from benchmarks.pages import map as map_page
from gemmhub import config, errors
from gemmhub._call import options
from gemmhub._choice import suggestions
from gemmhub._measure import race
from gemmhub.cli.main import main as command_line
from gemmhub.kit import corrections

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = ROOT / "docs"
PAGES = {x.relative_to(DOCS).as_posix(): x.read_text(encoding="utf-8") for x in sorted(DOCS.rglob("*.md"))}
TEXT = "\n".join([README, *PAGES.values()])
ERRORS = [x for _, x in inspect.getmembers(errors, inspect.isclass) if issubclass(x, errors.GemmhubError)]


@pytest.mark.parametrize("name", gemmhub.__all__)
def test_public_names(name):
    assert re.search(rf"\b{name}\b", TEXT)


@pytest.mark.parametrize("name", ["out", *options.DEFAULTS])
def test_options(name):
    assert re.search(rf"^\| .*`{name}=`.* \|", PAGES["matmul.md"], re.MULTILINE)


@pytest.mark.parametrize("key", config.KEYS)
def test_settings(key):
    """Each has a row in the table, with its variable and what is allowed."""
    entry = config.KEYS[key]
    start = f"| `{key}` | `{entry.variable}` |"
    rows = [line for line in PAGES["configuration.md"].splitlines() if line.startswith(start)]
    assert len(rows) == 1
    assert entry.allowed in rows[0]


def test_configuration_variable():
    assert config.CONFIG_VARIABLE in PAGES["configuration.md"]


def test_exception_tree():
    """The tree as drawn is the tree as it is: parents, and built-in bases."""
    path: list[str] = []
    drawn = set()
    for line in PAGES["exceptions.md"].split("```")[1].splitlines()[1:]:
        indent, name, rest = re.fullmatch(r"([│├└─ ]*)(\w+)(.*)", line).groups()
        depth = len(indent) // 4
        path[depth:] = [name]
        drawn.add(name)
        bases = path[depth - 1 : depth] + re.findall(r"(?:Value|Type|Memory|Runtime|Import)Error", rest)
        assert [base.__name__ for base in getattr(errors, name).__bases__] == (bases or ["Exception"])
    assert drawn == {error.__name__ for error in ERRORS}


@pytest.mark.parametrize("suggestion", suggestions.known(), ids=lambda suggestion: suggestion.backend)
def test_suggested_backends(suggestion):
    """README's table lists every distribution that the library suggests."""
    assert README.count(f"| `{suggestion.backend}` | {suggestion.distribution} |") == 1


def test_no_names_that_do_not_exist():
    others = {"toml", "arrays", "audit", "doctor", "build", "hardware"}  # a file, and groups of entry points
    for name in set(re.findall(r"\bgemmhub\.(\w+)", TEXT)) - others:
        assert importlib.util.find_spec(f"gemmhub.{name}") or hasattr(gemmhub, name), name


def test_no_variables_that_do_not_exist():
    paths = [path for folder in ("gemmhub", "plugins") for path in (ROOT / folder).rglob("*.py")]
    source = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    for name in set(re.findall(r"\bGEMMHUB_\w+", TEXT)):
        assert name in source, name


def test_demo(tmp_path):
    """README shows what `make demo` prints: the same lines, but for numbers and for plugins installed here."""
    subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "run" / "make_demo.py"), "demo"], cwd=tmp_path, check=True
    )
    recipe = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "gemmhub matmul" in line)
    command = [sys.executable, "-m", "gemmhub", *recipe.split("gemmhub ")[1].split()]
    environment = {**os.environ, "GEMMHUB_BACKEND": "numpy", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    shown = re.search(r"^```text\n(.*?)^```", README, re.MULTILINE | re.DOTALL)[1]
    printed = {_words(line) for line in result.stdout.splitlines()}
    for line in shown.splitlines():
        assert _words(line) in printed or "not installed" in line or line.startswith("chosen"), line


@pytest.mark.parametrize("page", [*PAGES, "README.md"])
def test_blocks_that_are_not_run_have_a_reason(page):
    """Examples are skipped for want of a device, one by one, or of the library that they are about."""
    known = r'<!-- skip: (next "needs a GPU"|start if\(.*, reason="\w+ is not installed"\)|end) -->'
    for directive in re.findall(r"<!--+ *skip.*", PAGES.get(page, README)):
        assert re.fullmatch(known, directive)


@pytest.mark.parametrize("page", [name for name, text in PAGES.items() if "skip: start if" in text])
def test_what_needs_a_library_is_run_where_it_is_installed(page):
    """`make test-doors` runs the pages whose examples are skipped for want of a library."""
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ntest-doors:")[2].partition("\n\n")[0]
    assert {f"docs/{page}", f"docs/{page.rpartition('/')[0]}"} & set(recipe.split())


SHELL = "".join(re.findall(r"^```(?:sh|console)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("line", sorted(set(re.findall(r"^(?:\$ )?gemmhub (.+)", SHELL, re.MULTILINE))))
def test_commands(line):
    """Those that the tests cannot run, for want of a device, at least have such options."""
    name, *given = line.partition("#")[0].split()
    command = command_line.get_command(click.Context(command_line), name)
    assert command is not None
    known = {option for parameter in command.params for option in parameter.opts}
    assert {x for x in given if x.startswith("-") and len(x) > 1} <= known


@pytest.mark.parametrize("line", sorted(set(re.findall(r"\bpython\s+-m (benchmarks\.[^`\n]*)", TEXT))))
def test_benchmarks(line):
    """They exist and know the options shown."""
    module, *given = line.partition("#")[0].split()
    path = ROOT / module.replace(".", "/")
    source = (path / "__main__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    assert all(f'"{x}"' in source for x in given if x.startswith("--"))


@pytest.mark.parametrize("page", sorted((ROOT / "plugins").glob("*/README.md")), ids=lambda page: page.parent.name)
def test_links_of_plugins(page):
    """A package index shows this text: it has no relative links."""
    assert not re.findall(r"\]\((?!https://)[^)]*\)", page.read_text(encoding="utf-8"))


def test_choosing_in_figures():
    """The page on choosing has the constants of the code, and stays one page."""
    page = PAGES["choosing.md"]
    assert len(page.split()) <= 900
    for promise in (
        f'"{corrections.NOTE}"', f"multiplied by {corrections.UNMEASURED:g},", f"{race.BUDGET * 1e3:.0f} ms",
        f"up to {race._CANDIDATES} candidates", f"a factor of {math.exp(corrections.LIMIT):.0f} at most",
    ):  # fmt: skip
        assert promise in page


def test_table_of_the_map():
    """The page has the tables of the map and of CUDA-L2's products. (test_tables.py compares all of each.)"""
    page = PAGES["hopper.md"]
    assert {"map.classes", "hopper.cuda_l2"} <= {found["name"] for found in tables.BLOCK.finditer(page)}
    files = map_page.read(map_page.MAPS)
    assert {file["torch"].partition("+")[0] for file in files} == {"2.11.0"}
    assert not any(row["wrong"] for file in files for row in file["rows"])
    rows = map_page.read([map_page.RESULTS / "h100" / "cuda_l2.json.xz"])[0]["rows"]
    assert len(rows) == 1000
    for words, some in (("all", rows), ("not in the data of the corrections", [x for x in rows if not x["fitted"]])):
        cells = [map_page.cell(map_page.ratios(some, "cuda-l2", name)) for name in ("hub", "raced")]
        assert f"| {words} | {len(some)} | {' | '.join(cells)} |" in page


def test_figure_of_the_readme():
    """It is what benchmarks/pages/figure.py draws from the result file."""
    assert figure.FIGURE.read_text(encoding="utf-8") == figure.drawn(map_page.read([map_page.MAPS[0]])[0])
    assert f"]({figure.FIGURE.relative_to(ROOT)})" in README


def test_figures_of_predictions():
    """They are what benchmarks/pages/scaling.py draws."""
    for name in ("scaling", "algorithms"):
        assert (scaling.FOLDER / f"{name}.svg").read_text(encoding="utf-8") == getattr(scaling, name)()
        assert f"](figures/{name}.svg)" in PAGES["many-devices.md"]


def test_versions_agree():
    """Each distribution, the changelog, the citation and the site name one version."""
    pattern = r'^version = "(.*)"$'
    projects = [ROOT / "pyproject.toml", *(ROOT / "plugins").glob("*/pyproject.toml")]
    versions = {re.search(pattern, x.read_text(encoding="utf-8"), re.MULTILINE)[1] for x in projects}
    assert versions == {gemmhub.__version__}
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## ([\d.]+)", changelog, re.MULTILINE)[1] == gemmhub.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.*)$", citation, re.MULTILINE)[1] == gemmhub.__version__
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"gemmhub (\d+\.[\w.]+)", site)) == {gemmhub.__version__}


def test_table_of_held_out_products():
    """Each row of the table on corrections has figures of the reports."""
    start = PAGES["hopper.md"].index("| products | H100: number |")
    lines = PAGES["hopper.md"][start:].partition("\n\n")[0].splitlines()[2:]
    reported = [
        {
            (cells[0], *cells[3:6])
            for line in (ROOT / "benchmarks" / "results" / card / "held_out.txt").read_text().splitlines()
            if len(cells := line[22:].split()) == 8
        }
        for card in ("h100", "h200")
    ]
    for line in lines:
        cells = [cell.strip() for cell in line.split("|")[2:-1]]
        assert tuple(cells[:4]) in reported[0], line
        assert tuple(cells[4:]) in reported[1], line
    assert len(lines) == 11


def _words(line: str) -> tuple[str, ...]:
    return tuple(re.findall(r"(?<![\d.])[A-Za-z_][\w-]*", line))


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_links_of_the_readme(target):
    assert (ROOT / target).is_file()


def test_issues_are_links():
    """An issue that a page cites by its number is a link to it."""
    for name, page in PAGES.items():
        assert not re.findall(r"\bissues? \d+(?![^\[\]]*\]\()", page), name
        for text, number in re.findall(r"\[([^\]]*)\]\(https://github\.com/[^)]*/(?:issues|pull)/(\d+)\)", page):
            assert text.split()[-1] == number, name


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "figures").glob("*.svg")), ids=lambda path: path.name)
def test_figures(path):
    """A page shows each; each is small, and fits a phone or is drawn by benchmarks/pages."""
    assert f"figures/{path.name})" in TEXT
    assert path.stat().st_size < 20_000
    drawing = ElementTree.parse(path).getroot()
    if path.name not in ("h100.svg", "scaling.svg", "algorithms.svg", "cpu.svg"):
        assert int(drawing.get("width")) <= 440
        assert drawing.find("{http://www.w3.org/2000/svg}title").text
        assert "prefers-color-scheme:dark" in path.read_text(encoding="utf-8")
