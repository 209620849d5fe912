#!/bin/sh
# gpu_headers.sh [FOLDER]: gathers what the build needs beside g++, nvcc, CMake and Ninja into one folder (default
# third_party_cache, ignored by git), so that a machine without these packages and without a network can build:
#   cmake -S . -B build/gpu -DMHLA_DEPS=third_party_cache
# Taken from the Debian packages of cmake/packages.sh: headers, GoogleTest's sources, the libraries of Highway,
# RapidCheck, libjpeg, libpng, zlib and LAPACK, which come without sources and need nothing newer than glibc 2.29. About
# 22 MiB.
# WebP, GIF and TIFF images are not read there: their libraries, which the build can do without, need many others.
set -eu
cd "$(dirname "$0")/.."
to=${1:-third_party_cache}
system=${MHLA_SYSTEM:-/usr}

copy() {  # copy FROM INTO: a file or folder that must be there
  [ -e "$1" ] || {
    echo "gpu_headers: $1 is missing; install libhwy-dev libcli11-dev nlohmann-json3-dev libfmt-dev libgtest-dev librapidcheck-dev libjpeg62-turbo-dev libpng-dev zlib1g-dev liblapack-dev" >&2
    exit 1
  }
  mkdir -p "$2"
  cp -RL "$1" "$2/"
}

rm -rf "$to"
for name in hwy CLI fmt nlohmann rapidcheck rapidcheck.h; do copy "$system/include/$name" "$to/include"; done
for name in include src; do copy "$system/src/googletest/googletest/$name" "$to/googletest"; done
libraries=$(dirname "$(find "$system/lib" -name librapidcheck.a | head -n 1)")
copy "$libraries/librapidcheck.a" "$to/lib"
for name in libhwy.so.1 libjpeg.so.62 libpng16.so.16; do copy "$libraries/$name" "$to/lib"; done  # names they are loaded by
copy "$(find "$system/lib" /lib -name libz.so.1 2>/dev/null | head -n 1)" "$to/lib"
for name in lapack/liblapack.so.3 blas/libblas.so.3 libgfortran.so.5 libquadmath.so.0; do copy "$libraries/$name" "$to/lib"; done
for name in jpeglib.h jmorecfg.h jerror.h png.h pngconf.h pnglibconf.h zlib.h zconf.h; do
  copy "$system/include/$name" "$to/include"
done
copy "$system/include/$(basename "$libraries")/jconfig.h" "$to/include"  # of the architecture
# For scripts/gpu_torch.sh; without pip, or offline, the machine's own pytest is used.
python3 -m pip download -q -d "$to/wheels" pytest 2>/dev/null || echo "gpu_headers: pytest could not be taken along" >&2

echo "gpu_headers: $to, $(du -sh "$to" | cut -f 1), $(find "$to" -type f | wc -l) files"
