# `make run` and `make test` work on a fresh machine that has python3, make and git.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := .venv-stamp
PLUGINS := $(wildcard plugins/*/*/pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help setup run ready test test-all test-long lint compiled bench docs docs-outputs dist clean

help:
	@echo "make run       install everything, plan a language model on two simulated GPUs, and compare five methods"
	@echo "make test      install everything, check style and types, run the tests but for the slow ones"
	@echo "make test-all  the same with the slow ones: fresh environments, kills, the documents' commands"
	@echo "make test-long before a release: the same checks for more networks, plugins and pages"
	@echo "make lint      ruff and mypy alone"
	@echo "make bench     the benchmarks (minutes)"
	@echo "make docs      the documentation site, in docs/_build/html"
	@echo "make docs-outputs  run the commands of the documents, replace their output"
	@echo "make dist      the source archives and wheels of all packages, in dist/"
	@echo "make clean     remove what make installed"

$(STAMP): pyproject.toml $(PLUGINS) requirements-dev.txt constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check hatchling editables setuptools wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -r requirements-dev.txt
	@touch $(STAMP)

setup: $(STAMP)

OUT := outputs/make-run-$(shell date +%Y%m%d-%H%M%S)

run: $(STAMP)
	$(BIN)/placekit plan hf:meta-llama/Llama-3.3-70B-Instruct rtx4090_3090 weights=q4_k_m
	$(BIN)/placekit run -m +policy=single_device,critical_path,etf,heft,portfolio run_dir=$(OUT)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

ready: $(STAMP)
	$(MAKE) --no-print-directory -j2 lint compiled

test: ready
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

# One call of pytest: it takes most of a minute to find its tests.
test-all: ready
	$(BIN)/pytest -n 2 --dist worksteal -m "not long"

test-long: $(STAMP)
	$(BIN)/pytest -n 2 --dist worksteal -m long

# What most tests need compiled, once, and not by each of pytest's processes, which would wait for each other.
COMPILE = $(BIN)/placekit run -m budget.evaluations=8 log=[]
compiled: $(STAMP)
	@OUT=$$(mktemp -d) && { \
	    $(COMPILE) workload=llama_layer_sharded policy=etf,portfolio run_dir=$$OUT/a && \
	    $(COMPILE) workload=chainmm_small policy=doppler,placeto run_dir=$$OUT/b && \
	    $(COMPILE) workload=planted policy=chain backend=pipeline run_dir=$$OUT/c; } >$$OUT/log 2>&1 || \
	    { cat $$OUT/log; exit 1; }; rm -r $$OUT

bench: $(STAMP)
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/simulator.py
	$(BIN)/python benchmarks/tracing.py

docs: $(STAMP)
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet docs docs/_build/html
	@echo "docs/_build/html/index.html"

docs-outputs: $(STAMP)
	$(BIN)/python docs/outputs.py --write --slow

dist: $(STAMP)
	rm -rf dist
	$(BIN)/python .ci/dist.py dist

clean:
	rm -rf $(VENV) $(STAMP) dist
