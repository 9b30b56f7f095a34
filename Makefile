# Each target is one line that names what runs. `make setup` comes first by itself.
PYTHON ?= python3
VENV = .venv/bin
RUN = JAVA_HOME="$$($(VENV)/python scripts/java.py)" PYSPARK_PYTHON="$(CURDIR)/$(VENV)/python" $(VENV)/python
KERNELS = $(wildcard shm/*.py shm/kernels/*.py)

.PHONY: setup demo test bench check interop soak day cluster layout clean
.DEFAULT_GOAL := setup

setup: .venv/warm  ## everything a bare machine lacks: .venv, packages, Java, compiled kernels

demo: setup  ## the main way with real data: producers, log, consumers, Spark, compared with the CSV
	@$(RUN) scripts/demo.py

test:  ## static checks while kernels are compiled, then the whole suite
	@$(MAKE) --no-print-directory -j 2 setup check
	@$(RUN) -m scripts.suite

check: .venv/ready  ## ruff, import contracts, mypy --strict
	@$(VENV)/python scripts/check.py

bench: setup  ## the table of the README, peers and floors in the same run; figures and a page with plots in bench/out/
	@$(RUN) -m bench --json bench/out/bench.json --html bench/out/bench.html

interop: setup  ## a real RocketMQ takes over a store of ours and goes on
	@$(RUN) -m scripts.interop

soak: setup  ## the long counts of docs/faults.md again and again with fresh seeds; ROUNDS=n or MINUTES=m, ONLY=sim,kills
	@$(RUN) scripts/soak.py

day: setup  ## an operator's day with real commands, each checked; WRITE=docs/operators-day.md keeps the transcript
	@$(RUN) scripts/operators_day.py $(if $(WRITE),--write "$(WRITE)")

cluster: setup  ## a standalone Spark cluster on this machine, the package sent along: a read, an ingest
	@$(RUN) -m scripts.spark_cluster

layout: .venv/ready  ## write docs/layout.md from shm/layout.py
	@$(VENV)/python -m scripts.layout_doc

clean:  ## what is made by these targets, .venv too
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

.venv/ready: pyproject.toml constraints.txt scripts/setup.sh scripts/setup.py scripts/java.py
	@PYTHON="$(PYTHON)" sh scripts/setup.sh

.venv/warm: .venv/ready $(KERNELS) tests/support/spark_classes.py
	@echo "setup: compiling kernels (a minute or so the first time, a second when cached)" >&2
	@$(VENV)/python -m scripts.warm
	@$(RUN) -m tests.support.spark_classes || echo "setup: not kept: Spark's tests start more slowly" >&2
	@touch $@
