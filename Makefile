# Two commands for everybody: make demo, make test. Each makes .venv and installs what it needs into it.
#   make test [K=pattern]    only the tests whose names fit
#   make studies             the studies of examples/studies, 20 seeds: an hour on two cores; TUNE=1 chooses their settings first
#   make build               after a change of C or Cython; compiles what has changed (make test does it too)
#   make bench [K=pattern]   the benchmarks, against the peers that are installed (make peers installs them)
#   make lint                types (mypy, pyright), style (ruff, clang-format) and spelling (codespell); make format rewrites
#   make warnings            every C unit through gcc and clang with warnings on
#   make sanitize [K=...]    the tests, built with gcc's address and undefined-behaviour sanitizers; an hour
#   make valgrind            every kind of call in a few sizes under valgrind's memcheck, on the scalar instruction set
#   make tsan                the tests of threads under gcc's thread sanitizer, with a broken barrier as its control
#   make guard               sizes 1 to 200 of everything with pages around every array that nothing may touch
#   make digest              the same bits for any number of threads, either kind of them, affinity, OpenMP's settings, caches
#   make faults [ARGS=...]   memory, files, limits and signals fail while lnrnn works (tests/faults/run.py says what); five minutes
#   make races [ARGS=...]    readers against setters, many callers, fork, spawn, exit (tests/races/run.py says what); three minutes
#   make fuzz [SECONDS=60]   random cases against the reference and against themselves; SEED=, TALLY=file to add a line to
#   make ulp [STEP=n]        exp, tanh and sigmoid of all 2^32 floats (of every n-th one) on every instruction set
#   make coverage            lines and branches of Python, Cython and C that the suite never runs; an hour
#   make mutants             random mutations of the code: does the suite notice them? Two hours; CHANGED=1: of changed lines, minutes
#   make machines [ARGS="neon musl"]   other compilers, machines, C libraries and Pythons, as far as they are here (tests/machines/run.py)
#   make wheels [ARGS="x86_64 --python 3.12"]   wheels for this machine and for others, into dist/ (tests/wheels/run.py says which)
#   make soak [STEPS=n] [CALLS=n]   10^7 steps of a stream and 10^6 mixed calls: memory flat, results right
#   make docs                the documentation as a site, in build/docs/index.html
#   make clean               all that these made
PYTHON ?= python3
VENV ?= .venv
ifneq ($(words $(VENV)),1)
$(error VENV must be one path without spaces, got "$(VENV)")
endif
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check
ARGS ?=
SECONDS ?= 60
SEED ?=
TALLY ?=

