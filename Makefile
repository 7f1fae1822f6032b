# Two commands for everybody: make demo, make test. Each makes .venv and installs what it needs into it.
#   make test [K=pattern]    only the tests whose names fit
#   make build               after a change of C or Cython; compiles what has changed (make test does it too)
#   make bench [K=pattern]   the benchmarks, against the peers that are installed (make peers installs them)
#   make lint                types, style and spelling: mypy, ruff, codespell
#   make clean               all that these made
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check
K ?=
ARGS ?=

SOURCES = setup.py pyproject.toml pyx/build_flags.py $(wildcard include/*.h include/lnrnn/*/*.h pyx/*/*.[ch] pyx/*.px[ydi])

.PHONY: demo test lint build bench peers clean

demo: $(VENV)/.demo
	$(BIN)/lnrnn demo $(ARGS)
	@echo "The command is $(BIN)/lnrnn: try $(BIN)/lnrnn demo --cell lstm"

test: $(VENV)/.test
	$(BIN)/python -m pytest $(if $(K),-k "$(K)") $(ARGS)

lint: $(VENV)/.lint
	$(BIN)/python -m mypy
	$(BIN)/python -m ruff check lnrnn setup.py examples
	$(BIN)/codespell

build: $(VENV)/.build

bench: $(VENV)/.bench
	$(BIN)/python -m pytest tests/benchmarks --confcutdir=tests/benchmarks --benchmark-quiet $(if $(K),-k "$(K)") $(ARGS)

peers: $(VENV)/.bench
	$(PIP) install torch==2.13.0
	$(PIP) install onnx==1.23.2 onnxruntime==1.31.1 jax==0.10.2 openvino==2026.4.1

# One build for all, editable: the Python below .venv is the Python here. Without pip's own environment for builds, so that
# a change of one header compiles what includes it and nothing else.
$(VENV)/.build: $(VENV)/.tools $(SOURCES)
	$(PIP) install --quiet --no-build-isolation --no-deps -e .
	touch $@

# The packages of an extra, as pyproject.toml names them.
$(VENV)/.demo $(VENV)/.test $(VENV)/.lint $(VENV)/.bench: $(VENV)/.%: $(VENV)/.build pyproject.toml
	$(BIN)/python -c 'import importlib.metadata as m; print(*(r.partition(";")[0] for r in m.requires("lnrnn") \
	    if r.partition("extra == ")[2].strip("\"\x27 ") == "$*"), sep="\n")' >$(VENV)/$*.txt
	$(PIP) install --quiet -r $(VENV)/$*.txt
	touch $@

$(VENV)/.tools: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "lnrnn needs Python 3.10 or later, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet "setuptools>=77" "cython>=3.1" "numpy>=2"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info pyx/_core.c lnrnn/*.so .pytest_cache .hypothesis benchmarks-results
