# Every target sets up what it needs; nothing is done twice.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(wildcard csrc/*/*.cpp csrc/*/*.hpp csrc/include/*/*.hpp csrc/ascend/host/*)
ASCEND := $(wildcard csrc/ascend/*/*.h csrc/ascend/*/*.hpp csrc/ascend/*/*.cpp)
CPP := $(NATIVE) $(ASCEND) $(wildcard tests/csrc/*.[ch]pp tests/ascend/*.cpp tests/ascend/*/*.cpp)
TYPES := build/types/asap_ray
VLLM := build/vllm
NPU := build/npu-venv
SITE := -c "import sysconfig; print(sysconfig.get_path('purelib'))"
NPM_CI := npm ci --legacy-peer-deps --ignore-scripts --no-audit --no-fund

# Several processes share the cores: each gets one thread unless it asks for more.
export OMP_NUM_THREADS ?= 1
export RAY_AUTH_MODE ?= disabled
export RAY_USAGE_STATS_ENABLED ?= 0

.PHONY: demo test test-thorough test-nixl test-ascend test-npu npu-venv ascend check check-dashboards render-dashboards verify bench soak vs-vllm clean setup hooks
.DEFAULT_GOAL := help

help:
	@echo "make demo   start a local Ray, serve a small MoE model, replay a real trace, write a report to out/demo"
	@echo "make test   run the tests          make check  linters, types, format, -Werror build"
	@echo "make soak   five minutes under load with processes killed and stopped at random (docs/soak.md)"
	@echo "make bench  run the benchmarks     make clean  remove what make made"
	@echo "make test-thorough  the tests that take minutes: hangs, sanitizers, a real Prometheus (CI runs them too)"
	@echo "make test-nixl  the primitives between hosts, over NIXL (docs/fabric.md)"
	@echo "make test-ascend  the Ascend kernels on their CPU twin, seeded bugs too (docs/ascend.md)"
	@echo "make test-npu  what only an Ascend device can show; needs one, CANN and make ascend"
	@echo "make npu-venv  torch-npu in an environment of its own, for make test-ascend"
	@echo "make ascend  compile the Ascend kernels; needs CANN (docs/ascend.md)"
	@echo "make check-dashboards  the dashboards against the types that Grafana publishes (needs npm and its registry)"
	@echo "make render-dashboards  their panels by Grafana's own code, as pictures in out/dashboards (needs npm and chromium)"
	@echo "make verify  search every order of steps of the protocol with spin (docs/verify.md; minutes, needs spin)"
	@echo "make vs-vllm  install vLLM's CPU build beside us and compare (docs/vs_vllm.md; 2 hours)"

setup: build/native.stamp

build/venv.stamp: pyproject.toml constraints.txt
	@mkdir -p build
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt torch pybind11 setuptools wheel
	$(BIN)/pip install --quiet -c constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@ build/native.stamp

build/native.stamp: build/venv.stamp setup.py $(NATIVE)
	$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

demo: setup
	$(BIN)/asap-ray demo --out out/demo

test: setup
	$(BIN)/python -m pytest

test-thorough: setup
	$(BIN)/python -m pytest -m thorough -o timeout=600 --ignore=tests/ascend

# Not the extra: the package it names asks for the wheels of two CUDA releases.
test-nixl: setup
	@if $(BIN)/pip install --quiet --no-deps -c constraints.txt nixl nixl-cu12; then \
	  $(BIN)/python -m pytest -m "not cluster and not npu" -o timeout=300 -k nixl tests/csrc tests/backends && \
	  $(BIN)/python -m pytest -m "not npu" tests/backends/test_fabric.py tests/backends/test_carrier.py && \
	  $(BIN)/python -m pytest -m thorough -o timeout=600 tests/fabric; \
	else echo "test-nixl: SKIPPED, pip could not install NIXL"; fi

test-ascend: setup npu-venv
	$(BIN)/python -m pytest -m "not npu" tests/ascend

test-npu: setup
	$(BIN)/python -m pytest -m npu -o timeout=600 tests/ascend

# torch-npu beside our packages, which it shares: where it is installed, `import torch` needs CANN.
npu-venv: setup
	@test -e build/npu.stamp || { $(BIN)/python -m venv --clear --without-pip $(NPU) && \
	  echo "import site; site.addsitedir('$$($(BIN)/python $(SITE))')" > "$$($(NPU)/bin/python $(SITE))/shared.pth" && \
	  $(BIN)/pip --python $(NPU)/bin/python install --quiet --no-deps -c constraints.txt torch-npu && \
	  touch build/npu.stamp; } || echo "npu-venv: SKIPPED, pip could not install torch-npu; so are tests that need it"

ascend:
	@test -n "$$ASCEND_HOME_PATH" || \
	  { echo "make ascend: ASCEND_HOME_PATH is not set: source set_env.sh of CANN 8.3 or later"; exit 1; }
	cmake -S csrc/ascend -B build/ascend-npu
	cmake --build build/ascend-npu
	cmake --install build/ascend-npu

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	rm -rf build/types && mkdir -p $(TYPES)
	ln -s $(CURDIR)/asap_ray/* $(TYPES)/ && ln -s $(CURDIR)/actors $(TYPES)/actors
	cd build/types && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml -p asap_ray

check-dashboards: setup
	@if (cd tests/dashboards/grafana && $(NPM_CI)); then $(BIN)/python -m pytest tests/dashboards/test_types.py; \
	else echo "check-dashboards: SKIPPED, npm could not install Grafana's types"; fi

render-dashboards: setup
	@if (cd tests/dashboards/render && $(NPM_CI)); then $(BIN)/python -m pytest tests/dashboards/test_render.py && \
	  $(BIN)/python -m tests.dashboards.render out/dashboards; \
	else echo "render-dashboards: SKIPPED, npm could not install Grafana's panels"; fi

verify:
	$(PYTHON) -m tests.verify.spin

bench: setup
	@mkdir -p out/bench
	for name in $(filter-out benchmarks/vs_vllm.py benchmarks/vllm_decode.py,$(wildcard benchmarks/*.py)); do \
	  $(BIN)/python $$name --quick --json out/bench/$$(basename $$name .py).json || exit 1; done

soak: setup
	@mkdir -p out
	$(BIN)/python benchmarks/soak.py --minutes 5 --json out/soak.json

vs-vllm: setup $(VLLM)/bin/vllm
	@mkdir -p out/bench
	$(BIN)/python benchmarks/vs_vllm.py --vllm-venv $(VLLM) --json out/bench/vs_vllm.json

$(VLLM)/bin/vllm:
	benchmarks/peers/make_vllm_venv.sh $(VLLM)

hooks: setup
	$(BIN)/pre-commit install

clean:
	rm -rf build out $(VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name '__pycache__' -not -path './.venv/*' -prune -exec rm -rf {} +
	rm -f asap_ray/_native*.so
	rm -rf tests/dashboards/*/node_modules
