"""Check built wheels: ``python tests/check_wheels.py dist [PYTHON ...]``.

Each is built again and compared byte by byte, has a license, types and complete metadata, and installs together with
the others in a fresh environment of each given Python (this one by default) that has no compiler, where it multiplies.
GEMMHUB_CUBINS is that of the build: whether the wheels of gemmhub-hopper and gemmhub-cuda have compiled kernels.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from email.parser import Parser
from pathlib import Path

import check_release

ROOT = Path(__file__).resolve().parents[1]
SIMT = ROOT / "gemmhub" / "testing" / "simt"
HEADERS = ROOT / "plugins" / "gemmhub-nvidia" / "gemmhub_nvidia" / "kernels"
NEEDED = ("Name", "Version", "Summary", "Author", "License-Expression", "License-File", "Requires-Python", "Classifier")
CUBINS = {"gemmhub_hopper": ["sm_90a"], "gemmhub_cuda": ["sm_80", "sm_86", "sm_89", "sm_90"]}
"""Architectures of the compiled kernels in a plugin's wheel, where the build was asked for them (GEMMHUB_CUBINS)."""
MAX_CUBINS = 6 * 2**20
"""Largest number of bytes of the compiled kernels for an architecture."""
OLDEST_GLIBC = 28
"""Minor version of the oldest glibc that the compiled files of gemmhub-cpu run on."""
PROGRAM = """
import sys, numpy as np, gemmhub
compiled = bool(sys.argv[1])  # the kernels in the wheel
a, b = (np.random.default_rng(0).standard_normal((64, 64)).astype(np.float16) for _ in range(2))
states = {name: x.state for name, x in gemmhub.backends().items()}
print(gemmhub.__version__, states)
assert states["cpu"] == "ready"
features = str(getattr(gemmhub.backends().get("cpu"), "features", ""))
flags = set(open("/proc/cpuinfo").read().split())
expected = "kernels of its own: " if compiled and {"avx2", "fma", "f16c"} <= flags else "no kernels of its own: "
assert f"'{expected}" in features, features
assert gemmhub.spot_check(a, b, gemmhub.matmul(a, b))
"""


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_contents(wheel: Path) -> None:
    """Raise AssertionError for a wheel that lacks something."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        found = Parser().parsestr(archive.read(metadata).decode())
    for key in NEEDED:
        assert found[key], f"{wheel.name} has no {key}"
    readme = found.get_payload()
    assert readme.strip(), f"{wheel.name} has no readme"
    relative = re.findall(r"\]\((?!https://)[^)]*\)", readme)
    assert not relative, f"{wheel.name}'s readme has links that no package index can follow: {relative}"
    assert any(name.endswith("licenses/LICENSE") for name in names), f"{wheel.name} has no LICENSE"
    assert any(name.endswith("/py.typed") for name in names), f"{wheel.name} has no py.typed"
    if wheel.name.startswith("gemmhub-"):
        missing = {f"gemmhub/testing/simt/{path.name}" for path in SIMT.iterdir()} - {*names}
        assert not missing, f"{wheel.name} lacks sources that plugins compile: {missing}"
    if wheel.name.startswith("gemmhub_nvidia-"):
        missing = {f"gemmhub_nvidia/kernels/{path.name}" for path in HEADERS.iterdir()} - {*names}
        assert not missing, f"{wheel.name} lacks headers that kernels include: {missing}"
    check_cubins(wheel, bool(os.environ.get("GEMMHUB_CUBINS")))
    compiled = [name for name in names if name.endswith((".so", ".bin", ".run"))]
    if wheel.name.startswith(("gemmhub_cpu-", "gemmhub_musa-")) and shutil.which("g++"):
        assert "-py3-none-manylinux_2_" in wheel.name, f"{wheel.name} is not for this platform and every Python"
        expected = {".so": 1, ".bin": 1} if wheel.name.startswith("gemmhub_cpu-") else {".run": 1}
        check_glibc(wheel, compiled)
        suffixes = Counter(Path(name).suffix for name in compiled)
        assert suffixes == expected, f"{wheel.name} has the compiled files {compiled}"
    else:
        assert wheel.name.endswith("-py3-none-any.whl"), f"{wheel.name} is for one Python alone"
        assert not compiled, f"{wheel.name} has {compiled}"
    for needed in found.get_all("Requires-Dist") or []:
        if needed.startswith("gemmhub") and "extra ==" not in needed:
            assert check_release.matches(needed, found["Version"]), f"{wheel.name} needs {needed}"


def check_cubins(wheel: Path, asked: bool) -> None:
    """Raise AssertionError for a wheel that lacks compiled kernels for GPUs, or has some that nobody ``asked`` for."""
    package = wheel.name.partition("-")[0]
    expected = [f"{package}/cubins/{x}.cubins" for x in CUBINS.get(package, [])] if asked else []
    with zipfile.ZipFile(wheel) as archive:
        nbytes = {x.filename: x.file_size for x in archive.infolist() if x.filename.endswith(".cubins")}
    assert sorted(nbytes) == expected, f"{wheel.name} has {sorted(nbytes)}, not {expected}"
    assert all(0 < x <= MAX_CUBINS for x in nbytes.values()), f"{wheel.name} has {nbytes}, of at most {MAX_CUBINS}"


def check_pure() -> None:
    """Build the plugins with kernels for GPUs as pip does from source: without NVRTC, and without such kernels."""
    environment = {name: value for name, value in os.environ.items() if name != "GEMMHUB_CUBINS"}
    plugins = [str(ROOT / "plugins" / package.replace("_", "-")) for package in CUBINS]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, *plugins]
        subprocess.run(command, check=True, env=environment)
        for wheel in Path(folder).glob("*.whl"):
            check_cubins(wheel, False)


def check_glibc(wheel: Path, compiled: list[str]) -> None:
    """Raise AssertionError where a compiled file needs a newer glibc than the tag claims; of gemmhub-cpu, than 2.28."""
    tag = re.search(r"manylinux_2_(\d+)_", wheel.name)
    claimed = 0 if tag is None else int(tag[1])
    oldest = OLDEST_GLIBC if wheel.name.startswith("gemmhub_cpu-") else claimed
    with zipfile.ZipFile(wheel) as archive:
        needed = {name: max(map(int, re.findall(rb"GLIBC_2\.(\d+)", archive.read(name)))) for name in compiled}
    newer = {name: minor for name, minor in needed.items() if minor > min(claimed, oldest)}
    assert not newer, f"{wheel.name} has files that need glibc 2.x of {newer}"


def check_again(folder: Path) -> None:
    """Build all wheels once more, and compare."""
    with tempfile.TemporaryDirectory() as again:
        sources = [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--wheel-dir",
            again,
            *map(str, sources),
        ]
        subprocess.run(command, check=True)
        first, second = ({p.name: digest(p) for p in Path(x).glob("*.whl")} for x in (folder, again))
    assert first == second, "the same source makes other wheels"


def check_install(folder: Path, python: str) -> None:
    """Install the core and a plugin in a fresh environment without a compiler, and multiply."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([python, "-m", "venv", place], check=True)
        own = str(Path(place, "bin", "python"))
        environment = {**os.environ, "CC": "/bin/false", "CXX": "/bin/false", "PYTHONPATH": "", "PATH": f"{place}/bin"}
        environment["GEMMHUB_CACHE_DIR"] = str(Path(place, "cache"))
        install = [own, "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, "--find-links", str(folder), "gemmhub[cpu]"], check=True, env=environment)
        compiled = any("-any" not in path.name for path in folder.glob("gemmhub_cpu-*.whl"))
        _multiply(own, place, environment, compiled)
        # From source, without a compiler: the wheel is pure, and the product is computed another way.
        again = [*install, "--no-deps", "--force-reinstall", str(ROOT / "plugins" / "gemmhub-cpu")]
        subprocess.run(again, check=True, env=environment)
        _multiply(own, place, environment, False)


def _multiply(python: str, place: str, environment: dict[str, str], compiled: bool) -> None:
    """Run the program, which looks for kernels of gemmhub-cpu if they are ``compiled`` in its wheel."""
    command = [python, "-c", PROGRAM, "yes" if compiled else ""]
    done = subprocess.run(command, check=True, env=environment, cwd=place, capture_output=True, text=True)
    print(f"{python}: {done.stdout.strip()}")


def main() -> None:
    """Check the wheels of a folder."""
    folder, pythons = Path(sys.argv[1]), sys.argv[2:] or [sys.executable]
    wheels = sorted(folder.glob("*.whl"))
    assert len(wheels) == 1 + len(list(ROOT.glob("plugins/*/pyproject.toml")))
    for wheel in wheels:
        check_contents(wheel)
    check_again(folder)
    check_pure()
    for python in pythons:
        check_install(folder, python)
    print(f"{len(wheels)} wheels are complete, and the same when they are built again")


if __name__ == "__main__":
    main()
