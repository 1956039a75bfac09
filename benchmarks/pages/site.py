"""A hook of the site (mkdocs.yml): pages of files that are elsewhere in the repository, and of the notebooks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
FILES = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md", "security.md": "SECURITY.md"}
"""Pages whose source is a file of the repository's root: none is copied."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages before the navigation is made of them."""
    for page, name in FILES.items():
        files.append(File.generated(config, page, content=relinked((ROOT / name).read_text(encoding="utf-8"))))
    for file in [x for x in files if x.src_uri.endswith(".ipynb")]:
        notebook = json.loads(file.content_string)
        files.append(File.generated(config, _page(file.src_uri), content=rendered(notebook)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to notebooks lead to their pages."""
    return re.sub(r"(?<=\]\()([\w./-]+)\.ipynb(?=\))", r"\1.md", markdown)


def relinked(text: str) -> str:
    """Links of a page in the root as links of a page in docs/; those to files outside of the site are text."""
    pages = {name: page for page, name in FILES.items()}

    def link(match: re.Match[str]) -> str:
        target = pages.get(match[2], match[2].removeprefix("docs/"))
        known = target in FILES or (ROOT / "docs" / target).is_file()
        return f"[{match[1]}]({target}{match[3]})" if known else match[1]

    return re.sub(r"\[([^\]]+)\]\((?!https://)([^)#]+)(#[^)]*|)\)", link, text)


def rendered(notebook: dict[str, Any]) -> str:
    """A notebook as Markdown: text, code, and what the code printed."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [f"```text\n{''.join(output['text']).rstrip()}\n```" for output in cell.get("outputs", ())]
    return "\n\n".join(parts) + "\n"


def _page(notebook: str) -> str:
    return notebook.removesuffix(".ipynb") + ".md"
