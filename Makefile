# Two commands: `make demo` computes, explains and checks a product; `make test` passes the tests.
PYTHON ?= python3
VENV := .venv
PLAIN := .venv-plain
BIN := $(VENV)/bin
PLUGINS := .venv-plugins
KERNELS := .venv-kernels
MUSA := .venv-musa
DOORS := .venv-doors
STAMP := $(VENV)/.installed
SUITE = $(PYTHON) tests/run_suite.py

.PHONY: demo test test-fast test-all test-core test-plugins test-cuda test-hopper test-musa test-musa-kernels test-doors \
	test-device test-versions test-python check-release wheels test-wheels lint docs clean

demo: $(PLAIN)/.installed  ## two matrices in, product out, decision and verdict printed
	$(PLAIN)/bin/python -m benchmarks.run.make_demo demo
	$(PLAIN)/bin/gemmhub matmul demo/a.npy demo/b.npy --out demo/c.npy --explain --check

# A second thread of NumPy's BLAS spins until it is needed; beside another suite that takes three times as long as the
# products themselves. test-doors keeps all threads, and so does what tests the built-in backend's large products.
test-core test-plugins test-cuda test-hopper test-musa test-musa-kernels: export OPENBLAS_NUM_THREADS = 1

# The longest first: `make -j2 test` runs them side by side.
test: test-hopper test-doors test-core test-musa-kernels test-cuda test-musa test-plugins

# What neither compiles, nor runs on an emulator, nor is documentation; fewer random problems.
FAST := -q -m "not compiler and not emulator and not docs and not device" --hypothesis-profile=fast
SLOW := $(patsubst %,tests/test_%.py,accuracy decision errors locks memory_failures numpy_suite records site structure verify)
CORE := $(FAST) $(filter-out $(SLOW),$(wildcard tests/test_*.py)) tests/devices
test-fast: $(STAMP) $(KERNELS)/.installed
	$(BIN)/python -m pytest $(CORE)
	$(KERNELS)/bin/python -m pytest $(FAST) plugins/gemmhub-nvidia/tests
	$(KERNELS)/bin/python -m pytest $(FAST) plugins/gemmhub-cuda/tests/test_lower.py
	$(KERNELS)/bin/python -m pytest $(FAST) plugins/gemmhub-hopper/tests/test_lower.py

# More of the same: a failed allocation at every line, more processes that are killed, more random problems, every mask of
# the CPU's units, every variant of the Hopper kernel compiled by NVRTC.
test-all:
	TEST_MEMORY_STEP=1 TEST_KILLS=40 TEST_PRODUCTS=100 TEST_MASKS=1 TEST_VARIANTS=1 PYTEST_ADDOPTS=--hypothesis-profile=thorough \
		$(MAKE) -j2 test

test-core: $(STAMP)
	$(SUITE) core $(BIN)/python -m pytest
	env -u OPENBLAS_NUM_THREADS $(SUITE) core-threads \
		$(BIN)/python -m pytest tests/numpy_backend/test_blocked.py -k "many_blocks and 1025"

test-plugins: $(PLUGINS)/.installed
	$(SUITE) cpu $(PLUGINS)/bin/python -m pytest plugins/gemmhub-cpu/tests
	$(SUITE) nvidia $(PLUGINS)/bin/python -m pytest plugins/gemmhub-nvidia/tests
	$(SUITE) cublas $(PLUGINS)/bin/python -m pytest plugins/gemmhub-cublas/tests

# The kernels compile by NVRTC, and run on an emulator built by g++.
test-cuda: $(KERNELS)/.installed
	$(SUITE) cuda $(KERNELS)/bin/python -m pytest plugins/gemmhub-cuda/tests

test-hopper: $(KERNELS)/.installed
	$(SUITE) hopper $(KERNELS)/bin/python -m pytest plugins/gemmhub-hopper/tests

# Users of torch, JAX and Dask, on the CPU.
test-doors: $(DOORS)/.installed
	$(SUITE) doors $(DOORS)/bin/python -m pytest tests/doors tests/test_torch.py tests/test_einsum.py tests/test_docstring_examples.py \
		tests/test_executed_notebooks.py docs/contractions.md docs/grouped.md \
		docs/torch.md docs/jax.md docs/dask.md docs/many-devices.md docs/profiling.md docs/tutorials docs/how-to

# One process a plugin: a process loads one MUSA installation.
test-musa: $(MUSA)/.installed  ## on the simulated MUSA homes; compiled things stay in the user's cache
	$(SUITE) musa-sim $(MUSA)/bin/python -m pytest plugins/gemmhub-musa-sim/tests
	$(SUITE) musa $(MUSA)/bin/python -m pytest plugins/gemmhub-musa/tests
	$(SUITE) mublas $(MUSA)/bin/python -m pytest plugins/gemmhub-mublas/tests
	$(SUITE) mudnn $(MUSA)/bin/python -m pytest plugins/gemmhub-mudnn/tests

