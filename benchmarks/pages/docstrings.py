"""For the site's reference (mkdocs.yml): what is written for Python and Sphinx, as mkdocstrings expects it."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

from gemmhub._call.options import DEFAULTS

_ROLE = re.compile(r":(?:func|class|meth|mod|attr|data|exc):`(~?)([\w.]+)`")
_LITERAL = re.compile(r"(?:^|(\S))::$", re.MULTILINE)
_ENTRY = re.compile(r"^(?P<names>[\w.]+(?:, [\w.]+)*) : (?P<text>.*\n?(?:    .*\n?)*)", re.MULTILINE)
_SECTION = re.compile(
    r"^(?P<head>(?P<title>Parameters|Returns|Raises)\n-+\n)(?P<body>.*?)(?=^\w+\n-+\n|\Z)", re.MULTILINE | re.DOTALL
)


class Pages(griffe.Extension):
    """Rewrites each object once, when it is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for modules, classes, functions and attributes."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value, obj.path)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called once for gemmhub: shows each option of a product where a signature has ``**options``."""
        if pkg.path != "gemmhub":
            return
        options = pkg["_call.options.Options"].attributes
        for function in pkg["api"].functions.values():
            function.overloads = None  # they are for type checkers
            if "options" in function.parameters:
                del function.parameters["options"]
                for name, default in DEFAULTS.items():
                    kind = griffe.ParameterKind.keyword_only
                    given = griffe.Parameter(
                        name, annotation=options[name].annotation, kind=kind, default=repr(default)
                    )
                    function.parameters.add(given)


def markdown(text: str, path: str) -> str:
    """``text`` of the object at ``path`` with links for roles, indented descriptions, and no double colons."""
    text = _ROLE.sub(lambda match: _link(match[2], path, short=bool(match[1])), text)
    return _SECTION.sub(_described, _LITERAL.sub(lambda match: f"{match[1]}:" if match[1] else "", text))


def _described(section: re.Match[str]) -> str:
    """A numpydoc section whose lines have names and descriptions, where mkdocstrings expects names and types."""
    if section["title"] == "Returns":
        return f"{section['head']}:\n{textwrap.indent(section['body'], '    ')}"
    return section["head"] + _ENTRY.sub(_entries, section["body"])


def _entries(entry: re.Match[str]) -> str:
    return "".join(f"{name}\n    {entry['text']}" for name in entry["names"].split(", "))


def _link(name: str, path: str, short: bool) -> str:
    """A link where the reference has the name, else code. A name without a dot stands in the same module or class."""
    if name.startswith("gemmhub"):
        target = name
    elif "." in name and not name[0].isupper():
        target = name  # of another package
    else:
        scope = path.rpartition(".")[0]
        target = f"{scope}.{name}" if scope else name
    shown = name.rpartition(".")[2] if short else name
    return f'<autoref optional identifier="{target}"><code>{shown}</code></autoref>'
