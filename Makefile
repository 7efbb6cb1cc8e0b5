VENV := .venv
BIN := $(VENV)/bin

# Compiled modules are kept, whatever the environment says: the tests start many processes.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test fuzz chaos lint format docs build check-wheel clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## install, then translate and score the bundled model in several orders (a few minutes, offline)
	PATH="$(abspath $(BIN)):$$PATH" ./scripts/demo.sh

# One worker more than there are cores: some tests wait for processes and for a browser.
WORKERS = $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))

# Python 3.12 and later can measure coverage almost for free (sys.monitoring); 3.11 has the C tracer.
test: lint docs ## lint, types, documentation and the whole test suite, with coverage
	COVERAGE_CORE=$$($(BIN)/python -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")') \
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal --cov --cov-report term

fuzz: $(VENV)/.installed-dev ## 10,000 damaged files and odd options; goes on where it was stopped (docs/campaigns.md)
	$(BIN)/python campaigns/fuzz.py --cases 10000 --seed 1 --jobs 2

chaos: $(VENV)/.installed-dev ## kills, full disks, two writers, readers beside writers (docs/campaigns.md)
	$(BIN)/python campaigns/chaos.py --seed 1

lint: $(VENV)/.installed-dev ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev ## rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-dev ## build the documentation into docs/_build/html; warnings are errors
	$(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning --keep-going -d docs/_build/doctrees docs docs/_build/html
	@echo "open docs/_build/html/index.html"

build: $(VENV)/.installed-dev ## build the wheel and the source distribution into dist/
	rm -rf dist
	$(BIN)/python -m build --quiet --no-isolation

check-wheel: build ## install the built wheel into a clean environment and translate a sentence there
	./scripts/check_wheel.sh

clean: ## remove the virtual environment and everything that was built
	rm -rf $(VENV) build dist docs/_build .coverage src/*.egg-info

$(VENV)/.installed: pyproject.toml constraints.txt scripts/install.sh
	@echo "installing anyorder and what it needs into $(VENV) (about a minute) ..."
	@./scripts/install.sh $(VENV) --editable '.[app,plots]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing the development tools ..."
	@./scripts/install.sh $(VENV) --editable '.[dev]'
	@-$(BIN)/python -m pip download --quiet --no-deps --dest $(VENV)/wheels rxnmapper==0.4.3 # a real model for the tests
	@touch $@
