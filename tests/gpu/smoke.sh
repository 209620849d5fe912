#!/bin/sh
# Builds and runs tests/gpu/smoke.cpp with nothing but g++ and nvcc.
#   tests/gpu/smoke.sh gpu [ARCH] -- ARGS      on a GPU (ARCH: 90a unless given); ARGS: check [quick] [seed] | time [shape]
#   tests/gpu/smoke.sh emulator -- ARGS        on the CPU, kernels run thread by thread: x86-64, small cases only;
#                                              `-- sm90 check quick`: the kernels of sm90 (or sm80); emulator/emulator.h
#                                              lists what the environment sets
# JOBS: compilers at once (all cores). Objects go to build/smoke-*.
set -eu
cd "$(dirname "$0")/../.."
kind=${1:-gpu}
[ $# -gt 0 ] && shift
arch=90a
if [ $# -gt 0 ] && [ "$1" != -- ]; then
  arch=$1
  shift
fi
[ $# -gt 0 ] && [ "$1" = -- ] && shift
NVCC=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
CXX=${CXX:-g++}
dir=build/smoke-$kind
mkdir -p "$dir"

lists="-DMHLA_LIST_CUDA -DMHLA_LIST_CUDA_BACKWARD"
flags="-std=c++20 -O2 -ffp-contract=off -I."
host="mhla/core/dtype.cpp mhla/core/view.cpp mhla/core/workspace.cpp mhla/core/threads.cpp mhla/core/thread_count.cpp
  mhla/core/control_group.cpp mhla/core/device_buffer.cpp
  $(ls mhla/kernels/common/*.cpp mhla/kernels/common/cuda/*.cpp mhla/testing/*.cpp | grep -v -e _test.cpp -e sm80 -e sm90)
  mhla/kernels/bidirectional/bidirectional_ref.cpp mhla/kernels/bidirectional/bidirectional_list.cpp
  mhla/kernels/bidirectional/bidirectional_cuda_fit.cpp
  mhla/kernels/chunkwise/chunkwise_ref.cpp mhla/kernels/chunkwise/chunkwise_list.cpp
  mhla/kernels/chunkwise/chunkwise_cuda_fit.cpp
  mhla/kernels/streaming/streaming.cpp mhla/kernels/streaming/streaming_state.cpp mhla/kernels/streaming/streaming_ref.cpp
  mhla/kernels/streaming/streaming_save.cpp mhla/kernels/streaming/streaming_cuda.cpp
  mhla/kernels/streaming/streaming_cuda_call.cpp
  tests/gpu/smoke.cpp tests/gpu/smoke_stubs.cpp"
device="$(ls mhla/kernels/common/cuda/*.cu mhla/kernels/bidirectional/*_cuda.cu mhla/kernels/chunkwise/*_cuda.cu \
  mhla/kernels/streaming/*_cuda.cu | grep -v -e sm80 -e sm90)"
if [ "$kind" = emulator ]; then
  . tests/gpu/emulator/flags.sh
  flags=$emulator_flags
  lists="$lists -DMHLA_LIST_SM80 -DMHLA_LIST_SM80_BACKWARD -DMHLA_LIST_SM90 -DMHLA_LIST_SM90_BACKWARD"
  host="$host $(ls tests/gpu/emulator/*.cpp mhla/kernels/common/cuda/sm80*.cpp mhla/kernels/bidirectional/*sm[89]0*.cpp \
    mhla/kernels/chunkwise/*sm[89]0*.cpp | grep -v _test.cpp)"
  device="$device $(ls mhla/kernels/common/cuda/*sm[89]0.cu mhla/kernels/bidirectional/*sm[89]0.cu \
    mhla/kernels/chunkwise/*sm[89]0.cu mhla/kernels/streaming/*sm90.cu)"
  compile_device="$CXX $flags -include cuda_runtime.h -x c++"
else
  device="$device mhla/core/cuda.cu"
  compile_device="$NVCC -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr -lineinfo -I. -arch=sm_$arch"
fi

# One line per object: those whose sources are newer, by the compiler's own list.
{
  for source in $host; do
    echo "$dir/$(echo "$source" | tr / _).o|$CXX $flags $lists -c $source"
  done
  for source in $device; do
    echo "$dir/$(echo "$source" | tr / _).o|$compile_device -c $source"
  done
} > "$dir/plan"
cut -d'|' -f1 "$dir/plan" > "$dir/objects"
old() { # whether an object is older than what it was made of
  [ ! -e "$1" ] || [ ! -e "$1.d" ] || [ -n "$(sed 's/^[^:]*://; s/\\$//' "$1.d" | xargs ls -t "$1" 2>&1 | sed -n "1{\\|^$1\$|!p;}")" ]
}
while IFS='|' read -r object command; do
  if old "$object"; then echo "$command -MMD -MF $object.d -o $object"; fi
done < "$dir/plan" | xargs -P "${JOBS:-$(nproc)}" -I{} sh -c '{}'
# shellcheck disable=SC2046
if [ "$kind" = emulator ]; then
  $CXX $(cat "$dir/objects") -pthread -rdynamic -o "$dir/smoke"
else
  $NVCC -arch=sm_$arch $(cat "$dir/objects") -Xcompiler -pthread -o "$dir/smoke"
fi
[ $# -gt 0 ] && exec "$dir/smoke" "$@"
exit 0
