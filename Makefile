# Everything runs in .venv, which is built from requirements.lock (exact versions, checked by hash).
# Another Python: make PYTHON=python3.12 quickstart

PYTHON ?= python3
ARGS ?=
INSTALLED = .venv/installed
HALF = tests/run tests/lab tests/store tests/docs tests/experiments
# A shell starts what is in the background deaf to Ctrl-C, which tests send to what they start.
HEARING = -c "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"

.PHONY: quickstart test test-slow lint lock

quickstart: $(INSTALLED)  ## curate a corpus, train a small model on it, evaluate it
	.venv/bin/python experiments/quickstart.py $(ARGS)

test: lint  ## everything but what takes minutes; two halves at the same time, or what ARGS asks for
ifeq ($(ARGS),)
	@.venv/bin/python $(HEARING) -m pytest $(HALF) > .venv/other-half.log 2>&1 & other=$$!; \
	trap 'kill $$other' INT TERM; \
	.venv/bin/python -m pytest $(HALF:%=--ignore=%); code=$$?; \
	wait $$other || code=1; cat .venv/other-half.log; exit $$code
else
	.venv/bin/python -m pytest $(ARGS)
endif

test-slow: $(INSTALLED)  ## what takes minutes
	.venv/bin/python -m pytest -m slow $(ARGS)

lint: $(INSTALLED)  ## style, types, the direction of imports
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports --no-logo
	.venv/bin/pyright

lock:  ## requirements.lock anew from pyproject.toml
	uv pip compile pyproject.toml --extra test --universal --python-version 3.11 --generate-hashes --no-header --no-annotate -o requirements.lock

$(INSTALLED): requirements.lock pyproject.toml
	@command -v $(firstword $(PYTHON)) > /dev/null || \
		{ echo "there is no command $(PYTHON): name a Python 3.11 or newer that is there, as in 'make PYTHON=/path/to/python3 $(MAKECMDGOALS)'"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is too old: marin_pipeline needs Python 3.11 or newer, as in 'make PYTHON=python3.12 $(MAKECMDGOALS)'"; exit 1; }
	$(PYTHON) -m venv --clear .venv
	.venv/bin/python -m pip install --quiet --require-hashes -r requirements.lock
	.venv/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(INSTALLED)
