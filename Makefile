# make demo         install lnrnn into .venv, and run its demo of ten seconds
# make test         run the tests; K=pattern selects tests by name; ARGS="-m quick" takes a minute
# make build        compile changed C and Cython (make test does it too)
# make lib          build liblnrnn for C programs, and the plug-in for ONNX Runtime, in build/lib
# make install      install these libraries, the header and lnrnn.pc into PREFIX (/usr/local)
# make wasm         build lnrnn.wasm and its package for JavaScript, in build/web
# make bench        compare lnrnn with installed libraries, K=pattern selects races by name
# make lint         check types, style, spelling, sentences and the numbers of lines
# make docs         build the documentation, build/docs/index.html
# make studies      run the studies of examples/studies, an hour on two cores; TUNE=1 chooses the settings first
# make wheels       build wheels for this and other machines, in dist/
# make campaign     run a long search for faults, NAME=fuzz; tests/campaigns/README.md lists the names
# make clean        remove all files that these targets create
PYTHON ?= python3
VENV ?= .venv
ifneq ($(words $(VENV)),1)
$(error VENV must be one path without spaces, got "$(VENV)")
endif
BIN = $(VENV)/bin
# Python compiles imported files to bytecode. If pip compiled all 10,000 files of the packages, that would take longer than lnrnn itself.
PIP = $(BIN)/python -m pip --disable-pip-version-check install --no-compile
# Tests start hundreds of processes. Without stored bytecode, each would compile the sources that it imports.
unexport PYTHONDONTWRITEBYTECODE
ARGS ?=
NAME ?=
PREFIX ?= /usr/local

