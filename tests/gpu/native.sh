#!/usr/bin/env bash
# Runs the targets cpu and cuda on this machine's own Python and PyTorch: no container, no virtual environment, no network.
# For a Linux machine with an NVIDIA GPU that is lent for a few minutes. docs/targets/cuda.md says how to fill the folder of wheels.
#
#   bash tests/gpu/native.sh WHEELS OUT [SECONDS [SUITE...]]
#
#   WHEELS   a folder of wheels: what tests/gpu/wheels.txt names and this machine lacks
#   OUT      where to leave a folder of reports for each suite, native.tar.gz with all of them (at most 16 MiB), and not-run.txt
#   SECONDS  the time it may take in all (480)
#   SUITE    suites of matrix.yaml, in this order (default performance). Options of `hwmatrix matrix` may follow a suite's name in one
#            argument: 'all --targets cuda --no-timing'. If it times, cpu is timed too: speeds are
#            compared with cpu on one machine. The second one of a suite goes to the folder <suite>-2.
#
# PYTHON names the interpreter (python3). The checkout may be read-only. What already ran is kept when the time is up.
# Exit codes: 0 something ran on the GPU, 2 wrong arguments or missing packages, 6 nothing ran on the GPU, else that of hwmatrix.
set -euo pipefail

largest_kib=16384
reporting_s=20 # kept back for the reports when a suite runs out of time
python="${PYTHON:-python3}"
root="$(cd "$(dirname "$0")/../.." && pwd)"

fail() {
  printf 'error: %s\n' "$2" >&2
  exit "$1"
}
say() { printf '== [%3d s] %s\n' "$SECONDS" "$*"; }

[ "$#" -ge 2 ] || fail 2 "usage: bash tests/gpu/native.sh WHEELS OUT [SECONDS [SUITE...]]"
suites=(default performance)
[ "$#" -le 3 ] || suites=("${@:4}")
wheels="$(cd "$1" 2>/dev/null && pwd)" || fail 2 "$1: there is no such folder of wheels"
limit="${3:-480}"
[[ "$limit" =~ ^[0-9]+$ ]] && [ "$limit" -gt "$reporting_s" ] || fail 2 "SECONDS is $limit: give a whole number above $reporting_s"
mkdir -p "$2" && out="$(cd "$2" && pwd)" || fail 2 "$2: the folder cannot be made"
command -v "$python" >/dev/null || fail 2 "$python: not found; name an interpreter in PYTHON"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail 2 "Python 3.11 or later is needed, this is $("$python" --version)"
"$python" -c 'import torch' || fail 2 "$python has no PyTorch that can be imported: this script measures the machine's own"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
shopt -s nullglob
found=("$wheels"/*.whl)
own=("$wheels"/torch-*.whl)
[ "${#own[@]}" -eq 0 ] || fail 2 "${own[0]}: remove it, since the machine's own PyTorch is measured"

say "installing ${#found[@]} wheels beside $("$python" -c 'import platform, torch; print("Python", platform.python_version(), "with torch", torch.__version__)')"
if [ "${#found[@]}" -gt 0 ]; then
  "$python" -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-index --no-deps --no-compile --no-cache-dir \
    --target "$work/site" "${found[@]}" || fail 2 "the wheels cannot be installed: are they for this Python and this machine?"
  "$python" -m compileall -q -j 0 "$work/site" || true # on all cores; what cannot be compiled only costs every process time
fi
export PYTHONPATH="$work/site:$root/harness" PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
export HWMATRIX_CACHE="$work/cache" XDG_CACHE_HOME="$work/xdg" TRITON_CACHE_DIR="$work/triton"
missing="$("$python" "$root/tests/gpu/missing.py" "$root/tests/gpu/wheels.txt")"
[ -z "$missing" ] || fail 2 "not installed, and no wheel of it in $wheels: $missing"

# Targets beside each other if each has cores to itself, as a timing needs.
workers=1
[ "$(nproc)" -lt 4 ] || workers=2

ran=()
folders=()
failed=0
for asked in "${suites[@]}"; do
  read -ra words <<<"$asked"
  suite="${words[0]}"
  number=1
  while [[ " ${folders[*]} " == *" $suite "* ]]; do
    number=$((number + 1))
    suite="${words[0]}-$number"
  done
  folders+=("$suite")
  options=("${words[@]:1}")
  if [[ " ${options[*]} " != *" --targets "* ]]; then
    options=(--targets cpu cuda "${options[@]}")
  elif [[ " ${options[*]} " != *" cpu "* && " ${options[*]} " != *" --no-timing "* ]]; then
    options=("${options[@]/#--targets/--targets cpu}") # a speed is compared with cpu on the same machine
    read -ra options <<<"${options[*]}"
  fi
  left=$((limit - SECONDS - reporting_s))
  if [ "$left" -le 0 ]; then
    say "suite $suite: not begun, the time is up"
    continue
  fi
  say "suite $suite, at most $left s"
  code=0
  # SIGTERM: hwmatrix then merges and reports what has run. 124 and 130 say that it did.
  (cd "$work" && timeout --signal=TERM --kill-after="$reporting_s" "$left" "$python" -m hwmatrix matrix --matrix "$root/matrix.yaml" \
    --suite "${words[0]}" "${options[@]}" --workers "$workers" --isolation none --output-dir "$out/$suite") || code=$?
  case "$code" in
    0 | 6) ;;
    124 | 130) say "suite $suite: the time is up" ;;
    *)
      say "suite $suite ended with code $code; see what it printed"
      failed="$code"
      ;;
  esac
  [ ! -e "$out/$suite/matrix.json" ] || ran+=("$suite")
done

pack() { tar -C "$out" --exclude=runs "$@" -czf "$out/native.tar.gz" "${ran[@]}"; }
if [ "${#ran[@]}" -gt 0 ]; then
  pack
  if [ "$(du -k "$out/native.tar.gz" | cut -f1)" -gt "$largest_kib" ]; then
    say "native.tar.gz leaves out JSON and HTML, which 'hwmatrix report' makes from the databases"
    pack --exclude='*.json' --exclude='*.html'
  fi
  [ "$(du -k "$out/native.tar.gz" | cut -f1)" -le "$largest_kib" ] || fail 1 "$out/native.tar.gz is larger than 16 MiB"
fi

code=0
"$python" "$root/tests/gpu/not_run.py" "$out" "${folders[@]}" >"$out/not-run.txt" || code=$?
cat "$out/not-run.txt"
say "done: $out/native.tar.gz"
[ "$failed" -eq 0 ] || exit "$failed"
exit "$code"
