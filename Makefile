# What people type: serve, chat with it, test, check, bench. Everything lives in .venv; nothing else is touched.
# Uses uv where it is installed, plain pip otherwise. ARGS goes to the command: make serve ARGS="--port 9000"

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin

# The MLX build that fits this machine (INTERFACE §1): Metal needs no extra, an NVIDIA driver wants CUDA.
ifeq ($(shell uname -s),Darwin)
EXTRA :=
else ifneq ($(shell command -v nvidia-smi 2>/dev/null),)
EXTRA := [cuda]
else
EXTRA := [cpu]
endif

ifneq ($(shell command -v uv 2>/dev/null),)
CREATE := uv venv --quiet --allow-existing --python $(PYTHON) $(VENV)
INSTALL := uv pip install --quiet --python $(BIN)/python
else
CREATE := $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
INSTALL := $(BIN)/python -m pip install --quiet
endif

.PHONY: help serve chat test check fuzz crash sim soak lint types bench format clean

help:
	@echo "make serve    serve the default model on http://127.0.0.1:8080"
	@echo "make chat     talk to it in the terminal, without a server"
	@echo "make test     run the whole test suite"
	@echo "make check    lint, types, tests: what CI runs"
	@echo "make fuzz     try random examples until one fails, ROUNDS=10 times over (many minutes)"
	@echo "make crash    kill servers at 200 points and random moments (ten minutes)"
	@echo "make sim      simulate whole servers, SEEDS=2000 of them (a quarter of an hour)"
	@echo "make soak     talk to real servers while they are crashed and killed, MINUTES=10 for each of two models"
	@echo "make bench    run a part of every benchmark (ten minutes at most)"

serve: $(VENV)/.installed
	@exec $(BIN)/samovar serve $(ARGS)

chat: $(VENV)/.installed
	@exec $(BIN)/samovar chat $(ARGS)

# A worker for each core, up to four, with one BLAS thread each. Which examples hypothesis tries is fixed
# (tests/conftest.py). In CI order and hashes are too, so that a green run can be had again; elsewhere they differ
# each time, and the seed is printed.
PARALLEL := -n logical --maxprocesses 4 --dist worksteal
ORDER := $(if $(CI),--randomly-seed=1)
HASHES := $(if $(CI),PYTHONHASHSEED=1)

test: $(VENV)/.installed-dev
	OPENBLAS_NUM_THREADS=1 $(HASHES) $(BIN)/pytest $(PARALLEL) $(ORDER) $(ARGS)

check: lint types test

# Looks for what the fixed examples miss: each round draws new ones, and what fails is tried again first.
ROUNDS ?= 10

fuzz: $(VENV)/.installed-dev
	for round in $$(seq $(ROUNDS)); do \
		HYPOTHESIS_PROFILE=fuzz OPENBLAS_NUM_THREADS=1 \
			$(BIN)/pytest -m hypothesis --timeout=900 $(PARALLEL) $(ARGS) || exit 1; \
	done
	$(BIN)/python -m tests.http.fuzz --count 10000 --seed $$$$

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/basedpyright

# The seed is printed, and with it everything can be done again.
SAMOVAR_CRASH_KILLS ?= 200
SAMOVAR_CRASH_SEED ?= $(shell date +%s)

crash: $(VENV)/.installed-dev
	SAMOVAR_CRASH_KILLS=$(SAMOVAR_CRASH_KILLS) SAMOVAR_CRASH_SEED=$(SAMOVAR_CRASH_SEED) \
		$(BIN)/pytest -v -p no:randomly tests/crash $(ARGS)

# Whole servers under virtual time: each seed is a run. What fails is printed with the command that repeats it.
SEEDS ?= 2000
FROM ?= 1000

sim: $(VENV)/.installed-dev
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.sim.run --seeds $(SEEDS) --from $(FROM) --jobs 2 --shrink $(ARGS)

# The default model, then a tiny random one that meets far more mishaps a minute. What was found is printed with
# the seed; add runs to benchmarks/results/soak.json with ARGS="--json benchmarks/results/soak.json".
MINUTES ?= 10

soak: $(VENV)/.installed-dev
	$(BIN)/python -m tests.soak.run --minutes $(MINUTES) $(ARGS)
	$(BIN)/python -m tests.soak.run --minutes $(MINUTES) --model tiny $(ARGS)

# Ten minutes at most; what needs a GPU, the peers or recorded traces is skipped and said so. The commands of the
# recorded results are in benchmarks/README.md.
bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.bounded $(ARGS)

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Samovar needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version`. Try make PYTHON=python3.12"; exit 1; }
	@echo "Creating $(VENV)"
	@$(CREATE)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml
	@echo "Installing Samovar$(EXTRA) (once; about a minute)"
	@$(INSTALL) --editable '.$(EXTRA)'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing the tools for tests and checks"
	@$(INSTALL) --group test --group lint --group types
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed-dev
	@$(INSTALL) --group bench
	@touch $@
