# make run     install what is needed (once) and start the server with the embedded voice
# make model   install the CosyVoice2 engine and fetch its model, for a voice of your own
# make test    install what the tests need (once), lint, check types, run all tests
# Everything is put into .venv and .peers here; `make clean` removes it.

VENV  := .venv
BIN   := $(VENV)/bin
PIP   := $(BIN)/python -m pip --disable-pip-version-check
# The tests of the CosyVoice2 networks run on a CPU. Where pip would fetch a build for GPUs (gigabytes), point this at a
# CPU build: make test TORCH=path/to/torch-cpu.whl. It is also the way to a build for a GPU that newer ones leave out: a
# V100 needs one for CUDA 12.6, make model TORCH=path/to/torch-cu126.whl
TORCH       ?= torch==2.13.0
MODEL       ?= models/CosyVoice2-0.5B
PULL_ARGS   ?=
SERVE_ARGS  ?=
PYTEST_ARGS ?=
# How many tests run at a time, those aside that judge the clock: of these there are two, or they run alone.
PROCESSES   ?= 2
PAIR         = $(if $(filter 0 1,$(PROCESSES)),$(PROCESSES),2)
BY_FILE     := --dist loadfile --no-loadscope-reorder
EXTENSION   ?= 700
DEMO_ARGS   ?=

# OpenBLAS threads spin against onnxruntime's: without this a sentence takes twice as long.
export OPENBLAS_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help run model setup check test bench asterisk-demo asterisk-call clean

help:
	@echo "make run     start the server on 127.0.0.1:8080   (SERVE_ARGS='--port 9000' adds flags)"
	@echo "make model   CosyVoice2: PyTorch and 3 GB of weights   (MODEL=dir, PULL_ARGS='--source modelscope')"
	@echo "make setup   install everything for developing"
	@echo "make check   lint and types"
	@echo "make test    check, then all tests                (PYTEST_ARGS='-k session' selects)"
	@echo "make bench   the benchmarks, results in benchmarks/results"
	@echo "make asterisk-demo   a real Asterisk, the server and a bot to call; make asterisk-call calls it"
	@echo "make clean   remove what was installed and built here"

run: $(VENV)/.installed
	@exec $(BIN)/telephony-tts serve --config configs/server.yaml $(SERVE_ARGS)

model: $(VENV)/.installed-cosyvoice2
	@$(BIN)/telephony-tts models pull $(MODEL) $(PULL_ARGS) || { status=$$?; \
	  echo "==> make model again goes on where it stopped; the other hub: make model PULL_ARGS='--source modelscope'" >&2; \
	  exit $$status; }

setup: $(VENV)/.installed-dev

check: $(VENV)/.installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/mypy

# Three passes: what judges the clock comes in pairs, and last what must run alone. One that finds nothing to do (5) is no
# failure, all of them are; what is neither passed nor failed, but broken off, ends it.
test: check
	@$(need-npm)
	@status=5; \
	for pass in "beside -n $(PROCESSES) $(BY_FILE)" "timed -n $(PAIR) $(BY_FILE)" "alone"; do \
	  $(BIN)/python -m pytest --only $$pass $(PYTEST_ARGS); passed=$$?; \
	  case $$passed in 0) [ $$status = 1 ] || status=0;; 1) status=1;; 5) ;; *) exit $$passed;; esac; \
	done; \
	exit $$status

# schedule.py measures nothing: it computes what would follow from prices that are put in.
BENCHMARKS := $(filter-out benchmarks/schedule.py,$(wildcard benchmarks/*.py))

bench: $(VENV)/.installed-dev
	@set -e; for benchmark in $(BENCHMARKS); do echo "== $$benchmark"; $(BIN)/python "$$benchmark"; done
	@echo "== bench engine"; $(BIN)/telephony-tts bench engine --config configs/cosyvoice2-cpu.yaml --random full \
	  --concurrency 1,2 --turns 2 --json benchmarks/results/callers.json

asterisk-demo: $(VENV)/.installed
	@exec $(BIN)/python examples/asterisk_demo/demo.py $(DEMO_ARGS)

asterisk-call: $(VENV)/.installed
	@exec $(BIN)/python examples/asterisk_demo/demo.py --call $(EXTENSION) $(DEMO_ARGS)

clean:
	rm -rf $(VENV) .peers .pytest_cache .hypothesis .mypy_cache .ruff_cache build dist *.egg-info
	find telephony_tts sip_bridge tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

# ------------------------------------------------------------------- installing
# A stamp newer than pyproject.toml means nothing to install, so a second start runs no pip.

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "==> installing telephony-tts and its voice into $(VENV): about 60 MB of downloads, once"
	@$(PIP) install --quiet --editable .
	@touch $@

$(VENV)/.installed-cosyvoice2: pyproject.toml | $(BIN)/python
	@echo "==> installing PyTorch and the CosyVoice2 engine into $(VENV), once; PyTorch for GPUs is gigabytes"
	@$(PIP) install $(TORCH)
	@$(PIP) install --quiet --editable '.[cosyvoice,hub]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "==> installing telephony-tts and what its tests need into $(VENV): about 110 MB and PyTorch, once"
	@$(PIP) install --quiet $(TORCH)
	@$(PIP) install --quiet --editable '.[dev,espeak,cosyvoice,hub]'
	@touch $(VENV)/.installed $(VENV)/.installed-cosyvoice2 $@

$(BIN)/python:
	@$(find-python); $(make-venv)

# A command that exists can still be a shim for a version that is not there, so each candidate is asked.
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

# Debian splits `venv` off python3, so a bare system needs a second way. A half-made .venv must not look finished.
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

# One test drives the server with wscat, a client from npm.
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
