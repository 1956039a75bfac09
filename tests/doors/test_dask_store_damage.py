"""Damaged, truncated, linked and piped targets and journals: the right result, or an error that says what to do."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

import gemmhub  # noqa: E402
from gemmhub import distributed as gd  # noqa: E402
from gemmhub.errors import InputError, OutputError  # noqa: E402

VALUES = np.arange(1, 26, dtype=np.float32).reshape(5, 5)
RESULT = da.from_array(VALUES, chunks=2)
"""Nine blocks, of which the last of each row and column are smaller."""
HEADER = 128
"""Bytes of an npy file before its elements."""


@pytest.fixture(autouse=True)
def _limits():
    """One thread, and a time limit: nothing may wait for a pipe."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("hangs"))
    signal.alarm(300)
    with dask.config.set(scheduler="sync"):
        yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def held(target):
    if target.suffix == ".npy":
        return np.load(target)
    return pytest.importorskip("zarr").open_array(str(target), mode="r")[:]


def right_or_refused(target, **options):
    """What store() returns, whose result must be right; None where it refuses, and the remedy must help then."""
    refusal = None
    try:
        done = gd.store(RESULT, target, **options)
    except InputError as error:  # an OutputError is one
        refusal = error
    if refusal is not None:
        assert refusal.argument in ("target", "journal")
        assert refusal.remedy
        where = target if refusal.argument == "target" else journal_of(target)
        shutil.rmtree(where) if where.is_dir() and not where.is_symlink() else where.unlink(missing_ok=True)
        assert gd.store(RESULT, target).written > 0
        done = None
    np.testing.assert_array_equal(held(target), VALUES)
    return done


def journal_of(target):
    return target.with_name(target.name + ".gemmhub.jsonl")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a whole target and of its journal."""
    target = tmp_path_factory.mktemp("whole") / "c.npy"
    gd.store(RESULT, target)
    return target.read_bytes(), journal_of(target).read_bytes()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("place")


def put(folder, target, journal):
    path = folder / "c.npy"
    path.write_bytes(target)
    journal_of(path).write_bytes(journal)
    return path


def test_a_journal_truncated_anywhere_keeps_its_whole_lines(whole, tmp_path):
    target, journal = whole
    for length in range(len(journal) + 1):
        path = put(tmp_path, target, journal[:length])
        done = gd.store(RESULT, path)
        _, *lines = journal[:length].split(b"\n")
        assert done.kept == sum(line.endswith(b"}") for line in lines), length
        assert done.written == 9 - done.kept
        assert journal_of(path).read_bytes().split(b"\n", 1)[0] == journal.split(b"\n", 1)[0]
    np.testing.assert_array_equal(np.load(path), VALUES)


def test_a_target_truncated_anywhere_keeps_its_whole_blocks(whole, tmp_path):
    target, journal = whole
    for length in range(len(target) + 1):
        path = put(tmp_path, target[:length], journal)
        if length < HEADER:
            with pytest.raises(OutputError, match=r"target: .*damaged.*remove it"):
                gd.store(RESULT, path)
            continue
        done = gd.store(RESULT, path)
        left = (length - HEADER) // 4  # elements
        ends = [5 * (min(row + 2, 5) - 1) + min(col + 2, 5) for row in (0, 2, 4) for col in (0, 2, 4)]
        assert done.kept == sum(end <= left for end in ends), length
        assert (done.written, done.repaired) == (9 - done.kept, 9 - done.kept)
        assert path.read_bytes() == target


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe", b"5", b"null", b'"text"', b"[[0, 0], 1]", b"{}", b'{"block": [0, 0]}', b'{"sum": 1}',
        b'{"block": [99, 99], "sum": 1}', b'{"block": [-1, 0], "sum": 1}', b'{"block": [0], "sum": 1}',
        b'{"block": [0, 0, 0], "sum": 1}', b'{"block": [true, false], "sum": 1}', b'{"block": "00", "sum": 1}',
        b'{"block": [0, 0], "sum": "1"}', b'{"block": [0, 0.0], "sum": 1}', b'{"block": [[], {}], "sum": null}',
        b"[" * 100_000, b'{"block": [0, 0], "sum": ' + b"9" * 10_000 + b"}", b"\0" * 100, b"",
    ],
    ids=lambda line: line[:40].decode("latin-1"),
)  # fmt: skip
def test_a_line_that_is_of_no_block_counts_for_nothing(whole, tmp_path, line):
    """Whatever stands in it; the lines before and after it count."""
    target, journal = whole
    head, *lines = journal.splitlines(keepends=True)
    path = put(tmp_path, target, b"".join([head, *lines[1:5], line, b"\n", *lines[5:]]))
    done = gd.store(RESULT, path)
    assert (done.kept, done.written) in ((8, 1), (4, 5))  # a very long one may hide what follows
    assert path.read_bytes() == target


LIKELY = st.text("0123456789[]{},:\"\n 'TrueFals", max_size=6).map(str.encode)


def damage(draw, content):
    """``content`` with some bytes replaced, removed or inserted, anywhere or at its end."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        length = draw(st.sampled_from((0, 1, 1, 2, 8, 64, 10**6)))
        new = draw(st.one_of(st.binary(max_size=12), LIKELY))
        content = content[:start] + new + content[start + length :]
    return content


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_damage_of_a_journal(whole, place, data):
    target, journal = whole
    right_or_refused(put(place, target, damage(data.draw, journal)))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_damage_of_an_npy_file(whole, place, data):
    target, journal = whole
    right_or_refused(put(place, damage(data.draw, target), journal))


