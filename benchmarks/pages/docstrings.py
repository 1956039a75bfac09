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
    r"^(?P<head>(?P<title>Parameters|Returns|Raises)\n-+\n)(?P<body>.*?)(?=^\w[\w ]*\n-+\n|\Z)",
    re.MULTILINE | re.DOTALL,
)


_SEE_ALSO = re.compile(r"^(See Also\n-+\n)(.*?)(?=^\w[\w ]*\n-+\n|\Z)", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"^([\w.]+) : ", re.MULTILINE)
_INTERNAL = {
    "verdict.Decision": ("layout_free", "bucketed", "size_free", "chosen_layout_free", "cacheable"),
    "verdict.Verdict": ("any_layout", "any_size", "transient"),
}
"""Attributes that gemmhub's caches read, and no user."""


class Pages(griffe.Extension):
    """Rewrites the docstrings of gemmhub and its plugins, and the signatures of products; leaves out internals."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called once for each package that is loaded."""
        if pkg.path.partition("_")[0] == "gemmhub":
            _rewrite(pkg)
        if pkg.path != "gemmhub":
            return
        for name, attributes in _INTERNAL.items():
            for attribute in attributes:
                del pkg[name].members[attribute]
        options = pkg["_call.options.Options"].attributes
        for function in (*pkg["api"].functions.values(), pkg["_measure.compare.compare"]):
            function.overloads = None  # they are for type checkers
            if "options" in function.parameters:
                del function.parameters["options"]
                for name, default in DEFAULTS.items():
                    kind = griffe.ParameterKind.keyword_only
                    given = griffe.Parameter(
                        name, annotation=options[name].annotation, kind=kind, default=repr(default)
                    )
                    function.parameters.add(given)


def _rewrite(obj: griffe.Object) -> None:
    """Docstrings of an object and all that it contains: links for roles, indented descriptions, no double colons."""
    if obj.docstring is not None:
        text = _ROLE.sub(lambda match: _link(match[2], obj, short=bool(match[1])), obj.docstring.value)
        text = _LITERAL.sub(lambda match: f"{match[1]}:" if match[1] else "", text)
        text = _SEE_ALSO.sub(lambda match: match[1] + _NAMED.sub(lambda named: _related(named, obj), match[2]), text)
        obj.docstring.value = _SECTION.sub(_described, text)
    for member in obj.members.values():
        if isinstance(member, griffe.Object):  # and no alias
            _rewrite(member)


def _described(section: re.Match[str]) -> str:
    """A numpydoc section whose lines have names and descriptions, where mkdocstrings expects names and types."""
    if section["title"] == "Returns":
        return f"{section['head']}:\n{textwrap.indent(section['body'], '    ')}"
    return section["head"] + _ENTRY.sub(_entries, section["body"])


def _entries(entry: re.Match[str]) -> str:
    return "".join(f"{name}\n    {entry['text']}" for name in entry["names"].split(", "))


def _related(named: re.Match[str], obj: griffe.Object) -> str:
    """One line of a section See Also as an item of a list."""
    short = "." not in named[1]
    name = f"gemmhub.{named[1]}" if short else named[1]
    return f"- {_link(name, obj, short)}: "


def _link(name: str, obj: griffe.Object, short: bool) -> str:
    """A link where the reference has the name, else code. A short name is of the object itself, its class or module."""
    scopes = [x for x in (obj, obj.parent, obj.module) if x is not None and name.partition(".")[0] in x.members]
    target = f"{scopes[0].path}.{name}" if scopes else name
    shown = name.rpartition(".")[2] if short else name
    return f'<autoref optional identifier="{target}"><code>{shown}</code></autoref>'
