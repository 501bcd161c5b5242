# make run     install what is needed (once) and start the server with the embedded voice
# make model   install the CosyVoice2 engine and fetch its model, for a voice of your own
# make test    install what the tests need (once), lint, check types, run the tests (make test-all: all of them)
# Everything goes into .venv and .peers in this directory; `make clean` removes it.

VENV  := .venv
BIN   := $(VENV)/bin
PIP   := $(BIN)/python -m pip --disable-pip-version-check
# What pip installs for PyTorch. Its default is a build for GPUs (gigabytes); the tests need only a CPU build:
# make test TORCH=path/to/torch-cpu.whl. An older GPU may need another build, for example a V100 one for CUDA 12.6:
# make model TORCH=path/to/torch-cu126.whl
TORCH       ?= torch==2.13.0
MODEL       ?= models/CosyVoice2-0.5B
PULL_ARGS   ?=
SERVE_ARGS  ?=
PYTEST_ARGS ?=
# So many tests run at a time. Tests that judge the clock have limits of their own, see tests/run_all.py.
PROCESSES   ?= 2
EXTENSION   ?= 700
# make torture: for how long, and the seed of its histories.
MINUTES      ?= 1
SEED         ?= 1
TORTURE_ARGS ?=
DEMO_ARGS   ?=
# make fuzz: which parsers (all if empty), and how many inputs for each.
TARGET      ?=
N           ?= 20000
FUZZ_ARGS   ?=
# make gpu-check: how long it may take, where its results are, and the Python that runs it. A machine without a network
# takes the packages that its Python lacks from a folder of wheels, which make gpu-wheels fills elsewhere.
GPU_BUDGET_S ?= 480
GPU_OUT      ?= gpu-check
GPU_ARGS     ?=
GPU_PYTHON   ?= $(BIN)/python
GPU_WHEELS   ?= .gpu
GPU_LACKS    ?= soxr>=0.5 websockets>=17,<18
GPU_VERSION  ?= 3.12

# Without this a sentence takes twice as long: OpenBLAS threads spin while onnxruntime's threads work.
export OPENBLAS_NUM_THREADS ?= 1
# With this set, each of the processes that the tests start would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
comma := ,
# make images: which, the program that builds (docker, podman or buildah), the base image, PyTorch for GPUs, pip's
# configuration for the build alone, more extras (EXTRAS=japanese,espeak), and more flags, such as BUILD_ARGS='--isolation chroot'.
IMAGES      ?= cpu cuda bridge asterisk
BUILDER     ?= $(firstword $(foreach program,docker podman buildah,$(if $(shell command -v $(program)),$(program))))
BASE        ?=
TAG         ?= 0.1.0
TORCH_INDEX ?=
PIP_CONF    ?=
EXTRAS      ?=
BUILD_ARGS  ?=
# The extras in the images.
LOCK_CPU    := remote others ray otel lang phrases lexicon pinyin formats
LOCK_CUDA   := remote others ray otel lang phrases lexicon pinyin formats cosyvoice hub

.PHONY: help run model setup check test test-all test-quick soak torture fuzz autobahn bench gpu-check gpu-wheels asterisk-demo asterisk-call fleet-demo ops-demo images locks manifests clean

