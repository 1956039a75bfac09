"""The cache's folder: its place, the owners that it trusts, and its replacement."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import random
import subprocess
import sys
import time

import pytest

from gemmhub import Refusal
from gemmhub.kit.native import build, cache, find, folder, load, read, store

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
    script = "import os\nfrom gemmhub.kit.native import folder\nprint(folder().path, os.path.isdir(folder().path))"
    environment = os.environ | {cache.VARIABLE: str(tmp_path / "file")}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    path, existed = run.stdout.split()
    assert existed == "True"
    assert not os.path.exists(path)


def test_a_stored_file_replaces_the_former_one_in_one_step(cache_dir, monkeypatch):
    path = store("values.json", b"old")
    assert path == cache_dir / f"values.{hashlib.sha256(b'old').hexdigest()[:32]}.json"
    path = store("values.json", b"new")
    assert cache.find("values.json") == path
    assert cache.read("values.json") == path.read_bytes() == b"new"

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="Input/output"):
        store("values.json", b"newest")
    assert list(cache_dir.iterdir()) == [path]
    assert path.read_bytes() == b"new"


# ---------------------------------------------------------------- what is damaged


LIBRARY = 'extern "C" int answer() { return 42; }'
SHARED = ("-shared", "-fPIC")


def test_a_truncated_library_is_built_again_and_never_loaded(recipe, gxx):
    """The loader maps what the headers promise: reading past the end of the file is SIGBUS."""
    given = recipe(gxx, LIBRARY, flags=SHARED)
    made = build(given)
    whole = made.read_bytes()
    for size in (0, 1, 4096, len(whole) // 2, len(whole) - 1):
        made.write_bytes(whole[:size])
        no = load(made)
        assert isinstance(no, Refusal)
        assert no.reason.endswith("is damaged: its content does not match the digest in its name")
        assert find(f"kernel-{made.name.split('-')[1].split('.')[0]}.so") is None
        again = build(given)
        assert again.read_bytes() == whole
    assert load(again).answer() == 42


def test_every_flipped_bit_is_noticed(cache_dir):
    """60 files of some kilobytes, 8 bits of each, one at a time, then all of them."""
    rng = random.Random(20)
    noticed = tried = 0
    for number in range(60):
        content = rng.randbytes(rng.randrange(1, 20_000))
        path = store(f"file-{number}.cubin", content)
        damaged = bytearray(content)
        for _ in range(8):
            bit = rng.randrange(8 * len(content))
            one = bytearray(content)
            for target in (one, damaged):
                target[bit // 8] ^= 1 << bit % 8
            for variant in (one, damaged):
                if variant == content:  # a bit flipped twice
                    continue
                path.write_bytes(variant)
                tried += 1
                noticed += find(f"file-{number}.cubin") is None and read(f"file-{number}.cubin") is None
        path.write_bytes(content)
        assert find(f"file-{number}.cubin") == path
        assert read(f"file-{number}.cubin") == content
    assert noticed == tried > 900


def test_a_damaged_file_is_reported_and_replaced(recipe, script, cache_dir, caplog, tmp_path):
    given = recipe(script('echo run >> "$(dirname "$0")/log"; wc -l < "$(dirname "$0")/log" > "$out"'))
    made = build(given)
    made.write_bytes(b"damaged")
    with caplog.at_level(logging.WARNING, "gemmhub"):
        again = build(given)
    assert f"{made} is damaged" in caplog.text
    assert again != made, "this compiler never makes the same twice"
    assert not made.exists(), "every process would read it in vain"
    caplog.clear()
    assert build(given) == again
    assert not caplog.text


def test_the_content_is_read_once_in_a_process(cache_dir, monkeypatch):
    path = store("a.so", b"content")
    read_again = []
    digest = cache.content_digest
    monkeypatch.setattr(cache, "content_digest", lambda handle: read_again.append(handle) or digest(handle))
    assert find("a.so") == path
    before = len(read_again)
    assert before == 1
    assert find("a.so") == path
    assert len(read_again) == before
    os.utime(path, ns=(1, 1))
    assert find("a.so") == path
    assert len(read_again) == before + 1


def test_what_was_verified_is_kept_for_so_many_files_only(cache_dir, monkeypatch):
    monkeypatch.setattr(cache, "MAX_VERIFIED", 4)
    for number in range(9):
        assert find(f"{store(f'{number}.so', b'x').name.split('.')[0]}.so")
    assert len(cache.verified) <= 4


# ---------------------------------------------------------------- whose files they are


def someone_else():
    return os.geteuid() + 1


def needs_root():
    if os.geteuid():
        pytest.skip("only root gives files away")


def test_the_names_of_what_is_stored(cache_dir, monkeypatch, tmp_path):
    """Without digests, from both folders, also of files that are damaged; other files have no such names."""
    assert cache.stored() == set()
    store("one-1.cubin", b"1")
    store("two-2.so", b"2").write_bytes(b"damaged")
    for name in ("three.so", "four.0123.so", ".draft-five", "six"):
        (cache_dir / name).write_text("")
    assert cache.stored() == {"one-1.cubin", "two-2.so"}
    with monkeypatch.context() as patch:
        patch.setattr(cache, "wanted", lambda: tmp_path / "none" / "file")
        (tmp_path / "none").write_text("")
        store("seven.so", b"7")
    assert cache.stored() == {"one-1.cubin", "two-2.so", "seven.so"}
    cache_dir.chmod(0o777)
    assert cache.stored() == {"seven.so"}


def test_a_file_of_another_user_is_not_used(cache_dir):
    needs_root()
    path = store("a.so", b"content")
    os.chown(path, someone_else(), -1)
    assert find("a.so") is None
    assert read("a.so") is None
    assert load(path).reason == f"loading {path.name} failed: {path} belongs to another user"
    assert store("a.so", b"content") == path
    assert find("a.so") == path
    assert path.stat().st_uid == os.geteuid()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o777])
def test_a_file_that_others_may_write_to_is_not_used(cache_dir, mode):
    path = store("a.so", b"content")
    path.chmod(mode)
    assert find("a.so") is None
    assert read("a.so") is None
    assert load(path).reason == f"loading {path.name} failed: others may write to {path}"
    store("a.so", b"content")
    assert find("a.so") == path


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_regular_file_is_not_used(cache_dir, tmp_path, kind):
    path = store("a.so", b"content")
    os.rename(path, tmp_path / "elsewhere")
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert find("a.so") is None
    assert read("a.so") is None
    assert isinstance(load(path), Refusal)
    if kind != "folder":
        assert store("a.so", b"content") == path
        assert not path.is_symlink()
        assert find("a.so") == path
    assert (tmp_path / "elsewhere").read_bytes() == b"content"


def test_a_folder_below_one_that_others_may_write_to_is_not_used(cache_dir, tmp_path):
    """They could put another folder in its place between the check and the load."""
    path = store("a.so", b"content")
    assert find("a.so") == path
    tmp_path.chmod(0o777)
    assert find("a.so") is None
    assert f"others may write to {tmp_path}" in load(path).reason
    place = folder()
    assert place.note == f"others may write to {tmp_path}, a parent of {cache_dir} (chmod go-w it)"
    assert tmp_path not in place.path.parents
    tmp_path.chmod(0o1777)  # sticky: they cannot rename what is ours
    assert find("a.so") == path
    assert not folder().note


def test_a_folder_below_one_of_another_user_is_not_used(cache_dir, tmp_path):
    needs_root()
    path = store("a.so", b"content")
    os.chown(cache_dir.parent, someone_else(), -1)
    assert find("a.so") is None
    assert folder().note == f"{cache_dir.parent} belongs to another user"
    os.chown(cache_dir.parent, os.geteuid(), -1)
    assert find("a.so") == path


def test_a_link_to_the_folder_is_followed_once(monkeypatch, tmp_path):
    """The folder of the files matters; a link that others may change is resolved before the checks."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "link"))
    assert store("a.so", b"content").parent == tmp_path / "real" / "native"
    assert find("a.so").parent == tmp_path / "real" / "native"


def test_a_group_of_the_user_alone_is_no_other_user(cache_dir, tmp_path, monkeypatch):
    """With a umask of 002, as many systems have it, ~/.cache may be written to by that group."""
    path = store("a.so", b"content")
    tmp_path.chmod(0o775)
    for private, expected in ((True, path), (False, None)):
        monkeypatch.setattr(cache, "private_group", lambda group, user, private=private: private)
        assert find("a.so") == expected
    monkeypatch.undo()


def test_whose_group_is_private():
    grp, pwd = pytest.importorskip("grp"), pytest.importorskip("pwd")
    me = pwd.getpwuid(os.geteuid())
    mine = grp.getgrgid(me.pw_gid)
    expected = mine.gr_name == me.pw_name and set(mine.gr_mem) <= {me.pw_name}
    assert cache.private_group(me.pw_gid, me.pw_uid) is expected
    assert not cache.private_group(me.pw_gid + 1, me.pw_uid)
    assert not cache.private_group(2**31 - 5, 2**31 - 5)


@pytest.mark.parametrize("umask", [0, 0o077, 0o777])
def test_no_umask_makes_a_shared_file(cache_dir, recipe, gxx, umask):
    before = os.umask(umask)
    try:
        stored = store("a.cubin", b"content")
        made = build(recipe(gxx, LIBRARY, flags=SHARED)) if umask != 0o777 else stored
    finally:
        os.umask(before)
    assert stored.parent == made.parent == cache_dir
    for path in (stored, made, cache_dir, cache_dir.parent, *cache_dir.glob("*.lock")):
        assert not path.stat().st_mode & 0o077, path
    assert find("a.cubin") == stored
    if made != stored:
        assert load(made).answer() == 42


