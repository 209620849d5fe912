#!/bin/sh
# Builds one program for the emulator: tests/gpu/emulate.sh FILE [OTHER...], which becomes build/emulate/<name of FILE>.
# FILE holds main() and may include any kernel (tests/gpu/emulator/emulator.h has an example); OTHER: further sources of
# the repository, .cpp or .cu.
set -eu
cd "$(dirname "$0")/../.."
CXX=${CXX:-g++}
. tests/gpu/emulator/flags.sh
dir=build/emulate
mkdir -p "$dir"
objects=
newest=$(ls -t tests/gpu/emulator/*.* | head -1)
for source in "$@" tests/gpu/emulator/*.cpp mhla/core/dtype.cpp mhla/core/view.cpp mhla/core/device_buffer.cpp \
  mhla/kernels/common/layout.cpp mhla/kernels/common/cuda/sm80_fit.cpp; do
  object=$dir/$(echo "$source" | tr / _).o
  objects="$objects $object"
  case $source in tests/* | mhla/core/*) [ "$object" -nt "$source" ] && [ "$object" -nt "$newest" ] && continue ;; esac
  $CXX $emulator_flags -include cuda_runtime.h -x c++ -c "$source" -o "$object"
done
# shellcheck disable=SC2086
$CXX $objects -pthread -rdynamic -o "$dir/$(basename "$1" | sed 's/\.[^.]*$//')"