help:
	@echo "make run     start the server on 127.0.0.1:8080   (SERVE_ARGS='--port 9000' adds flags)"
	@echo "make model   CosyVoice2: PyTorch and 3 GB of weights   (MODEL=dir, PULL_ARGS='--source modelscope')"
	@echo "make setup   install everything for developing"
	@echo "make check   lint and types"
	@echo "make test    check, then the tests                (PYTEST_ARGS='-k session' selects)"
	@echo "make test-all   those, and the long ones: Ray, planted defects, every benchmark. CI runs it"
	@echo "make test-quick   check, then the tests without sockets, processes and clocks"
	@echo "make soak    the long repetitions of some tests: many minutes"
	@echo "make fuzz    inputs that no parser expects         (TARGET='ssml esl' N=1000000 FUZZ_ARGS='--seed 7')"
	@echo "make autobahn   the Autobahn test suite against our WebSockets (needs Python 2.7)"
	@echo "make torture random calls and faults, judged   (MINUTES=10 SEED=7)"
	@echo "make bench   the benchmarks, results in benchmarks/results"
	@echo "make gpu-check   what a GPU gives, on one page, in 8 minutes   (GPU_BUDGET_S=300 GPU_OUT=dir; again: go on)"
	@echo "make gpu-wheels  fill .gpu with the packages that a GPU machine without a network lacks"
	@echo "make fleet-demo   two front processes and three engine replicas on Ray; one replica is killed while calls speak"
	@echo "make ops-demo   a real Prometheus, an experiment of two voices under load, and its report"
	@echo "make asterisk-demo   a real Asterisk, the server and a bot to call; make asterisk-call calls it"
	@echo "make images  build the container images: cpu, cuda, bridge, asterisk   (IMAGES=v100 TORCH_INDEX=...)"
	@echo "make locks   pin the Python packages of the images anew, in docker/locks"
	@echo "make manifests   render deploy/k8s from the Helm chart"
	@echo "make clean   remove what was installed and built here"

run: $(VENV)/.installed
	@exec $(BIN)/telephony-tts serve --config configs/server.yaml $(SERVE_ARGS)

model: $(VENV)/.installed-cosyvoice2
	@$(BIN)/telephony-tts models pull $(MODEL) $(PULL_ARGS) || { status=$$?; \
	  echo "==> run make model again to continue; to use the other hub: make model PULL_ARGS='--source modelscope'" >&2; \
	  exit $$status; }

setup: $(VENV)/.installed-dev

check: $(VENV)/.installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/mypy

test: check
	@$(need-npm)
	@$(BIN)/python tests/run_all.py --processes $(PROCESSES) --without-thorough $(PYTEST_ARGS)

test-all: check
	@$(need-npm)
	@$(BIN)/python tests/run_all.py --processes $(PROCESSES) $(PYTEST_ARGS)

test-quick: check
	@$(BIN)/python -m pytest --only quick -n $(PROCESSES) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

soak: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest --only soak $(PYTEST_ARGS)

fuzz: $(VENV)/.installed-dev
	@$(BIN)/python -m torture.fuzz $(TARGET) --inputs $(N) $(FUZZ_ARGS)

autobahn: $(VENV)/.installed-dev
	@$(BIN)/python -m torture.autobahn --json benchmarks/results/autobahn.json
torture: $(VENV)/.installed-dev
	@$(BIN)/python -m torture --minutes $(MINUTES) --seed $(SEED) $(TORTURE_ARGS)

