# Everything from a fresh clone: each target makes its own .venv and installs what it needs first.
# `make` alone lists the targets.  Needs: make, Python >= 3.11 (choose one with `make PYTHON=/path/to/python`).

VENV := .venv
VENV_PYTHON := $(VENV)/bin/python
PIP := $(VENV_PYTHON) -m pip --disable-pip-version-check --no-input
INSTALL := $(PIP) install --quiet --constraint constraints.txt
RENEW_VENV := .venv-constraints
TORCH_VERSION := 2.13.0

# The first of these that starts (a pyenv shim may be there and fail), is new enough and can make environments.
PYTHON_CANDIDATES := python3.13 python3.12 python3.11 python3
PYTHON_WORKS := -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 </dev/null
PYTHON ?= $(shell for name in $(PYTHON_CANDIDATES); do \
  if "$$name" $(PYTHON_WORKS); then command -v "$$name"; break; fi; done)

# Tests start hundreds of interpreters: where bytecode may not be kept, each would compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test check format soak bench wheel constraints clean python

help: ## List these targets.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.base ## Run the real service on the sample pictures and show what it did.
	$(VENV)/bin/watcher demo

# Four at a time also on two cores: most tests wait for processes. Files in their order: the short ones come last.
test: $(VENV)/.full ## Run every test but the long ones.
	$(VENV_PYTHON) -m pytest -m "not soak" --numprocesses 4 --dist loadfile --no-loadscope-reorder

check: $(VENV)/.full ## Formatting, lint, types and the direction of imports.
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m mypy
	$(VENV)/bin/lint-imports

format: $(VENV)/.full ## Format the code and mend what lint can mend.
	$(VENV_PYTHON) -m ruff check --fix-only .
	$(VENV_PYTHON) -m ruff format .

soak: $(VENV)/.full ## Run the tests that take long (real installs, long runs).
	$(VENV_PYTHON) -m pytest -m soak --timeout 1800

bench: ## List the benchmarks and how to start one.
	@for file in benchmarks/*.py; do printf '  %-38s %s\n' "$$file" "$$(sed -n '1s/"""//gp' "$$file")"; done
	@echo
	@echo "Start one with: $(VENV_PYTHON) FILE --help   (after \`make test\` or \`make check\`)"

wheel: $(VENV)/.full ## Build the wheel into dist/.
	$(VENV_PYTHON) -m build --wheel --no-isolation --outdir dist

constraints: python ## Renew constraints.txt with the newest versions that pyproject.toml allows.
	rm -rf $(RENEW_VENV)
	"$(PYTHON)" -m venv $(RENEW_VENV)
	$(RENEW_VENV)/bin/python -m pip install --quiet --upgrade pip setuptools
	$(RENEW_VENV)/bin/python -m pip install --quiet --group dev
	$(RENEW_VENV)/bin/python -m pip install --quiet --no-build-isolation "torch==$(TORCH_VERSION)" ".[lama]"
	$(RENEW_VENV)/bin/python -m pip install --quiet --no-deps --group lama
	{ sed -n '/^#/p' constraints.txt; $(RENEW_VENV)/bin/python -m pip freeze --all \
	  | sed -n 's/^\([A-Za-z0-9._-]*==[^+ ]*\).*$$/\1/p' | grep -v '^watcher=='; } > constraints.txt.new
	mv constraints.txt.new constraints.txt
	rm -rf $(RENEW_VENV)

clean: ## Remove the environment and everything that was built.
	rm -rf $(VENV) $(RENEW_VENV) dist build demo_run constraints.txt.new
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

python: # Say which Python is used, or what to do where there is none.
	@if test -z "$(PYTHON)" || ! "$(PYTHON)" $(PYTHON_WORKS); then \
	  echo "No usable Python >= 3.11 (tried: $(if $(PYTHON),$(PYTHON),$(PYTHON_CANDIDATES)))." >&2; \
	  echo "Install one, with its venv module (Debian, Ubuntu: apt install python3-venv)," >&2; \
	  echo "or name it: make PYTHON=/path/to/python3.11 ..." >&2; \
	  exit 1; \
	fi
	@echo "Python: $(PYTHON)"

# Stamps: a target whose stamp is newer than the files that it depends on starts at once.

# pip >= 25.1 knows dependency groups.
$(VENV)/.pip:
	@$(MAKE) --no-print-directory python
	"$(PYTHON)" -m venv --clear $(VENV)
	$(INSTALL) "pip>=25.1"
	@touch $@

# The build backend comes from constraints.txt too, hence no isolated build.
$(VENV)/.base: $(VENV)/.pip pyproject.toml constraints.txt
	@echo "Installing watcher (about a minute) ..."
	$(INSTALL) "hatchling>=1.27"
	$(INSTALL) --no-build-isolation --editable .
	@touch $@

# simple-lama-inpainting without its dependencies: it pins a Pillow whose decoders are exploitable.
$(VENV)/.full: $(VENV)/.base
	@echo "Installing PyTorch and the tools for tests (some minutes) ..."
	$(INSTALL) --group dev
	$(INSTALL) --no-build-isolation --editable ".[lama]"
	$(INSTALL) --no-deps --group lama
	@touch $@