test-musa-kernels: $(MUSA)/.installed
	$(SUITE) mutlass $(MUSA)/bin/python -m pytest plugins/gemmhub-mutlass/tests
	$(SUITE) musa-kernels $(MUSA)/bin/python -m pytest plugins/gemmhub-musa-kernels/tests

test-python:  ## the core's fast tests in the environment of $(PYTHON), which has the core with [test]
	$(PYTHON) -m pytest $(CORE)

test-versions: $(STAMP)  ## the lowest and the newest of $(VERSIONS) (numpy torch jax dask) on each Python of PATH
	$(BIN)/python tests/check_versions.py --core '$(CORE)' $(VERSIONS)

test-device:  ## on an NVIDIA GPU, in the environment of $(PYTHON): it needs torch with CUDA, nvcc, and the packages with [test]
	$(PYTHON) -m pytest plugins/gemmhub-cublas/tests/test_device.py plugins/gemmhub-cublas/tests/test_device_calls.py \
		plugins/gemmhub-cublas/tests/test_device_scales.py
	$(PYTHON) -m pytest plugins/gemmhub-cuda/tests/test_device.py plugins/gemmhub-cuda/tests/test_device_quantize.py
	$(PYTHON) -m pytest plugins/gemmhub-hopper/tests/test_device.py plugins/gemmhub-hopper/tests/test_device_bits.py \
		plugins/gemmhub-hopper/tests/test_device_eight_bit.py plugins/gemmhub-hopper/tests/test_device_grouped.py
	$(PYTHON) -m pytest plugins/gemmhub-musa-sim/tests/test_cuda_device.py

# Compiled kernels for GPUs in the wheels of gemmhub-hopper and gemmhub-cuda: "all" (a quarter of an hour of processor time), a
# number of each architecture, or empty.
GEMMHUB_CUBINS ?= all
wheels test-wheels: export GEMMHUB_CUBINS := $(GEMMHUB_CUBINS)

wheels:  ## every distribution, in dist/; the same bytes from the same source
	rm -rf dist
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist . $(sort $(wildcard plugins/gemmhub-*))

test-wheels: wheels  ## the wheels are the same when built again, complete, and install without a compiler
	$(PYTHON) tests/check_wheels.py dist

check-release: $(STAMP)  ## whether the files agree on one version; TAG=v0.3.0 names it
	$(BIN)/python tests/check_release.py $(TAG)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)
	$(BIN)/mkdocs build --strict

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $(STAMP)

$(PLAIN)/.installed: pyproject.toml
	$(PYTHON) -m venv $(PLAIN)
	$(PLAIN)/bin/python -m pip install --quiet -e .
	touch $@

# Plugins have an environment of their own: the core's tests must see the core alone. gemmhub-cpu is installed as a wheel,
# so that the tests run the compiled files that it ships.
SHIPPED := $(shell find plugins/gemmhub-cpu -name "*.py" -o -name "*.cpp" -o -name "*.h")
$(PLUGINS)/.installed: pyproject.toml plugins/gemmhub-cpu/pyproject.toml plugins/gemmhub-nvidia/pyproject.toml \
		plugins/gemmhub-cublas/pyproject.toml $(SHIPPED)
	$(PYTHON) -m venv $(PLUGINS)
	$(PLUGINS)/bin/python -m pip install --quiet -e ".[test]" -e "plugins/gemmhub-nvidia[test]" \
		-e "plugins/gemmhub-cublas[test]"
	$(PLUGINS)/bin/python -m pip install --quiet --force-reinstall --no-deps plugins/gemmhub-cpu
	$(PLUGINS)/bin/python -m pip install --quiet "gemmhub-cpu[test]"
	touch $@

$(KERNELS)/.installed: pyproject.toml plugins/gemmhub-nvidia/pyproject.toml plugins/gemmhub-cuda/pyproject.toml \
		plugins/gemmhub-hopper/pyproject.toml
	$(PYTHON) -m venv $(KERNELS)
	$(KERNELS)/bin/python -m pip install --quiet -e ".[test]" -e plugins/gemmhub-nvidia \
		-e "plugins/gemmhub-cuda[test]" -e "plugins/gemmhub-hopper[test]"
	touch $@

$(DOORS)/.installed: pyproject.toml tests/doors/requirements.txt
	$(PYTHON) -m venv $(DOORS)
	$(DOORS)/bin/python -m pip install --quiet -r tests/doors/requirements.txt -e ".[doors,test]"
	touch $@

MUSA_PLUGINS := gemmhub-musa gemmhub-musa-sim gemmhub-mublas gemmhub-mudnn gemmhub-mutlass gemmhub-musa-kernels
$(MUSA)/.installed: pyproject.toml $(MUSA_PLUGINS:%=plugins/%/pyproject.toml)
	$(PYTHON) -m venv $(MUSA)
	$(MUSA)/bin/python -m pip install --quiet -e ".[test]" $(MUSA_PLUGINS:%=-e "plugins/%[test]")
	touch $@

clean:
	rm -rf $(VENV) $(PLAIN) $(PLUGINS) $(KERNELS) $(MUSA) $(DOORS) .venv-versions build/tests demo site dist