# schedule.py and fleet.py are left out: they measure nothing, but compute from costs that are inputs. gpu_check.py has a
# target of its own.
BENCHMARKS := $(filter-out benchmarks/schedule.py benchmarks/fleet.py benchmarks/gpu_check.py,$(wildcard benchmarks/*.py))

bench: $(VENV)/.installed-dev
	@set -e; for benchmark in $(BENCHMARKS); do echo "== $$benchmark"; $(BIN)/python "$$benchmark"; done
	@echo "== bench engine"; $(BIN)/telephony-tts bench engine --config configs/cosyvoice2-cpu.yaml --random full \
	  --concurrency 1,2 --turns 2 --json benchmarks/results/callers.json

# Another Python than that of this directory must have the packages of [cosyvoice] but for those of GPU_WHEELS.
gpu-check: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(VENV)/.installed-cosyvoice2)
	@site=; if [ "$(GPU_PYTHON)" != "$(BIN)/python" ]; then \
	  site=$$(mktemp -d) && $(GPU_PYTHON) -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir \
	    --target "$$site" $(GPU_WHEELS)/*.whl || exit; \
	fi; \
	PYTHONPATH="$$site:." PYTHONUNBUFFERED=1 $(GPU_PYTHON) benchmarks/gpu_check.py --out "$(GPU_OUT)" \
	  --budget-s $(GPU_BUDGET_S) $(GPU_ARGS)

gpu-wheels: $(BIN)/python
	@mkdir -p $(GPU_WHEELS)
	@$(PIP) download --quiet --no-deps --only-binary=:all: --python-version $(GPU_VERSION) --implementation cp \
	  $(foreach n,2_28 2_27 2_17,--platform manylinux_$(n)_x86_64) --platform manylinux2014_x86_64 \
	  --platform manylinux1_x86_64 --dest $(GPU_WHEELS) $(foreach package,$(GPU_LACKS),'$(package)')
	@ls -l $(GPU_WHEELS)

asterisk-demo: $(VENV)/.installed
	@exec $(BIN)/python examples/asterisk_demo/demo.py $(DEMO_ARGS)

asterisk-call: $(VENV)/.installed
	@exec $(BIN)/python examples/asterisk_demo/demo.py --call $(EXTENSION) $(DEMO_ARGS)

fleet-demo: $(VENV)/.installed-ray
	@exec $(BIN)/python examples/fleet_demo/demo.py $(DEMO_ARGS)

ops-demo: $(VENV)/.installed-espeak
	@exec $(BIN)/python examples/ops_demo/demo.py $(DEMO_ARGS)

images:
	@[ -n "$(BUILDER)" ] || { echo "No docker, podman or buildah was found. On Debian: apt-get install buildah" >&2; exit 1; }
	@set -e; for image in $(IMAGES); do \
	  case $$image in \
	    asterisk) file=docker/asterisk.Dockerfile target= ;; \
	    bridge)   file=docker/Dockerfile target=bridge ;; \
	    v100)     file=docker/Dockerfile target=server; \
	      [ -n "$(TORCH_INDEX)" ] || { echo "A V100 needs PyTorch for CUDA 12.6: set TORCH_INDEX to PyTorch's index of it" >&2; exit 1; } ;; \
	    cpu|cuda) file=docker/Dockerfile target=server ;; \
	    *) echo "There is no image $$image; expected cpu, cuda, v100, bridge or asterisk" >&2; exit 1 ;; \
	  esac; \
	  echo "==> telephony-tts-$$image:$(TAG)"; \
	  $(BUILDER) build $(if $(findstring docker,$(BUILDER)),,--format docker) --file $$file $${target:+--target $$target} --tag telephony-tts-$$image:$(TAG) \
	    --build-arg VARIANT=$$image --build-arg VERSION=$(TAG) \
	    --build-arg REVISION="$$(git rev-parse HEAD)" --build-arg CREATED="$$(git log -1 --format=%cI)" \
	    $(if $(BASE),--build-arg BASE=$(BASE)) $(if $(TORCH_INDEX),--build-arg TORCH_INDEX=$(TORCH_INDEX)) \
	    $(if $(EXTRAS),--build-arg EXTRAS=$(EXTRAS)) \
	    $(if $(PIP_CONF),--secret id=pip_conf$(comma)src=$(PIP_CONF)) $(BUILD_ARGS) .; \
	done

locks: $(VENV)/.installed-dev
	@$(BIN)/python docker/make_locks.py --cpu "$(LOCK_CPU)" --cuda "$(LOCK_CUDA)"

manifests: $(VENV)/.installed-dev
	@$(BIN)/python deploy/render.py

clean:
	rm -rf $(VENV) .peers .pytest_cache .hypothesis .mypy_cache .ruff_cache build dist *.egg-info
	find telephony_tts sip_bridge tests benchmarks torture examples -name __pycache__ -type d -prune -exec rm -rf {} +

# ------------------------------------------------------------------- installing
# If a stamp is newer than pyproject.toml there is nothing to install, and pip does not run.

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "==> installing telephony-tts and its voice into $(VENV): about 132 MB of downloads, once"
	@$(PIP) install --quiet --editable .
	@$(BIN)/python -m telephony_tts.engines.kernels.library || true
	@touch $@

$(VENV)/.installed-cosyvoice2: pyproject.toml | $(BIN)/python
	@echo "==> installing PyTorch and the CosyVoice2 engine into $(VENV), once; PyTorch for GPUs is gigabytes"
	@$(PIP) install $(TORCH)
	@$(PIP) install --quiet --editable '.[cosyvoice,hub]'
	@$(BIN)/python -m telephony_tts.engines.kernels.library || true
	@touch $(VENV)/.installed $@

$(VENV)/.installed-espeak: pyproject.toml | $(BIN)/python
	@echo "==> installing telephony-tts and espeak-ng into $(VENV), once"
	@$(PIP) install --quiet --editable '.[espeak]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-ray: pyproject.toml | $(BIN)/python
	@echo "==> installing Ray Serve and telephony-tts into $(VENV): 470 MB, once"
	@$(PIP) install --quiet --editable '.[ray]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "==> installing telephony-tts and what its tests need into $(VENV): about 270 MB and PyTorch, once"
	@$(PIP) install --quiet --no-compile $(TORCH) --editable '.[dev,espeak,cosyvoice,hub]'
	@$(BIN)/python -m telephony_tts.engines.kernels.library || true
	@touch $(VENV)/.installed $(VENV)/.installed-cosyvoice2 $@

$(BIN)/python:
	@$(find-python); $(make-venv)

# A command may exist and be a shim for a version that is not installed, so each candidate is run.
define find-python
python=; \
for candidate in $(PYTHON) python3 python3.13 python3.12 python3.11 python3.14; do \
  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
    python=$$candidate; break; \
  fi; \
done; \
if [ -z "$$python" ]; then \
  echo "Python 3.11 or newer was not found." >&2; \
  echo "On Debian 12 or Ubuntu 24.04: apt-get install python3 python3-venv.  Elsewhere: make run PYTHON=/path/to/python" >&2; \
  exit 1; \
fi
endef

# Debian packages `venv` apart from python3, so there are two fallbacks. An unfinished .venv is removed.
define make-venv
echo "==> making $(VENV) with $$($$python --version)"; \
try() { rm -rf $(VENV); "$$@" >$(VENV).log 2>&1 && $(BIN)/python -m pip --version >/dev/null 2>&1; }; \
try "$$python" -m venv $(VENV) || { \
  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
    package=$$("$$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
    echo "==> this Python has no venv: apt-get install $$package"; \
    { apt-get install -y -qq $$package || { apt-get update -qq && apt-get install -y -qq $$package; }; } >/dev/null 2>&1; \
  fi; \
  try "$$python" -m venv $(VENV); \
} || { \
  echo "==> still no venv: trying virtualenv"; \
  "$$python" -m virtualenv --version >/dev/null 2>&1 || "$$python" -m pip install --quiet --target $(VENV).bootstrap virtualenv >/dev/null 2>&1; \
  PYTHONPATH=$(VENV).bootstrap try "$$python" -m virtualenv $(VENV); \
} || { \
  cat $(VENV).log >&2; rm -rf $(VENV) $(VENV).log $(VENV).bootstrap; \
  echo "A virtual environment could not be made with $$python." >&2; \
  echo "On Debian or Ubuntu, as root: apt-get install python3-venv.  Then make again." >&2; \
  exit 1; \
}; \
rm -rf $(VENV).log $(VENV).bootstrap
endef

# tests/e2e/test_wscat.py drives the server with wscat, a client from npm.
define need-npm
command -v npm >/dev/null || { \
  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
    echo "==> the tests use a client from npm: apt-get install nodejs npm"; \
    { apt-get install -y -qq --no-install-recommends nodejs npm || \
      { apt-get update -qq && apt-get install -y -qq --no-install-recommends nodejs npm; }; } >/dev/null; \
  else \
    echo "The tests use a client from npm: install nodejs and npm, then make test again." >&2; exit 1; \
  fi; \
}
endef
