"""The plugin's own source over CUTLASS (the package nvidia-cutlass), behind MUTLASS's template signatures.

It is compiled by nvcc to PTX for sm_90a, one configuration in each spelling of the builder: half a minute and 2 GB
each, so one at a time, and kept in gemmhub's build cache.

With an NVIDIA GPU of that architecture the conformance kit runs on the kernels, through the simulator's CUDA engine:

    GEMMHUB_TEST_CUTLASS           the step through the kit's cases (1: all); unless it is set, nothing runs
    GEMMHUB_TEST_CUTLASS_DTYPES    of the cases ("float16"), separated by commas
    GEMMHUB_TEST_CUTLASS_SHARDS    tests to divide the cases among (1), which pytest-xdist can run side by side
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cutlass_home
import pytest
from gemmhub_mutlass import sources
from gemmhub_mutlass.variants import TENSOR, configurations

from gemmhub.capability import Refusal
from gemmhub.kit import native
from gemmhub.kit.native import Recipe

HERE = Path(__file__).parent
NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
FLAGS = "--expt-relaxed-constexpr"
VERSIONS = {15: (0, 1, 1), 13: (0, 3, 0)}
STEP = int(os.environ.get("GEMMHUB_TEST_CUTLASS") or 0)
SHARDS = int(os.environ.get("GEMMHUB_TEST_CUTLASS_SHARDS", "1"))
DTYPES = os.environ.get("GEMMHUB_TEST_CUTLASS_DTYPES", "float16").split(",")

pytestmark = [
    pytest.mark.skipif(NVCC is None, reason="needs nvcc"),
    pytest.mark.skipif(cutlass_home.cutlass() is None, reason="needs the package nvidia-cutlass"),
]


def mutlass(folder, arguments):
    """The adapter as MUTLASS_HOME."""
    shutil.rmtree(folder, ignore_errors=True)
    return cutlass_home.make(folder, VERSIONS[arguments])


def compiled(home, text, arguments, name):
    """The PTX of a source; the paths are the same in every run, so that the cache finds them again."""
    nvcc = pytest.importorskip("gemmhub_musa_sim.cuda.nvcc")
    source = home / f"{name}.cu"
    source.write_text(text)
    include = (nvcc.INCLUDE, home / "include", sources.FOLDER)
    own = [path for name in ("mutlass", "mute") for path in (home / "include" / name).rglob("*.h*")]
    recipe = Recipe(
        (NVCC,), ("-ptx", "-arch=sm_90a", "-std=c++17", FLAGS, *(f"-I{folder}" for folder in include)), (source,),
        (sources.TEMPLATE, *sorted(own), *sorted(nvcc.INCLUDE.rglob("*.h"))), name, ".ptx",
        identity=f"{version(NVCC)} nvidia-cutlass {cutlass_version()}",
    )  # fmt: skip
    return native.build(recipe, timeout=550)


def version(compiler):
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout


def cutlass_version():
    return (cutlass_home.cutlass() / "cutlass" / "version.h").read_text()


@pytest.mark.parametrize("arguments", [15, 13])
def test_a_configuration_compiles(folder, arguments):
    chosen = next(configurations("mp_22", (TENSOR,), "float16", "float32", False, True, True, True))
    home = mutlass(folder / f"cutlass-{arguments}", arguments)
    built = compiled(home, sources.text(chosen, arguments), arguments, f"mutlass_over_cutlass_{arguments}")
    if isinstance(built, Refusal):
        pytest.fail(f"{built.reason}\n{built.traceback}")
    text = built.read_text()
    # The tile of 256 x 128 x 32 in Hopper's instructions, fed by its copies; and the plugin's own kernel.
    assert "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16" in text
    assert "cp.async.bulk.tensor" in text
    assert "gemmhub_scale" in text


def test_the_wrong_spelling_does_not_compile(folder):
    """What an alias of CUTLASS's namespaces would have let through."""
    chosen = next(configurations("mp_22", (TENSOR,), "float16", "float32", False, True, True, True))
    home = mutlass(folder / "cutlass-wrong", 15)
    try:
        built = compiled(home, sources.text(chosen, 13), 15, "mutlass_wrong_spelling")
    finally:
        native.forget()
    assert isinstance(built, Refusal)
    assert re.search(r"(too few arguments|argument list).*CollectiveBuilder", built.reason), built


@pytest.mark.skipif(not STEP, reason="GEMMHUB_TEST_CUTLASS is not set")
@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("arguments", [15, 13])
def test_conformance_on_a_hopper_gpu(arguments, shard):
    """A shard's part of every STEP-th case. Shards share home, checkout and build cache; of two that need one
    configuration the second waits for the first.
    """
    found = conformance(arguments, shard * STEP, SHARDS * STEP)
    print(json.dumps(found, indent=1))
    accepted = [dtype for dtype in DTYPES if found["accepted"].get(dtype, 0) > 0]
    if SHARDS > 1 and not accepted:
        pytest.skip(f"no case of this shard was accepted: {found['refused']}")
    assert SHARDS > 1 or accepted == DTYPES, found
    assert found["worst"] <= 1


def conformance(arguments, first, step):
    """The results of kit.py for the kernels of one spelling on the GPU."""
    simulator = pytest.importorskip("gemmhub_musa_sim.testing")
    facts = VERSIONS[arguments], cutlass_home.HEADERS, str(cutlass_home.cutlass())
    witness = "include/mutlass/version.h"
    checkout = simulator.kept(
        "mutlass-over-cutlass", cutlass_home.ADAPTER, facts, witness,
        lambda path: cutlass_home.make(path, VERSIONS[arguments]),
    )  # fmt: skip
    environment = {
        **os.environ, "MUSA_HOME": str(simulator.kept_home(engine="cuda")), "MUSA_SIM_CUDA_ARCH": "sm_90a",
        "MUTLASS_HOME": str(checkout), "NVCC_APPEND_FLAGS": FLAGS,
    }  # fmt: skip
    command = [sys.executable, "kit.py", str(first), str(step), *DTYPES]
    done = subprocess.run(command, env=environment, cwd=HERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert "absent" not in found, found
    return found
