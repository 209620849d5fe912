# The commands of a working day. Each installs the packages it needs (cmake/packages.sh), configures, builds, runs.
# CMake does the building: everything here is a short way to say it.

JOBS   ?= $(shell nproc)
PREFIX ?= /usr/local

BUILD  := build/release
MHLA   := $(BUILD)/bin/mhla
DEMO   := build/demo
DOCS_VENV := build/docs-venv
# A Python that has python/tests/packages/requirements.txt; by default one that make test-python makes.
PYTHON_VENV ?= build/python-venv

PYTEST = PYTHONPATH=python PYTHONDONTWRITEBYTECODE=1 MHLA_LIBRARY=$(CURDIR)/build/python-torch/lib/libmhla_torch.so \
  $(PYTHON_VENV)/bin/python -m pytest -q -rs -p no:cacheprovider -W ignore

# The Pythons whose torch `make wheel` builds for, each with pip and pytest.
WHEEL_PYTHONS ?= python3

# CUDA kernels take a third of the time to build. `make build`, `demo` and `bench` build them where there is a GPU to run
# them on and nvcc, `make test` where nvcc is; CUDA=on or CUDA=off decides. One architecture compiles four times as fast
# as the default list: make test CUDA_ARCHS=90a-real
CUDA       ?=
CUDA_ARCHS ?=
NVCC       := $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
GPU        := $(wildcard /dev/nvidia0)
CONFIGURE   = --log-level=WARNING $(if $(CUDA_ARCHS),-DMHLA_CUDA_ARCHITECTURES='$(CUDA_ARCHS)')
# Vector code takes a quarter of the time where it is compiled for the instruction set of this machine only, with the same
# results. The first `make demo` does so; `make build` and the others compile it for every machine, NATIVE=on|off decides.
NATIVE     ?=
# The product, to be used: a build that is there already keeps its choices.
FRESH       = $(if $(wildcard $(BUILD)/CMakeCache.txt),,yes)
CONFIGURE_PRODUCT = cmake --preset release $(CONFIGURE) $(if $(CUDA),-DMHLA_CUDA=$(CUDA)) \
  $(if $(FRESH),-DMHLA_TESTS=OFF -DMHLA_CUDA=$(or $(CUDA),$(if $(and $(NVCC),$(GPU)),on,off)))

FUZZ_SECONDS ?= 600
BENCH_ARGS   ?= --threads $(JOBS)
# Half of what `mhla demo` does by default: with packages and build, ten minutes in all on two cores.
DEMO_ARGS    ?= --train-images 2560 --test-images 2000 --samples 16 --rival-limit 0.7
CAMPAIGN_ARGS ?= --cases 2000 --kills 1000 --minutes 120 --jobs $(JOBS)
BENCH         = $(MHLA) bench op --json $(BENCH_ARGS)

# Sources in our own formatting.
FORMATTED := $(shell git ls-files --cached --others --exclude-standard '*.cpp' '*.h' '*.c' '*.cu' '*.cuh' 2>/dev/null)
# `make test` starts no further file of clang-tidy after this time: a commit that touches everything stays affordable.
TIDY_SECONDS ?= 150

.DEFAULT_GOAL := build
.PHONY: help build test test-python wheel check check-quick check-format check-prose check-links check-python tidy tidy-changed asan-quick \
  demo bench asan tsan fuzz campaign docs format install clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22
	@echo "  JOBS=$(JOBS) PREFIX=$(PREFIX) FUZZ_SECONDS=$(FUZZ_SECONDS); MHLA_PACKAGES=skip installs nothing;"
	@echo "  CUDA=on|off builds the CUDA kernels or not; CUDA_ARCHS=90a-real builds them for one architecture;"
	@echo "  NATIVE=on builds the CPU kernels for this machine only; make demo DEMO_ARGS= trains for longer"

build:  ## release build in build/release: the libraries and the program build/release/bin/mhla
	@cmake/packages.sh build
	@$(CONFIGURE_PRODUCT) -DMHLA_NATIVE=$(or $(NATIVE),off)
	@cmake/quietly.sh $(BUILD)/build.log "make build: building" cmake --build $(BUILD) --parallel $(JOBS) --target mhla_product

test:  ## the checks of a change (what it touches, ASan in part), then builds everything and runs every test
	@cmake/packages.sh test
	@$(MAKE) --no-print-directory --jobs=$(JOBS) --output-sync=target check-quick OR_SKIP=--or-skip
	@$(MAKE) --no-print-directory tidy-changed
	@$(MAKE) --no-print-directory asan-quick
	@$(call build_and_test,release,make test,-DMHLA_TESTS=ON -DMHLA_NATIVE=$(or $(NATIVE),off) -DMHLA_CUDA=$(or $(CUDA),$(if $(NVCC),on,off)))

