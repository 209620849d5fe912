#!/usr/bin/env bash
# gpu_check.sh [build] [test] [sanitize] [bench]: the CUDA kernels on a machine with a GPU, in one go; all four when none
# is named. Ends with a short table. Needs g++, nvcc, CMake, Ninja and python3; other libraries come from
# third_party_cache (scripts/gpu_headers.sh) when it is there, else from the system.
#   BUILD=build/gpu   JOBS=cores   ARCHS=90a-real   BACKENDS="cuda sm80 sm90"   DTYPES=bf16
#   SHAPES=all the named ones   MIN_TIME=0.2 seconds a row   LIMIT=240 seconds for one run under a sanitizer
#   RACECHECK=on: build kernels whose order racecheck can follow; without it the tool is left out
#   SEQUENCES=64   LAYERS=24   of a decode step; DECODE=lm_2048, empty: none
# Logs, JSON rows and the table are left in $BUILD/check.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

BUILD=${BUILD:-build/gpu}
JOBS=${JOBS:-$(nproc)}
ARCHS=${ARCHS:-90a-real}
BACKENDS=${BACKENDS:-cuda sm80 sm90}
DTYPES=${DTYPES:-bf16}
BIDIRECTIONAL=deit_t_224,dit_s_256,dit_xl_512,sana_1024,dit_s_4096,wan_480p
CAUSAL=lm_2048,lm_16384,lm_65536
SHAPES=${SHAPES:-$BIDIRECTIONAL,$CAUSAL}
DECODE=${DECODE-lm_2048}
SEQUENCES=${SEQUENCES:-64}
LAYERS=${LAYERS:-24}
MIN_TIME=${MIN_TIME:-0.2}
LIMIT=${LIMIT:-240}
OUT=$BUILD/check
MHLA=$BUILD/bin/mhla

# Programs of GoogleTest: those that run whole, those of which the candidates on the device matter here, and of these the
# ones with long lists of cases, which several processes share.
WHOLE="cuda_test cuda_call_test cuda_stream_test c_device_test run_case_test call_test problem_test norm_test rope_test"
BY_CANDIDATE="bidirectional_gradient_test chunkwise_gradient_test chunkwise_identity_test"
BY_CASE="bidirectional_test chunkwise_test"
# Plans of the kernels: plain code.
PLANS=$(find mhla/kernels \( -path '*/cuda/*_test.cpp' -o -name '*cuda*_test.cpp' -o -name '*sm80*_test.cpp' \) \
  -exec basename {} .cpp \; | sort -u | tr '\n' ' ')

failures=()
say() { printf '\n== %s\n' "$*"; }
failed() {
  failures+=("$1")
  echo "gpu_check: FAILED: $1"
}

build() {
  say "build ($ARCHS, $JOBS jobs)"
  local deps=() targets
  [ ! -d third_party_cache ] || deps=(-DMHLA_DEPS=third_party_cache)
  # The CPU's vector code is compiled for one instruction set: it is not what is looked at here. Older headers of the
  # cache forget <cstdint>, which newer compilers no longer bring along.
  cmake -S . -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMHLA_CUDA=ON -DMHLA_CUDA_ARCHITECTURES="$ARCHS" \
    -DMHLA_WERROR=OFF -DMHLA_INSTALL=OFF -DMHLA_CUDA_RACECHECK="${RACECHECK:-off}" -DCMAKE_CXX_FLAGS="-include cstdint -DHWY_COMPILE_ONLY_STATIC" "${deps[@]}" \
    >"$OUT/configure.log" 2>&1 || { tail -n 30 "$OUT/configure.log"; failed configure; return 1; }
  # shellcheck disable=SC2086  # lists of words
  targets="mhla $WHOLE $BY_CANDIDATE $BY_CASE $PLANS"
  # shellcheck disable=SC2086
  cmake --build "$BUILD" --parallel "$JOBS" --target $targets >"$OUT/build.log" 2>&1 ||
    { grep -E 'error|FAILED' "$OUT/build.log" | head -n 40; tail -n 20 "$OUT/build.log"; failed build; return 1; }
  grep -cE 'warning' "$OUT/build.log" | sed 's/^/warnings: /'
  "$MHLA" doctor | tee "$OUT/doctor.txt"
}

# One program of GoogleTest in the background, its log named after it.
start_test() {  # start_test LOG PROGRAM ARGS...
  local log=$1 program=$2
  shift 2
  ("$BUILD/tests/$program" "$@" >"$OUT/$log.log" 2>&1; echo "exit $?" >>"$OUT/$log.log") &
}

