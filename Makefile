# Two commands: `make book` builds the book, `make test` proves it. Each target works first in a
# fresh clone, with nothing but git, make and Python 3.11 or newer; what it needs goes into .venv.
# Another interpreter: PYTHON=python3.12 make book

SHELL := /bin/sh
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed
LAB_STAMP := $(VENV)/.lab
HTML := _build/html
PORT ?= 8000

# Tests run in two processes; one thread each keeps them from fighting for the cores. A backend
# named outside would keep the kernels of the chapters from showing their figures.
PYTEST := env -u MPLBACKEND OMP_NUM_THREADS=1 $(RUN) -m pytest -q -n 2

.DEFAULT_GOAL := help
.PHONY: help book serve site test lint unit lowest lowest-here chapters pages lab lock bench \
        mutants notebooks clean force
.NOTPARALLEL:  # `site` removes what `pages` reads

help:
	@echo "make book       build the book from the stored outputs and say where it is"
	@echo "make serve      build it and serve it at http://127.0.0.1:$(PORT)"
	@echo "make test       lint, unit tests, every chapter, a strict build, site and browser checks"
	@echo "make lowest     unit tests with the oldest NumPy, matplotlib and threadpoolctl"
	@echo "make lab        open the chapters in JupyterLab"
	@echo "make bench      run the benchmarks"
	@echo "make mutants    plant faults in attn and name those that no test notices: most of an hour"
	@echo "make notebooks  write the practice cells, run the chapters, normalise the files"
	@echo "make lock       write requirements.lock anew from requirements.txt"
	@echo "make site       build from scratch, warnings are errors: what is published"
	@echo "make clean      remove what was built (not .venv)"

# --- Python and the pinned packages ---------------------------------------------------------------

# Sets `python` to the first interpreter that will do; says in one sentence what is missing if none.
define find_python
for name in $${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do \
    command -v "$$name" >/dev/null 2>&1 || continue; \
    found="$$name $$("$$name" -c 'import platform; print(platform.python_version())' 2>/dev/null)"; \
    if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
        python="$$name"; break; \
    fi; \
done; \
if [ -z "$$python" ]; then \
    echo "Python 3.11 or newer is needed, and $${found:-no $${PYTHON:-Python}} was found: install it," \
         "or name one, as in PYTHON=python3.12 make book" >&2; exit 1; \
fi; \
if ! "$$python" -c 'import venv, ensurepip' 2>/dev/null; then \
    echo "$$found lacks the venv module: on Debian or Ubuntu, run: apt install python3-venv" >&2; exit 1; \
fi
endef

# An interpreter named with PYTHON that is not the version in .venv makes .venv anew.
ifdef PYTHON
version = import sys; print(sys.version_info[:2])
ifneq ($(shell $(PYTHON) -c '$(version)' 2>/dev/null),$(shell $(RUN) -c '$(version)' 2>/dev/null))
$(STAMP): force
endif
endif

# TORCH_INDEX=https://download.pytorch.org/whl/cpu takes torch, and nothing else, from that index: on
# Linux, PyPI's own build brings CUDA, several gigabytes.
PIP := $(RUN) -m pip --disable-pip-version-check -qq
TORCH := $(shell grep '^torch==' requirements.txt)

$(STAMP): requirements.txt requirements.lock pyproject.toml
	@$(find_python); \
	want="$$("$$python" -c 'import sys; print(sys.version_info[:2])')"; \
	have="$$($(RUN) -c 'import sys, pip; print(sys.version_info[:2])' 2>/dev/null)"; \
	if [ -z "$$have" ] || { [ -n "$$PYTHON" ] && [ "$$want" != "$$have" ]; }; then \
	    echo "Making $(VENV) with $$found"; "$$python" -m venv --clear $(VENV) || exit 1; \
	fi; \
	echo "Installing the pinned packages into $(VENV): about 1.8 GB, a minute or two the first time"; \
	$(PIP) install --require-hashes -r requirements.lock && \
	$(PIP) install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX) --no-deps) $(TORCH) && \
	$(PIP) install --no-build-isolation --no-deps -e . && \
	$(PIP) check && touch $@

# --- The book -------------------------------------------------------------------------------------

BUILD := $(VENV)/bin/jupyter-book build . --quiet

book: $(STAMP)
	@$(BUILD) >$(VENV)/book.log 2>&1 || { cat $(VENV)/book.log; exit 1; }
	@echo "The book is built. Open it in a browser: file://$(CURDIR)/$(HTML)/index.html"

serve: book
	@echo "Serving the book at http://127.0.0.1:$(PORT) (Ctrl-C ends it)"
	@$(RUN) -m http.server --bind 127.0.0.1 --directory $(HTML) $(PORT)

site: $(STAMP)
	rm -rf _build
	$(BUILD) -W -n --keep-going

# --- The checks -----------------------------------------------------------------------------------

test: lint unit chapters site pages
	@echo "All checks passed."

lint: $(STAMP)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

UNIT := $(PYTEST) --doctest-modules attn tests $(addprefix --ignore=tests/test_,site.py browser.py)

unit: $(STAMP)
	$(UNIT)

# What pyproject.toml says it can do with, in an environment of its own. An old matplotlib calls what
# a new pyparsing will drop: its warnings are not ours.
lowest:
	$(MAKE) --no-print-directory VENV=.venv-lowest lowest-here

lowest-here: $(STAMP)
	$(PIP) install -r requirements-lowest.txt
	$(UNIT) -W default::DeprecationWarning --ignore=tests/test_packaging.py

# A notebook without a practice file is a reader's own.
PRACTICE := $(wildcard book/practice/*.py)
CHAPTERS := $(wildcard $(subst _,-,$(PRACTICE:book/practice/%.py=book/%.ipynb)))

chapters: $(STAMP)
	$(PYTEST) --nbval --nbval-current-env --dist loadfile --nbval-cell-timeout=120 $(CHAPTERS)

pages: $(STAMP)
	@test -d $(HTML) || $(MAKE) --no-print-directory site
	$(PYTEST) --dist worksteal -rs tests/test_site.py tests/test_browser.py

# --- Work on the book -----------------------------------------------------------------------------

$(LAB_STAMP): requirements-lab.txt $(STAMP)
	@echo "Installing JupyterLab into $(VENV)"
	@$(PIP) install -r requirements-lab.txt && touch $@

lab: $(LAB_STAMP)
	$(RUN) -m jupyterlab --notebook-dir=book $(LAB_FLAGS)

# LOCK_FLAGS=--upgrade takes the newest that the pins allow.
lock:
	@test -x $(RUN) || $(MAKE) --no-print-directory $(STAMP)
	$(PIP) install -r requirements-uv.txt
	$(VENV)/bin/uv pip compile --quiet --system-certs --universal --python-version 3.11 \
	    --generate-hashes --no-annotate --no-emit-package torch --no-emit-package attn \
	    --custom-compile-command "make lock" requirements.txt -o requirements.lock $(LOCK_FLAGS)

bench: $(STAMP)
	$(RUN) benchmarks/attention.py

mutants: $(STAMP)
	$(RUN) mutation/run.py $(MUTANTS_FLAGS)

notebooks: $(STAMP)
	$(RUN) book/_tools/notebooks.py practice
	$(RUN) book/_tools/notebooks.py run
	$(RUN) book/_tools/notebooks.py normalise

clean:
	rm -rf _build build .pytest_cache .ruff_cache .hypothesis
