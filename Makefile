# `make demo` alone and `make test` alone do everything on a fresh Debian 12 or Ubuntu 24.04 that has python3, git, make.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup setup-engine rights demo test test-other lint bench prove mutants clean

export PYTHON ?= python3
export VENV ?= .venv
export LLAMA_SERVER ?=
export MODEL ?=
ENGINE ?= sim
ifeq ($(filter $(ENGINE),sim llama-cpp),)
$(error ENGINE=$(ENGINE): expected sim or llama-cpp)
endif
PY := $(VENV)/bin/python
ifneq ($(shell id -u),0) # a systemd of one's own takes root, and what root caches here would be in its owner's way
AS_ROOT := sudo -n env PYTHONDONTWRITEBYTECODE=1 LLAMA_SERVER='$(LLAMA_SERVER)' MODEL='$(MODEL)'
endif

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14
	@echo 'PYTHON=python3.12 VENV=.venv-3.12 picks an interpreter; LLAMA_SERVER=… MODEL=… use your own server and model.'

setup: ## system packages and .venv/bin/inferops; nothing to do takes no time
	@tools/setup.sh dev sim

setup-engine:
	@tools/setup.sh dev sim engine

rights:
	@tools/setup.sh rights $(MAKECMDGOALS)

ifeq ($(ENGINE),llama-cpp)
demo: rights setup-engine
	@$(AS_ROOT) $(PY) -m tests.engine.demo
else
demo: rights setup ## a simulated server is scary, then wedged; the sentinel knows which. ENGINE=llama-cpp: a real one
	@$(AS_ROOT) $(PY) -m tests.system.demo
endif

test: rights setup-engine lint ## lint, every test, and the quick ones on the other supported interpreters
ifeq ($(AS_ROOT),)
	@$(PY) -m pytest tests $(ARGS)
else
	@$(PY) -m pytest tests -m 'not box' $(ARGS)
	@$(AS_ROOT) $(PY) -m pytest tests -m box -p no:cacheprovider $(ARGS)
endif
	@$(MAKE) --no-print-directory test-other

test-other: setup ## the quick tests (no systemd, no engine) on the other supported interpreters that are here
	@tests/other_pythons.sh

lint: setup ## ruff and mypy --strict
	@mkdir -p build/types && ln -sfn ../../tools build/types/inferops
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --check --quiet .
	@$(PY) -m mypy --no-error-summary -p inferops
	@$(PY) -m mypy --no-error-summary -p tests
	@echo 'lint: ruff and mypy --strict found nothing'

bench: rights setup-engine ## what the sentinel costs, and how soon it sees a wedge
	@$(AS_ROOT) $(PY) -m tests.bench.bench

prove: rights setup-engine ## the long proofs, whole
	@$(AS_ROOT) $(PY) -m tests.prove.prove

mutants: ## is every line of the wedge policy held by a test?
	@tools/setup.sh dev sim mutants
	@$(PY) -m tests.prove.mutants $(ARGS)

clean: ## removes what setup, lint and test made in this directory; results stay
	@rm -rf .venv .venv-* .venv*.lock build inferops.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find tools tests -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo 'clean: done'
