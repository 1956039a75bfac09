"""Folders that stay from one run of tests to the next, and the environment of tests."""

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from gemmhub_musa_sim.testing import installed, kept, kept_home

from gemmhub.kit.native import cache


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "source" / "__pycache__").mkdir(parents=True)
    (tmp_path / "source" / "a.txt").write_text("a")
    return tmp_path / "source"


@pytest.fixture
def make():
    """Writes two files; remembers how often, and whether it was disturbed."""

    def write(path):
        write.count += 1
        (path / "lib").mkdir(parents=True)
        (path / "lib" / "first").touch()
        time.sleep(0.1)
        (path / "lib" / "last").touch()

    write.count = 0
    return write


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_it_is_made_once(source, make):
    with ThreadPoolExecutor(3) as pool:
        paths = list(pool.map(lambda _: kept("thing", source, (1, "x"), "lib/first", make), range(3)))
    assert len(set(paths)) == make.count == 1
    assert paths[0].parent == cache.folder().path
    assert paths[0].name.startswith("test-thing-")
    assert files(paths[0]) == ["lib/first", "lib/last"]
    (source / "__pycache__" / "a.pyc").touch()
    assert kept("thing", source, (1, "x"), "lib/first", make) == paths[0]
    assert make.count == 1


def test_another_one_for_other_facts_and_files(source, make):
    paths = [kept("thing", source, facts, "lib/first", make) for facts in (1, 2)]
    (source / "a.txt").write_text("b")
    paths.append(kept("thing", source, 1, "lib/first", make))
    (source / "a.txt").rename(source / "b.txt")
    paths.append(kept("thing", source, 1, "lib/first", make))
    assert len(set(paths)) == make.count == 4


def test_what_is_incomplete_is_made_again(source, make):
    path = kept("thing", source, 1, "lib/first", make)
    (path / "lib" / "first").unlink()
    assert kept("thing", source, 1, "lib/first", make) == path
    assert files(path) == ["lib/first", "lib/last"]

    def fail(folder):
        make(folder)
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        kept("thing", source, 2, "lib/first", fail)
    assert [x.name for x in cache.folder().path.iterdir() if x.is_dir()] == [path.name]


def test_kept_homes():
    home = kept_home("4.3")
    assert home == kept_home()
    assert len({home, kept_home("5.1"), kept_home(checks=True)}) == 3
    assert (home / "lib" / "libmusart.so").exists()
    asked = [subprocess.run([x / "bin" / "mcc", "--version"], capture_output=True, text=True, check=True).stdout
             for x in (home, kept_home(checks=True))]  # fmt: skip
    assert asked[0] != asked[1]


def test_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("MUSA_HOME", "/one")
    monkeypatch.setenv("MUSA_SIM_ARCH", "31")
    monkeypatch.delenv("MUSA_SIM_DEVICES", raising=False)
    before = dict(os.environ)
    with installed(tmp_path, MUSA_SIM_DEVICES="2") as home:
        assert home == tmp_path
        found = {name: value for name, value in os.environ.items() if name.startswith("MUSA_")}
        assert found == {"MUSA_HOME": str(tmp_path), "MUSA_SIM_DEVICES": "2"}
    assert dict(os.environ) == before
