# `make` alone prints what there is. Everything lives in .venv and .cache; nothing is installed outside this folder.

PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
ARGS   ?=
# A skip of a test with one of these marks fails the run: on a machine that passed `setup` there is no excuse for one.
CORAL_REQUIRE ?= kafka,chaos
export CORAL_REQUIRE

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format test-chaos test-docker bench lock clean

help: ## print this
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv from requirements.lock (again only when that changed)
	@./scripts/prerequisites.sh $(PYTHON)

$(STAMP): requirements.lock pyproject.toml scripts/install.sh
	@./scripts/prerequisites.sh $(PYTHON)
	@./scripts/install.sh $(PYTHON) $(VENV)
	@touch $@

demo: setup ## run the whole loop here on real Kafka (ARGS="--seconds 120 --json" passes options)
	@$(BIN)/coral demo $(ARGS)

test: setup lint ## lint, then all tests but bench, docker and vllm; with Kafka and short chaos
	$(BIN)/pytest -m "not bench and not docker and not vllm" $(ARGS)

lint: setup ## ruff, mypy and the floors (import-linter), changing nothing
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
