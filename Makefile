# Needs git, make and Python 3.11 or newer; everything else is installed into .venv.
# Another interpreter: make setup PYTHON=/path/to/python3.12

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || echo python3)
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH := $(shell grep '^torch==' constraints.txt)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-models test-serve lint format clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.dev ## everything for development, in .venv

demo: $(VENV)/.run ## mark a text and detect it, with real models (the first run fetches them)
	@$(BIN)/dewmark demo

test: $(VENV)/.dev ## the fast tests: offline, no models (one thread in each of two processes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

test-models: $(VENV)/.dev ## the tests that run SmolLM2 and the encoders
	$(BIN)/python -m pytest -q -m models

test-serve: $(VENV)/.serve ## the tests that drive the service with clients, processes and a browser
	$(BIN)/python -m pytest -q -m serve

lint: $(VENV)/.dev ## style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.dev ## put the code into the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## delete the environment, caches and build outputs (fetched models stay)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: .run is the library, .dev adds the tools and the optional parts, .serve what drives the service.
# All are made again when the dependencies change.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "dewmark needs Python 3.11 or newer; try: make setup PYTHON=/path/to/python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing the library (torch first; this takes a few minutes once) ..."
	$(PIP) install -q -c constraints.txt $(TORCH)
	$(PIP) install -q -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "Installing the tools for development ..."
	$(PIP) install -q -c constraints.txt -e '.[dev,encoders,serve]'
	@touch $@

$(VENV)/.serve: $(VENV)/.dev
	@echo "Installing clients of the service and a browser for its tests ..."
	$(PIP) install -q -c constraints.txt -e '.[serve-tests]'
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; } || \
		{ echo "the browser tests need chromium: install it and run make test-serve again" >&2; exit 2; }
	@touch $@
