"""Runs the documentation: every ``python`` block of README.md and docs/*.md, a page at a time.

Blocks of a page share a namespace and a temporary working directory, with no configuration, no tuning records
and no plugins but those the page itself installs. Four kinds of block are more than code to run:

- ``python title="x.py"`` (or any language with a title) is written to that file;
- ``<!-- output -->`` before a block: what the last code block printed, but for the numbers in it;
- ``<!-- exact output -->`` before a block: what it printed, numbers included;
- ``<!-- run -->`` before a block of ``$ command`` lines: they are run.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from sybil import Document, Example, Region, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

import gemmhub
from plugins import install_project

ROOT = Path(__file__).resolve().parents[1]
_evaluate = PythonEvaluator()
_real_entry_points = importlib.metadata.entry_points


def _setup(namespace: dict[str, Any]) -> None:
    stack = namespace["_stack"] = ExitStack()
    folder = Path(stack.enter_context(TemporaryDirectory())).resolve()
    namespace["_folder"] = folder
    (folder / "empty.toml").touch()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GEMMHUB_")}
    environment["GEMMHUB_CONFIG"] = str(folder / "empty.toml")
    environment["GEMMHUB_RECORDS"] = str(folder / "tuning.jsonl")

    def own_entry_points(**selection: str) -> importlib.metadata.EntryPoints:
        """Those of distributions that the page installed."""
        found = _real_entry_points(**selection)
        own = [p for p in found if p.dist is not None and folder in Path(str(p.dist.locate_file(""))).parents]
        return importlib.metadata.EntryPoints(own)

    stack.callback(os.chdir, os.getcwd())
    stack.callback(gemmhub.reload)
    stack.enter_context(mock.patch.dict(os.environ, environment, clear=True))
    stack.enter_context(mock.patch.object(sys, "path", list(sys.path)))
    stack.callback(_forget_modules, folder)
    stack.enter_context(mock.patch.object(importlib.metadata, "entry_points", own_entry_points))
    os.chdir(folder)
    gemmhub.reload()


def _forget_modules(folder: Path) -> None:
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}"):
            del sys.modules[name]


def _teardown(namespace: dict[str, Any]) -> None:
    namespace["_stack"].close()


def _run_python(example: Example) -> None:
    printed = io.StringIO()
    with redirect_stdout(printed):
        _evaluate(example)
    example.namespace["_printed"] = printed.getvalue()


def _plain(text: str) -> str:
    """``text`` without numbers and their bars, alignment, the path of this clone and the line that the setting of
    :func:`_setup` adds.
    """
    text = re.sub(r"^setting +records from .*\n?", "", text, flags=re.MULTILINE)
    text = re.sub(rf"pip install (?:{ROOT}/plugins/\S+ )*{ROOT}/plugins/(?=gemmhub-)", "pip install ", text)
    text = re.sub(r"(?<= )#{1,10}(?= |$)", "", text, flags=re.MULTILINE)  # bars of times
    text = re.sub(r"(?<![A-Za-z_])-?\d[\d.]*(e[+-]?\d+)?(?: (us|ms|s)\b)?", "#", text)
    return " ".join(text.split())


def _compare_output(example: Example) -> str | None:
    printed = example.namespace["_printed"]
    if _plain(example.parsed) == _plain(printed):
        return None
    return f"the page says:\n{example.parsed}\nbut it printed:\n{printed}"


def _compare_exactly(example: Example) -> str | None:
    printed = example.namespace["_printed"]
    if example.parsed.split() == printed.split():
        return None
    return f"the page says:\n{example.parsed}\nbut it printed:\n{printed}"


def _run_commands(example: Example) -> str | None:
    folder = example.namespace["_folder"]
    for line in example.parsed.splitlines():
        command = line.removeprefix("$ ")
        if command.startswith("pip install -e "):
            _install(folder / command.removeprefix("pip install -e "))
            continue
        if command.startswith("pip uninstall -y "):
            _uninstall(folder / command.removeprefix("pip uninstall -y "))
            continue
        program, *rest = command.split()
        rest = ["-m", "gemmhub", *rest] if program == "gemmhub" else rest
        assert program in ("python", "gemmhub"), f"cannot run {command!r}"
        path = os.pathsep.join([str(folder), *filter(None, sys.path)])
        done = subprocess.run(
            [sys.executable, *rest], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
        )
        if done.returncode:
            return f"{command} failed:\n{done.stdout}\n{done.stderr}"
        example.namespace["_printed"] = done.stdout
    return None


def _install(folder: Path) -> None:
    sys.path[:0] = [str(folder), str(install_project(folder, folder / "site"))]
    importlib.invalidate_caches()
    gemmhub.reload()


def _uninstall(folder: Path) -> None:
    sys.path[:] = [path for path in sys.path if path not in (str(folder), str(folder / "site"))]
    importlib.invalidate_caches()
    gemmhub.reload()


def _write_file(example: Example) -> None:
    name, text = example.parsed
    path = example.namespace["_folder"] / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".py":
        compile(text, name, "exec")
    path.write_text(text)


def _files(document: Document) -> Iterable[Region]:
    for match in re.finditer(r'^```\w+ title="([^"]+)"\n(.*?)^```$', document.text, re.MULTILINE | re.DOTALL):
        yield Region(match.start(), match.end(), parsed=match.groups(), evaluator=_write_file)


def _marked(document: Document) -> Iterable[Region]:
    evaluators = {"output": _compare_output, "exact output": _compare_exactly, "run": _run_commands}
    pattern = r"^<!-- (output|exact output|run) -->\n+```\w+\n(.*?)^```$"
    for match in re.finditer(pattern, document.text, re.MULTILINE | re.DOTALL):
        yield Region(match.start(), match.end(), parsed=match[2], evaluator=evaluators[match[1]])


_python = PythonCodeBlockParser()
_python.codeblock_parser = CodeBlockParser("python", _run_python)

pytest_collect_file = Sybil(
    path=str(ROOT),
    parsers=[_python, SkipParser(), _files, _marked],
    patterns=["README.md", "docs/*.md", "docs/*/*.md"],
    setup=_setup,
    teardown=_teardown,
).pytest()