PYTHONS = lnrnn setup.py docs examples tests pyx
C = $(shell find include pyx tests examples -name '*.[ch]' ! -name _core.c)
SOURCES = setup.py pyproject.toml pyx/layouts.c $(wildcard pyx/*.py include/*.h include/lnrnn/*.h include/lnrnn/*/*.h pyx/*/*.[ch] pyx/*.px[ydi] lnrnn/*.pxd)

.PHONY: help demo test build lib wasm install bench lint docs studies wheels campaign clean types style spelling sentences sizes workflows format warnings peers
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help:
	@sed -n '/^# make/s/^# //p' Makefile
	@echo
	@echo "For all targets, ARGS= has more arguments for the program, and VENV= names another folder than .venv."
	@echo "make types, style, spelling, sentences, sizes, workflows   run a part of lint; make format formats all sources"
	@echo "make warnings                 compile every C file with warnings, with all installed compilers"
	@echo "make bench ARGS='--benchmark-json A.json'   measure one commit; B.json in the other commit, then compare:"
	@echo "                              .venv/bin/pytest-benchmark compare A.json B.json --columns=median,iqr"
	@echo "make peers                    install the libraries with which benchmarks compare lnrnn"
	@echo "make .venv/.whole             install packages without which some tests are skipped"

demo: $(VENV)/.demo
	$(BIN)/lnrnn demo $(ARGS)
	@echo "The command is $(BIN)/lnrnn, for example: $(BIN)/lnrnn demo --cell lstm"

studies: $(VENV)/.demo
	$(BIN)/lnrnn demo all --output-dir build/studies $(if $(TUNE),--tune) $(ARGS)
	@echo "To keep these numbers: cp build/studies/*.json examples/studies/results/"

# Two processes run the tests, file by file, in the order that tests/conftest.py decides. A test that takes more than five minutes fails
# with a traceback.
test: $(VENV)/.test
	$(BIN)/python -m pytest $(if $(K),-k "$(K)",-n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0) \
	    -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true $(ARGS)

lint: types style spelling sentences sizes workflows

types: $(VENV)/.lint $(VENV)/.user
	$(BIN)/python -m mypy
	$(BIN)/python -m pyright --project tests/package --pythonpath $(VENV)/user/bin/python

style: $(VENV)/.lint
	$(BIN)/python -m ruff check $(PYTHONS)
	$(BIN)/python -m ruff format --check $(PYTHONS)
	$(BIN)/clang-format --dry-run -Werror $(C)

spelling: $(VENV)/.lint
	$(BIN)/codespell

sentences:
	$(PYTHON) tests/lint/sentences.py

sizes:
	$(PYTHON) tests/lint/sizes.py

workflows: $(VENV)/.lint
	$(BIN)/zizmor --offline --quiet --no-progress --min-severity medium .github
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml

format: $(VENV)/.lint
	$(BIN)/python -m ruff check --fix --select I $(PYTHONS)
	$(BIN)/python -m ruff format $(PYTHONS)
	$(BIN)/clang-format -i $(C)

warnings:
	$(PYTHON) tests/campaigns/run.py warnings $(ARGS)

# These campaigns need more packages than the tests.
whole_campaigns = coverage engines mutants torch_samples
campaign: $(VENV)/$(if $(filter $(whole_campaigns),$(NAME)),.whole,.test) $(if $(filter machines wheels,$(NAME)),$(VENV)/.wheels) \
    $(if $(filter site,$(NAME)),$(VENV)/.docs)
	$(if $(filter engines,$(NAME)),$(PIP) --quiet "pyspark>=4" "ray[serve]>=2.40")
	$(if $(filter reader,$(NAME)),$(PIP) --quiet "atheris>=3")
	$(if $(filter coverage,$(NAME)),$(PIP) --quiet "coverage[toml]>=7.10" "gcovr>=8")
	$(BIN)/python tests/campaigns/run.py $(NAME) $(ARGS)

wheels:
	$(MAKE) campaign NAME=wheels

# Sphinx treats warnings as errors. Only the packages of the extra docs are downloaded.
docs: $(VENV)/.docs
	rm -rf build/docs
	$(BIN)/python -m sphinx -q -n -W --keep-going -E -b html docs build/docs
	@echo "The documentation is build/docs/index.html"

build: $(VENV)/.build

lib:
	$(PYTHON) pyx/library.py

install:
	$(PYTHON) pyx/library.py --prefix "$(PREFIX)"

wasm: $(VENV)/.wheels
	$(BIN)/python pyx/wasm.py

bench: $(VENV)/.bench
	$(BIN)/python -m pytest tests/benchmarks --confcutdir=tests/benchmarks --benchmark-quiet $(if $(K),-k "$(K)") $(ARGS)

peers: $(VENV)/.bench
	$(PIP) torch==2.13.0
	$(PIP) onnx==1.23.2 onnxruntime==1.31.1 jax==0.10.2 openvino==2026.4.1

# Optional packages without which some tests are skipped. .ci/run also installs compilers and emulators.
$(VENV)/.whole: $(VENV)/.test $(VENV)/.dask $(VENV)/.ray
	$(PIP) --quiet "torch==2.13.0" "keras>=3" "onnxscript>=0.5" "openvino>=2025.4" ziglang universalmutator redis prometheus_client "websockets>=15"
	$(PIP) --quiet --no-deps silero-vad piper-tts ddddocr
	touch $@

# An editable install. Without build isolation only C files are compiled that changed, or include a changed header.
$(VENV)/.build: $(VENV)/.tools $(SOURCES)
	@echo "Compiling changed files: all of lnrnn takes 40 to 80 seconds on two cores"
	@$(PIP) --quiet --no-build-isolation --no-deps -e .
	@touch $@

# An environment for type checkers, with the files of lnrnn that a user installs except compiled ones, and the packages of .venv.
$(VENV)/.user: $(VENV)/.build $(shell find lnrnn -name '*.py*' ! -name '*.pyc')
	rm -rf $(VENV)/user
	$(BIN)/python -m venv --without-pip $(VENV)/user
	site="$$($(VENV)/user/bin/python -c 'import sysconfig as s; print(s.get_path("purelib"))')" && \
	    $(BIN)/python setup.py --quiet build_py --build-lib "$$site" && \
	    $(BIN)/python -c 'import sysconfig as s; print(s.get_path("purelib"))' >"$$site/beside.pth"
	touch $@

# Builds lnrnn, and at the same time installs the packages of an extra of pyproject.toml.
$(addprefix $(VENV)/.,demo test dask ray lint bench docs wheels): $(VENV)/.%: $(SOURCES) pyproject.toml
	@$(MAKE) --no-print-directory -j2 $(VENV)/.build $(VENV)/$*.txt
	@touch $@

$(VENV)/%.txt: $(VENV)/.tools pyproject.toml
	@echo "Installing the packages of the extra $* into $(VENV)"
	@$(BIN)/python -c 'from setuptools.config.pyprojecttoml import load_file as f; print(*f("pyproject.toml")["project"] \
	    ["optional-dependencies"]["$*"], sep="\n")' >$@
	@$(PIP) --quiet -r $@

$(VENV)/.tools: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lnrnn needs Python 3.11 or later, this is " + sys.version)'
	@echo "Creating $(VENV), with setuptools, Cython and NumPy"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --quiet "setuptools>=77" "cython>=3.1" "numpy>=2"
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info pyx/_core.c lnrnn/*.so lnrnn/*.so.* lnrnn/*.dylib lnrnn/torch/*.so .pytest_cache .hypothesis benchmarks-results
