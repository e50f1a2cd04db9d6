# `make demo` and `make test` are all a fresh machine needs: both create the environment in .venv first.
PYTHON ?= python3
BIN := .venv/bin
# Two processes of one thread each: on models this small a second thread gains little.
TEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile
.PHONY: setup demo test test-all lint types lab maps dyck clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup  ## find the core of the embedded model: about 2 minutes on two cores
	$(BIN)/core-lens demo --out runs/demo

test: setup  ## the default test suite
	$(TEST)

test-all: setup  ## with the slow tests
	$(TEST) -m 'slow or not slow'

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/pyright

lab: setup  ## train the embedded models anew
	$(BIN)/python -m core_lens.lab.make

maps: setup  ## train the classifier of attention maps anew: 8 minutes of one thread
	$(BIN)/python -m core_lens.maps.make

dyck: setup  ## train the language model of Dyck strings anew: 20 minutes of one thread
	$(BIN)/python -m core_lens.dyck.make

clean:
	rm -rf .venv runs dist build
