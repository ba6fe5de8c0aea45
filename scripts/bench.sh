#!/usr/bin/env bash
# All speed measurements of docs/benchmarks.md, one after the other, each writing its table there.
#
#   scripts/bench.sh [--fresh] [NAME...]
#
#   --fresh   measure again what this commit was measured for already
#   NAME      gpt2_124m, predict, prepare_speed; default all. scripts/bench/NAME.sh --help says what each is
#
# Measure on a machine that does nothing else. A call that was cut off goes on where it stopped:
# build/bench/NAME holds the commit of the last whole measurement, and what predict has so far.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly all=(gpt2_124m predict prepare_speed)
die() {
  printf 'bench: %s\n' "$*" >&2
  exit 1
}
fresh=no
names=()
while [ $# -gt 0 ]; do
  case "$1" in
    --fresh) fresh=yes ;;
    -h | --help)
      sed -n '2,/^set -euo/s/^# \{0,1\}//p' "$0" | head -n -1
      exit 0
      ;;
    -*) die "unknown option $1 (try --help)" ;;
    *)
      [[ " ${all[*]} " == *" $1 "* ]] || die "no measurement '$1'; there are: ${all[*]}"
      names+=("$1")
      ;;
  esac
  shift
done
[ "${#names[@]}" -gt 0 ] || names=("${all[@]}")

scripts/install_packages.sh
cmake --preset release >/dev/null
cmake --build --preset release
# Marked when files other than documents differ from it.
commit="$(git rev-parse --short HEAD)"
[ -z "$(git status --porcelain -- . ':!docs')" ] || commit+=-dirty
for name in "${names[@]}"; do
  state="build/bench/$name"
  [ "$fresh" = no ] || rm -rf "$state"
  if [ "$(cat "$state/commit" 2>/dev/null)" = "$commit" ]; then
    printf '%s: measured at %s already\n' "$name" "$commit"
    continue
  fi
  # What another commit measured is not gone on with.
  if [ "$(cat "$state/begun" 2>/dev/null)" != "$commit" ]; then rm -rf "$state"; fi
  mkdir -p "$state"
  printf '%s\n' "$commit" >"$state/begun"
  keep=()
  [ "$name" != predict ] || keep=(--keep "$state/predict")
  "scripts/bench/$name.sh" --write "${keep[@]}"
  printf '%s\n' "$commit" >"$state/commit"
done
