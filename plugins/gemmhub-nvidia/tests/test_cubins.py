"""Archives of cubins: the same bytes from the same cubins, and whatever is damaged is noticed."""

from __future__ import annotations

import logging
import random

import pytest
from gemmhub_nvidia import cubins
from gemmhub_nvidia.cubins import MAGIC, Archive, ArchiveError, Entry, packed


def entries(count=20, seed=None):
    """Return cubins of random lengths: two of three consist of repeated bytes, as variants of a kernel do."""
    rng = random.Random(seed)
    return [
        Entry(f"kernel-{i // 4}", f"{i:024x}", rng.randbytes(rng.randrange(1, 64)) * rng.choice([1, 50, 999]))
        for i in range(count)
    ]


@pytest.fixture(params=[2**20, 1000], ids=["one block", "many blocks"])
def archived(request, monkeypatch, tmp_path):
    """Entries, and the archive of them on disk."""
    monkeypatch.setattr(cubins, "_BLOCK", request.param)
    some = entries()
    path = tmp_path / "sm_90a.cubins"
    path.write_bytes(packed(some, "12.4"))
    return some, path


def test_cubins_are_read_again(archived):
    some, path = archived
    archive = Archive(path)
    assert archive.compiler == "12.4"
    assert len(archive) == len(some)
    assert archive.names == {x.name for x in some}
    for entry in random.Random().sample(some, len(some)):
        assert entry.digest in archive
        assert archive.read(entry.digest) == entry.cubin
    assert "f" * 24 not in archive
    assert archive.read("f" * 24) is None


def test_the_bytes_are_the_same():
    assert packed(entries(seed=3), "12.4") == packed(entries(seed=3), "12.4")
    assert packed(entries(seed=3), "12.4") != packed(entries(seed=4), "12.4")


def test_variants_compress_together():
    code = random.Random().randbytes(3000)
    similar = [Entry("kernel", str(i), code + i.to_bytes(4, "little")) for i in range(20)]
    assert len(packed(similar, "12.4")) < 2 * 3000


def test_an_empty_archive(tmp_path):
    path = tmp_path / "sm_80.cubins"
    path.write_bytes(packed([], "12.4"))
    assert len(Archive(path)) == 0
    assert Archive(path).read("0") is None


def test_every_truncation_is_noticed(archived):
    """At any byte: of the head, the index or the blocks."""
    _, path = archived
    whole = path.read_bytes()
    for length in {0, 1, len(MAGIC), len(whole) - 1, *random.Random().sample(range(len(whole)), 50)}:
        path.write_bytes(whole[:length])
        with pytest.raises(ArchiveError, match=r"sm_90a\.cubins"):
            Archive(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(ArchiveError, match="bytes, of"):
        Archive(path)


def test_every_changed_byte_is_noticed(archived, caplog):
    """Either the archive is not opened, or the cubins of one block are not read; never is one another's."""
    some, path = archived
    whole = path.read_bytes()
    for at in random.Random().sample(range(len(whole)), 60):
        changed = bytearray(whole)
        changed[at] ^= random.Random().randrange(1, 256)
        path.write_bytes(changed)
        try:
            archive = Archive(path)
        except ArchiveError:
            continue
        with caplog.at_level(logging.WARNING, "gemmhub"):
            read = [archive.read(entry.digest) for entry in some]
        assert None in read
        assert all(image in (None, entry.cubin) for image, entry in zip(read, some))
        assert f"{path} is damaged" in caplog.text


def test_a_file_that_went_away(archived, caplog):
    some, path = archived
    archive = Archive(path)
    path.unlink()
    with caplog.at_level(logging.WARNING, "gemmhub"):
        assert archive.read(some[0].digest) is None
    assert f"{path} cannot be read: No such file" in caplog.text
