"""Test the lowest and the newest versions that pyproject.toml admits: ``python tests/check_versions.py [LIBRARY ...]``.

Each library (numpy, torch, jax, dask; all of them without arguments) is installed with each Python of PATH that
``requires-python`` admits: once at its exact lower bounds, once as pip resolves it. The library's tests run in each of
these environments, and a table ends the output. Variables of pip (``PIP_CONSTRAINT``, ``PIP_EXTRA_INDEX_URL``) choose
builds, such as torch without CUDA. The environment of a pair that failed stays in ``.venv-versions``, with its log.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".venv-versions"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LIBRARIES = ("numpy", "torch", "jax", "dask")
ENDS = ("lowest", "newest")
UNAVAILABLE = ("No matching distribution found", "Could not find a version that satisfies")
"""Messages of pip where there is no wheel of these versions for a Python: nothing that a user could install."""


def requirements(library: str, python: str) -> list[Requirement]:
    """What pyproject.toml requires for a library with a version of Python: NumPy stands with the core's."""
    texts = PROJECT["dependencies"] if library == "numpy" else PROJECT["optional-dependencies"][library]
    found = [Requirement(text) for text in texts]
    marked = {"python_version": python, "python_full_version": f"{python}.0"}
    return [each for each in found if each.marker is None or each.marker.evaluate(marked)]


def at_the_bound(requirement: Requirement) -> str:
    """``requirement`` with its lower bound as the version; itself where it has none."""
    lower = [each.version for each in requirement.specifier if each.operator == ">="]
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}=={lower[0]}" if lower else f"{requirement.name}{extras}{requirement.specifier}"


def pythons() -> dict[str, str]:
    """The commands of PATH that start a Python which ``requires-python`` admits, by version ("3.12")."""
    admitted = SpecifierSet(PROJECT["requires-python"])
    found = {}
    for minor in range(8, 30):
        command = shutil.which(f"python3.{minor}")
        if command and f"3.{minor}" in admitted and not _run([command, "-m", "venv", "--help"])[0]:
            found[f"3.{minor}"] = command
    return found


def _run(command: list[str], log: Path | None = None) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    if log is not None:
        with log.open("a", encoding="utf-8") as stream:
            stream.write(f"$ {shlex.join(command)}\n{done.stdout}\n")
    return done.returncode, done.stdout


def tests_of(library: str, core: str) -> list[str]:
    """The arguments of pytest for a library's tests; those of ``make test-fast`` for NumPy."""
    if library == "numpy":
        return shlex.split(core)
    found = [*ROOT.glob(f"tests/doors/test_{library}*.py"), *ROOT.glob(f"tests/test_{library}*.py")]
    return ["-q", "--hypothesis-profile=fast", *sorted(str(path.relative_to(ROOT)) for path in found)]


def check(library: str, end: str, version: str, command: str, core: str) -> tuple[str, str, bool]:
    """Install and test one pair; return the installed versions, the outcome, and whether it is as it should be."""
    wanted = requirements(library, version)
    if not wanted:
        return "", f"pyproject.toml has no {library} for this Python", True
    place = PLACE / f"{library}-{end}-{version}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    log, own = place / "log.txt", str(place / "bin" / "python")
    failed, output = _run([command, "-m", "venv", str(place)], log)
    if failed:
        return "", "no environment", False
    chosen = [at_the_bound(each) if end == "lowest" else str(each) for each in wanted]
    install = [own, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "-e", f"{ROOT}[test]", *chosen]
    failed, output = _run(install, log)
    if failed:
        lines = [line for line in output.splitlines() if line.startswith("ERROR")]
        reason = lines[-1].removeprefix("ERROR: ") if lines else "pip failed"
        unavailable = end == "lowest" and any(text in output for text in UNAVAILABLE)
        if unavailable:
            shutil.rmtree(place)
        return "", f"no such wheel: {reason}" if unavailable else f"not installed: {reason}", unavailable
    installed = _versions(own, wanted)
    failed, output = _run([own, "-m", "pytest", *tests_of(library, core)], log)
    found = re.findall(r"^=* ?(\d+ (?:passed|failed|error|skipped|deselected).*?) ?=*$", output, re.MULTILINE)
    if not failed:
        shutil.rmtree(place)
    return installed, found[-1] if found else f"pytest: exit code {failed}", not failed


def _versions(python: str, wanted: list[Requirement]) -> str:
    """The installed versions: NumPy's, and those of the library's own packages."""
    names = list(dict.fromkeys(["numpy", *(each.name for each in wanted)]))
    program = f"from importlib.metadata import version; print(*(f'{{x}} {{version(x)}}' for x in {names!r}), sep=', ')"
    return _run([python, "-c", program])[1].strip()


def main() -> None:
    """Check the libraries of the command line; exit code 1 where a pair failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help=", ".join(LIBRARIES))
    parser.add_argument("--python", action="append", metavar="3.N", help="only this one; may be repeated")
    parser.add_argument("--bound", choices=ENDS, action="append", help="only these versions")
    parser.add_argument("--core", required=True, help="the arguments of pytest for NumPy's tests (see the Makefile)")
    arguments = parser.parse_args()
    chosen = arguments.libraries or LIBRARIES
    unknown = {*chosen} - {*LIBRARIES}
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: allowed are {', '.join(LIBRARIES)}")
    available = pythons()
    rows, right = [], True
    for library in chosen:
        for end in arguments.bound or ENDS:
            for version in arguments.python or available:
                if version not in available:
                    parser.error(f"there is no python{version} on PATH; there are {', '.join(available)}")
                start = time.monotonic()
                installed, outcome, good = check(library, end, version, available[version], arguments.core)
                rows.append((library, end, version, installed, outcome))
                right &= good
                print(f"{library} {end} {version}: {outcome} ({time.monotonic() - start:.0f} s)", flush=True)
    head = ("library", "bound", "Python", "installed", "outcome")
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    for row in (head, tuple("-" * width for width in widths), *rows):
        print("| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |")
    sys.exit(not right)


if __name__ == "__main__":
    main()