PYTHONS = lnrnn setup.py docs examples tests pyx
C = $(shell find include pyx tests examples -name '*.[ch]' ! -name _core.c)
SOURCES = setup.py pyproject.toml $(wildcard pyx/*.py include/*.h include/lnrnn/*/*.h pyx/*/*.[ch] pyx/*.px[ydi] lnrnn/*.pxd)

.PHONY: demo studies test lint types style spelling format warnings sanitize valgrind coverage mutants tsan guard digest build bench peers \
    faults races fuzz ulp machines wheels soak docs clean

demo: $(VENV)/.demo
	$(BIN)/lnrnn demo $(or $(ARGS),--figure build/long-sequences.png)
	@echo "The command is $(BIN)/lnrnn: try $(BIN)/lnrnn demo --cell lstm"

studies: $(VENV)/.demo
	$(BIN)/lnrnn demo all --output-dir build/studies $(if $(TUNE),--tune) $(ARGS)
	@echo "To keep these numbers: cp build/studies/*.json examples/studies/results/"

# Two processes, for two cores; a file's tests stay together, in the order of tests/conftest.py. A test that does not end
# fails after five minutes, and says where it was.
test: $(VENV)/.test
	$(BIN)/python -m pytest $(if $(K),-k "$(K)",-n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0) \
	    -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true $(ARGS)

lint: types style spelling

types: $(VENV)/.lint $(VENV)/.user
	$(BIN)/python -m mypy
	$(BIN)/python -m pyright --project tests/package --pythonpath $(VENV)/user/bin/python

style: $(VENV)/.lint
	$(BIN)/python -m ruff check $(PYTHONS)
	$(BIN)/python -m ruff format --check $(PYTHONS)
	$(BIN)/clang-format --dry-run -Werror $(C)

spelling: $(VENV)/.lint
	$(BIN)/codespell

format: $(VENV)/.lint
	$(BIN)/python -m ruff check --fix --select I $(PYTHONS)
	$(BIN)/python -m ruff format $(PYTHONS)
	$(BIN)/clang-format -i $(C)

warnings:
	$(PYTHON) tests/check_warnings.py

# Builds of their own, in copies of the sources.
sanitize: $(VENV)/.test
	$(BIN)/python tests/memory_checks.py address $(VENV)/sanitized $(if $(K),-k "$(K)") $(ARGS)

valgrind: $(VENV)/.test
	$(BIN)/python tests/memory_checks.py valgrind $(ARGS)

tsan: $(VENV)/.test
	$(BIN)/python tests/thread_sanitizer.py $(VENV)/tsan $(ARGS)

coverage: $(VENV)/.whole
	$(PIP) install --quiet "coverage>=7.10" "gcovr>=8"
	$(BIN)/python tests/run_coverage.py $(VENV)/covered $(ARGS)

mutants: $(VENV)/.whole $(VENV)/.campaigns
	$(BIN)/python tests/campaigns/run.py mutants $(if $(CHANGED),--changed) $(ARGS)

guard: $(VENV)/.test
	$(BIN)/python tests/guard/sweep.py $(ARGS)

digest: $(VENV)/.test
	$(BIN)/python tests/digest_settings.py $(ARGS)

# ARGS="--seed 7 --seconds 60 kill": parts by name, what is random again, longer.
faults: $(VENV)/.test
	$(BIN)/python tests/faults/run.py $(ARGS)

races: $(VENV)/.test
	$(BIN)/python tests/races/run.py $(ARGS)

fuzz: $(VENV)/.test
	$(BIN)/python tests/fuzz/fuzz.py --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(TALLY),--tally $(TALLY)) $(ARGS)

STEP ?= 1
ulp: $(VENV)/.test
	$(BIN)/python tests/ulp/ulp_sweep.py --step $(STEP) $(ARGS)

machines: $(VENV)/.test
	$(BIN)/python tests/machines/run.py $(VENV)/machines $(ARGS)

wheels: $(VENV)/.wheels
	$(BIN)/python tests/wheels/run.py $(VENV)/wheels $(ARGS)

STEPS ?= 10000000
CALLS ?= 1000000
soak: $(VENV)/.test
	$(BIN)/python tests/soak/soak.py --steps $(STEPS) --calls $(CALLS) $(if $(SEED),--seed $(SEED)) $(ARGS)

# Warnings are errors. Nothing is fetched but the packages of the extra docs.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -q -n -W --keep-going -E -b html docs build/docs
	@echo "The documentation is build/docs/index.html"

build: $(VENV)/.build

bench: $(VENV)/.bench
	$(BIN)/python -m pytest tests/benchmarks --confcutdir=tests/benchmarks --benchmark-quiet $(if $(K),-k "$(K)") $(ARGS)

peers: $(VENV)/.bench
	$(PIP) install torch==2.13.0
	$(PIP) install onnx==1.23.2 onnxruntime==1.31.1 jax==0.10.2 openvino==2026.4.1

# With what some tests are skipped for, if it is not there: see .ci/run, which has compilers and emulators too.
$(VENV)/.whole: $(VENV)/.test $(VENV)/.dask $(VENV)/.ray
	$(PIP) install --quiet "torch==2.13.0" "keras>=3" "mypy>=1.16"
	$(PIP) install --quiet --no-deps silero-vad
	touch $@

# One build for all, editable: the Python below .venv is the Python here. Without pip's own environment for builds, so that
# a change of one header compiles what includes it and nothing else.
$(VENV)/.build: $(VENV)/.tools $(SOURCES)
	@echo "Compiling what is new: all of lnrnn takes 40 to 80 seconds on two cores"
	@$(PIP) install --quiet --no-build-isolation --no-deps -e .
	@touch $@

# The package as a user installs it, for type checkers: what py.typed promises, with no source folder around it. Beside
# it the packages of .venv.
$(VENV)/.user: $(VENV)/.build $(shell find lnrnn -name '*.py*' ! -name '*.pyc')
	rm -rf build/lib* $(VENV)/user
	$(BIN)/python -m venv --without-pip $(VENV)/user
	$(PIP) install --quiet --no-build-isolation --no-deps --prefix $(VENV)/user --ignore-installed .
	$(BIN)/python -c 'import sysconfig as s; print(s.get_path("purelib"))' \
	    >"$$($(VENV)/user/bin/python -c 'import sysconfig as s; print(s.get_path("purelib"))')/beside.pth"
	touch $@

# The packages of an extra, as pyproject.toml names them, where their markers hold. -I: not as an old lnrnn.egg-info in this
# folder names them.
$(addprefix $(VENV)/.,demo test dask ray lint bench docs wheels campaigns): $(VENV)/.%: $(VENV)/.build pyproject.toml
	@echo "Installing the packages of the extra $* into $(VENV)"
	@$(BIN)/python -I -c 'import importlib.metadata as m, re; print(*(re.sub("( and|;) extra == .*", "", r) \
	    for r in m.requires("lnrnn") if r.partition("extra == ")[2].strip("\"\x27 ") == "$*"), sep="\n")' >$(VENV)/$*.txt
	@$(PIP) install --quiet -r $(VENV)/$*.txt
	@touch $@

$(VENV)/.tools: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "lnrnn needs Python 3.10 or later, this is " + sys.version)'
	@echo "Making $(VENV), with setuptools, Cython and NumPy"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet "setuptools>=77" "cython>=3.1" "numpy>=2"
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info pyx/_core.c lnrnn/*.so .pytest_cache .hypothesis benchmarks-results
