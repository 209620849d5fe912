#!/bin/sh
# check_python.sh [--or-skip]: ruff over every Python file, mypy --strict over the package (settings: pyproject.toml). Both
# come from PyPI into build/venv, in versions that are fixed here; MHLA_PACKAGES=skip takes those of the PATH instead.
# Where they cannot be had, that is an error, with --or-skip a line and a note in build/not_checked.
set -eu
cd "$(dirname "$0")/.."
tools="ruff==0.17.4 mypy==2.4.1"
venv=build/venv
mkdir -p build
rm -f build/not_checked

without() {
  echo "check_python: Python was NOT checked: $1" >&2
  [ "${or_skip:-}" ] || exit 1
  echo "ruff and mypy were not run: $1" >build/not_checked
  exit 0
}

[ "${1:-}" != --or-skip ] || or_skip=yes
if [ "${MHLA_PACKAGES:-}" = skip ]; then
  command -v ruff >/dev/null && command -v mypy >/dev/null || without "MHLA_PACKAGES is skip, and the PATH has no ruff and mypy"
  bin=
elif [ "$(cat $venv/tools 2>/dev/null)" = "$tools" ]; then
  bin=$venv/bin/
else
  rm -rf $venv
  # shellcheck disable=SC2086  # a list of words
  if /usr/bin/python3 -m venv $venv >build/venv.log 2>&1 &&
    $venv/bin/pip install --quiet --disable-pip-version-check --retries 1 --timeout 20 $tools >>build/venv.log 2>&1; then
    echo "$tools" >$venv/tools
  else
    without "pip could not install $tools (is PyPI out of reach?); its words are in build/venv.log"
  fi
  bin=$venv/bin/
fi

"${bin}ruff" check --quiet python scripts || { echo "check_python: ruff FAILED; again: ${bin}ruff check python scripts"; exit 1; }
# The Python with the torch that the package is built for.
"${bin}mypy" --python-executable /usr/bin/python3 --cache-dir build/mypy --no-error-summary ||
  { echo "check_python: mypy FAILED; again: make check-python"; exit 1; }
echo "check_python: ruff and mypy found nothing"
