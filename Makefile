# Two commands are all the set-up: `make demo` and `make test`. Each installs what it needs into .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo test check lint types layers supply bench soak lock clean

setup: $(STAMP)

# uv where it is, or can be had; plain pip otherwise. Both install exactly requirements.lock, by hash.
$(STAMP): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@if command -v uv >/dev/null 2>&1 || $(BIN)/python -m pip install -q uv >/dev/null 2>&1; then \
	  UV=$$(command -v uv || echo $(BIN)/uv); \
	  $$UV pip install -q --python $(BIN)/python --require-hashes -r requirements.lock && \
	  $$UV pip install -q --python $(BIN)/python --no-deps -e .; \
	else \
	  $(BIN)/python -m pip install -q --require-hashes -r requirements.lock && \
	  $(BIN)/python -m pip install -q --no-deps -e .; \
	fi
	@touch $(STAMP)

demo: setup
	@$(BIN)/tocsin demo

test: setup
	@$(BIN)/python -m pytest -n 2 --dist worksteal

check: lint types layers supply

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

layers: setup
	$(BIN)/lint-imports

# Offline: hashes in the lock file, no registry, no credentials. Bandit's rules are among those of `lint`.
supply: setup
	$(BIN)/python -m pytest tests/docs/test_supply.py

# Also the store's tests on every server that is installed. TOCSIN_SOAK_S=600 makes the trouble longer, and the time after which a test is taken for hung.
soak: setup
	@TOCSIN_SERVERS=all TOCSIN_EXAMPLES=soak $(BIN)/python -m pytest -n 2 tests/store tests/triggers tests/engine tests/worker tests/upkeep
	@TOCSIN_CLUSTER=1 $(BIN)/python -m pytest -n 2 tests/app tests/inspection/why tests/engine tests/worker tests/upkeep tests/targets tests/cli tests/patterns
	@$(BIN)/python -m pytest -m soak -o faulthandler_timeout=$$(($${TOCSIN_SOAK_S:-60} + 120))

bench: setup
	@$(BIN)/tocsin bench

lock: setup
	$(BIN)/python -m uv export -q --all-extras --all-groups --no-emit-project --format requirements-txt --no-header --no-annotate > requirements.lock

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
