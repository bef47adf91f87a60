# Two commands matter: `make demo` runs the main job, `make test` passes the tests. Both set everything up themselves.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JARS := $(VENV)/.jars
FLINK := build/flink-venv
FLINK_READY := $(FLINK)/.ready

.PHONY: help setup demo test unit simulate mutants integration thorough chaos soak bench bench-flink bench-state bench-kafka \
	pictures lint typing format lock wheel clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(READY) ## a virtualenv with the locked dependencies, and Java if it is missing

$(READY): requirements.lock pyproject.toml docker/java.sh
	docker/java.sh
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

demo: setup ## exactly-once under SIGKILL, from nothing: broker, orders, pipeline, kills, check
	$(BIN)/lockstep demo $(ARGS)

test: lint unit integration ## everything that must hold

unit: setup ## the protocol and everything else that needs no JVM, in seconds
	$(BIN)/python -m pytest unit_tests -n 2 $(ARGS)

simulate: setup ## the protocol under millions of crash, pause and fault schedules; one of them with ARGS="--seed 7"
	$(BIN)/python -m unit_tests.simulation $(ARGS)

mutants: setup ## deliberate mistakes in the protocol: the simulation must notice each
	$(BIN)/python -m unit_tests.mutants $(ARGS)

$(JARS): $(READY) # Spark's jars, fetched once by one JVM: Ivy's cache is not made for two that start side by side
	$(BIN)/python -m integration_tests.sessions
	touch $@

integration: $(JARS) ## real Spark, real Delta, real PostgreSQL, real Kafka (Docker if there is an engine, else embedded)
	docker/postgres.sh
	$(BIN)/python -m pytest integration_tests -n 2 --dist loadfile --no-loadscope-reorder --durations=40 $(ARGS)

thorough: $(JARS) ## the driver killed at every step there is, and every sink's contract in all variants (half an hour)
	docker/postgres.sh
	LOCKSTEP_THOROUGH=1 $(BIN)/python -m pytest integration_tests/test_crash_*.py integration_tests/test_contract_*.py \
		integration_tests/test_savepoint*.py integration_tests/test_rewind.py integration_tests/test_chaos.py $(ARGS)

chaos: $(JARS) ## faults against a real pipeline, by a seed: ARGS="--rounds 20 --seed 7"; --help tells more
	$(BIN)/python -m integration_tests.chaos $(ARGS)

soak: $(JARS) ## a thousand epochs of one driver: nothing may grow
	$(BIN)/python -m integration_tests.soak $(ARGS)

bench: $(JARS) ## Lockstep beside Spark's Delta sink and others, with ARGS=--quick a short one
	$(BIN)/python -m benchmarks.suite $(ARGS)

$(FLINK_READY): benchmarks/flink/requirements.txt
	test -x $(FLINK)/bin/python || $(PYTHON) -m venv $(FLINK)
	$(FLINK)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

bench-flink: $(JARS) $(FLINK_READY) ## Lockstep beside Apache Flink, in a virtualenv of its own, with ARGS=--quick a short one
	$(BIN)/python -m benchmarks.suite --only throughput_flink,state_flink $(ARGS)

bench-state: $(JARS) ## keyed state beside an idiomatic applyInPandasWithState, with ARGS=--quick a short one
	$(BIN)/python benchmarks/state.py $(ARGS)

bench-kafka: $(JARS) ## KafkaSink beside Spark's own Kafka sink, with ARGS=--quick a short one
	$(BIN)/python benchmarks/kafka_sink.py $(ARGS)

pictures: setup ## draw the pictures of docs/snapshots.md from the model
	$(BIN)/python -m unit_tests.snapshots docs/pictures

lint: setup typing ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p lockstep

typing: # the tree as it is imported: mypy does not know that plugin/ is lockstep
	@rm -rf build/typing && mkdir -p build/typing/lockstep
	@ln -s $(CURDIR)/plugin/* build/typing/lockstep/
	@ln -s $(CURDIR)/sinks $(CURDIR)/sources build/typing/lockstep/

format: setup ## put the code into shape
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

lock: setup ## renew requirements.lock
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra test --generate-hashes --no-emit-index-url --no-emit-find-links \
		--no-header --python-version 3.11 --upgrade -o requirements.lock

wheel: setup ## the distribution, in dist/
	$(BIN)/python -m build --wheel --no-isolation --outdir dist

clean: ## remove what was built; the virtualenv too
	rm -rf build dist .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