@pytest.fixture(scope="module")
def zarr_array(tmp_path_factory):
    """A whole array of zarr with its journal, to be copied."""
    pytest.importorskip("zarr")
    folder = tmp_path_factory.mktemp("zarr")
    gd.store(RESULT, folder / "c")
    return folder


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_random_damage_of_an_array_of_zarr(zarr_array, place, data):
    folder = place / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(zarr_array, folder)
    files = sorted(path for path in (folder / "c").rglob("*") if path.is_file())
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(files))
        path.write_bytes(damage(data.draw, path.read_bytes()))
    right_or_refused(folder / "c")


def test_a_chunk_of_zarr_truncated_anywhere_is_written_again(zarr_array, tmp_path):
    shutil.copytree(zarr_array / "c", tmp_path / "c")
    shutil.copy(journal_of(zarr_array / "c"), journal_of(tmp_path / "c"))
    chunks = sorted(path for path in (tmp_path / "c" / "c").rglob("*") if path.is_file())
    assert len(chunks) == 9
    for chunk in (chunks[0], chunks[-1]):
        content = chunk.read_bytes()
        for length in range(len(content)):
            chunk.write_bytes(content[:length])
            done = gd.store(RESULT, tmp_path / "c")
            assert (done.kept, done.repaired) == (8, 1), length
        chunk.unlink()
        assert gd.store(RESULT, tmp_path / "c").repaired == 1
    np.testing.assert_array_equal(held(tmp_path / "c"), VALUES)


# What stands in place of a file


def link(path):
    victim = path.with_name("victim")
    victim.write_text("precious")
    path.symlink_to(victim)


def dangling(path):
    path.symlink_to(path.with_name("nothing"))


def to_device(path):
    path.symlink_to(os.devnull)


ODD = {"link": link, "dangling link": dangling, "device": to_device, "pipe": os.mkfifo, "folder": os.mkdir}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("what", ["target", "journal", "named journal", "zarr", "overwritten journal"])
def test_what_is_no_file_is_refused_and_left(what, kind, tmp_path):
    options = {}
    if what == "zarr":
        pytest.importorskip("zarr")
        target = odd = tmp_path / "c"
    else:
        target = tmp_path / "c.npy"
        odd = {"target": target, "named journal": tmp_path / "j"}.get(what, journal_of(target))
        options = {"journal": odd} if what == "named journal" else {"overwrite": True} if "over" in what else {}
    ODD[kind](odd)
    for _ in range(2):
        argument = "journal" if "journal" in what else "target"
        with pytest.raises(OutputError, match=f"{argument}: '{odd}'.*allowed: .*(remove it|another path)"):
            gd.store(RESULT, target, **options)
    assert odd.is_symlink() or not odd.is_file()
    assert not (tmp_path / "nothing").exists()
    assert kind != "link" or (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize("kind", ["link", "dangling link", "device", "pipe"])
@pytest.mark.parametrize("place", ["zarr.json", "c/0/0", "c/1"])
def test_what_is_no_file_inside_an_array_of_zarr_is_refused(zarr_array, tmp_path, place, kind):
    shutil.copytree(zarr_array / "c", tmp_path / "c")
    odd = tmp_path / "c" / place
    shutil.rmtree(odd) if odd.is_dir() else odd.unlink()
    ODD[kind](odd)
    with pytest.raises(OutputError, match=r"target: .*(symbolic link|no regular file).*remove it"):
        gd.store(RESULT, tmp_path / "c")


def test_planted_drafts_are_not_followed(tmp_path):
    """The names that earlier versions wrote to before they replaced a journal."""
    target = tmp_path / "c.npy"
    link(target.with_name(target.name + ".gemmhub.jsonl.new"))
    assert gd.store(RESULT, target).written == 9
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"precious notes\n", b"PK\x03\x04" + b"\0" * 40, b"\x80\x04."])
def test_a_file_of_another_kind_is_not_overwritten(content, tmp_path):
    (tmp_path / "c.npy").write_bytes(content)
    with pytest.raises(OutputError, match="no npy file or a damaged one"):
        gd.store(RESULT, tmp_path / "c.npy")
    assert (tmp_path / "c.npy").read_bytes() == content
    (tmp_path / "notes").write_bytes(content or b"\n")
    with pytest.raises(OutputError, match="first line is not of a journal"):
        gd.store(RESULT, tmp_path / "d.npy", journal=tmp_path / "notes")
    assert (tmp_path / "notes").read_bytes() == (content or b"\n")


