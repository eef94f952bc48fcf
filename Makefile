# `make` alone prints what there is. Everything lives in .venv and .cache; nothing is installed outside this folder.

PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
LOOPS  := $(VENV)/.compiled
ARGS   ?=
# A skip of a test with one of these marks fails the run: on a machine that passed `setup` there is no excuse for one.
# Real vLLM takes 6 GB of disk. `make test CORAL_REQUIRE=kafka,chaos` does without it, and its tests skip.
CORAL_REQUIRE ?= kafka,chaos,vllm
export CORAL_REQUIRE
# Tests that wait (for a time-out, a broker) leave half of two cores to others; each process has a broker of its own. 0: no processes.
JOBS ?= 3
# What `make demo` runs its models on: simulated, or vllm (real engines, on the CPU, with a tiny model).
ENGINE ?= simulated
WITH_VLLM = $(if $(findstring vllm,$(1)),vllm)

.DEFAULT_GOAL := help
.PHONY: help setup vllm demo test lint format test-chaos test-vllm test-docker bench lock clean

help: ## print this
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(LOOPS) ## make .venv from requirements.lock, and compile the solver's loops (again only when these changed)
	@./scripts/prerequisites.sh $(PYTHON)

$(STAMP): requirements.lock pyproject.toml scripts/install.sh
	@./scripts/prerequisites.sh $(PYTHON)
	@echo "installing requirements.lock into $(VENV) (a minute or two, once)"
	@./scripts/install.sh $(PYTHON) $(VENV)
	@touch $@

# A minute of a core, so that no command pays for it. Numba itself would keep a loop of which only a callee has changed.
$(LOOPS): $(STAMP) $(shell grep -l '^@compiled' solver/*.py) solver/compiled.py solver/warm.py
	@echo "compiling the solver's loops (a minute of a core, and again when they change)"
	@rm -f solver/__pycache__/*.nb[ci]
	@$(BIN)/python -m solver.warm
	@touch $@

vllm: $(STAMP) ## vLLM for the CPU in an environment of its own, .cache/vllm, and the tiny model (6 GB, once)
	@./scripts/prerequisites.sh $(PYTHON) vllm
	@./scripts/vllm.sh $(PYTHON) $(BIN)/uv .cache

demo: setup $(call WITH_VLLM,$(ENGINE)) ## run the whole loop here on real Kafka (ENGINE=vllm, ARGS="--seconds 120 --json")
	@$(BIN)/coral demo --engine $(ENGINE) $(ARGS)

test: $(STAMP) ## lint, then all tests but bench and docker; short chaos, real vLLM
	@$(MAKE) --no-print-directory --jobs=3 setup lint $(call WITH_VLLM,$(CORAL_REQUIRE))
	$(BIN)/pytest -m "not bench and not docker" -n $(JOBS) --dist loadscope --no-loadscope-reorder $(ARGS)

lint: $(STAMP) ## ruff, mypy and the floors (import-linter), changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: setup ## rewrite the code in the house's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-chaos: export CORAL_CHAOS_ROUNDS := 15
test-chaos: setup ## the chaos tests with 15 rounds each (3 in `make test`)
	$(BIN)/pytest -m chaos --timeout 3600 -s $(ARGS)

test-vllm: export CORAL_VLLM_MATRIX := 1
test-vllm: setup vllm ## all tests on real vLLM, with the whole matrix of kills (a part of it in `make test`)
	$(BIN)/pytest -m vllm --timeout 3600 -s $(ARGS)

test-docker: setup ## the broker by way of Docker, with a daemon of its own where none runs (root on Debian)
	./docker/test-docker.sh $(ARGS)

bench: setup ## the measurements
	$(BIN)/pytest -m bench --timeout 3600 -s $(ARGS)

lock: setup ## resolve requirements.lock again from pyproject.toml (ARGS=--upgrade for newer versions)
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 \
	    --generate-hashes --no-emit-index-url --quiet --output-file requirements.lock $(ARGS)

clean: ## remove .venv, .cache and the tools' caches
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
