# clusterkit: `make demo` and `make test` are all that a fresh machine needs.
# A Debian machine with Python 3.11; as root the missing Debian packages are installed as well.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(firstword $(shell command -v python3.11 python3))
VENV := .venv
BIN := $(VENV)/bin
# on a terminal pip shows what it fetches, with a bar that moves; elsewhere it is quiet
QUIET := $(shell test -t 2 || echo --quiet --quiet)
PIP := $(BIN)/python -m pip --disable-pip-version-check $(QUIET)
# What a lock pins, each file checked against its hash, and nothing else (docs/dependencies.md)
LOCKED := install --no-deps --no-build-isolation --require-hashes --requirement
# Of what only tests need, Python compiles what is imported, when it is: pip would compile all of it
UNCOMPILED := $(subst install,install --no-compile,$(LOCKED))
export PATH := $(CURDIR)/$(BIN):$(PATH)

# slurm, database and ssh: the practice cluster (mariadb-server-core, because mariadb-server makes a
# system service); compilers: Horovod has no wheel, DeepSpeed compiles its ops; tcsh and fish: login
# shells that are no sh; zsh: its completion; nodejs: the search of the documentation
DEBIAN_VENV := python3-venv
DEBIAN_TEST := slurm-wlm slurmdbd mariadb-server-core munge openssh-server openssh-client busybox-static \
               iproute2 nftables iputils-ping iperf3 openmpi-bin g++ make cmake python3-dev tcsh fish zsh nodejs docker.io mmdebstrap
# Spark runs on Java; Slurm's pmix plugin looks for libpmix.so, which only -dev has; an MPI-built
# Horovod is compiled against Open MPI
DEBIAN_FRAMEWORKS := openmpi-bin mpich libopenmpi-dev libpmix-dev openjdk-17-jre-headless
DEBIAN_BENCH = $(DEBIAN_TEST) clustershell pdsh
# frameworks whose packages are large: each has a virtual environment of its own on top of ours
HEAVY := $(patsubst tests/frameworks/%.txt,%,$(wildcard tests/frameworks/*.txt))
# Tests start Python some thousand times: it is to keep what it has compiled, as it does by default
unexport PYTHONDONTWRITEBYTECODE
PYTEST ?= -q -ra --durations=25
# what needs nothing but the practice cluster, and what of it `make test` runs
HERE := not docker and not frameworks and not gpu
FIRST := $(HERE) and (smoke or not lab and not train)

.PHONY: help
help: ## List the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(VENV)/torch.done ## Train a small model on two nodes of this machine (torchrun DDP)
	@clusterkit submit --cluster local --framework torchrun --nodes 2 --follow \
	  examples/train_ddp.py --steps 60
	@echo
	@echo 'next: export PATH="$$PWD/.venv/bin:$$PATH", then clusterkit status'

.PHONY: test
test: $(VENV)/test.done ## Run all checks, the unit tests, and each mechanism of real jobs once (tests/mechanisms.tsv)
	@$(MAKE) --no-print-directory -j2 --output-sync=target lint compiled
	pytest -n 5 $(PYTEST) -m '$(FIRST)' tests

# Each process of the tests reads all of them: what pytest makes of them is kept, and made while mypy
# leaves a processor free.
.PHONY: compiled
compiled: $(VENV)/test.done
	@pytest --collect-only -qqq tests >$(VENV)/collected.log || { cat $(VENV)/collected.log; exit 1; }

.PHONY: test-all
test-all: ## Run `make test`, then all other tests of the practice cluster and of the Docker engine
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-rest

# Images are built, containers tried, and then jobs given to another Slurm, beside those of the practice cluster, which
# mostly wait: two at a time, in this order. Of the rest, one process runs what needs no cluster (tests/conftest.py).
.PHONY: test-rest
test-rest: $(VENV)/test.done ## Run what `make test` leaves out: every fault of real jobs, another Slurm, containers
	@$(MAKE) --no-print-directory -j2 REST=yes test-faults test-docker test-slurm || { tail $(VENV)/images.log; exit 1; }

# Each process reads the files that it is given: those in which such tests are.
.PHONY: test-faults
test-faults: $(VENV)/test.done
	pytest -n 4 $(PYTEST) --warm-clients -m '$(HERE) and not ($(FIRST))' tests/lab \
	  $$(grep -rlE --include='*.py' 'mark\.(lab|train)\b' tests/unit tests/attacks)

.PHONY: images
images: $(VENV)/test.done
	@set -o pipefail; python -m tests.docker build 2>&1 | tee $(VENV)/images.log

.PHONY: test-docker
test-docker: images ## Build the images, run jobs in containers and compose clusters
	pytest $(PYTEST) tests/docker

.PHONY: test-frameworks
test-frameworks: $(HEAVY:%=.venvs/%.done) | debian-frameworks ## Train with TensorFlow, Ray, Spark, JAX, Lightning, MPI
	pytest $(PYTEST) -m frameworks tests

# The first Python here that has torch, with the packages of `make gpu-kit` for its version in front. A
# machine with a GPU mostly has torch already, and may reach nothing: nothing is installed.
.PHONY: test-gpu
test-gpu: ## On a machine with an NVIDIA GPU, and any Python with torch: prove what else is only pretended
	@for python in $(PYTHON) $(BIN)/python python3 python; do \
	  $$python -c 'import sys, importlib.util as u; sys.exit(not u.find_spec("torch"))' 2>/dev/null || continue; \
	  export PYTHONPATH="$(KIT)/$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'):$(CURDIR):$$PYTHONPATH"; \
	  $$python -c 'import pytest, pydantic, hypothesis' || { \
	    echo "$$python lacks what the tests need: make gpu-kit PYTHON_VERSION=... elsewhere" >&2; exit 2; }; \
	  exec $$python -m pytest $(PYTEST) -p no:cacheprovider -m gpu tests/gpu; done; \
	echo 'no Python here has torch: make test-gpu PYTHON=/path/to/python3' >&2; exit 2

# For a machine with a GPU and no network: this commit, and what it needs beside torch, unpacked.
KIT := $(CURDIR)/build/gpu-kit
PYTHON_VERSION ?= 3.12
KIT_MOST := 41943040
KIT_TESTS := execnet|hypothesis|iniconfig|packaging|pluggy|pytest|pytest-timeout|pytest-xdist|sortedcontainers

.PHONY: gpu-kit
gpu-kit: $(VENV)/core.done ## Pack build/gpu-kit.tar.gz for `make test-gpu` elsewhere (PYTHON_VERSION=3.12)
	@rm -rf $(KIT) $(KIT).tar $(KIT).tar.gz && mkdir -p $(KIT)
	@awk '/^[a-z]/ { wanted = $$0 ~ /^($(KIT_TESTS))==/ } wanted' locks/dev.txt >$(KIT)/tests.txt
	@$(PIP) $(LOCKED) locks/core.txt --requirement $(KIT)/tests.txt --target $(KIT)/$(PYTHON_VERSION) --no-compile \
	  --only-binary :all: --python-version $(PYTHON_VERSION) $(foreach of,2_34 2_28 2_17,--platform manylinux_$(of)_x86_64) \
	  --platform manylinux2014_x86_64
	@git archive --prefix clusterkit/ --output $(KIT).tar HEAD
	@tar --append --file $(KIT).tar --transform 's,^,clusterkit/,' build/gpu-kit
	@gzip -9 $(KIT).tar
	@size=$$(stat --format %s $(KIT).tar.gz); test $$size -lt $(KIT_MOST) || { \
	  echo "$(KIT).tar.gz has $$size bytes, over 40 MiB" >&2; exit 1; }
	@echo "build/gpu-kit.tar.gz: tar xf it there, cd clusterkit, make test-gpu"

.PHONY: lint
lint: $(VENV)/dev.done $(VENV)/torch.done ## Run ruff, mypy, import-linter, shellcheck and hadolint
	ruff check .
	ruff format --check .
	mypy
	lint-imports
	git ls-files '*.sh' 'images/*/bin/*' 'images/*/test/health' | xargs -r shellcheck
	git ls-files '*Dockerfile' | xargs -r hadolint

.PHONY: golden
golden: $(VENV)/dev.done ## Render the golden files anew (then read the diff)
	CLUSTERKIT_GOLDEN=write pytest -q $$(git grep -lE 'CLUSTERKIT_GOLDEN|golden_of' tests/unit)

.PHONY: docs
docs: $(VENV)/dev.done ## Build the documentation site into build/docs/html
	python -m docs.generate build/docs/source
	sphinx-build --quiet --fail-on-warning --keep-going --conf-dir docs --doctree-dir build/docs/doctrees \
	  build/docs/source build/docs/html
	@echo 'open build/docs/html/index.html'

.PHONY: pictures
pictures: $(VENV)/dev.done ## Draw the pictures of the documentation anew (then look at them)
	python -m docs.pictures

.PHONY: faults
faults: $(VENV)/test.done ## Strike running jobs with faults, write docs/reliability.md
	python -m tests.helpers.faults

.PHONY: bench
bench: $(VENV)/test.done debian-bench ## Measure start-up, submission, ssh to 64 hosts, judging 4,096 nodes, logs
	python -m bench

.PHONY: goodput
goodput: $(VENV)/test.done ## Strike a job with a fault every minute for 20 minutes, on slurm and ssh: what is left of its time
	python -m bench.goodput

.PHONY: estimate-accuracy
estimate-accuracy: $(VENV)/test.done ## Score the estimator: TRUTH=FILE, a table of published figures
	@test -n "$(TRUTH)" || { echo 'which table? make estimate-accuracy TRUTH=FILE' >&2; exit 2; }
	python -m bench.accuracy $(TRUTH)

# SLURM=24.11: the release of another Debian, in a root folder of its own. 26.05 is that of the next one.
SUITE_24.11 := trixie
SUITE_26.05 := forky
ON_SLURM = tests/lab/release.sh $(or $(SUITE_$(SLURM)),$(error SLURM=$(SLURM): only 24.11 and 26.05 can be had here))

.PHONY: lab
lab: $(VENV)/dev.done debian-test ## Start the practice cluster, Slurm and ssh (SLURM=24.11: that release, in a shell)
	$(if $(SLURM),$(ON_SLURM) bash -c 'python -m tests.lab up && exec bash',python -m tests.lab up)

# What cannot be had is a failure in CI, and is told elsewhere.
.PHONY: test-slurm
test-slurm: SLURM := $(or $(SLURM),24.11)
test-slurm: $(VENV)/dev.done debian-test ## Run each mechanism of Slurm jobs once on another Slurm (SLURM=24.11)
	$(ON_SLURM) pytest -n $(if $(REST),2,3) $(PYTEST) -m 'slurm and not train' tests/lab || [ $$? = 77 -a "$$CI" != true ]

.PHONY: lab-down
lab-down: $(VENV)/dev.done ## Stop the practice cluster and remove it
	python -m tests.lab down

.PHONY: wheel
wheel: $(VENV)/core.done ## Build the wheel into dist/, unless its name on the index is somebody else's
	python -m release.check_name
	python -m hatchling build -t wheel -d dist

.PHONY: clean
clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .venvs build/docs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# --- set-up: each step leaves a mark, and runs again when what it depends on has changed ----------

$(VENV)/core.done: pyproject.toml locks/build.txt locks/core.txt
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || $(MAKE) --no-print-directory debian-venv
	@echo "setting up $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) $(LOCKED) locks/build.txt
	@$(PIP) $(LOCKED) locks/core.txt
	@$(PIP) uninstall --yes clusterkit # the name of checkouts before, and of somebody else's project
	@$(PIP) install --no-index --no-deps --no-build-isolation --editable .
	@touch $@

# the CPU build is on PyTorch's own index; without that one, the build of the general index
$(VENV)/torch.done: $(VENV)/core.done locks/torch-cpu.txt locks/torch-cuda.txt
	@echo "installing torch (hundreds of megabytes, some minutes)"
	@$(PIP) $(LOCKED) locks/torch-cpu.txt 2>$(VENV)/torch.log || { \
	  echo "the CPU build cannot be had ($$(tail -1 $(VENV)/torch.log)); installing the one with CUDA, some gigabytes"; \
	  $(PIP) $(LOCKED) locks/torch-cuda.txt; }
	@touch $@

$(VENV)/dev.done: $(VENV)/core.done locks/dev.txt
	@echo "installing the development tools"
	@$(PIP) $(UNCOMPILED) locks/dev.txt
	@touch $@

$(VENV)/test.done: $(VENV)/torch.done $(VENV)/dev.done locks/train.txt images/horovod/build-wheel.sh | debian-test
	@echo "installing deepspeed, accelerate and transformers"
	@DS_BUILD_OPS=0 $(PIP) $(UNCOMPILED) locks/train.txt
	@echo "installing horovod (built from source once, some minutes; kept in ~/.cache/clusterkit)"
	@if type g++ cmake make >/dev/null 2>&1; then \
	  wheel=$$($(HOROVOD)) && $(PIP) install --no-index --no-deps "$$wheel"; \
	else echo "no g++, cmake or make: horovod cannot be built" >&2; ($(UNLESS_CI)); fi
	@touch $@

# from the source that the images' lock pins; the tools to build it are those of locks/train.txt
HOROVOD := images/horovod/build-wheel.sh --lock images/horovod/lock/source.txt --python $(BIN)/python

.venvs/%.done: tests/frameworks/%.txt | $(VENV)/test.done debian-frameworks
	@echo "installing $*"
	@rm -rf .venvs/$* && $(PYTHON) -m venv .venvs/$*
	@echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
	  >"$$(.venvs/$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/below.pth"
	@$(with) .venvs/$*/bin/python -m pip --disable-pip-version-check $(QUIET) \
	  $(if $(with),install --no-index --no-deps --requirement,$(LOCKED)) $<
	@touch $@

# built from source once, some minutes; kept in ~/.cache/clusterkit
.venvs/horovod-mpi.done: with = HOROVOD_MPI_WHEEL="$$($(HOROVOD) --with mpi)"

# --- the locks: what locks/*.in, pyproject.toml and tests/frameworks/*.in ask for, with hashes ------

# Versions that a lock has are kept; `make lock UPGRADE=--upgrade` moves them. TORCH_CPU names a folder
# or page with PyTorch's CPU wheels.
TORCH_CPU ?= $(PIP_FIND_LINKS)
COMPILE := .venvs/uv/bin/uv pip compile --quiet --generate-hashes --no-annotate --no-header \
           --python $(PYTHON) --python-version 3.11 $(UPGRADE)
# for Linux and one torch: its CUDA packages would be listed otherwise
BESIDE_TORCH := $(COMPILE) --find-links '$(TORCH_CPU)' --python-platform x86_64-manylinux_2_28 \
                -c locks/core.txt -c locks/torch-cpu.txt --no-emit-package torch

.PHONY: lock
lock: .venvs/uv.done ## Make the locks anew: every package with its version and hashes
	@test -n "$(TORCH_CPU)" || { echo 'where are the CPU wheels of torch? make lock TORCH_CPU=FOLDER_OR_PAGE' >&2; exit 2; }
	$(COMPILE) --universal locks/uv.in -o locks/uv.txt
	$(COMPILE) --universal locks/build.in -o locks/build.txt
	$(COMPILE) --universal -c locks/build.txt pyproject.toml -o locks/core.txt
	sed 's/^torch==[0-9.]*/&+cpu/' locks/torch.in | $(COMPILE) --find-links '$(TORCH_CPU)' \
	  --python-platform x86_64-manylinux_2_28 -c locks/core.txt - -o locks/torch-cpu.txt
	$(COMPILE) --universal -c locks/core.txt locks/torch.in -o locks/torch-cuda.txt
	$(COMPILE) --universal -c locks/build.txt -c locks/core.txt --group dev -o locks/dev.txt
	DS_BUILD_OPS=0 $(BESIDE_TORCH) -c locks/dev.txt locks/train.in -o locks/train.txt
	for name in $(basename $(notdir $(wildcard tests/frameworks/*.in))); do \
	  $(BESIDE_TORCH) -c locks/dev.txt -c locks/train.txt tests/frameworks/$$name.in \
	    -o tests/frameworks/$$name.txt || exit; done

.venvs/uv.done: locks/uv.txt
	@$(PYTHON) -m venv .venvs/uv
	@.venvs/uv/bin/python -m pip --disable-pip-version-check --quiet $(LOCKED) $<
	@touch $@

# Tests of what is missing are skipped, each with its reason; in CI that is a failure.
UNLESS_CI = if [ "$$CI" = true ]; then exit 1; fi; echo "tests that need them are skipped" >&2; exit 0
may_lack = exit 1

.PHONY: debian-venv debian-test debian-bench debian-frameworks
debian-venv: packages = $(DEBIAN_VENV)
debian-test: packages = $(DEBIAN_TEST)
debian-test: may_lack = $(UNLESS_CI)
debian-bench: packages = $(DEBIAN_BENCH)
debian-frameworks: packages = $(DEBIAN_FRAMEWORKS)
debian-venv debian-test debian-bench debian-frameworks:
	@missing=$$(for package in $(packages); do \
	  dpkg-query -W -f='$${Status}' $$package 2>/dev/null | grep -q 'ok installed' || echo $$package; done); \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	  echo "missing Debian packages; as root: apt-get install" $$missing >&2; \
	  $(may_lack); fi; \
	echo "installing Debian packages:" $$missing; \
	apt-get -qq update && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
	  apt-get -qq install --yes --no-install-recommends $$missing >/dev/null
