# `make audit` runs the main audit, `make test` runs linters, types and tests, and `make docs` builds
# the site. Each target first makes a virtual environment in $(VENV).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# One thread per process: two OpenMP threads on a busy machine stall each other.
export OMP_NUM_THREADS ?= 1
# The tests start many processes, which share compiled bytecode.
unexport PYTHONDONTWRITEBYTECODE

# Tests that need only numpy and scipy.
PLAIN := tests/test_checks.py tests/test_numerics.py tests/test_orders.py \
	tests/repetitions/test_repetitions.py tests/upper_bounds/test_selection_bounds.py

PLAIN_UNDER_NEWEST := $(PLAIN)

.PHONY: audit test suite test-thorough test-slow test-lowest test-bare lint types docs notebooks clean

audit: $(VENV)/.installed
	$(BIN)/python -m audit.run --threat ETCV --canary dirac --out runs/etcv-dirac

test: $(VENV)/.installed
	$(MAKE) -j 3 types suite lint

# All quick tests and doctests but those of `make lint`.
suite: $(VENV)/.installed
	$(BIN)/python -m pytest --ignore tests/test_language.py

# The longer tests that every change must pass, and those of the studies behind the tables of the documentation.
test-thorough: $(VENV)/.installed
	$(BIN)/python -m pytest -m "(thorough or studies) and not slow"

# More of the same at more settings: an hour.
test-slow: $(VENV)/.installed
	$(BIN)/python -m pytest -m slow

# Tests bounds with the lowest versions that the plain installation allows. They need Python 3.11 or 3.12.
test-lowest:
	$(PYTHON) -m venv build/lowest
	build/lowest/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c .ci/lowest.txt \
		numpy scipy hypothesis pytest pytest-xdist
	build/lowest/bin/python -m pytest -p no:cacheprovider -k "not dp_accounting" $(PLAIN)

# Runs the command of the plain installation, from the wheel, under each newer Python that this machine
# has, and tests under the newest.
test-bare:
	PYTHON=$(PYTHON) .ci/bare $(PLAIN_UNDER_NEWEST)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n 0 tests/test_language.py

types: $(VENV)/.installed
	$(BIN)/mypy

# Builds the whole site every time. Warnings and dead links are errors.
# Formulas are typeset by MathJax where npm can install it, and otherwise as MathML.
docs: $(VENV)/.installed
	rm -rf build/site docs/reference/generated
	npm install --silent --no-save --no-audit --no-fund --prefix build/npm mathjax@3.2.2 || true
	$(BIN)/python docs/theory_pdf.py docs/theory.pdf
	$(BIN)/python -m sphinx -W --keep-going -q -E -j 4 -b html docs build/site
	$(BIN)/python docs/check_links.py build/site
	@echo "the site: build/site/index.html"

# Executes all notebooks, in about ten minutes, and stores them with their outputs.
notebooks: $(VENV)/.installed
	$(BIN)/python docs/store_notebooks.py

$(VENV)/.installed: pyproject.toml constraints.txt $(wildcard audit/dpsgd/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e ".[docs,test]"
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache
