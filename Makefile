# All tasks of a checkout. Each target installs what it needs; only Python 3.11 (or newer) and make are required.

VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
PIP := -m pip --disable-pip-version-check --quiet

# The generator of flowrt/protos/*_pb2.py is old on purpose (pyproject.toml, `protobuf`), and its wheels end
# at Python 3.12, so it lives in an environment of its own.
PROTOC_VENV := .venv-protoc
PROTOC_READY := $(PROTOC_VENV)/.ready
PROTOC := grpcio-tools==1.64.3 'setuptools<81'

# $(call find_python,NAMES): the first of NAMES that runs, is 3.11 or newer and can make environments.
find_python = for name in $(1); do \
	$$name -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo $$name; break; }; done

# The demo has an environment of its own, of 190 MB rather than 1.5 GB, unless the one for development is there.
DEMO_VENV := $(if $(wildcard $(READY)),$(VENV),.venv-demo)
DEMO := runs/demo

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-nightly fuzz soak lint types stubs check bench bench-scaling docs docs-site check-links protos clean

help:  ## print this list
	@sed -n 's/^\([a-z-]*\):[^#]*## *\(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) \
		| awk -F'|' '{ printf "%-20s %s\n", $$1, $$2 }'

demo: $(DEMO_VENV)/.ready  ## train a network on real data on two CPU devices, and look at its graph in a browser
	@mkdir -p $(DEMO)
	@$(DEMO_VENV)/bin/python -m flowrt export examples/digits_cnn.py --out $(DEMO)/graph.html -- --out $(DEMO)
	@test -z "$$DISPLAY$$WAYLAND_DISPLAY" || $(DEMO_VENV)/bin/python -m webbrowser -t "file://$(CURDIR)/$(DEMO)/graph.html" >/dev/null
	@printf '%s\n' '' 'Open $(DEMO)/graph.html in a browser: the training step as built, placed and partitioned. Then:' '' \
		'  $(DEMO_VENV)/bin/flowrt report $(DEMO)      curves, step times and transfers of this run, as a page' \
		'  $(DEMO_VENV)/bin/flowrt-run --standalone --nproc 2 examples/digits_cluster.py   the network on two processes' \
		'  docs/start_here.md                         your own first script, in ten minutes'

test: $(READY)  ## run the tests, except the slow ones
	@$(PY) -m compileall -q flowrt  # the processes of tests start three times as fast, whatever the environment says
	@PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not slow"  # on 2 cores: a test that waits leaves one idle

