"""The order in which images are looked for, and their count."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest
from gemmhub_nvidia import nvrtc
from gemmhub_nvidia.cubins import Entry, packed
from gemmhub_nvidia.driver import DriverError
from gemmhub_nvidia.images import Images, Loads
from gemmhub_nvidia.nvrtc import Source
from gemmhub_nvidia.testing.fake_kernels import FakeCompiler

ARCH = "sm_90a"
SHIPPED, OTHER = (
    Source("product", "product.cu", {"product.cu": "// a kernel"}, (f"--gpu-architecture={ARCH}", f"-DWIDTH={width}"))
    for width in (16, 32)
)
IMAGE = b"\x7fELF of the wheel"


@pytest.fixture
def folder(tmp_path):
    """The folder of a wheel that has one kernel, of a compiler with another version."""
    path = tmp_path / "cubins"
    path.mkdir()
    (path / f"{ARCH}.cubins").write_bytes(packed([Entry(SHIPPED.name, SHIPPED.digest, IMAGE)], "12.4"))
    return path


def images(folder):
    return Images(FakeCompiler(), folder)


class Card:
    """A device whose handles are the images; it loads none of ``refused``."""

    def __init__(self, *refused):
        self.refused = refused

    def function(self, image, name, shared):
        assert (name, shared) == ("gemm", 16)
        if image in self.refused:
            raise DriverError("cuModuleLoadData", 200, "invalid image")
        return image


def loaded(some, source, card=None):
    return some.function(card or Card(), source, "gemm", 16)


def is_compiled(image, source):
    return json.loads(image)["macros"] == {"WIDTH": int(source.options[1].partition("=")[2])}


def test_the_wheel_comes_first_then_the_cache_then_the_compiler(folder):
    nvrtc.cubin(FakeCompiler(), SHIPPED)  # in the cache too
    first = images(folder)
    assert loaded(first, SHIPPED) == IMAGE
    assert is_compiled(loaded(first, OTHER), OTHER)
    assert (first.loads.shipped, first.loads.cached, first.loads.compiled) == (1, 0, 1)
    second = images(folder)
    assert loaded(second, SHIPPED) == IMAGE
    assert is_compiled(loaded(second, OTHER), OTHER)
    assert second.loads == Loads(shipped=1, cached=1)


def test_the_count_in_words():
    assert str(Loads(3, 2, 1, 0.93)) == "kernels loaded: 3 from the wheel, 2 from the cache, 1 compiled in 0.9 s"
    assert str(Loads(3)) == "kernels loaded: 3 from the wheel, 0 from the cache, 0 compiled"


@pytest.mark.parametrize(
    "changed",
    [
        replace(SHIPPED, files={"product.cu": "// another kernel"}),
        replace(SHIPPED, files={**SHIPPED.files, "ptx.cuh": ""}),
        replace(SHIPPED, options=(*SHIPPED.options, "-G")),
        replace(SHIPPED, options=SHIPPED.options[:1]),
        replace(SHIPPED, options=("--gpu-architecture=sm_90", *SHIPPED.options[1:])),
    ],
    ids=["text", "file", "option", "fewer options", "architecture"],
)
def test_a_stale_archive_is_not_used(folder, changed):
    """Whatever changed since the wheel was built; the name of the source is the same."""
    some = images(folder)
    assert not some.shipped(changed)
    assert not some.ready(changed)
    assert loaded(some, changed) != IMAGE
    assert some.loads.compiled == 1


def test_what_is_known_before_anything_is_loaded(folder):
    nvrtc.cubin(FakeCompiler(), OTHER)
    some = images(folder)
    assert some.known("product", ARCH)
    assert not some.known("produc", ARCH)
    assert some.shipped(SHIPPED)
    assert not some.shipped(OTHER)
    assert some.ready(SHIPPED)
    assert some.ready(OTHER)
    assert some.count(ARCH) == 1
    assert some.loads == Loads()


def test_a_pure_wheel(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "gemmhub"):
        some = images(tmp_path / "none")
        assert not some.known("product", ARCH)
        assert not some.ready(SHIPPED)
        assert is_compiled(loaded(some, SHIPPED), SHIPPED)
    assert some.about(ARCH) == f"no kernels for {ARCH} from the wheel: NVRTC compiles them at first use"
    assert not some.fault(ARCH)
    assert some.count(ARCH) == 0
    assert not caplog.text


@pytest.mark.parametrize("damage", [lambda x: x[:-1], lambda x: x[:40], lambda x: b"", lambda x: b"#" + x[1:]])
def test_a_damaged_archive_is_reported_and_its_kernels_are_compiled(folder, caplog, damage):
    path = folder / f"{ARCH}.cubins"
    path.write_bytes(damage(path.read_bytes()))
    some = images(folder)
    with caplog.at_level(logging.WARNING, "gemmhub"):
        assert is_compiled(loaded(some, SHIPPED), SHIPPED)
        fault = some.fault(ARCH)
    assert str(path) in fault
    assert "install its distribution again" in fault
    assert caplog.text.count(fault) == 1
    assert some.about(ARCH) == f"no kernels for {ARCH} from the wheel: NVRTC compiles them at first use"
    assert not some.shipped(SHIPPED)


def test_a_damaged_block_is_compiled(folder, caplog):
    path = folder / f"{ARCH}.cubins"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    some = images(folder)
    assert some.shipped(SHIPPED)
    with caplog.at_level(logging.WARNING, "gemmhub"):
        assert is_compiled(loaded(some, SHIPPED), SHIPPED)
    assert "is damaged" in caplog.text
    assert some.loads.compiled == 1


def test_what_the_driver_does_not_load_is_compiled(folder, caplog):
    some = images(folder)
    with caplog.at_level(logging.WARNING, "gemmhub"):
        assert is_compiled(loaded(some, SHIPPED, Card(IMAGE)), SHIPPED)
    assert "the driver does not load product of the wheel: " in caplog.text
    assert (some.loads.shipped, some.loads.compiled) == (0, 1)


def test_other_failures_of_the_driver_are_raised(folder):
    compiled = FakeCompiler().compile(OTHER).cubin
    with pytest.raises(DriverError):
        loaded(images(folder), OTHER, Card(compiled))


def test_what_the_wheel_has(folder):
    assert images(folder).about(ARCH) == f"1 kernels for {ARCH} in the wheel, compiled by NVRTC 12.4"
    assert not images(folder).fault(ARCH)
