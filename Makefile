# Two commands do everything on a fresh machine: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := actors decoding jobs pipeline

# Ray hands its own environment to its workers: no token authentication and no memory monitor in local runs.
export RAY_AUTH_MODE ?= disabled
export RAY_memory_monitor_refresh_ms ?= 0

.PHONY: help setup demo test check fmt clean
help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/installed  ## create .venv and install (the other commands do it when needed)

$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]" -c constraints.txt
	touch $@

demo: setup  ## generate the bundled prompts with the bundled pair, on CPU
	$(BIN)/python -m jobs.generate --config examples/configs/demo.yaml

test: setup  ## run the tests: no network, no GPU, under 15 minutes
	$(BIN)/python -m pytest -m "not gpu and not slow"

check: setup  ## lint, format, types, imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: setup  ## format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the virtual environment and the demo's output
	rm -rf $(VENV) out