def test_a_temporary_folder_that_others_may_replace_is_not_used(monkeypatch, tmp_path, recipe, script):
    (tmp_path / "file").write_text("")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file"))
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path / "shared"))
    no = build(recipe(script(MAKE)))
    assert f"others may write to {tmp_path / 'shared'}" in no.reason
    assert not list((tmp_path / "shared").iterdir())


# ---------------------------------------------------------------- what is left, and what does not fit


def test_what_killed_builds_left_is_removed(cache_dir, monkeypatch, tmp_path):
    kept = store("a.so", b"content")
    monkeypatch.setattr(cache, "swept", set())
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "file").touch()
    for name, days in (("old", 2), ("new", 0.5)):
        (cache_dir / f".build-{name}").mkdir()
        (cache_dir / f".build-{name}" / "half.so").touch()
        (cache_dir / f".build-{name}" / "link").symlink_to(tmp_path / "target")
        (cache_dir / f".draft-{name}").touch()
        (cache_dir / f"{name}.lock").touch()
        for path in (cache_dir / f".build-{name}", cache_dir / f".draft-{name}", cache_dir / f"{name}.lock"):
            age(path, days if path.suffix != ".lock" else 5 * days)
    (cache_dir / ".draft-link").symlink_to(tmp_path / "target")
    folder()
    assert {path.name for path in cache_dir.iterdir()} == {
        kept.name, ".build-new", ".draft-new", "new.lock", ".draft-link",
    }  # fmt: skip
    assert (tmp_path / "target" / "file").exists()
    age(cache_dir / ".build-new", 3)
    folder()
    assert (cache_dir / ".build-new").exists(), "once in a process"


def age(path, days):
    then = time.time() - days * 86400
    os.utime(path, (then, then))


def test_a_build_that_is_killed_leaves_what_the_next_day_removes(recipe, script, cache_dir, monkeypatch):
    code = (
        "import sys; from pathlib import Path; from gemmhub.kit.native import Recipe, build\n"
        "build(Recipe((sys.argv[1],), (), (Path(sys.argv[2]),)))"
    )
    given = recipe(script('echo half > "$out"; kill -KILL $PPID; sleep 0.2'))
    done = subprocess.run([sys.executable, "-c", code, *given.compiler, str(given.sources[0])], check=False)
    assert done.returncode == -9
    (left,) = cache_dir.glob(".build-*")
    age(left, 2)
    monkeypatch.setattr(cache, "swept", set())
    script('echo whole > "$out"')
    assert build(given).read_text() == "whole\n"
    assert not list(cache_dir.glob(".build-*"))


def test_a_lock_in_use_does_not_grow_old(recipe, script, cache_dir):
    given = recipe(script(MAKE))
    made = build(given)
    (lock,) = cache_dir.glob("*.lock")
    age(lock, 9)
    made.unlink()
    build(given)
    assert time.time() - lock.stat().st_mtime < 60


def test_a_full_disk_is_reported_and_not_remembered(recipe, script, cache_dir):
    complaint = "fatal error: error writing to x.o: No space left on device"
    no = build(recipe(script(f'echo "cc: {complaint}" >&2; echo "collect2: error: ld returned 1" >&2; exit 1')))
    assert no.reason == f"building kernel failed: cc: exit code 1: cc: {complaint}"
    assert no.remedy.startswith(f"free space in {cache_dir} and ")
    assert cache.VARIABLE in no.remedy
    assert build(recipe(script(MAKE))).exists()


LIMITED = """
import resource, signal, sys
from pathlib import Path
from gemmhub.kit.native import Recipe, build, store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
print(build(Recipe((sys.argv[1],), ("-shared", "-fPIC"), (Path(sys.argv[2]),))).reason)
try:
    store("a.cubin", bytes(5000))
except OSError as error:
    print(error.strerror)
"""


def test_no_room_for_what_is_written(recipe, gxx, cache_dir):
    given = recipe(gxx, LIBRARY)
    command = [sys.executable, "-c", LIMITED, gxx, str(given.sources[0])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    built, stored = done.stdout.splitlines()
    assert built.startswith("building kernel failed: g++: exit code")
    assert stored == "File too large"
    assert find("a.cubin") is None
    assert not [path for path in cache_dir.iterdir() if path.suffix != ".lock"]


def test_concurrent_stores_leave_a_whole_file(cache_dir):
    code = (
        "import sys; from gemmhub.kit.native import store\n"
        "for i in range(200): store('a.bin', (sys.argv[1] * i).encode())"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, name]) for name in "ab"]
    while any(writer.poll() is None for writer in writers):
        content = read("a.bin")
        assert content is None or len(set(content)) <= 1
    assert [writer.returncode for writer in writers] == [0, 0]
    assert read("a.bin") in (b"a" * 199, b"b" * 199)


def test_a_library_from_elsewhere_is_loaded_as_it_is(tmp_path, gxx):
    (tmp_path / "x.cpp").write_text(LIBRARY)
    subprocess.run([gxx, "-shared", "-fPIC", "-o", tmp_path / "x.so", tmp_path / "x.cpp"], check=True)
    assert isinstance(load(tmp_path / "x.so"), ctypes.CDLL)
