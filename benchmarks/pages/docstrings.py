"""For the site's reference (mkdocs.yml): docstrings, which have Sphinx's roles, as the Markdown that mkdocstrings expects."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:func|class|meth|mod|attr|data|exc):`(~?)([\w.]+)`")
_LITERAL = re.compile(r"::$", re.MULTILINE)


class Roles(griffe.Extension):
    """Rewrite the docstring of each object once, when it is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Griffe calls it for modules, classes, functions and attributes."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value, obj.path)


def markdown(text: str, path: str) -> str:
    """``text`` of the object at ``path``, with links in place of roles and no double colons before literal blocks."""
    text = _ROLE.sub(lambda match: _link(match[2], path, short=bool(match[1])), text)
    return _LITERAL.sub(":", text).lstrip(":\n")


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