# What the logs say: counts, and every failure with its first lines.
judge_tests() {
  local log passed=0 skipped=0 ran
  for log in "$@"; do
    ran=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$OUT/$log.log")
    passed=$((passed + ${ran:-0}))
    ran=$(sed -n 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p' "$OUT/$log.log" | head -n 1)
    skipped=$((skipped + ${ran:-0}))
    if ! grep -q '^exit 0$' "$OUT/$log.log"; then
      failed "$log ($(tail -n 1 "$OUT/$log.log"))"
      grep -E '^\[  FAILED  \].*\(|Failure|other bits|RMS error|what\(\)|CUDA|error' "$OUT/$log.log" | cut -c 1-300 | head -n 12
    fi
  done
  echo "tests passed: $passed, skipped: $skipped"
  grep -h -A 1 ': Skipped$' "$OUT"/*.log | grep -v -e Skipped -e '^--' | sed 's/, [0-9]* cases not run//' | sort | uniq -c | sort -rn | head -n 8
  grep -h 'last reason' "$OUT"/*_test*.log | sort | uniq -c | sort -rn | head -n 8
  [ "$passed" -gt 0 ] || failed "no test ran"
}

test_() {
  say "tests"
  local started=$SECONDS logs=() program part parts=$((JOBS > 8 ? 8 : JOBS))
  for program in $WHOLE $PLANS; do
    start_test "$program" "$program"
    logs+=("$program")
  done
  wait
  for program in $BY_CANDIDATE; do
    start_test "$program" "$program" --gtest_filter='*cuda*:*sm80*:*sm90*'
    logs+=("$program")
  done
  for program in $BY_CASE; do
    for ((part = 0; part < parts; ++part)); do
      MHLA_TEST_PART=$part/$parts start_test "$program.$part" "$program" --gtest_filter='*cuda*:*sm80*:*sm90*'
      logs+=("$program.$part")
    done
  done
  wait
  judge_tests "${logs[@]}"
  grep -h '^accuracy ' "$OUT"/bidirectional_test.*.log "$OUT"/chunkwise_test.*.log | grep -E ' (cuda|sm80|sm90) ' | sort -u >"$OUT/accuracy.txt"
  echo "accuracy by candidate, dtype and tensor: $OUT/accuracy.txt"
  echo "tests took $((SECONDS - started)) s"
}

verified_dtypes() { [ "$1" = cuda ] && echo f32 bf16 f16 || echo bf16; }  # sm80 and sm90 take no others

sanitize() {
  say "compute-sanitizer"
  local tool backend dtype log status sanitizer except tools="memcheck initcheck synccheck"
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
  if [ -z "$sanitizer" ]; then
    failed "compute-sanitizer was not found"
    return
  fi
  if grep -qi '^MHLA_CUDA_RACECHECK:BOOL=on' "$BUILD/CMakeCache.txt"; then
    tools="$tools racecheck"
  else
    echo "racecheck: left out, build with RACECHECK=on"
  fi
  "$MHLA" doctor >"$OUT/doctor.txt"
  for backend in $BACKENDS; do
    if ! grep -E "^[a-z]+ +$backend +.*yes" "$OUT/doctor.txt" >/dev/null; then
      echo "$backend: not available here, skipped"
      continue
    fi
    for tool in $tools; do
      log=$OUT/$tool.$backend.log
      # initcheck does not see what the copy engine writes, such as rows of outputs that unpad_kernel then reads.
      except=()
      [ "$tool" = initcheck ] && except=(--kernel-name-exclude kernel_substring=unpad_kernel)
      # Memory that is filled with NaN counts as initialised: initcheck wants it as it comes.
      # A dtype each by itself, all at a time: the tools wait more than they compute.
      for dtype in $(verified_dtypes "$backend"); do
        (MHLA_NO_POISON=$([ $tool = initcheck ] && echo 1) timeout "$LIMIT" "$sanitizer" --tool "$tool" "${except[@]}" --error-exitcode 9 \
          --print-limit 5 "$MHLA" verify --backend "$backend" --dtype "$dtype" --quick >"$log.$dtype" 2>&1
        echo "exit $?" >>"$log.$dtype") &
      done
      wait
      for dtype in $(verified_dtypes "$backend"); do
        status=$(sed -n 's/^exit //p' "$log.$dtype")
        echo "$tool $backend $dtype: exit $status, $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log.$dtype" | tail -n 1 | sed 's/=* *//'), $(grep -E 'checks, ' "$log.$dtype" | tail -n 1)"
        if [ "$status" != 0 ]; then
          failed "$tool $backend $dtype"
          grep -E '=========|FAILED' "$log.$dtype" | cut -c 1-200 | head -n 25
        fi
      done
    done
  done
}

bench() {
  say "bench op ($DTYPES)"
  rm -f "$OUT/bench.json"
  local shape
  for shape in ${SHAPES//,/ }; do
    "$MHLA" bench op --json --shape "$shape" --dtype "$DTYPES" --pass fwd,bwd,fwd+bwd --backend gpu \
      --min-time "$MIN_TIME" >>"$OUT/bench.json" 2>>"$OUT/bench.log" || failed "bench $shape"
  done
  rm -f "$OUT/decode.json"
  for shape in ${DECODE//,/ }; do
    "$MHLA" bench op --json --shape "$shape" --form decode --dtype "$DTYPES" --backend cuda --batch "$SEQUENCES" \
      --layers "$LAYERS" >>"$OUT/decode.json" 2>>"$OUT/bench.log" || failed "bench decode $shape"
  done
  grep -E '^mhla: ' "$OUT/bench.log" | cut -c 1-300 | head -n 10
  [ ! -s "$OUT/decode.json" ] || python3 scripts/gpu_table.py --decode "$OUT/decode.json" | tee "$OUT/decode.txt"
  if python3 -c 'import torch' 2>/dev/null; then
    # shellcheck disable=SC2086  # a list of words
    python3 scripts/gpu_peers.py ${SHAPES//,/ } | tee "$OUT/peers.txt" || failed "softmax attention of PyTorch"
  fi
  python3 scripts/gpu_table.py "$OUT/bench.json" | tee "$OUT/table.txt"
}

[ $# -gt 0 ] || set -- build test sanitize bench
if [ "$1" = --help ] || [ "$1" = -h ]; then
  sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
  exit 0
fi
mkdir -p "$OUT"
for section in "$@"; do
  case $section in
    build) build || break ;;
    test) test_ ;;
    sanitize) sanitize ;;
    bench) bench ;;
    *)
      echo "usage: $0 [build] [test] [sanitize] [bench]" >&2
      exit 2
      ;;
  esac
done

echo
if [ ${#failures[@]} -eq 0 ]; then
  echo "gpu_check: all good ($*), $SECONDS s"
else
  printf 'gpu_check: FAILED: %s\n' "${failures[@]}"
  exit 1
fi
