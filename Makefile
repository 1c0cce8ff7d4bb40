# `make demo` and `make test` make the environment and do everything; python3 and make suffice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2

.PHONY: demo test test-all check docs format clean

demo: $(READY)
	$(BIN)/sween demo --out demo

# One thread a worker: two processes of two threads each would wait for each other.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not slow" -n $(WORKERS) --dist worksteal

test-all: $(READY)
	$(BIN)/pytest

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Warnings are errors, links inside the site and to files of the tree are checked.
docs: $(READY)
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sween needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) demo docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis
