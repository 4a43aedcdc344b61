# Commands a contributor has; each makes what it needs, so the first one works on a fresh checkout.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: environments demo test quick lint fix golden docs bench torture agents trainers real real-servers gym shape browser mutants locked lock sbom fuzz screenshots site improve fresh wheels

$(VENV)/.installed: pyproject.toml $(wildcard src/rollforge/_*.[ch] src/rollforge/*/_*.[ch] src/rollforge/*/*/_*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	$(BIN)/python -m compileall -q src  # where Python may not write them, every command would compile its modules anew
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,sinks-test]'
	touch $@

demo: $(VENV)/.installed  ## install into .venv and run the whole pipeline on the embedded model
	$(BIN)/rollforge demo

test: $(VENV)/.dev  ## all tests: unit, contract, properties, end to end with kill and resume
	$(BIN)/python -m pytest -n 2

quick: $(VENV)/.dev  ## the tests a change is written against
	$(BIN)/python -m pytest -m 'not slow' -n 2

lint: $(VENV)/.dev  ## ruff format + check, mypy --strict, generated docs up to date
	$(BIN)/ruff format --check src tests benchmarks scripts examples
	$(BIN)/ruff check src tests benchmarks scripts examples
	$(BIN)/mypy
	$(BIN)/python scripts/docs.py --check

fix: $(VENV)/.dev  ## the same, repairing
	$(BIN)/ruff check --fix src tests benchmarks scripts examples
	$(BIN)/ruff format src tests benchmarks scripts examples
	$(BIN)/python scripts/docs.py

golden: $(VENV)/.dev  ## rewrite golden files; review the diff like code
	ROLLFORGE_GOLDEN=1 $(BIN)/python -m pytest tests/exporters/test_golden.py tests/cli/test_golden.py tests/checks/test_limits.py

site: $(VENV)/.dev  ## the docs site, into site/; a broken link fails
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'mkdocs-material>=9.6'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

improve: $(VENV)/.installed  ## a real model gets better: collect, train on CPU, compare (VARIANT=sft|dpo|grpo SEED=1)
	ROLLFORGE=$(abspath $(BIN))/rollforge ROLLFORGE_PACKAGE=$(abspath .) PYTHON=$(PYTHON) bash examples/improve/improve.sh $(or $(VARIANT),sft) $(or $(SEED),1)

fresh: $(VENV)/.dev  ## every code block of README and docs, against the wheel in a fresh environment
	PYTHON=$(PYTHON) bash scripts/fresh.sh
	ROLLFORGE_DOCS_PYTHON=$(abspath .venv-fresh/bin/python) $(BIN)/python -m pytest tests/test_docs_blocks.py -k "run_as_printed or probe"

wheels:  ## wheels for this platform (cibuildwheel; Linux needs Docker or Podman) and the sdist, into dist/
	$(PYTHON) -m venv .venv-wheels
	.venv-wheels/bin/python -m pip install --quiet --disable-pip-version-check build cibuildwheel
	.venv-wheels/bin/python -m build --sdist --outdir dist .
	.venv-wheels/bin/python -m cibuildwheel --output-dir dist

docs: $(VENV)/.dev  ## regenerate --help pages, the Python API, family tables, the tree, the site's nav and llms.txt
	$(BIN)/python scripts/docs.py

agents:  ## real agents (Codex, opencode, mini-swe-agent, …) at fixed versions; tests/real_agents uses those that installed
	PYTHON=$(PYTHON) bash scripts/agents.sh

trainers:  ## the trainers' own loaders in an environment of their own; tests/trainers uses it where it is
	PYTHON=$(PYTHON) bash scripts/trainers.sh

screenshots: $(VENV)/.dev  ## pictures of the report and the viewer for README and docs; needs Chromium
	$(BIN)/python scripts/screenshots.py

browser:  ## axe-core for the accessibility tests of pages; needs npm
	npm install --silent --no-audit --no-fund --prefix .browser axe-core@4

environments:  ## the environment packages of `--env` at exact versions, in an environment of their own; tests/environments uses it
	PYTHON=$(PYTHON) bash scripts/environments.sh

gym:  ## NeMo Gym 0.7 with its servers and shipped files, in an environment of its own (Python 3.13); tests/nemo_gym uses it
	bash scripts/nemo_gym.sh

real-servers:  ## real servers (llama.cpp, transformers serve) with a small real model, in an environment of their own; tests/real uses it
	PYTHON=$(PYTHON) bash scripts/real_servers.sh

real: $(VENV)/.dev real-servers  ## the tests against real servers
	$(BIN)/python -m pytest tests/real --timeout 900

bench: $(VENV)/.dev  ## benchmarks as ratios against a peer or a floor in the same run
	$(BIN)/python -m benchmarks

torture: $(VENV)/.dev  ## many random kills of a real process, a cut at every byte, a long search for lines read differently
	ROLLFORGE_TORTURE=1 $(BIN)/python -m pytest tests/e2e -k torture --timeout 3600
	ROLLFORGE_TORTURE=1 $(BIN)/python -m pytest tests/hostile/test_kills.py tests/hostile/test_torn_runs.py tests/hostile/test_fuzz_runs.py --timeout 72000
	ROLLFORGE_TORTURE=1 $(BIN)/python -m pytest tests/properties --timeout 3600
	ROLLFORGE_TORTURE=1 $(BIN)/python -m pytest tests/steps/test_collect_batch.py --timeout 3600

fuzz: $(VENV)/.dev  ## generated and mutated input through the compiled modules, under sanitizers, for a minute
	$(BIN)/python scripts/fuzz.py --seconds 60

shape: $(VENV)/.dev  ## sizes of modules and functions, for seeing drift
	$(BIN)/python scripts/shape.py

mutants: $(VENV)/.dev  ## plant a seeded sample of 60 mistakes all over the source: do tests notice?
	$(BIN)/python scripts/mutants.py

locked:  ## the environment of CI: exact versions, each checked against its hash
	$(PYTHON) -m venv $(VENV)
	bash scripts/install.sh $(VENV) --require-hashes -r requirements-ci.txt
	bash scripts/install.sh $(VENV) --no-deps --no-build-isolation -e .
	$(BIN)/python -m compileall -q src
	touch $(VENV)/.installed $(VENV)/.dev

lock: $(VENV)/.installed  ## write requirements-ci.txt anew, after a change of dependencies
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/python scripts/lock.py

sbom:  ## the wheel, and what it brings along, as a CycloneDX bill of materials: dist/
	PYTHON=$(PYTHON) bash scripts/sbom.sh
