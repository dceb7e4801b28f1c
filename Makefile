# Everything runs in .venv, which the first target sets up and later ones keep up to date with the files that define it,
# the native core and the modules that are compiled. Another interpreter: make PYTHON=python3.12 test. Another release of
# PyTorch, in an environment of its own: make test TORCH=2.14.1. Arguments: make demo ARGS="--seconds 60".

SHELL := /bin/bash
PYTHON ?= python3
ARGS ?=
PYTEST_ARGS ?=
TORCH ?=
VENV := .venv$(if $(TORCH),-torch-$(TORCH))
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NATIVE := src/multiworld/native
COMPILED := $(shell find $(addprefix src/multiworld/,channel remote serving wire world) -name '*.py') # types come from all of them
# Only some tests use what was compiled. The others, as those of model/ and of decisions that call nothing compiled, would
# do the same again.
SAME_AGAIN := test_compiled test_demo_record test_inductor test_import_cycles test_untyped_mappings test_liveness test_state test_store_state \
	test_mailroom test_fleet test_fleet_parts test_subscription $(addprefix test_,$(addsuffix _property, \
	elastic_roster liveness messages records serving_cache serving_fleet serving_page serving_scaling serving_tracing state store_state))
COMPILED_TESTS = $(shell \
	grep -rlE --include='test_*.py' 'multiworld\.(channel|serving|store|wire|world)|multiworld\.remote\.(node|protocol|session)|import multiworld|forerunner' tests/unit tests/property | \
	grep -vF -e /model/ -e /serving/gateway/ $(SAME_AGAIN:%=-e /%.py) | sort)
# Whoever loads a module gets what was written, not what was compiled.
SOURCES := MULTIWORLD_NATIVE=core
NONE_CHOSEN = $(if $(PYTEST_ARGS),|| [ $$? = 5 ]) # of what the arguments choose, one of two runs may have nothing

.PHONY: help setup demo test check lint types unit process bench docs clean
.DEFAULT_GOAL := help
.NOTPARALLEL:

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Set up .venv with the pinned versions

$(STAMP): pyproject.toml constraints.txt setup.py mypyc.ini tools/set_up.py $(NATIVE)/core.c $(NATIVE)/remote.c $(NATIVE)/compiled.py $(NATIVE)/generated.py $(COMPILED)
	@command -v $(PYTHON) >/dev/null || { \
		echo "error: '$(PYTHON)' not found: install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "error: $$($(PYTHON) --version 2>&1) is too old: multiworld needs Python 3.10 or newer; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) tools/set_up.py $(VENV) $(if $(TORCH),--torch $(TORCH))
	@touch $@

demo: $(STAMP) ## Serve real images through worlds that are killed and stopped meanwhile; options in ARGS
	@$(BIN)/multiworld demo $(ARGS)

test: $(STAMP) ## Run all checks and all tests
	@$(MAKE) lint
	@nice -n 19 $(MAKE) types >$(VENV)/types.log 2>&1 & trap "kill $$! 2>/dev/null" EXIT; \
		$(MAKE) unit; tested=$$?; wait $$!; typed=$$?; cat $(VENV)/types.log; exit $$((tested | typed))
	@$(MAKE) process

check: lint types ## Formatting, linting, typing, import contracts

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP) # in the test run beside the unit tests, which leave a processor idle here and there
	$(BIN)/mypy & trap "kill $$! 2>/dev/null" EXIT; $(BIN)/lint-imports; kept=$$?; wait $$! && exit $$kept

unit: $(STAMP) ## Run the tests that start no process, in parallel, of the sources and of what was compiled
	$(SOURCES) $(BIN)/pytest -n 2 tests/unit tests/property $(PYTEST_ARGS)
	$(BIN)/pytest -n 2 -m "not sources" $(COMPILED_TESTS) $(PYTEST_ARGS) $(NONE_CHOSEN)

process: $(STAMP) ## Run the tests that start processes; in CI, up to three that fail run once more, alone
	$(BIN)/python -m tests.stages $(PYTEST_ARGS)

bench: $(STAMP) ## Run the benchmarks beside raw torch.distributed; options in ARGS
	@$(BIN)/multiworld bench $(ARGS)

docs: $(VENV)/.docs ## Build the documentation into site/
	$(BIN)/mkdocs build --strict

$(VENV)/.docs: $(STAMP)
	@$(PYTHON) tools/set_up.py $(VENV) --extra docs
	@touch $@

clean: ## Remove .venv and everything that was built
	rm -rf .venv .venv-torch-* build $$(find src -name '*.so') dist site .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name '*.egg-info' -type d -prune -exec rm -rf {} +
