# incastfree: everything a developer needs. `make help` lists it.

PYTHON := /usr/bin/python3
VENV := .venv
BIN := $(VENV)/bin
CLANG := clang

PACKAGES := python3 python3-venv python3-dev gcc libc6-dev clang llvm libbpf-dev libbpf1,libbpf0 linux-libc-dev \
	mininet python3-bpfcc iproute2 iputils-ping procps make
KERNEL_PACKAGES := linux-source-6.12 xz-utils flex bison bc
# BMv2 itself is in no distribution: vagrant/provision.sh gets it. What it is programmed with needs Thrift.
BMV2_PACKAGES := python3-thrift
LINT_PACKAGES := clang-format shellcheck
# What the tests of the pacer send with.
TRAFFIC_PACKAGES := iperf3
# The tests open a report in it: 113 MB to download with all that it needs on Debian 12, 414 MB on disk.
BROWSER_PACKAGES := chromium

BPF_OBJECTS := controller/nic/objects/pacer.bpf.o $(addprefix testbed/fabric/objects/,fabric.bpf.o plain.bpf.o)
BPF_HEADERS := $(wildcard ebpf/include/*.h ebpf/fabric/*.h)
BPF_FLAGS := -target bpf -mcpu=v3 -O2 -g -Wall -Wextra -Werror -I ebpf/include \
	-I /usr/include/$(shell uname -m)-linux-gnu

# The engine models DPUs with their own code.
ENGINE_SOURCES := $(wildcard testbed/engine/*.c dpu/*.c)
ENGINE_HEADERS := $(wildcard testbed/engine/*.h ebpf/include/*.h dpu/*.h)
ENGINE_STAMP := build/engine.stamp
# Preloaded into the programs that incastfree exec runs.
PATIENCE := testbed/stage/patience.so
NATIVE_SOURCES := $(wildcard controller/native/*.c)
NATIVE_STAMP := build/native.stamp
C_SOURCES := $(wildcard ebpf/*/*.[ch] testbed/engine/*.[ch] testbed/stage/*.c controller/native/*.[ch] benchmarks/*/*.c)
SHELL_SCRIPTS := $(wildcard scripts/*.sh vagrant/*.sh) .ci/run
C_SOURCES += $(wildcard dpu/*.[ch] dpu/*/*.[ch] dpu/*/*/*.[ch] tests/doca/*.[ch])

.DEFAULT_GOAL := help
.PHONY: help setup install-host packages kernel-packages bmv2-packages browser torch kernel demo test unit lint format bench \
	bench-controller fuzz p4 clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

setup: packages bmv2-packages $(BIN)/incastfree $(BPF_OBJECTS) $(ENGINE_STAMP) $(NATIVE_STAMP) $(PATIENCE) kernel ## install and build all that a run needs

install-host: packages bmv2-packages $(BIN)/incastfree $(BPF_OBJECTS) $(ENGINE_STAMP) $(NATIVE_STAMP) ## the same for --stage host: no kernel

packages:
	@scripts/install-packages.sh $(PACKAGES)

kernel-packages: packages
	@scripts/install-packages.sh $(KERNEL_PACKAGES)

bmv2-packages: packages
	@scripts/install-packages.sh $(BMV2_PACKAGES)

# Not every distribution has it, and all other tests do without.
browser:
	@command -v chromium >/dev/null || scripts/install-packages.sh $(BROWSER_PACKAGES) || \
		echo "no chromium: the tests of the report that need one will be skipped"

$(BIN)/incastfree: pyproject.toml | packages
	@echo "making the virtual environment $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv --system-site-packages $(VENV)
	@$(BIN)/pip install -q --disable-pip-version-check -e '.[testbed,bmv2,schedules]'
	@touch $@

build/dev.stamp: pyproject.toml $(BIN)/incastfree
	@echo "installing the development tools"
	@$(BIN)/pip install -q --disable-pip-version-check -e '.[testbed,dev,bmv2,schedules]'
	@mkdir -p build && touch $(BIN)/incastfree $@

controller/nic/objects/%.bpf.o: ebpf/nic/%.bpf.c $(BPF_HEADERS) Makefile | packages
	@mkdir -p $(@D)
	$(CLANG) $(BPF_FLAGS) -c $< -o $@

testbed/fabric/objects/%.bpf.o: ebpf/fabric/%.bpf.c $(BPF_HEADERS) Makefile | packages
	@mkdir -p $(@D)
	$(CLANG) $(BPF_FLAGS) -c $< -o $@

$(ENGINE_STAMP): $(ENGINE_SOURCES) $(ENGINE_HEADERS) Makefile | packages
	@mkdir -p build
	$(CC) -O2 -g -Wall -Wextra -Werror -shared -fPIC $$($(PYTHON) -c \
		'import sysconfig; print("-I" + sysconfig.get_paths()["include"])') -I ebpf/include -I dpu $(ENGINE_SOURCES) \
		-o testbed/engine/_engine$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
	@touch $@

$(PATIENCE): testbed/stage/patience.c Makefile | packages
	$(CC) -O2 -Wall -Wextra -Werror -shared -fPIC $< -o $@

# The same that pip builds (setup.py).
$(NATIVE_STAMP): $(NATIVE_SOURCES) $(wildcard controller/native/*.h) $(wildcard ebpf/include/rate_table*.h) Makefile | packages
	@mkdir -p build
	$(CC) -O3 -g -Wall -Wextra -Werror -shared -fPIC $$($(PYTHON) -c \
		'import sysconfig; print("-I" + sysconfig.get_paths()["include"])') -I ebpf/include $(NATIVE_SOURCES) \
		-o controller/native/_native$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
	@touch $@

kernel: kernel-packages $(BIN)/incastfree
	@$(BIN)/python -m testbed.stage.virtual.kernel build

demo: setup ## compare round robin, with and without control, and rate-based pacing on 16 hosts
	@mkdir -p results
	@$(BIN)/incastfree workload zipf --hosts 16 --s 1 --bytes 30e6 --out results/zipf-16.csv
	@$(BIN)/incastfree compare --demand results/zipf-16.csv --unit wire-bytes \
		--schedule rr,rr+nscc,rate --out results/demo

# For incastfree exec: Debian's PyTorch with its own NumPy, 1 GB to download; and iperf3. Tests that lack them are skipped.
torch: packages ## install what docs/exec.md runs: PyTorch (1 GB to download) and iperf3
	@scripts/install-packages.sh python3-torch python3-numpy iperf3

# A file of tests stays in one process; each has a processor of its own (tests/conftest.py). WORKERS=0 is none but pytest's. Files in
# their order, the long ones of tests/emulation first: by the number of their tests they would come last, and one process wait.
WORKERS := 2
IN_PROCESSES = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: setup build/dev.stamp browser ## run all tests
	@scripts/install-packages.sh $(TRAFFIC_PACKAGES)
	@$(BIN)/python -m pytest $(IN_PROCESSES) tests

unit: $(BIN)/incastfree $(BPF_OBJECTS) $(ENGINE_STAMP) $(NATIVE_STAMP) $(PATIENCE) build/dev.stamp ## run the tests that boot nothing
	@$(BIN)/python -m pytest $(IN_PROCESSES) tests/unit

lint: packages $(ENGINE_STAMP) build/dev.stamp ## ruff, mypy, import-linter, clang-format, shellcheck
	@scripts/install-packages.sh $(LINT_PACKAGES)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	clang-format --dry-run --Werror $(C_SOURCES)
	shellcheck $(SHELL_SCRIPTS)

format: build/dev.stamp ## format Python and C
	@scripts/install-packages.sh $(LINT_PACKAGES)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	clang-format -i $(C_SOURCES)

bench: setup ## measure speed, set-up time and memory (some minutes, on an idle machine)
	@$(BIN)/python benchmarks/virtual_stage.py

FUZZ_SECONDS := 300

fuzz: $(BIN)/incastfree $(ENGINE_STAMP) build/dev.stamp ## changed files for every reader of demands, five minutes each (FUZZ_SECONDS=300)
	@$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

bench-controller: $(BIN)/incastfree $(NATIVE_STAMP) ## measure the controller: M, a rank's rates, their write (a minute)
	@$(BIN)/python benchmarks/controller_speed

p4: ## compile the P4 switch for BMv2 again (where p4c is)
	@$(PYTHON) scripts/build-p4.py

clean: ## remove what was built here; the kernel stays in the user's cache
	rm -rf build $(VENV) results controller/nic/objects testbed/fabric/objects testbed/engine/_engine*.so \
		controller/native/_native*.so $(PATIENCE)
	rm -rf *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
