# The Transformer, Taken Apart. `make` builds everything; `make help` lists the rest.
# Written for GNU make 3.81 and later, which macOS has.

SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
BUILD  := _build
READY  := $(VENV)/.ready

# How many seeds prove the graders; one seed of the whole course costs about 60 CPU seconds.
SEEDS ?= 20

# Notebooks are run by one process each: more threads would only fight over the cores.
export OMP_NUM_THREADS ?= 1
export PYTHONHASHSEED  ?= 0

py_in    = $(shell find $(1) -name '*.py' -not -path '*/samples/*' 2>/dev/null)
CHAPTERS = $(wildcard book/*.md) $(wildcard solutions/*.py) $(shell find book/figures book/data -type f -not -name '*.pyc' 2>/dev/null)
JUDGE    = $(filter-out autograder/site/% autograder/bench/% autograder/gpu/%,$(call py_in,autograder))
SITE     = $(call py_in,autograder/site) $(shell find book/_site -type f) _config.yml _toc.yml
# A file name with a space, as one sample has on purpose, is none that make can follow
SAMPLES  = $(shell find autograder/samples -type f -not -name '* *' 2>/dev/null)

WORKED := $(BUILD)/worked/.done
BOOK   := $(BUILD)/html/index.html
REPORT := $(BUILD)/report/index.html

.PHONY: all help install system compose worked book report lab check test verify pytest nbval \
	lock messages bench bench-grading gpu clean

all: $(BOOK) $(REPORT)  ## build the book, grade the sample class, say where everything is
	@echo
	@echo "book       $(BOOK)"
	@echo "report     $(REPORT)"
	@echo "grades     $(BUILD)/report/grades.csv"
	@echo "notebooks  $(wildcard book/*.ipynb)"
	@echo "           (make lab opens copies of them in work/, for you to fill in)"

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | awk -F'\t' '{printf "make %-14s %s\n", $$1, $$2}'

# --- the environment ---------------------------------------------------------------------------

install: $(READY)  ## .venv, from the pinned requirements.txt

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is older than Python 3.11: say which to use, make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || .ci/system venv
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --no-compile -r requirements.txt
	@# pip would compile on one processor; what does not compile is no module that anyone imports
	@$(PY) -m compileall -qq -j 0 $(VENV)/lib || true
	@# setuptools warns of editable installs as such
	PYTHONWARNINGS=ignore $(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

system:  ## what only the system's package manager has: a browser for the page tests
	@.ci/system chromium

lock: $(READY)  ## write requirements.txt anew from requirements.in, keeping what still fits
	$(PY) -m piptools compile --quiet --strip-extras --allow-unsafe --annotation-style=line --no-header \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host -o requirements.txt requirements.in
	@# A local build of torch calls itself 2.13.0+cpu, which no one else has
	@sed -e 's/^\(torch==[0-9.]*\)+[a-z0-9]*/\1/' -e '/^#/d' -e '/^$$/d' requirements.txt > $(VENV)/lock
	@{ echo '# Written by `make lock` from requirements.in: edit that one.'; cat $(VENV)/lock; } > requirements.txt

messages: $(READY)  ## collect what is translated, and compile the translations that are there
	@mkdir -p autograder/locale
	$(VENV)/bin/pybabel -q extract -F babel.cfg --no-location -o autograder/locale/autograder.pot .
	@! ls autograder/locale/*/LC_MESSAGES/*.po >/dev/null 2>&1 \
	  || $(VENV)/bin/pybabel -q compile -D autograder -d autograder/locale

# --- notebooks, book, report -------------------------------------------------------------------

compose: $(READY)  ## write the student's notebooks from book/, solutions/ and autograder/
	$(PY) -m autograder compose

worked: $(WORKED)  ## run the worked notebooks whose sources changed

$(WORKED): $(READY) $(CHAPTERS) $(JUDGE) _toc.yml
	$(PY) -m autograder compose --run
	@touch $@

book: $(BOOK)  ## the HTML book

$(BOOK): $(WORKED) $(SITE)
	$(VENV)/bin/jupyter-book build . -W --keep-going -n -q
	@touch $@

report: $(REPORT)  ## grade the sample class

$(REPORT): $(WORKED) $(SAMPLES)
	@if $(PY) -m autograder doctor > /dev/null; then sandbox=auto; else sandbox=none; \
	  echo "no sandbox here (python -m autograder doctor says why): the samples, ours, run without"; fi; \
	$(PY) -m autograder grade autograder/samples --sandbox $$sandbox --report $(BUILD)/report
	@touch $@

lab: $(READY)  ## copy the notebooks that are not yet in work/, and open JupyterLab there
	@mkdir -p work
	@for notebook in book/*.ipynb; do \
	  copy="work/$$(basename "$$notebook")"; test -e "$$copy" || cp "$$notebook" "$$copy"; done
	cd work && ../$(VENV)/bin/jupyter lab

# --- tests -------------------------------------------------------------------------------------

check: $(READY)  ## lint, types, generated files fresh: under a minute
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m autograder compose --check

verify: $(READY)  ## the graders graded: right answers pass, wrong ones fail as themselves
	$(PY) -m autograder verify --seeds $(SEEDS)

# More at a time than there are cores: some tests wait for a time limit, a browser or a kernel.
PYTEST = $(PY) -m pytest -n 4 --dist loadfile --no-loadscope-reorder
NBVAL  = -p tests.notebooks.text_only --nbval --nbval-sanitize-with tests/nbval.cfg \
	--nbval-cell-timeout 300 -p no:cacheprovider

pytest: $(BOOK)
	$(PYTEST)

nbval: $(READY)  ## run the worked notebooks again and compare their outputs
	$(PYTEST) $(NBVAL) solutions/notebooks

test:  ## everything that CI runs
	@# two at a time: both package managers wait, and lint, types and Sphinx leave a core idle
	$(MAKE) -j 2 system check all
	$(MAKE) verify
	@# at once, for some tests leave the cores idle; nbval compares the run that `all` has just made
	$(PYTEST) $(NBVAL) -p tests.notebooks.kept_run tests solutions/notebooks

bench: $(READY)  ## time the book's build: _build/bench/book.json
	$(PY) -m autograder.bench.book

bench-grading: $(READY)  ## time the grading: _build/bench/grading.json
	$(PY) -m autograder.bench.grading

gpu: $(READY)  ## on a machine with an NVIDIA GPU: check the kernels compiled, time them, keep the figures
	$(PY) -m autograder.gpu

clean:  ## remove what was built; work/ and .venv stay
	rm -rf $(BUILD)
