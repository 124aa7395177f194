# Everything a developer does here, by name. Needs: make, a POSIX shell and Python 3.11 or later.

VENV ?= .venv
BIN := $(VENV)/bin

# PYTHON=/path/to/python chooses the interpreter that the environment is made of.
PYTHON ?=
# PYTEST_ARGS replaces the default of two test processes, e.g. PYTEST_ARGS="-x -k claim".
# loadgroup: one of them runs all that need Spark, because each session is a JVM.
PYTEST_ARGS ?= -n 2 --dist loadgroup
BENCH_ARGS ?=
SOAK_ARGS ?=
# STORE=postgres runs the demo on a PostgreSQL server of its own; DEMO_ARGS=--help lists what else it can do.
STORE ?=
DEMO_ARGS ?=

# What each set of targets installs beside the package: extras and dependency groups of pyproject.toml.
NEEDS_demo := --extra spark
NEEDS_demo-postgres := --extra spark --extra postgres --group server
NEEDS_bench := --extra all --group server
NEEDS_bench-peers := --extra postgres --group server
NEEDS_docs := --group docs
NEEDS_test := --extra all --group test
NEEDS_check := --extra all --group dev

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests and demo start hundreds of interpreters; without stored bytecode each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@echo "Penstock: make <target>"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "Settings: PYTHON=python3.12   VENV=.venv   PYTEST_ARGS=\"-x -k claim\"   STORE=postgres   BENCH_ARGS=...   SOAK_ARGS=..."

.PHONY: demo
demo: $(VENV)/.has-demo$(if $(filter postgres,$(STORE)),-postgres) ## Watch a queue at work: jobs, workers, Spark, a report (1 to 2 minutes)
	@$(BIN)/python -m examples.demo $(if $(STORE),--store $(STORE)) $(DEMO_ARGS)

.PHONY: test
test: $(VENV)/.has-test ## Run the tests of every area, as a plain `pytest` does
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

.PHONY: test-deep
test-deep: $(VENV)/.has-test ## Run the rest: more stores, examples, rounds and faults of the same
	@$(BIN)/python -m pytest -m deep $(PYTEST_ARGS)

.PHONY: check
check: $(VENV)/.has-check ## Lint, types, import rules and the fast tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -m "not (slow or process or postgres or deep or soak)" $(PYTEST_ARGS)

.PHONY: bench
bench: $(VENV)/.has-bench ## Measure beside the raw store and print ratios
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

.PHONY: bench-peers
bench-peers: $(VENV)/.has-bench-peers ## Measure beside other queues; installs them into .venv-peers* (hours; BENCH_ARGS=--quick for a look)
	@$(BIN)/python -m benchmarks.peers $(BENCH_ARGS)

.PHONY: soak
soak: $(VENV)/.has-test ## Run the long fault tests (minutes to hours)
	@$(BIN)/python -m pytest -m soak --timeout=0 tests/soak $(SOAK_ARGS)

.PHONY: docs
docs: $(VENV)/.has-docs ## Build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html"

.PHONY: first-job
first-job: ## Time the way from an empty cache to the first finished job
	@$(if $(PYTHON),"$(PYTHON)",python3) tools/first_job.py

.PHONY: coverage-ids
coverage-ids: $(VENV)/.has-test ## List which requirement ids have a test
	@$(BIN)/python tools/requirement_coverage.py

.PHONY: clean
clean: ## Remove the environment, caches and build output
	rm -rf $(VENV) .venv-peers .venv-peers-awa .venv-peers-arq build demo-output dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: pins
pins: ## Add what pyproject.toml needs now to constraints.txt (wants uv on the PATH)
	@cp constraints.txt constraints.new
	@uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11.0 \
		--fork-strategy fewest --generate-hashes --no-header --quiet --output-file constraints.new
	@{ sed '/^$$/q' constraints.txt; cat constraints.new; } > constraints.tmp
	@mv constraints.tmp constraints.txt && rm constraints.new

# One environment. Each set of targets adds what it needs, once, and again when the requirements or the pins have changed.
$(VENV)/.has-%: pyproject.toml constraints.txt | $(VENV)/.made
	@echo "Installing what \`make $(firstword $(MAKECMDGOALS))\` needs into $(VENV)$(if $(filter docs bench-peers,$*),, (about 700 MB, most of it Spark; some minutes the first time))"
	@"$(BIN)/python" -m tools.install $(NEEDS_$*) || { \
		echo "The installation failed; the reason is above. To start over: make clean" >&2; exit 1; }
	@touch "$@"

# A candidate is run, not only looked up: version managers leave commands that exist but do not start.
$(VENV)/.made:
	@chosen=; \
	for candidate in $(if $(PYTHON),"$(PYTHON)",python3.11 python3.12 python3.13 python3.14 python3); do \
		if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
			chosen=$$candidate; break; \
		fi; \
	done; \
	if [ -z "$$chosen" ]; then \
		echo "Penstock needs Python 3.11 or later; tried: $(if $(PYTHON),$(PYTHON),python3.11 python3.12 python3.13 python3.14 python3)." >&2; \
		echo "Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python" >&2; \
		exit 1; \
	fi; \
	echo "Creating $(VENV) with $$("$$chosen" --version)"; \
	if ! "$$chosen" -m venv --clear "$(VENV)"; then \
		echo "$$chosen cannot create a virtual environment (on Debian and Ubuntu: install python3-venv)." >&2; \
		exit 1; \
	fi
	@touch "$@"
