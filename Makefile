# Commands for people. Needs git, make and Python 3.11 or 3.12 with venv; everything else is installed from
# requirements/, pinned and hashed. Settings: DEVICE=auto|cuda|cpu PYTHON=... MODEL=... HOST=... PORT=... WORKERS=... ARGS="..."

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

usable_python = import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 13))
PYTHON ?= $(shell for python in python3 python3.12 python3.11; do \
	"$$python" -c '$(usable_python)' 2>/dev/null && { echo "$$python"; break; }; done)

# The one rule that chooses a device is launch/device.py; it needs nothing installed.
AUTO_DEVICE := $(shell $(PYTHON) -m launch.device 2>/dev/null || echo cpu)
DEVICE ?= auto
ifeq ($(DEVICE),auto)
DEVICE_TO_SERVE := $(AUTO_DEVICE)
# Tests run on the CPU reference platform, also on a machine with a GPU, unless DEVICE=cuda is given.
DEVICE_TO_TEST := cpu
else
DEVICE_TO_SERVE := $(DEVICE)
DEVICE_TO_TEST := $(DEVICE)
endif
# The machine's own device lives in .venv, the other one beside it.
venv_of = $(if $(filter $(1),$(AUTO_DEVICE)),.venv,.venv-$(1))
SERVE_VENV := $(call venv_of,$(DEVICE_TO_SERVE))
TEST_VENV := $(call venv_of,$(DEVICE_TO_TEST))

MODEL ?=
HOST ?=
PORT ?=
ARGS ?=
TESTS ?= tests
# One process for the tests whose engines must be alone, one for the others; see tests/conftest.py.
WORKERS ?= 2
serve_options = $(if $(MODEL),--model '$(MODEL)') $(if $(HOST),--host '$(HOST)') $(if $(PORT),--port '$(PORT)') \
	--device $(DEVICE_TO_SERVE) $(ARGS)

.PHONY: help install install-dev serve demo test lint format lock clean check-python

help: ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*##/\t/' | expand -t 12

check-python:
	@"$(PYTHON)" -c '$(usable_python)' 2>/dev/null || { \
		echo "make: Python 3.11 or 3.12 with venv is needed; found: $$($(or $(PYTHON),python3) --version 2>&1 | head -1)." >&2; \
		echo "make: install one (Debian, Ubuntu: apt install python3-venv) or name it: make PYTHON=/path/to/python3.12 ..." >&2; \
		exit 1; }
	@case '$(DEVICE)' in auto|cuda|cpu) ;; *) echo "make: DEVICE must be auto, cuda or cpu, not '$(DEVICE)'" >&2; exit 1;; esac

install: check-python ## install what serving needs into .venv
	@"$(PYTHON)" requirements/install.py --venv $(SERVE_VENV) --device $(DEVICE_TO_SERVE)

install-dev: check-python
	@"$(PYTHON)" requirements/install.py --venv $(TEST_VENV) --device $(DEVICE_TO_TEST) --dev

serve: install ## serve MODEL (a path or a Hugging Face repository) on 127.0.0.1:8000
	@exec $(SERVE_VENV)/bin/clef-serve up $(serve_options)

demo: install ## start a server, ask it two records, print the answers, stop it
	@exec $(SERVE_VENV)/bin/clef-serve demo $(if $(MODEL),--model '$(MODEL)') --device $(DEVICE_TO_SERVE)

test: install-dev ## run all tests (some: TESTS=tests/launch)
	@$(TEST_VENV)/bin/python -m pytest -n $(WORKERS) --no-loadscope-reorder $(TESTS) $(ARGS)

lint: install-dev ## ruff and mypy, as CI and pre-commit run them
	@$(TEST_VENV)/bin/ruff check .
	@$(TEST_VENV)/bin/ruff format --check .
	@$(TEST_VENV)/bin/mypy

format: install-dev ## let ruff fix what it can
	@$(TEST_VENV)/bin/ruff check --fix .
	@$(TEST_VENV)/bin/ruff format .

# Both locks come from serve.in; the CPU's and the tests' take their versions from the CUDA lock. Versions already locked
# stay unless UPGRADE=1.
lock: export UV_CUSTOM_COMPILE_COMMAND = make lock
lock: compile = $(TEST_VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
	--only-binary :all: --generate-hashes
lock: install-dev ## resolve requirements/*.in into the locks (UPGRADE=1: to the newest versions)
	@$(compile) $(if $(UPGRADE),--upgrade) requirements/serve.in -o requirements/cuda.txt
	@$(compile) requirements/serve.in -c requirements/cuda.txt --excludes requirements/cpu-leave-out.txt -o requirements/cpu.txt
	@$(compile) $(if $(UPGRADE),--upgrade) requirements/dev.in -c requirements/cuda.txt --excludes requirements/dev-leave-out.txt -o requirements/dev.txt

clean: ## remove what make made
	rm -rf .venv .venv-cpu .venv-cuda .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
