"""The cache's folder: where it is, whom it trusts, what stands in for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gemmhub.native import build, cache, folder, store

MAKE = 'echo run >> "$(dirname "$0")/log"; echo made > "$out"'


def test_the_folder_is_private(cache_dir):
    assert folder() == cache.Folder(cache_dir)
    assert cache_dir.stat().st_mode & 0o777 == 0o700


def test_without_the_variable_it_is_the_users_cache(monkeypatch):
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    if sys.platform == "linux":
        assert str(cache.wanted()) == "/somewhere/gemmhub/native"
    assert cache.wanted().parts[-2:] == ("gemmhub", "native")


def test_a_relative_folder_is_where_it_was_at_the_time(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(cache.VARIABLE, "here")
    assert cache.wanted() == tmp_path / "here" / "native"


def test_an_unusable_folder_is_replaced_for_the_process(monkeypatch, tmp_path, recipe, script):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file" / "below"))
    given = recipe(script(MAKE))
    made = build(given)
    assert made.read_text() == "made\n"
    found = folder()
    assert found.path == made.parent
    assert found.note == f"{tmp_path}/file/below/native cannot be made: Not a directory"
    assert found.path.stat().st_mode & 0o777 == 0o700
    assert build(given) == made
    assert (tmp_path / "log").read_text() == "run\n"


def test_a_read_only_folder_is_not_written_to(monkeypatch, cache_dir):
    cache_dir.mkdir(parents=True, mode=0o700)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != cache_dir and access(path, mode))
    assert folder().path != cache_dir
    assert folder().note == f"{cache_dir} cannot be written to"


def test_a_folder_that_others_may_write_to_is_not_used(cache_dir, recipe, script):
    given = recipe(script(MAKE))
    planted = build(given)
    assert planted.parent == cache_dir
    cache_dir.chmod(0o777)
    made = build(given)
    assert made != planted
    assert made.parent != cache_dir
    assert folder().note == f"others may write to {cache_dir} (chmod 700 it, and empty it)"


def test_a_folder_of_another_user_is_not_used(cache_dir, monkeypatch):
    folder()
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    note = "" if cache_dir.stat().st_uid == 0 else "belongs to another user"
    assert note in folder().note
    if os.getuid() == 0:  # root's files are trusted by all, another user's by nobody
        assert folder().path == cache_dir
        os.chown(cache_dir, other + 1, -1)
        assert folder().note == f"{cache_dir} belongs to another user"


def test_files_of_a_folder_that_may_only_be_read_are_used(cache_dir, recipe, script, monkeypatch):
    given = recipe(script(MAKE))
    made = build(given)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != cache_dir and access(path, mode))
    assert build(given) == made


def test_no_room_anywhere_is_a_refusal(monkeypatch, tmp_path, recipe, script):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file"))

    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.tempfile, "mkdtemp", full)
    no = build(recipe(script(MAKE)))
    assert "no folder to write to: [Errno 28] No space left on device" in no.reason
    assert "GEMMHUB_CACHE_DIR" in no.remedy


def test_the_temporary_folder_goes_with_the_process(tmp_path):
    (tmp_path / "file").write_text("")
    script = "import os\nfrom gemmhub.native import folder\nprint(folder().path, os.path.isdir(folder().path))"
    environment = os.environ | {cache.VARIABLE: str(tmp_path / "file")}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    path, existed = run.stdout.split()
    assert existed == "True"
    assert not os.path.exists(path)


def test_a_stored_file_replaces_the_former_one_in_one_step(cache_dir, monkeypatch):
    path = store("values.json", b"old")
    assert path == cache_dir / "values.json"
    store("values.json", b"new")
    assert cache.find("values.json").read_bytes() == b"new"

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="Input/output"):
        store("values.json", b"newest")
    assert [entry.name for entry in cache_dir.iterdir()] == ["values.json"]
    assert path.read_bytes() == b"new"