test-python:  ## the Python package, compiled and as plain torch, with timm, transformers, diffusers and PyPI's torch (several GB, downloaded once)
	@test -x $(PYTHON_VENV)/bin/python || { python3 -m venv $(PYTHON_VENV) && \
	  $(PYTHON_VENV)/bin/pip install --quiet --disable-pip-version-check -r python/tests/packages/requirements.txt; }
	@cmake/packages.sh build
	@cmake -S . -B build/python-torch -G Ninja $(CONFIGURE) -DCMAKE_BUILD_TYPE=Release -DMHLA_APPS=OFF -DMHLA_TESTS=OFF \
	  -DMHLA_INSTALL=OFF -DMHLA_CUDA=$(or $(CUDA),off) -DMHLA_NATIVE=$(or $(NATIVE),off) \
	  -DMHLA_TORCH_DIR=$$($(PYTHON_VENV)/bin/python -c 'import torch; print(torch.__path__[0])') >/dev/null
	@cmake/quietly.sh build/python-torch/build.log "make test-python: building the library" \
	  cmake --build build/python-torch --parallel $(JOBS) --target mhla_torch
	@$(PYTEST) python/tests --ignore python/tests/packages
	@$(PYTEST) python/tests/packages
	@MHLA_TEST_BACKEND=kernels $(PYTEST) $(addprefix python/tests/packages/test_,families.py generate.py hf.py hf_images.py tools.py)
	@echo "make test-python: all tests passed"

wheel:  ## a binary wheel in build/wheels for the torch of WHEEL_PYTHONS (python3), tested without a compiler; CUDA=on adds CUDA kernels
	@cmake/packages.sh wheel
	@python3 scripts/wheel.py $(foreach python,$(WHEEL_PYTHONS),--python $(python)) $(if $(CUDA),--cuda $(CUDA)) \
	  $(if $(CUDA_ARCHS),--cuda-archs '$(CUDA_ARCHS)')

check:  ## the same in full: clang-tidy over every source, the tests also under ASan and UBSan
	@cmake/packages.sh test
	@$(MAKE) --no-print-directory --jobs=$(JOBS) --output-sync=target check-quick
	@$(MAKE) --no-print-directory tidy
	@$(MAKE) --no-print-directory asan
	@$(call build_and_test,release,make check,-DMHLA_TESTS=ON -DMHLA_NATIVE=$(or $(NATIVE),off) -DMHLA_CUDA=$(or $(CUDA),$(if $(NVCC),on,off)))

# The vector code is compiled for the instruction set of this machine only: `make asan` has the portable one, too.
# Accuracy and long cases are left to make test and make asan.
ASAN_QUICK := -*Accuracy*:*FastPaths*:*RandomSplits*:*LargeChunks*
asan-quick:  ## parsers, memory and kernels at odd sizes under AddressSanitizer and UndefinedBehaviorSanitizer
	@cmake/packages.sh asan
	@cmake --preset asan-quick --log-level=WARNING >/dev/null
	@cmake/quietly.sh build/asan-quick/build.log "make asan-quick: building" \
	  cmake --build build/asan-quick --parallel $(JOBS) --target quick_test
	@build/asan-quick/tests/quick_test --gtest_brief=1 --gtest_filter='$(ASAN_QUICK)' >build/asan-quick/test.log 2>&1 \
	  || { tail -n 60 build/asan-quick/test.log; echo "make asan-quick: FAILED; again: build/asan-quick/tests/quick_test"; exit 1; }
	@echo "make asan-quick: clean"

asan:  ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@cmake/packages.sh $@
	@$(call build_and_test,asan,make asan)

tsan:  ## the tests under ThreadSanitizer
	@cmake/packages.sh $@
	@$(call build_and_test,tsan,make tsan)

demo:  ## generates images with a small DiT, trains a small ViT with MHLA, linear and softmax attention and compares them, ending in an HTML report
	@cmake/packages.sh demo
	@$(CONFIGURE_PRODUCT) $(if $(FRESH),-DMHLA_NATIVE=$(or $(NATIVE),on))
	@cmake/quietly.sh $(BUILD)/build.log "make demo: building" cmake --build $(BUILD) --parallel $(JOBS) --target mhla_demo
	@$(MHLA) demo --out $(DEMO) $(DEMO_ARGS)
	@test ! -e $(DEMO)/images/sheet.png || echo "make demo: the generated images are $(CURDIR)/$(DEMO)/images/sheet.png"
	@echo "make demo: the report is $(CURDIR)/$(DEMO)/report.html"

