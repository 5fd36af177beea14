# make up      set up what is missing, then serve: gRPC, and OpenAI's REST through Envoy. Ctrl-C drains and stops.
# make test    set up what is missing, then run every test.
# make check   the quick checks: format, lint, types, imports, protos, generated files.
# make generate  write anew what is generated from the protos.
# make fuzz    a minute of fuzzing of what reads strangers' bytes, the same one each time; FUZZ="--seconds 600" for another.
# make breaking  compare the protos with those on branch main: nothing that clients rely on may change.

PYTHON ?= python3
MODEL ?=
FUZZ ?= --steady
VENV := .venv/bin

export PATH := $(CURDIR)/$(VENV):$(PATH)

.PHONY: up test check fuzz breaking generate set-up set-up-dev

up: set-up
	@exec $(VENV)/glimpse up $(if $(MODEL),--model $(MODEL))

test: set-up-dev
	$(VENV)/python -m pytest

check: set-up-dev
	$(VENV)/ruff format --check .
	$(VENV)/ruff check .
	$(VENV)/buf format --diff --exit-code api
	$(VENV)/buf lint
	$(VENV)/lint-imports
	$(VENV)/python tools/generate.py --check
	$(VENV)/pyright
	$(VENV)/pyright --project tests/clients/python

fuzz: set-up-dev
	$(VENV)/python -m tests.fuzz $(FUZZ)

breaking: set-up-dev
	$(VENV)/buf breaking api --against '.git#branch=main,subdir=api'

generate: set-up-dev
	$(VENV)/python tools/generate.py

set-up:
	@$(PYTHON) tools/set_up.py

set-up-dev:
	@$(PYTHON) tools/set_up.py --dev