def test_a_journal_that_is_too_large_is_read_in_part(whole, tmp_path):
    target, journal = whole
    path = put(tmp_path, target, journal)
    os.truncate(journal_of(path), 2**40)  # a sparse file
    assert gd.store(RESULT, path).kept == 9
    assert journal_of(path).read_bytes() == journal


# Creation


def test_creation_leaves_nothing_half_made(tmp_path, monkeypatch):
    from gemmhub._doors.dask import target as module

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "posix_fallocate", full, raising=False)
        with pytest.raises(OSError, match="No space left") as caught:
            gd.store(RESULT, tmp_path / "c.npy")
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []
    zarr = pytest.importorskip("zarr")

    def interrupted(*_, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(zarr, "open_array", interrupted)
        with pytest.raises(KeyboardInterrupt):
            gd.store(RESULT, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []
    assert gd.store(RESULT, tmp_path / "c.npy").written == gd.store(RESULT, tmp_path / "c").written == 9


def test_a_new_target_has_its_room_on_the_disk(tmp_path):
    gd.store(da.zeros((512, 512), chunks=256), tmp_path / "c.npy")
    assert (tmp_path / "c.npy").stat().st_blocks * 512 >= 512 * 512 * 8


def test_what_no_file_can_hold_is_refused_before_one_is_made(tmp_path):
    import ml_dtypes

    brain = RESULT.astype(ml_dtypes.bfloat16)
    for name in ("c.npy", "c"):
        if name == "c":
            pytest.importorskip("zarr")
        with pytest.raises(OutputError, match="convert the result"):
            gd.store(brain, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


# Arguments


@pytest.mark.parametrize(
    "target", [5, None, [[1.0]], object(), "", "a\0b.npy", "a\0b", "none/c.npy", "none/c", "x" * 300]
)
def test_targets_that_are_none(target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputError, match="target: "):
        gd.store(RESULT, target)
    assert list(tmp_path.iterdir()) == []


def test_journals_that_are_none(tmp_path):
    with pytest.raises(InputError, match="journal: an int"):
        gd.store(RESULT, tmp_path / "c.npy", journal=5)
    with pytest.raises(OutputError, match=r"journal: .*which is the target"):
        gd.store(RESULT, tmp_path / "c.npy", journal=tmp_path / "." / "c.npy", overwrite=True)
    with pytest.raises(OutputError, match=r"journal: .*No such file"):
        gd.store(RESULT, tmp_path / "c.npy", journal=tmp_path / "none" / "j")
    with pytest.raises(OutputError, match="journal: "):
        gd.store(RESULT, tmp_path / "c.npy", journal="a\0b")


def test_a_view_of_a_memmap_with_other_strides_is_no_whole_file(tmp_path):
    memory = np.lib.format.open_memmap(tmp_path / "c.npy", "w+", np.float32, (5, 5))
    for view in (memory.T, memory[::-1], memory[:, ::-1]):
        with pytest.raises(OutputError, match="a part of a file"):
            gd.store(RESULT, view)
    assert gd.store(RESULT, memory).written == 9
    np.testing.assert_array_equal(memory, VALUES)


def test_an_array_that_the_workers_cannot_write_to_is_refused():
    """Processes get a copy of an array in memory."""
    import cloudpickle

    def elsewhere(graph, keys, **_):
        return dask.get(cloudpickle.loads(cloudpickle.dumps(graph)), keys)

    with dask.config.set(scheduler=elsewhere), pytest.raises(OutputError, match="memory of this process"):
        gd.store(RESULT, np.zeros((5, 5), np.float32))


def test_blocks_of_any_number_of_dimensions(tmp_path):
    for shape in ((), (0,), (3,), (0, 3), (2, 1, 3, 2)):
        result = da.full(shape, 3.0, chunks=2)
        for _ in range(2):
            gd.store(result, tmp_path / f"{len(shape)}{shape[:1]}.npy")
        np.testing.assert_array_equal(np.load(tmp_path / f"{len(shape)}{shape[:1]}.npy"), result.compute())


def test_the_journal_is_lines_of_json(whole):
    head, *lines = whole[1].splitlines()
    assert json.loads(head)["shape"] == [5, 5]
    assert sorted(tuple(json.loads(line)["block"]) for line in lines) == sorted(np.ndindex(3, 3))
    assert gemmhub.__version__  # the format is older than this version: journals of 0.2 are read