test-nightly: $(READY)  ## run all tests, including the slow ones, with many fresh random examples, verify programs, and damage inputs
	@FLOWRT_CHECK=1 $(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder --timeout 1800 --hypothesis-profile nightly
	@$(PY) -m tests.fuzz --inputs $(or $(INPUTS),1000000)

fuzz: $(READY)  ## read 1,000,000 damaged frames, messages, graphs, manifests and schedules (INPUTS=n)
	@$(PY) -m tests.fuzz --inputs $(or $(INPUTS),1000000)

soak: $(READY)  ## disturb a job of eight tasks for 2 hours, and compare its result (MINUTES=n, SEED=n)
	@$(PY) -m tests.soak --minutes $(or $(MINUTES),120) $(if $(SEED),--seed $(SEED))

lint: $(READY)  ## ruff: rules and format
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --check --quiet .

types: $(READY)  ## mypy, strict
	@$(PY) -m mypy

check: lint types test  ## lint, types and test, as CI runs them

bench-scaling: $(READY)  ## measure how building, compiling and running scale, up to 1,000,000 operations (runs/bench)
	@$(PY) -m benchmarks.scaling

bench: $(READY)  ## run the benchmarks (runs/bench); PEERS=environment compares with the frameworks installed there
	@$(PY) -m benchmarks $(if $(PEERS),--peers $(PEERS),--only-ours)

docs: $(READY)  ## regenerate the documentation's pictures from the examples (needs: apt install graphviz chromium)
	@rm -rf runs/docs && mkdir -p docs/pictures
	@for view in placed partitioned; do \
		$(PY) -m flowrt export examples/digits_cnn.py --view $$view \
			--out docs/pictures/digits_cnn_$$view.svg -- --steps 2 --out runs/docs | tail -n 1 || exit; done
	@$(PY) -m flowrt export examples/digits_cnn.py --out runs/docs/digits_cnn.html \
		-- --steps 2 --out runs/docs | tail -n 1
	@$(PY) -m tests.viz.browser runs/docs/digits_cnn.html docs/pictures/digits_cnn_page.png
	@$(PY) -m tests.viz.browser runs/docs/digits_cnn.html docs/pictures/digits_cnn_page_op.png \
		'#stage=fold_constants&op=hidden/MatMul'
	@$(PY) -m flowrt export examples/gpt_layouts.py --out runs/docs/gpt_layouts.html | tail -n 1
	@$(PY) -m tests.viz.browser runs/docs/gpt_layouts.html docs/pictures/gpt_layouts_page.png \
		'#op=block0/down/BiasAdd'
	@for name in gpipe 1f1b interleaved zb_h1 zb_h2 zbv; do \
		$(PY) -m flowrt export --schedule $$name --devices 4 --micro-batches 8 \
			--out docs/pictures/schedule_$$name.svg || exit; done
	@OPENBLAS_NUM_THREADS=1 $(PY) -m flowrt export --schedule examples/gpt_pipeline.py \
		--out docs/pictures/pipeline_run.svg -- --width 128 --steps 40 | tail -n 1
	@$(PY) examples/digits_cnn.py --out runs/docs/digits_cnn | tail -n 1
	@$(PY) -m tests.viz.browser $$($(PY) -m flowrt report runs/docs/digits_cnn) docs/pictures/report.png \
		'#curves'

docs-site: $(READY)  ## build the documentation site (runs/site): pages, tutorials, API reference; links are checked
	@$(PY) $(PIP) install --editable '.[docs]'
	@$(PY) -m sphinx --quiet --fail-on-warning --keep-going -c docs/site . runs/site
	@echo runs/site/index.html

check-links: $(READY)  ## visit the links of the documentation site that lead out of it (needs the network)
	@$(PY) $(PIP) install --editable '.[docs]'
	@$(PY) -m sphinx --quiet -b linkcheck -c docs/site . runs/links

protos: $(PROTOC_READY)  ## generate flowrt/protos/*_pb2.py and .pyi from the .proto files
	@$(PROTOC_VENV)/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. flowrt/protos/*.proto

stubs: $(READY)  ## write flowrt/**/*.pyi: the namespaces as type checkers and editors read them
	@$(PY) -m tests.typing.stubs

clean:  ## remove caches, built files and runs/ (keeps the environment; rm -rf .venv to recreate it)
	@rm -rf build dist runs *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find flowrt tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call new_environment,FOLDER): make it if it is not there, with $(PYTHON) or the first Python that will do.
define new_environment
	@$(1)/bin/python $(PIP) --version >/dev/null 2>&1 || { \
		python=$$($(call find_python,$(PYTHON) python3.11 python3.12 python3.13 python3)); \
		test -n "$$python" || { \
			echo "flowrt needs Python 3.11 or newer, with venv and ensurepip; python3.11, python3.12," \
				"python3.13 and python3 are not. Name yours: make PYTHON=/path/to/python" >&2; exit 1; }; \
		echo "making $(1) with $$python"; $$python -m venv $(1); }
endef

$(READY): pyproject.toml
	$(call new_environment,$(VENV))
	@echo "installing flowrt and its development tools into $(VENV)"
	@$(PY) $(PIP) install --editable '.[dev]'
	@touch $@

.venv-demo/.ready: pyproject.toml
	$(call new_environment,.venv-demo)
	@echo "installing flowrt and the demo's data into .venv-demo (190 MB)"
	@.venv-demo/bin/python -m pip --disable-pip-version-check install --editable '.[viz]'
	@.venv-demo/bin/python $(PIP) install --no-deps scikit-learn  # for its file of digits: no SciPy
	@touch $@

$(PROTOC_READY): Makefile
	@python=$$($(call find_python,$(PYTHON) python3.11 python3.12)); \
		test -n "$$python" || { echo "protos: needs Python 3.11 or 3.12; found neither" >&2; exit 1; }; \
		$$python -m venv --clear $(PROTOC_VENV)
	@$(PROTOC_VENV)/bin/python $(PIP) install --only-binary :all: $(PROTOC)
	@touch $@
