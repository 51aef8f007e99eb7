# Two commands: `make run` runs the default configuration, `make test` the tests.
# `make run GPU=1` installs CuPy too. `make test-storage`, `test-slurm` (root on Debian: it installs a
# Slurm) and `test-conda` are CI's.
PYTHON ?= python3
CORES ?= all
GPU ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements/constraints.txt

# Snakemake runs a job's Python by its path, and does not quote it.
ifneq ($(words $(CURDIR)),1)
$(error The path of this folder has a space in it, $(CURDIR), which Snakemake cannot run from; move it)
endif

.PHONY: run test test-storage test-slurm test-conda test-gpu soak soak-first soak-second soak-walk bench clean

run: $(VENV)/run.installed $(if $(GPU),$(VENV)/gpu.installed)
	$(BIN)/snakemake --cores $(CORES)
	@echo "The results are in results/: begin with results/geometry/summary.csv"

test: $(VENV)/test.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/mypy src packages/mamba-cpu/src workflow/scripts
	$(BIN)/snakemake --lint
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-storage: $(VENV)/storage.installed
	$(BIN)/python -m pytest tests/storage

# On a machine with a graphics card; the last line says how many ran.
test-gpu: $(VENV)/test.installed $(VENV)/gpu.installed
	$(BIN)/python -m pytest tests/gpu

test-slurm: $(VENV)/cluster.installed
	$(BIN)/python -m pytest tests/cluster

test-conda: $(VENV)/test.installed
	$(BIN)/python -m pytest tests/conda

# Two halves side by side, of which each waits much of its time.
FIRST_HALF := $(patsubst %,tests/reliability/test_%.py,faults fuzz kills)
soak: $(VENV)/test.installed
	$(MAKE) --jobs 2 soak-first soak-second

soak-first: SOAKED := $(FIRST_HALF)
soak-second: SOAKED := $(filter-out $(FIRST_HALF),$(wildcard tests/reliability/test_*.py))
soak-first soak-second:
	SOAK=1 timeout 20m $(BIN)/python -m pytest $(SOAKED)

# Five thousand steps of the random walk: about two hours. It prints the step that went wrong.
soak-walk: $(VENV)/test.installed
	SOAK=1 WALK_STEPS=2500 $(BIN)/python -m pytest tests/reliability/test_walk.py

bench: $(VENV)/run.installed
	$(PIP) --no-deps -r requirements/bench.txt
	$(BIN)/python benchmarks/geometry.py
	$(BIN)/python benchmarks/backends.py
	PYTHONPATH=packages/mamba-cpu/src $(BIN)/python benchmarks/mamba.py results/mamba/build

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with PYTHON=…")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.installed: requirements/run.txt requirements/constraints.txt | $(VENV)/bin/python
	@echo "Installing into $(VENV) (a few minutes the first time)"
	$(PIP) -r requirements/run.txt
	@touch $@

$(VENV)/test.installed: requirements/test.txt tests/real/requirements.txt $(VENV)/run.installed
	$(PIP) -r requirements/test.txt
	$(PIP) --no-deps -r tests/real/requirements.txt
	@touch $@

$(VENV)/storage.installed: requirements/storage.txt $(VENV)/test.installed
	$(PIP) -r requirements/storage.txt
	@touch $@

$(VENV)/gpu.installed: requirements/gpu.txt $(VENV)/run.installed
	$(PIP) -r requirements/gpu.txt
	@touch $@

$(VENV)/cluster.installed: requirements/cluster.txt $(VENV)/test.installed
	$(PIP) -r requirements/cluster.txt
	@touch $@

clean:
	rm -rf results logs .snakemake
