# make demo    everything from a fresh clone to translations in every order, offline once installed
# make test    lint, types and the whole test suite
# make format  rewrite the code in the project's style

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint format clean

demo: $(VENV)/.installed
	PATH="$(abspath $(BIN)):$$PATH" ./scripts/demo.sh

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	@echo "installing anyorder and what it needs into $(VENV) (about a minute) ..."
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing the tools for development ..."
	$(PIP) --editable '.[dev]'
	touch $@
