#!/bin/sh
# packages.sh GOAL: installs the Debian packages that a goal of the Makefile needs and that are missing.
# Says and does nothing when all are there. MHLA_PACKAGES=skip leaves the system alone.
set -eu

build="g++ cmake ninja-build pkg-config libhwy-dev libcli11-dev nlohmann-json3-dev libfmt-dev
libjpeg62-turbo-dev libpng-dev zlib1g-dev libwebp-dev libgif-dev libtiff-dev liblapack-dev"
tests="libgtest-dev librapidcheck-dev"
# LibTorch with a threaded BLAS: mhla/ops and the rivals of `mhla bench op`. Without libopenblas0-pthread its products
# crawl.
torch="libtorch-dev libopenblas0-pthread libopenblas-pthread-dev"
# Data that tests and demo use. Not dict-gcide, the default text: it brings a dictionary server that starts by itself.
data="dataset-fashion-mnist"
# SentencePiece models as tokenizers; patterns and normalisers of tokenizer.json files beyond the fast path.
text="libsentencepiece-dev libpcre2-dev libicu-dev"
# Writes MP4 files, as a program; tests of them need it.
video="ffmpeg"
# The Python package is tested with Debian's torch; pip brings what builds it (pyproject.toml).
python="python3-torch python3-pytest"

# What checks a change besides its tests.
checks="clang-format clang clang-tidy codespell python3-venv"

case "${1:-}" in
  build) wanted="$build" ;;
  test) wanted="$build $tests $torch $text $video $python $data $checks" ;;
  demo) wanted="$build $torch $data" ;;
  bench) wanted="$build $torch $text $data" ;;
  campaign) wanted="$build $torch python3" ;;
  asan | tsan) wanted="$build $tests" ;;
  fuzz) wanted="$build $tests clang libclang-rt-14-dev" ;;
  docs) wanted="python3-venv doxygen git" ;;
  format) wanted="clang-format" ;;
  prose) wanted="codespell python3" ;;
  python) wanted="python3-torch python3-venv" ;;
  wheel) wanted="$build $torch $python ccache patchelf python3-pip python3-venv" ;;
  tidy) wanted="$build $tests clang clang-tidy" ;;
  *)
    echo "usage: $0 build|test|demo|bench|asan|tsan|fuzz|campaign|docs|format|prose|python|wheel|tidy" >&2
    exit 2
    ;;
esac

[ "${MHLA_PACKAGES:-}" != skip ] || exit 0

missing=
for package in $wanted; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) || status=
  [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

give_up() {
  echo "mhla: make $1 needs packages that are missing:$missing" >&2
  echo "mhla: $2" >&2
  echo "mhla: with the same libraries from elsewhere, MHLA_PACKAGES=skip goes on without this check" >&2
  exit 1
}

command -v apt-get >/dev/null 2>&1 || give_up "$1" "there is no apt-get here; install them (Debian 12 names) by hand"
if [ "$(id -u)" = 0 ]; then
  as_root=
elif command -v sudo >/dev/null 2>&1; then
  as_root=sudo
else
  give_up "$1" "as root: apt-get install --no-install-recommends$missing"
fi

echo "mhla: packages to install:$missing"
# shellcheck disable=SC2086  # both are lists of words
"$(dirname "$0")/quietly.sh" build/packages.log "make $1: installing packages" \
  $as_root env DEBIAN_FRONTEND=noninteractive sh -c \
  'apt-get update -q && apt-get install -q -y --no-install-recommends "$@"' sh $missing || give_up "$1" "apt-get could not install them, its reason stands above"
