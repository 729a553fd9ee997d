#!/usr/bin/env bash
# Tests that the shipped agent hands its trial over when it crashes. Unlike the agent of the other tests, it has no
# unwinding tables and another allocator. Usage: fallback.sh PROGRAM
set -euo pipefail
program=$(realpath "$1")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

# Also tests a crash without /proc.
bare=(unshare --mount sh -c 'umount -l /proc && exec "$@"' sh)
[ "$(id -u)" -eq 0 ] && "${bare[@]}" true 2>/dev/null || bare=(env)

for fault in ABRT SEGV BUS ILL FPE bare; do
  rm -f "$place/ready" "$place/go"
  before=()
  signal=$fault
  [ "$fault" != bare ] || before=("${bare[@]}") signal=SEGV
  "${before[@]}" "$program" run --output-dir "$place/$fault" \
    --shell "touch '$place/ready'; until [ -e '$place/go' ]; do sleep 0.05; done; echo out; exit 7" >"$place/output" 2>&1 &
  keeper=$!
  until [ -e "$place/ready" ]; do sleep 0.05; done
  kill "-$signal" "$keeper"
  until grep -qz -- --fallback "/proc/$keeper/cmdline"; do sleep 0.05; done
  touch "$place/go"
  code=0
  wait "$keeper" || code=$?
  if [ "$code" -ne 7 ] || ! grep -qx out "$place/output" || [ ! -e "$place/$fault/verdict.json" ]; then
    echo "after $fault: exit code $code, not 7, and this output:" >&2
    cat "$place/output" >&2
    exit 1
  fi
  echo "$fault: held"
done
