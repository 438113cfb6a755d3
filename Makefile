# `make` lists the targets. PYTHON chooses the interpreter, JAX the oldest or the newest version that
# we support: PYTHON=python3.13 JAX=oldest make test
PYTHON ?= python3
PYTHON_VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')
# The newest JAX needs Python 3.12.
JAX ?= $(shell $(PYTHON) -c 'import sys; print("newest" if sys.version_info >= (3, 12) else "oldest")')
PINS := constraints-$(JAX).txt
# One stamp for an interpreter and a JAX: the environment is made anew when one of them, the pins or
# the dependencies change, and never otherwise.
VERSIONS := $(PYTHON_VERSION)-$(JAX)
INSTALLED := .venv/installed-$(VERSIONS)
PEERS := .venv/peers-$(VERSIONS)
RUN := .venv/bin/python
DOCUMENTERS := .venv-docs/installed-$(VERSIONS)
# Apart from .venv: with the TPU's and the GPU's plugins, JAX looks for both devices at every start.
COMPILERS := .venv-compiled/installed-$(VERSIONS)

.DEFAULT_GOAL := help
.PHONY: help setup reproduce test test-slow coverage mutants results results-long lint docs bench bench-compiled clean

help:  ## List the targets
	@echo "make setup           .venv at pinned versions, for the commands in scripts/; other targets make it too"
	@echo "make reproduce       train, measure, prune, check claims; writes out/report/index.html (ARGS=\"--help\" for options)"
	@echo "make test            all tests but the slow ones"
	@echo "make test-slow       the tests that take seconds or minutes, or a part (PART=seconds, see tools/slow_parts.py)"
	@echo "make coverage        which lines and branches the tests run, out/coverage/index.html"
	@echo "make mutants         which planted mistakes the tests notice (ARGS=\"--package pruning --count 50\")"
	@echo "make results         what of docs/results differs when made anew (ARGS=\"all\")"
	@echo "make results-long    train the papers' tables for some hours, and resume (ARGS=\"--hours 8 --data-dir DIR --out DIR\")"
	@echo "make lint            formatting, lint, types and structure"
	@echo "make docs            the documentation as a site, out/site/index.html (.venv-docs)"
	@echo "make bench           speed against Flax and SciPy"
	@echo "make bench-compiled  memory traffic in programs compiled for TPU v5e and H100, no device needed (.venv-compiled)"
	@echo "make clean           remove .venv, .venv-compiled, .venv-docs, out and caches"

$(INSTALLED): EXTRAS := scripts,tests
$(COMPILERS): EXTRAS := scripts,compiled
$(DOCUMENTERS): EXTRAS := docs,scripts
$(INSTALLED) $(COMPILERS) $(DOCUMENTERS): pyproject.toml constraints.txt $(PINS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or later is needed; $(PYTHON) is $(PYTHON_VERSION)"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit("$(JAX)" == "newest" and sys.version_info < (3, 12))' \
	  || { echo "JAX=newest needs Python 3.12 or later; $(PYTHON) is $(PYTHON_VERSION)"; exit 2; }
	@echo "Setting up $(@D) with Python $(PYTHON_VERSION) and the $(JAX) JAX (once; about a minute)"
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D)
	@PIP_CONSTRAINT=$(PINS) PIP_DISABLE_PIP_VERSION_CHECK=1 \
	  $(@D)/bin/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	@touch $@

# Heavy, so only what compares with them waits for them.
$(PEERS): $(INSTALLED)
	@PIP_CONSTRAINT=$(PINS) PIP_DISABLE_PIP_VERSION_CHECK=1 \
	  .venv/bin/python -m pip install --quiet --editable '.[bench,language]'
	@touch $@

setup: $(INSTALLED)
	@echo "Run commands by .venv/bin/python scripts/..."

reproduce: $(INSTALLED)
	@echo "Reproducing the papers' main results on the digits data set"
	@$(RUN) scripts/reproduce.py $(ARGS)

test: $(INSTALLED)
	@echo "Running the tests"
	@$(RUN) -m pytest -n auto --dist worksteal $(ARGS)

# The parts "ci" and "seconds" need no peers.
test-slow: $(if $(filter ci seconds,$(PART)),$(INSTALLED),$(PEERS))
	@echo "Running the slow tests"
	@$(RUN) -m pytest -m slow -n auto --dist worksteal $(addprefix --part=,$(PART)) $(ARGS)

coverage: $(INSTALLED)
	@echo "Running the tests, and recording which lines each of them runs"
	@rm -rf out/coverage
	@$(RUN) -m pytest -n auto --dist worksteal --cov --cov-context=test \
	  --cov-report=term:skip-covered --cov-report=html:out/coverage $(ARGS)
	@echo "Open out/coverage/index.html"

mutants: $(INSTALLED)
	@echo "Planting mistakes"
	@$(RUN) -m tools.mutants $(ARGS)

results: $(INSTALLED)
	@echo "Regenerating results"
	@$(RUN) -m tools.results $(ARGS)

results-long: $(INSTALLED)
	@echo "Training the networks of the papers' tables"
	@$(RUN) -m tools.results_long $(ARGS)

lint: $(INSTALLED)
	@echo "Checking formatting, lint, types and structure"
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/basedpyright
	@$(RUN) -m tools.structure

docs: $(DOCUMENTERS)
	@echo "Building the site"
	@.venv-docs/bin/python -m sphinx --builder html --fail-on-warning --keep-going --quiet \
	  -d out/doctrees $(ARGS) docs out/site
	@echo "Open out/site/index.html"

bench: $(PEERS)
	@echo "Timing against Flax and SciPy"
	@$(RUN) scripts/bench.py $(ARGS)

bench-compiled: $(COMPILERS)
	@echo "Compiling for TPU v5e and H100"
	@.venv-compiled/bin/python scripts/bench_compiled.py $(ARGS)

clean:
	rm -rf .venv .venv-compiled .venv-docs out dist .pytest_cache .hypothesis .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
