"""``gemmhub new-plugin``: what it writes installs, is chosen, and passes its own tests; names that it refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gemmhub.cli.new_plugin import write
from gemmhub.cli.plugin_template import FILES
from gemmhub.errors import InputError
from plugins import install_project


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process in the environment that the plugin of ``folder`` is installed into."""
    path = os.pathsep.join([str(folder), str(folder.parent / "site"), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write("my-gpu", tmp_path_factory.mktemp("new"))
    install_project(folder, folder.parent / "site")
    return folder


def test_its_own_tests_pass(installed: Path) -> None:
    done = python(installed, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "tests")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d{3,} passed", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"passed, 1 skipped", done.stdout), done.stdout  # grouped problems, which are for devices


def test_its_tests_find_a_wrong_kernel_name_and_copy(installed: Path) -> None:
    backend = installed / "gemmhub_my_gpu" / "backend.py"
    right = backend.read_text()
    wrong = right.replace("np.matmul(a, b, out=out)", "out[...] = (a.copy() @ b) * 1.001")
    backend.write_text(wrong.replace('name = "my-gpu"', 'name = "mygpu"'))
    arguments = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_conformance.py", "-k")
    try:
        done = python(
            installed, *arguments, "description or (allocations and float32) or (test_case and 13x17x19-float32)"
        )
    finally:
        backend.write_text(right)
    failed = "\n".join(line for line in done.stdout.splitlines() if line.startswith("FAILED"))
    for test in ("test_description", "test_allocations[512x512x512-float32", "test_case[13x17x19-float32"):
        assert test in failed, done.stdout
    assert "name is 'mygpu', but its plugin describes 'my-gpu'" in done.stdout


def test_the_command_writes_a_folder_and_the_next_steps(run, monkeypatch) -> None:
    told = run("new-plugin", "mine", "--directory", "plugins/new").stdout
    folder = run.folder / "plugins" / "new" / "gemmhub-mine"
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
        path.replace("$package", "gemmhub_mine") for path in FILES
    }
    assert "pip install -e plugins/new/gemmhub-mine\n" in told
    assert (folder / "gemmhub_mine" / "backend.py").relative_to(run.folder).as_posix() in told
    assert not [path for path in folder.rglob("*") if path.is_file() and "$package" in path.read_text()]
    for path in folder.rglob("*.py"):
        compile(path.read_text(), path.name, "exec")
        assert max(map(len, path.read_text().splitlines())) <= 120


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My_Gpu", "name: 'My_Gpu'; allowed: .*. Write 'my-gpu'"),
        ("gemmhub-mine", "Write 'mine'"),
        ("a..b", "Write 'a-b'"),
        ("9x", "Choose a name such as 'mine'"),
        ("a b", "Choose a name such as"),
        ("../x", "Choose a name such as"),
        ("", "Choose a name such as"),
        ("mine\n", "Choose a name such as"),
        ("café", "Choose a name such as"),
        ("numpy", "name: 'numpy' is the name of a backend; allowed: a name that no backend has. Choose another name"),
    ],
)
def test_names_that_are_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        write(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_backend_of_this_process_and_a_distribution_have_their_names(tmp_path, monkeypatch, reference) -> None:
    with pytest.raises(InputError, match="'reference' is the name of a backend"):
        write("reference", tmp_path)
    folder = write("helpers", tmp_path)
    install_project(folder, tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    (tmp_path / "site" / "gemmhub_helpers-0.1.0.dist-info" / "entry_points.txt").unlink()  # as of a library
    with pytest.raises(InputError, match="gemmhub-helpers is installed; allowed: a name that no distribution has"):
        write("helpers", tmp_path / "again")


def test_what_exists_is_kept(run) -> None:
    run("new-plugin", "mine")
    backend = run.folder / "gemmhub-mine" / "gemmhub_mine" / "backend.py"
    backend.write_text("mine")
    assert run.error("new-plugin", "mine") == (
        "error: directory: gemmhub-mine exists; allowed: a folder without it. "
        "Choose another name, or another folder by --directory\n"
    )
    assert backend.read_text() == "mine"


def test_a_folder_that_cannot_be_written(run) -> None:
    (run.folder / "file").touch()
    assert "file/gemmhub-mine: cannot be written: Not a directory" in run.error(
        "new-plugin", "mine", "--directory", "file", code=3
    )