bench:  ## the tables of docs/benchmarks.md: text here, JSON lines and the scaling plot in build/bench
	@cmake/packages.sh bench
	@$(MAKE) --no-print-directory build
	@mkdir -p build/bench
	@$(BENCH) --shape dit_s_256,dit_xl_512,dit_s_4096,wan_480p,sana_1024 --batch 4 --pass fwd,bwd >build/bench/op.json
	@$(BENCH) --shape lm_2048 --batch 4 --pass fwd,bwd >build/bench/causal.json
	@$(BENCH) --shape lm_2048 --form decode >build/bench/decode.json
	@$(BENCH) --shape deit_t_224,dit_s_256,dit_xl_512,sana_1024,dit_s_4096,wan_480p --pass fwd,fwd+bwd \
	  --rivals plain >build/bench/plain.json
	@$(BENCH) --h 6 --d 64 --grid 64x64 --blocks 4x4 --rivals softmax >build/bench/softmax.json
	@$(MHLA) bench data --json --threads $(JOBS) >build/bench/data.json
	@$(MHLA) bench data --json --threads $(JOBS) --data fashion-mnist --augment small --image 32 --batch 512 \
	  >>build/bench/data.json
	@$(BENCH) --scaling --html build/bench/scaling.html >build/bench/scaling.json
	@echo "make bench: the rows are build/bench/*.json, the plot build/bench/scaling.html"

fuzz:  ## every libFuzzer target for FUZZ_SECONDS (600) under ASan and UBSan
	@cmake/packages.sh fuzz
	@cmake --preset fuzz --log-level=WARNING
	@cmake --build build/fuzz --parallel $(JOBS) --target mhla_fuzzers
	@for fuzzer in build/fuzz/fuzz/*_fuzz; do \
	  name=$$(basename $$fuzzer _fuzz); mkdir -p build/fuzz/corpus/$$name; \
	  seeds=$$(find mhla -path "*/fuzz_corpus/$$name" -type d); \
	  dictionary=$$(find mhla -path "*/fuzz_corpus/$$name.dict"); \
	  echo "make fuzz: $$name for $(FUZZ_SECONDS) s"; \
	  $$fuzzer -max_total_time=$(FUZZ_SECONDS) -timeout=10 -print_final_stats=1 -print_funcs=0 \
	    -artifact_prefix=build/fuzz/$$name- $${dictionary:+-dict=$$dictionary} build/fuzz/corpus/$$name $$seeds \
	    || { echo "make fuzz: $$name FAILED, its input is build/fuzz/$$name-*"; exit 1; }; \
	done
	@echo "make fuzz: clean"

campaign:  ## 2,000 damaged inputs and 1,000 kills through the program (scripts/README.md), at most 2 hours
	@cmake/packages.sh campaign
	@$(MAKE) --no-print-directory build
	@python3 scripts/campaign --mhla $(MHLA) $(CAMPAIGN_ARGS)

docs:  ## the documentation site, build/site/index.html, for reading without a network; fails on dead links
	@cmake/packages.sh docs
	@test -x $(DOCS_VENV)/bin/mkdocs || python3 -m venv $(DOCS_VENV)
	@$(DOCS_VENV)/bin/pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	@$(DOCS_VENV)/bin/python scripts/site.py
	@echo "make docs: the site is $(CURDIR)/build/site/index.html"

format:  ## rewrites the sources in the formatting of .clang-format
	@cmake/packages.sh format
	@clang-format -i $(FORMATTED)

check-quick: check-format check-prose check-links check-python  ## the checks that take seconds

check-format:  ## fails where `make format` would change something
	@cmake/packages.sh format
	@clang-format --dry-run --Werror $(FORMATTED) || { echo "make check-format: FAILED; make format repairs it"; exit 1; }
	@echo "make check-format: clean"

check-prose:  ## spelling, and phrases that read oddly
	@cmake/packages.sh prose
	@scripts/check_prose.py || { echo "make check-prose: FAILED; again: scripts/check_prose.py"; exit 1; }

check-links:  ## links and anchors of the documents
	@scripts/check_links.py || { echo "make check-links: FAILED; again: scripts/check_links.py"; exit 1; }

check-python:  ## ruff over every Python file, mypy --strict over the package
	@cmake/packages.sh python
	@scripts/check_python.sh $(OR_SKIP)

tidy:  ## clang-tidy over the rooms below LibTorch
	@cmake/packages.sh tidy
	@cmake --preset clang --log-level=WARNING >/dev/null
	@scripts/tidy.py --jobs $(JOBS)

tidy-changed:  ## the same over what a change touches, for TIDY_SECONDS (150) at most
	@cmake/packages.sh tidy
	@cmake --preset clang --log-level=WARNING >/dev/null
	@scripts/tidy.py --changed --seconds $(TIDY_SECONDS) --jobs $(JOBS)

install: build  ## installs headers, libraries, CMake package, pkg-config file and program under PREFIX
	@cmake --install $(BUILD) --prefix $(PREFIX) --strip

clean:  ## removes build/
	@rm -rf build

# $(call build_and_test,preset,what to call it,options of CMake): the closing line says how it went.
define build_and_test
cmake --preset $(1) $(CONFIGURE) $(3) && \
cmake --build build/$(1) --parallel $(JOBS) && \
ctest --test-dir build/$(1) --output-on-failure --no-tests=error --timeout 900 --parallel $(JOBS) && \
echo "$(2): all tests passed$$(cmake/skipped.sh build/$(1))$$(sed 's/^/; /' build/not_checked 2>/dev/null)" || { echo "$(2): FAILED"; exit 1; }
endef
