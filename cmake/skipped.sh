#!/bin/sh
# skipped.sh BUILD: how many tests of the last ctest run were skipped and why, ", 42 skipped (no CUDA driver)"; nothing
# when none was. Every skipped test writes a line "FILE:LINE: Skipped" and its reason on the next.
awk '
  /^\[  SKIPPED \] [0-9]+ tests?, listed below/ { count += $4 }
  /: Skipped$/ { getline reason; sub(/, [0-9]+ cases not run$/, "", reason); sub(/^[a-z0-9]+: /, "", reason); seen[reason]++ }
  END {
    if (count == 0) exit
    for (reason in seen) list = list (list == "" ? "" : "; ") reason
    printf ", %d skipped (%s)", count, list
  }' "$1/Testing/Temporary/LastTest.log" 2>/dev/null
