# make run | test | lint | bench | dist | clean        PYTHON=python3.12 chooses the interpreter (>= 3.10)
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
THREADS := $(shell $(PYTHON) -c "import os; print(os.cpu_count())")
LAUNCH := $(BIN)/accelerate launch --quiet --num_cpu_threads_per_process $(THREADS) --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no
JOBS   ?= 2

.PHONY: run test lint bench dist clean

run: $(VENV)/.installed
	$(LAUNCH) run.py task=segmentation attn=bilateral resume=auto

test: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: $(VENV)/.installed
	$(BIN)/python scripts/bench_maps.py
	$(BIN)/python scripts/bench_scenes.py

dist: $(VENV)/.installed
	$(BIN)/python -m build

clean:
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "error: $(PYTHON) is older than Python 3.10: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (torch comes along: some minutes the first time) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $@
