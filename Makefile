# Two commands for everybody: make demo, make test. Each makes .venv and installs what it needs into it.
#   make bench [K=pattern]   the benchmarks, against the peers that are installed (make peers installs them)
#   make clean               all that these made
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
K ?=
ARGS ?=

SOURCES = setup.py pyproject.toml $(wildcard include/*.h include/lnrnn/*.h pyx/*.c pyx/*.pyx pyx/*.pxd pyx/*.pxi)

.PHONY: demo test bench peers clean

demo: $(VENV)/.demo
	$(BIN)/lnrnn demo $(ARGS)

test: $(VENV)/.test
	$(BIN)/python -m pytest $(if $(K),-k "$(K)") $(ARGS)

bench: $(VENV)/.bench
	$(BIN)/python -m pytest tests/benchmarks --confcutdir=tests/benchmarks --benchmark-quiet $(if $(K),-k "$(K)") $(ARGS)

peers: $(VENV)/.bench
	$(BIN)/python -m pip install torch==2.13.0
	$(BIN)/python -m pip install onnx==1.23.2 onnxruntime==1.31.1 jax==0.10.2 openvino==2026.4.1

# Editable: the Python below .venv is the Python here. The C is built again when a source is newer than the stamp.
$(VENV)/.demo $(VENV)/.test $(VENV)/.bench: $(VENV)/.%: $(VENV)/bin/python $(SOURCES)
	$(BIN)/python -m pip install -e ".[$*]"
	touch $@

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "lnrnn needs Python 3.10 or later, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) build dist *.egg-info pyx/_core.c lnrnn/*.so .pytest_cache .hypothesis benchmarks-results
