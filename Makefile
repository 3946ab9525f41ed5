# Everything a newcomer needs is two commands: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# one file of versions known to work together, for every command
PIP_INSTALL = $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable

# processes that tests start would compile every module anew
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all bench bars lint lines docs clean

demo: $(VENV)/.demo ## train a small model, explain it, predict what would make it faster, fly the best
	$(BIN)/windtunnel demo --out demo --force

test: lint $(VENV)/.dev ## lint, types, import contracts and the test-suite
	$(BIN)/python -m pytest -q -m "not slow" -n 2 --dist worksteal

test-all: lint $(VENV)/.dev ## the same with the slow tests
	$(BIN)/python -m pytest -q

bench: bars

bars: $(VENV)/.bench ## run every bar and print a table
	$(BIN)/python -m benchmarks.run_all

lint: $(VENV)/.dev
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports

lines: $(VENV)/.dev ## lines and files of the core and of each subject
	$(BIN)/python -m tests.house_scan

docs: $(VENV)/.docs
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than 3.11"; echo "  fix:   make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP_INSTALL) '.[torch]'
	@touch $@

$(VENV)/.dev: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP_INSTALL) '.[torch,plot,suite,search,plan,learn,serve,dataio,s3,bfloat16,test,lint]'
	@touch $@ $(VENV)/.demo

$(VENV)/.bench: $(VENV)/.dev
	$(PIP_INSTALL) '.[torch,plot,suite,search,plan,learn,serve,dataio,s3,bfloat16,test,lint,bench,tvm]'
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(PIP_INSTALL) '.[torch,plot,suite,search,plan,learn,serve,dataio,s3,bfloat16,test,lint,docs]'
	@touch $@

clean:
	rm -rf $(VENV) demo docs/_build .mypy_cache .ruff_cache .hypothesis
