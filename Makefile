# make demo   a table of policies on a real model's graph
# make quick  what most changes break, on the base install with pytest and hypothesis: at most 90 seconds
# make test   everything that has to hold before a change goes in: at most 8 minutes on 2 cores
# make test-long  the tests that take too long for that
# make versions  torch's rooms under the lowest and the newest torch and transformers that were tried: a quarter of an hour, 7 GB
# make rooms  make test, with the CPU seconds of each room of the tests beside its share
# make bench  what hosim takes in time and memory, as a table: an hour on a slow machine
# make truth  hosim's figures beside those of others, as a table
# make runtimes  the runtimes beside what people reported, each source left out of their fit in turn: six minutes
# make intervals  how often what people reported lies within 90 % intervals, each source left out in turn, and the spreads that follow: ten minutes
# make race   real servers in public, beside hosim and other simulators: a quarter of an hour
# make kernels  the constants of kernels again, fitted to the measured tables beside the project: a minute
# make spreads  how far op times are off, for intervals of makespans, from the same tables and published steps: a minute
# make docs   the documentation as a site, in build/site
# make changelog  what the next release would say, from the fragments in changelog.d
# make gate-all BASE=REVISION   every shipped workload, profile and policy against an earlier revision: hours
# make mutants N=300 SEED=1  of so many small errors put into hosim at random, which ones the tests do not notice: an hour
# make fuzz N=2000 SEED=1   hosim's commands on damaged and hostile inputs, which no two seeds share: 30 inputs a second
#
# All make .venv by themselves, with python3 and pip alone, and install again only when pyproject.toml or a compiled file has changed.
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
COMPILED := hatch_build.py $(wildcard hosim/engine/loop*.py hosim/planner/hyperoffload/kernels/*.py) hosim/engine/compiled_loop.pxd hosim/planner/hyperoffload/compiled_search.pxd
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo quick test suite versions rooms test-long bench truth runtimes intervals race kernels spreads docs changelog gate-all mutants fuzz check clean

demo: .venv/.installed
	$(BIN)/hosim compare-policies llama-3.1-8b-prefill-4k --hardware h100-80gb-sxm --budget 12GiB

# Without torch and the other extras.
quick: .venv/.installed-quick
	$(BIN)/pytest --quiet --hypothesis-profile=quick -m 'not long and not slow' tests/engine tests/golden tests/io tests/planner

# Modules are compiled once, not by each process, whatever the environment says: the tests start hundreds.
export PYTHONDONTWRITEBYTECODE =

# No verdict depends on a clock, on how busy the machine is, or on its memory.
PYTEST := $(BIN)/pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder
# The checks take one core for a minute: they run beside the tests.
test: .venv/.installed-dev
	$(MAKE) --no-print-directory --jobs=2 check suite

suite: .venv/.installed-dev
	$(PYTEST) -m 'not long'

# The versions are those that `hosim doctor` names.
versions: .venv/.installed-dev
	$(BIN)/python tests/on_versions.py

# Which room of the tests takes how much of that.
rooms: .venv/.installed-dev
	PYTHONPATH=tests $(PYTEST) -p room_seconds -m 'not long'

test-long: .venv/.installed-dev
	$(PYTEST) -m 'long or hypothesis' --hypothesis-profile=long

# Always runs to its end; STRICT=1 fails unless every bound is held. The table lies in build/bench.md and build/bench.json, too.
bench: .venv/.installed-dev
	$(BIN)/python tests/bench/bench.py $(if $(STRICT),--strict) $(if $(ONLY),--only '$(ONLY)')

# What needs recordings that do not lie beside the repository is left out.
truth: .venv/.installed-dev
	$(BIN)/pytest -m truth --truth-table --quiet --numprocesses=2

# The runtimes beside what people reported, by kind: with all rows, and with each source left out of the fit.
runtimes: .venv/.installed-dev
	cd tests && ../$(BIN)/python judge_runtimes.py

intervals: .venv/.installed-dev
	cd tests && ../$(BIN)/python judge_intervals.py

race: .venv/.installed-dev
	cd tests && ../$(BIN)/python judge_race.py

kernels: .venv/.installed-dev
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python fit_kernels.py && ../$(BIN)/ruff format --quiet ../hosim/analysis/costmodel/kernels

spreads: .venv/.installed-dev
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python fit_spreads.py && ../$(BIN)/ruff format --quiet ../hosim/analysis/costmodel/spreads/fitted_spreads.py

# NO_MKDOCS_2_WARNING: not a page about the next release of MkDocs at every build.
docs: .venv/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

changelog: .venv/.installed-dev
	$(BIN)/towncrier build --draft

# Of the tests' gate the whole product; ONLY='*/gh200-96gb/*' is a part of it. What changed lies in build/gate/page.html, too.
BASE ?= HEAD~1
gate-all: .venv/.installed-dev
	rm -rf build/gate tests/gate/own/all-baselines
	mkdir -p build/gate/base
	git archive $(BASE) hosim hardware_profiles workloads | tar -x -C build/gate/base
	PYTHONPATH=build/gate/base $(BIN)/hosim baseline write $(if $(ONLY),'$(ONLY)') --config tests/gate/own/all.toml --no-cache
	$(BIN)/hosim check $(if $(ONLY),'$(ONLY)') --config tests/gate/own/all.toml --no-cache --html build/gate/page.html

# The first run takes the suite once more, to find which tests reach which lines; it goes on where it was interrupted. MORE=--again is
# those that survived once more, MORE=--help is the other options.
N ?= 60
SEED ?= 1
mutants: .venv/.installed-dev
	$(BIN)/python tests/mutants/run.py -n $(N) --seed $(SEED) --jobs 2 $(MORE)

# What it finds lies in tests/fuzz/found from then on; ONLY=pt2 is one kind of input, MORE=--help is the other options.
fuzz: N = 2000
fuzz: .venv/.installed-dev
	$(BIN)/python tests/fuzz/run_fuzz.py -n $(N) --seed $(SEED) $(if $(ONLY),--only '$(ONLY)') $(MORE)

check: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Stamps. The development install is the base install and more.
.venv/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hosim needs Python 3.11 or later: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/.installed: pyproject.toml $(COMPILED) | .venv/.created
	$(PIP) install --no-compile --editable .
	touch $@

.venv/.installed-quick: .venv/.installed
	$(PIP) install 'pytest>=8.2' 'hypothesis>=6.100'
	touch $@

# One release of torch, by name: a range would fetch the newest with gigabytes of libraries for a GPU that no test needs.
.venv/.installed-dev: pyproject.toml $(COMPILED) | .venv/.created
	$(PIP) install torch==2.13.0
	$(PIP) install --editable '.[dask,dev,docs,parquet,solver,torch]'
	touch .venv/.installed $@

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
