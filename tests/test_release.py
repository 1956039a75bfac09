"""The workflows name what exists, and the check of a release finds what it is for."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import check_release
import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([\w-]+)(?= [\w-]+:|:)", (ROOT / "Makefile").read_text(), re.MULTILINE))
VERSION = check_release.tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def jobs(path):
    return yaml.safe_load(path.read_text())["jobs"]


def expanded(job):
    """The commands of a job, for each value of its matrix."""
    matrix = job.get("strategy", {}).get("matrix", {})
    for step in job.get("steps", []):
        texts = [step.get("run", "")]
        for name, values in matrix.items():
            texts = [text.replace(f"${{{{ matrix.{name} }}}}", str(value)) for text in texts for value in values]
        yield from texts


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_names_what_exists(path):
    for name, job in jobs(path).items():
        needed = job.get("needs", [])
        assert {*([needed] if isinstance(needed, str) else needed)} <= {*jobs(path)}, name
        if "uses" in job:
            assert (ROOT / job["uses"]).is_file(), name
        for text in expanded(job):
            for line in text.splitlines():
                words = re.sub(r"\$\{\{.*?\}\}", "VALUE", line).split()
                if words[:1] == ["make"]:
                    wanted = {word for word in words[1:] if "=" not in word}
                    assert wanted, line
                    assert wanted <= TARGETS, line
                for word in words:
                    if word.startswith("tests/"):
                        assert (ROOT / word).exists(), line


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_no_more_rights_than_it_needs(path):
    text = yaml.safe_load(path.read_text())
    assert text["permissions"] == {"contents": "read"}
    rights = {name: job["permissions"] for name, job in text["jobs"].items() if "permissions" in job}
    assert rights == ({"publish": {"id-token": "write"}} if path.name == "release.yml" else {})
    used = [step["uses"] for job in text["jobs"].values() for step in job.get("steps", []) if "uses" in step]
    assert all(re.fullmatch(r"(actions|pypa)/[\w-]+@[\w/]+", name) for name in used)


def test_nothing_is_published_before_all_tests_and_wheels():
    text = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    publish = text["jobs"]["publish"]
    assert publish["needs"] == ["tests", "wheels"]
    assert publish["environment"] == "pypi"
    assert all(text["jobs"][name]["needs"] == "check" for name in publish["needs"])


def test_every_suite_of_make_test_is_a_job():
    suites = re.search(r"^test: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    workflow = jobs(ROOT / ".github" / "workflows" / "tests.yml")
    assert {f"test-{name}" for name in workflow["suites"]["strategy"]["matrix"]["suite"]} == {*suites}


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not on PATH")
def test_actionlint_has_no_complaint():
    done = subprocess.run(["actionlint", *map(str, WORKFLOWS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def source(tmp_path):
    """The files that a release is checked by, with a dated section in the changelog."""
    for path in [
        *ROOT.glob("*.toml"),
        *ROOT.glob("plugins/*/pyproject.toml"),
        ROOT / "mkdocs.yml",
        ROOT / "CITATION.cff",
    ]:
        copied = tmp_path / path.relative_to(ROOT)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copied)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {VERSION} (2030-01-31)\n")
    return tmp_path


def test_a_release_whose_files_agree(source):
    assert check_release.problems(source) == []
    assert check_release.problems(source, f"v{VERSION}") == []


MINOR = ".".join(VERSION.split(".")[:2])


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("plugins/gemmhub-cpu/pyproject.toml", f'version = "{VERSION}"', 'version = "9.9.9"', "has version 9.9.9"),
        ("plugins/gemmhub-cpu/pyproject.toml", f"gemmhub>={MINOR},", "gemmhub>=0.0,", "requires 'gemmhub>=0.0,"),
        ("pyproject.toml", f'"gemmhub-cpu>={MINOR},', '"gemmhub-cpu>=0.0,', "requires 'gemmhub-cpu>=0.0,"),
        ("mkdocs.yml", f"site_name: gemmhub {VERSION}", "site_name: gemmhub", "mkdocs.yml does not name"),
        ("CITATION.cff", f"version: {VERSION}", "version: 0", "CITATION.cff does not name"),
        ("CHANGELOG.md", "(2030-01-31)", "(unreleased)", "CHANGELOG.md has no section"),
    ],
)
def test_files_that_disagree(source, file, old, new, words):
    path = source / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    found = check_release.problems(source)
    assert len(found) == 1
    assert words in found[0]


def test_a_tag_of_another_version(source):
    assert check_release.problems(source, "v0.0.1") == [f"the tag is v0.0.1; allowed is v{VERSION}"]
