# Everything runs in .venv, which the first target makes. Variables to set on the command line:
#   PYTHON       the Python to build it on (3.10 to 3.12, with a shared libpython)
#   TORCH        which PyTorch
#   TORCH_INDEX  where from; https://download.pytorch.org/whl/cpu spares a machine without a GPU
#                the gigabytes of CUDA
PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?=

BIN := .venv/bin
CONFIGS := .venv/repository

.PHONY: demo test soak lint check configs picture clean

demo: .venv/installed
	$(BIN)/tandem demo

test: .venv/installed-dev
	$(BIN)/python -m pytest

# Three minutes of what `python -m benchmarks.soak` does for an hour.
soak: .venv/installed
	$(BIN)/python -m benchmarks.soak --minutes 3 --cancels 200

lint: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

check: lint test

# Write model_repository/*/config.pbtxt anew after the embedded profile or a contract changed.
configs: .venv/installed
	$(BIN)/tandem render --profile profiles/embedded.yaml --output $(CONFIGS)
	cd $(CONFIGS) && for model in */; do \
		cp $$model/config.pbtxt $(CURDIR)/model_repository/$$model/config.pbtxt; done

# Draw README's picture anew.
picture: .venv/installed
	$(BIN)/python docs/picture.py

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
	$(BIN)/pip install -e '.[embedded,dev]'
	touch $@
