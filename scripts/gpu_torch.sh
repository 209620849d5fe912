#!/usr/bin/env bash
# gpu_torch.sh [build] [test] [bench]: the rooms over PyTorch on a machine with a GPU, built for the torch of PYTHON; all
# three when none is named.
# Needs g++, nvcc, CMake, Ninja and a Python with torch and pytest; other libraries come from third_party_cache
# (scripts/gpu_headers.sh, which also takes pytest along) when it is there, else from the system.
#   BUILD=build/gpu_torch   JOBS=cores   ARCHS=90a-real   PYTHON=python3
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

BUILD=${BUILD:-build/gpu_torch}
JOBS=${JOBS:-$(nproc)}
ARCHS=${ARCHS:-90a-real}
PYTHON=${PYTHON:-python3}
failures=()
failed() {
  failures+=("$1")
  echo "gpu_torch: FAILED: $1"
}

torch=$("$PYTHON" -c 'import os, torch; print(os.path.dirname(torch.__file__))') || exit 2
mkdir -p "$BUILD"
export PYTHONPATH=$PWD/python PYTHONDONTWRITEBYTECODE=1 MHLA_LIBRARY=$PWD/$BUILD/lib/libmhla_torch.so
if ! "$PYTHON" -c 'import pytest' 2>/dev/null && [ -d third_party_cache/wheels ]; then
  "$PYTHON" -m pip install -q --no-index --find-links third_party_cache/wheels --target "$BUILD/pytest" pytest
  export PYTHONPATH=$PYTHONPATH:$PWD/$BUILD/pytest
fi
TESTS="norm_op_test norm_rope_op_test modulated_norm_op_test rope_op_test exact_test lm_cuda_test image_cuda_test video_cuda_test graph_denoiser_test optimizer_test trainer_test batch_pass_test classification_test nccl_test"

build() {
  local deps=()
  if [ -d third_party_cache ]; then deps+=("-DMHLA_DEPS=third_party_cache"); fi
  cmake -S . -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMHLA_CUDA=ON "-DMHLA_CUDA_ARCHITECTURES=$ARCHS" \
    -DMHLA_WERROR=OFF "-DMHLA_TORCH_DIR=$torch" "-DCMAKE_CXX_FLAGS=-include cstdint -DHWY_COMPILE_ONLY_STATIC" \
    "${deps[@]}" >"$BUILD/configure.log" 2>&1 || { tail -n 20 "$BUILD/configure.log"; failed configure; return 1; }
  # shellcheck disable=SC2086  # a list of words
  cmake --build "$BUILD" --parallel "$JOBS" --target mhla_torch ops_bench mhla mhla_engine $TESTS >"$BUILD/build.log" 2>&1 ||
    { grep -E 'error|FAILED' "$BUILD/build.log" | head -n 20; failed build; return 1; }
  echo "built in $SECONDS s"
}

test_() {
  "$PYTHON" -m pytest -q -rfs --tb=short -p no:cacheprovider python/tests >"$BUILD/pytest.log" 2>&1 || failed pytest
  grep -E '^(FAILED|ERROR|SKIPPED|E  )|passed|failed' "$BUILD/pytest.log" | tail -n 40
  for test in $TESTS; do
    "$BUILD/tests/$test" >"$BUILD/$test.log" 2>&1 || failed "$test"
    echo "$test: $(grep -E '^\[  (PASSED|FAILED) ' "$BUILD/$test.log" | head -n 1)"
  done
  "$BUILD/bin/mhla" verify --golden tests/golden >"$BUILD/golden.txt" 2>&1 || failed "verify --golden"
  tail -n 1 "$BUILD/golden.txt"
}

bench() {
  "$BUILD/bin/ops_bench" || failed "ops_bench on the CPU"
  "$BUILD/bin/ops_bench" cuda || failed "ops_bench on the GPU"
  # Not on the CPU: its vector code was compiled for the smallest instruction set.
  "$PYTHON" python/benchmarks/layer.py --device cuda || failed "benchmark"
}

[ $# -gt 0 ] || set -- build test bench
for section in "$@"; do
  case $section in
    build) build || break ;;
    test) test_ ;;
    bench) bench ;;
    *)
      echo "usage: $0 [build] [test] [bench]" >&2
      exit 2
      ;;
  esac
done

if [ ${#failures[@]} -gt 0 ]; then
  printf 'gpu_torch: FAILED: %s\n' "${failures[@]}"
  exit 1
fi
echo "gpu_torch: all good ($*), $SECONDS s"
