"""Check that a version may be released: ``python tests/check_release.py [TAG]``.

The version is the same everywhere, requirements between the distributions admit it and no other minor version, and the
changelog has its section, with a date. A ``TAG`` ("v0.3.0") names the same version.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]


def problems(root: Path, tag: str = "") -> list[str]:
    """Obstacles to a release of the source in ``root``; empty where there are none."""
    files = [root / "pyproject.toml", *sorted(root.glob("plugins/*/pyproject.toml"))]
    projects = {path: tomllib.loads(path.read_text(encoding="utf-8"))["project"] for path in files}
    version = str(projects[files[0]]["version"])
    found = [
        f"{path.relative_to(root)} has version {project['version']}, pyproject.toml {version}"
        for path, project in projects.items()
        if project["version"] != version
    ]
    for path, project in projects.items():
        texts = list(project["dependencies"])
        for extra in project.get("optional-dependencies", {}).values():
            texts += extra
        found += [
            f"{path.relative_to(root)} requires {text!r}: allowed is {allowed(version)}"
            for text in texts
            if ours(text, projects) and not matches(text, version)
        ]
    for name, pattern in (
        ("CITATION.cff", rf"^version: {version}$"),
        ("mkdocs.yml", rf"^site_name: gemmhub {version}$"),
    ):
        if not re.search(pattern.replace(".", r"\."), (root / name).read_text(encoding="utf-8"), re.MULTILINE):
            found.append(f"{name} does not name version {version}")
    heading = rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$"
    if not re.search(heading, (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE):
        found.append(f"CHANGELOG.md has no section '## {version} (YYYY-MM-DD)'")
    if tag and tag != f"v{version}":
        found.append(f"the tag is {tag}; allowed is v{version}")
    return found


def allowed(version: str) -> str:
    """The specifier by which distributions require each other: this minor version."""
    major, minor = version.split(".")[:2]
    return f">={major}.{minor},<{major}.{int(minor) + 1}"


def parts(text: str) -> tuple[str, str, str]:
    """The name of a requirement, its extras, and its specifier."""
    name, extras, specifier = re.fullmatch(r"([\w.-]+)(\[.*?\])?\s*([^;]*).*", text).groups("")
    return name, extras, specifier.strip()


def ours(text: str, projects: dict[Path, dict[str, str]]) -> bool:
    """Whether a requirement names another distribution of the project, and not extras of the one that it is in."""
    name, extras, specifier = parts(text)
    return name in {project["name"] for project in projects.values()} and not (extras and not specifier)


def matches(text: str, version: str) -> bool:
    """Whether a requirement's specifier is the allowed one."""
    return {*parts(text)[2].split(",")} == {*allowed(version).split(",")}


def main() -> None:
    """Print what stands in the way; exit code 1 where something does."""
    found = problems(ROOT, *sys.argv[1:2])
    for line in found:
        print(line)
    if not found:
        print("The versions, the requirements and the changelog are those of one release.")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
