# Everything a clean clone needs is Python >= 3.11 (with venv) and make. Run `make` to see the targets.
#
# VENV=dir     another environment directory (default .venv)
# PYTHON=exe   another interpreter (default: the first suitable python3 found)
# SUITES=a,b   only these suites of `make test` (see `make suites`)
# ARGS=...     passed on to `make demo`, `make bench`

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV ?= .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.refold-dev.stamp
DEMO_STAMP := $(VENV)/.refold-demo.stamp
PEERS := .venv-peers
PEERS_STAMP := $(PEERS)/.refold-peers.stamp
PIP := $(PY) -m pip --disable-pip-version-check --quiet
SUITES ?=
ARGS ?=

# The interpreters we test come first; any newer one is tried before giving up.
CANDIDATES := python3 python3.12 python3.11 python3.13 python3.14
PYTHON ?= $(shell for p in $(CANDIDATES); do \
	if $$p -c 'import sys, venv, ensurepip; raise SystemExit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	command -v $$p; break; fi; done)

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): requirements/dev.lock pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
	  echo "refold needs Python >= 3.11 with the venv module; found: $$(python3 --version 2>&1 || echo none)." >&2; \
	  echo "Install one (Debian: apt install python3.11-venv), or name it: make PYTHON=/path/to/python3.11" >&2; \
	  exit 1; fi
	@[ -x $(PY) ] || { echo "creating $(VENV) with $(PYTHON)" >&2; $(PYTHON) -m venv $(VENV); }
	@echo "installing the locked dependencies into $(VENV) (once; about a minute)" >&2
	@$(PIP) install --require-hashes --no-deps -r requirements/dev.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

# The demo's data: one wheel, taken without its dependencies (it declares dozens; its simulators need none).
$(DEMO_STAMP): $(STAMP) requirements/demo.lock
	@echo "installing the demo's conversations (bfcl-eval, data only) into $(VENV)" >&2
	@$(PIP) install --require-hashes --no-deps -r requirements/demo.lock
	@touch $@

.PHONY: venv
venv: $(STAMP) ## Create the environment with the locked dependencies

.PHONY: demo
demo: $(DEMO_STAMP) ## Three kills to read along, then 200 conversations under kills; about 4 minutes
	@$(PY) -m refold.cli.main demo $(ARGS)

.PHONY: test
test: $(DEMO_STAMP) ## Run every test suite within its time budget
	@$(PY) tests/run_suites.py $(if $(SUITES),--only $(SUITES))

.PHONY: test-long
test-long: $(DEMO_STAMP) ## The same with every random case, three times the budgets
	@LONG_TESTS=1 $(PY) tests/run_suites.py $(if $(SUITES),--only $(SUITES))

.PHONY: suites
suites: $(STAMP) ## List the suites of `make test` and their budgets
	@$(PY) tests/run_suites.py --list

.PHONY: lint
lint: $(STAMP) ## ruff, mypy --strict, import contracts, tidiness
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(VENV)/bin/lint-imports --no-cache
	@$(PY) -m pytest -q -p no:cacheprovider tests/ops/test_tidy.py

# What bench.tools compares with, kept apart: dozens of packages that refold does not need.
$(PEERS_STAMP): $(STAMP) requirements/peers.lock
	@echo "installing the benchmark's peers into $(PEERS)" >&2
	@$(PY) -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes --no-deps -r requirements/peers.lock
	@touch $@

.PHONY: bench
bench: $(STAMP) $(PEERS_STAMP) ## Measure throughput, latency, memory, streams and tools (about fifteen minutes)
	@$(PY) -m bench.throughput --json $(ARGS)
	@$(PY) -m bench.latency --json $(ARGS)
	@$(PY) -m bench.memory --json $(ARGS)
	@$(PY) -m bench.streaming --json $(ARGS)
	@$(PY) -m bench.tools --json --peers $(PEERS)/bin/python $(ARGS)

.PHONY: bench-recovery
bench-recovery: $(STAMP) ## Measure restores beside Kafka Streams (about six minutes, 80 MB of jars once)
	@$(PY) -m bench.recovery --json $(ARGS)

.PHONY: lock
lock: $(STAMP) ## Resolve the dependencies anew into requirements/dev.lock
	@$(PY) -m uv pip compile pyproject.toml requirements/build.in --extra dev --python-version 3.11 --universal \
	  --generate-hashes --no-header --no-emit-index-url --no-annotate --quiet --upgrade -o requirements/dev.lock

.PHONY: clean
clean: ## Remove the environment, caches and everything a run left behind (a running demo is stopped first)
	@[ ! -x $(PY) ] || [ ! -d .refold ] || $(PY) -m refold.cli.main demo --down || true
	rm -rf $(VENV) $(PEERS) .refold .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
