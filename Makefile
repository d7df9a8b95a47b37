# Two commands do everything on a machine with Python 3.11 or newer: make demo, make test.
PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test slow lint clean

demo: .venv/installed
	$(BIN)/ladder run experiments/laptop.py

test: .venv/installed-dev
	$(BIN)/python -m pytest -m "not slow"

slow: .venv/installed-dev
	$(BIN)/python -m pytest -m slow

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; found $$($(PYTHON) --version). Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	@echo "installing into .venv (about 1 GB, a few minutes the first time)"
	$(PIP_INSTALL) -e '.[demo]'
	@touch $@

.venv/installed-dev: .venv/installed
	$(PIP_INSTALL) -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv
