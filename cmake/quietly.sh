#!/bin/sh
# quietly.sh LOG TITLE COMMAND...: runs a long command with its output in LOG, and says meanwhile what is happening:
# how far it is (the last "[3/120]" that Ninja wrote), how long it has taken and how long is left. On a terminal one line
# that changes, in a pipe a line every half minute. When the command fails, the end of what it said is shown.
set -u
log=$1 title=$2
shift 2
mkdir -p "$(dirname "$log")"
start=$(date +%s)

clock() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

state() {
  spent=$(($(date +%s) - start))
  steps=$(tail -c 2000 "$log" 2>/dev/null | tr '\r' '\n' | sed -n 's/^\[\([0-9]*\)\/\([0-9]*\)\].*/\1 \2/p' | tail -n 1)
  done=${steps% *} all=${steps#* }
  if [ -n "$steps" ] && [ "$done" -gt 4 ]; then
    printf '%s: %d of %d steps, %s so far, about %s left' "$title" "$done" "$all" "$(clock $spent)" \
      "$(clock $((spent * (all - done) / done)))"
  else
    printf '%s: %s so far' "$title" "$(clock $spent)"
  fi
}

if [ -t 1 ]; then every=1; else every=30; fi
echo "$title (details: $log)"
"$@" >"$log" 2>&1 &
job=$!
trap 'kill $job 2>/dev/null; exit 130' INT TERM
shown=$start
while kill -0 $job 2>/dev/null; do
  sleep 1
  now=$(date +%s)
  [ $((now - shown)) -ge $every ] || continue
  shown=$now
  if [ -t 1 ]; then printf '\r\033[K%s' "$(state)"; else state && echo; fi
done
wait $job
code=$?
[ ! -t 1 ] || printf '\r\033[K'
if [ $code = 0 ]; then
  echo "$title: done in $(clock $(($(date +%s) - start)))"
else
  if grep -q '^FAILED: ' "$log"; then sed -n '/^FAILED: /,$p' "$log" | head -n 60; else tail -n 30 "$log"; fi
  echo "$title: FAILED, all of its output is in $log"
fi
exit $code
