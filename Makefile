# make up          set up what is missing, then serve: gRPC, and OpenAI's REST through Envoy. Ctrl-C drains and stops.
# make test        set up what is missing, then run every test.
# make test-quick  run the tests that start no server: about a minute.
# make check       run the quick checks: format, lint, types, imports, words, protos, generated files.
# make generate    regenerate what is generated: code and documents from the protos, tables in docs/models.md.
# make docs        build the documentation as a site in build/site; a broken link is an error.
# make fuzz        fuzz the parsers of untrusted bytes for half a minute, from fixed seeds; FUZZ="--seconds 600" for another run.
# make chaos       attack a real server for a minute, from a fixed seed; CHAOS="--seconds 3600 --kills 100" for another run.
# make mesh        start three servers and one gateway on this machine and show their load. Ctrl-C ends all; MESH="--help".
# make rehearse    rehearse several servers: 600 conversations with keys, rolling restarts; REHEARSE="--help".
# make kernels     compile the CPU kernels next to their sources, for a wheel or image that needs no compiler.
# make wheel       build a wheel with compiled kernels in dist/.
# make breaking    compare the protos with those of the last release for changes that break clients.

PYTHON ?= python3
MODEL ?=
FUZZ ?= --deterministic
CHAOS ?= --seconds 40 --seed 24 --scale 0.2 --cores 1 --rest 2 --without rolling-restart redis-outages full-folder memory-limit many-tenants
MESH ?=
REHEARSE ?=
VENV := .venv/bin
# More than cores, because many tests wait; at most 3, as each has servers of its own. The tests of a file share one, as
# do files that share servers. Files keep their order: xdist would begin those last that have few tests, which take longest.
PROCESSES := $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 2 ? 2 : 3)))
PARALLEL := --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder
# Run as a module, so that its hooks find tools/; without its notice about the next version of MkDocs.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(VENV)/python -m mkdocs
QUICK_TESTS := tests/engine/core tests/engine/checkpoint/text tests/media/cache tests/media/containers tests/media/processing \
	tests/media/sources tests/server/generation tests/server/codec tests/server/dialects tests/server/parse tests/server/render

# The caller's own, with which `glimpse up` prints commands that work in the caller's other terminals.
CALLER_PATH := $(PATH)
export PATH := $(CURDIR)/$(VENV):$(PATH)
# Images of Python for containers set it. The tests start hundreds of processes, which would compile each module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: up mesh rehearse test test-quick compile-tests check check-types check-style docs fuzz chaos kernels wheel \
	breaking generate set-up set-up-dev

up: set-up
	@PATH='$(CALLER_PATH)' exec $(VENV)/glimpse up $(if $(MODEL),--model $(MODEL))

test: set-up-dev
	$(VENV)/python -m pytest $(PARALLEL)

test-quick: set-up-dev
	$(VENV)/python -m pytest $(PARALLEL) $(QUICK_TESTS)

# Otherwise each process would compile each test, and the kernels where they are not cached: a minute of both cores. What
# fails here, `test` shows.
compile-tests: set-up-dev
	-$(VENV)/python -m pytest --collect-only -qq >/dev/null

# Two halves of about the same length, for `make --jobs=2 --output-sync check`.
check: check-types check-style

# Of the time that Node takes, a tenth copies what is young.
check-types: export NODE_OPTIONS := --max-semi-space-size=64
check-types: set-up-dev
	$(VENV)/pyright --project tests/clients/python
	$(VENV)/pyright

check-style: set-up-dev
	$(VENV)/ruff format --check .
	$(VENV)/ruff check .
	$(VENV)/clang-format --dry-run --Werror $$(git ls-files '*.cpp' '*.h')
	$(VENV)/buf format --diff --exit-code api
	$(VENV)/buf lint
	$(VENV)/python tools/check_breaking.py
	$(VENV)/lint-imports
	$(VENV)/python tools/figures.py
	$(VENV)/python tools/check_words.py
	$(VENV)/python tools/generate.py --check
	$(MKDOCS) build --strict --quiet

docs: set-up-dev
	$(MKDOCS) build --strict --quiet
	@echo "The site is in build/site; $(VENV)/python -m http.server --directory build/site shows it."

fuzz: set-up-dev
	$(VENV)/python -m tests.fuzz $(FUZZ)

chaos: set-up-dev
	$(VENV)/python -m tests.chaos $(CHAOS)

mesh: set-up
	@exec $(VENV)/python tools/mesh.py $(if $(MODEL),--model $(MODEL)) $(MESH)

rehearse: set-up-dev
	$(VENV)/python -m tests.rehearsal $(REHEARSE)

kernels: set-up
	$(VENV)/python -m glimpse.engine.worker.native.compile_kernels --package
	$(VENV)/python -m glimpse.media.native.compile_resampler --package

# Kernels beside their sources would outlive changes of these, so they do not stay.
wheel: kernels
	$(VENV)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	rm -f engine/worker/native/*.so media/native/*.so

breaking: set-up-dev
	$(VENV)/python tools/check_breaking.py

generate: set-up-dev
	$(VENV)/python tools/generate.py

set-up:
	@$(PYTHON) tools/set_up.py

set-up-dev:
	@$(PYTHON) tools/set_up.py --dev
