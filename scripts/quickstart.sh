#!/usr/bin/env bash
# From nothing to a trained language model: installs packages, builds, trains configs/quickstart.yaml,
# and shows the loss curve, a generated sample and how the model compares with gzip and xz.
#
#   scripts/quickstart.sh [--remainder R] [TEXT FILES...]
#
# Without files it trains on the C++ standard library's headers, which every machine with the compiler
# has, read in place. Held out for evaluation are the documents whose hash of the name is R modulo 20
# (default 0). It can be run again: it then does only what is left to do.
#
#   --smoke   20 seconds of training in a temporary directory, with checks (used by scripts/test.sh)
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"

die() {
  printf 'quickstart: %s\n' "$*" >&2
  exit 1
}
title() { printf '\n== %s\n' "$*"; }

smoke=no
remainder=0
files=()
while [ $# -gt 0 ]; do
  case "$1" in
    --smoke) smoke=yes ;;
    --remainder)
      [ $# -ge 2 ] || die "--remainder needs a number from 0 to 19"
      remainder="$2"
      shift
      ;;
    -h | --help)
      sed -n '2,/^set -euo/s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    -*) die "unknown option $1 (try --help)" ;;
    *) files+=("$1") ;;
  esac
  shift
done
[[ "$remainder" =~ ^(1?[0-9])$ ]] || die "--remainder is a number from 0 to 19, not '$remainder'"
for i in "${!files[@]}"; do
  if [ ! -f "${files[i]}" ] || [ ! -r "${files[i]}" ]; then die "${files[i]}: no readable file"; fi
  files[i]="$(realpath "${files[i]}")"
done

"$root/scripts/install_packages.sh"
cd "$root"

title "build"
configure_log="$(mktemp)"
cmake --preset release >"$configure_log" 2>&1 || {
  cat "$configure_log" >&2
  die "configuring failed"
}
rm -f "$configure_log"
# Without the CUDA plugin, which takes as long to compile and is not what runs here.
cmake --build --preset release --target llmtrain
llmtrain="$root/build/release/apps/llmtrain/llmtrain"

# The directory from which the compiler takes <vector>.
header_directory() {
  printf '#include <vector>\n' | g++ -x c++ -E - | sed -n 's|^# 1 "\(.*\)/vector".*|\1|p' | head -n 1
}

yaml_quoted() { printf "'%s'" "${1//\'/\'\'}"; }

if [ "${#files[@]}" -eq 0 ]; then
  corpus="$(header_directory)"
  [ -d "$corpus" ] || die "cannot find the headers of g++; give text files instead"
  sources="{path: $(yaml_quoted "$corpus")}"
  prompt=$'template <typename _Tp>\n'
  name=headers
else
  sources=""
  for file in "${files[@]}"; do sources+="${sources:+, }{path: $(yaml_quoted "$file")}"; done
  prompt="$(grep -a -m 1 '[[:alpha:]]' "${files[0]}" || true)"
  prompt="${prompt:0:40}"
  name="text-$(printf '%s\n' "${files[@]}" | cksum | cut -d ' ' -f 1)"
fi

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
if [ "$smoke" = yes ]; then
  run_dir="$work/run"
  limits=(training.max_time=20s metrics.interval=1)
else
  run_dir="$root/runs/quickstart-$name-$remainder"
  limits=()
fi
# Without bf16 instructions bf16 products run in fp32, and everything else is rounded for nothing.
grep -qsw avx512_bf16 /proc/cpuinfo || limits+=(precision.compute=fp32)
recipe=(configs/quickstart.yaml "data.sources=[$sources]" "data.eval_remainder=$remainder"
  "run.output_dir=$run_dir" "${limits[@]}")

title "train"
"$llmtrain" run "${recipe[@]}"

title "loss"
"$llmtrain" report "$run_dir" --text

title "sample"
"$llmtrain" generate "$run_dir" --prompt "$prompt" --max-tokens 200

title "bits per byte of the held-out text"
"$llmtrain" data held-out "${recipe[@]}" >"$work/held-out"
[ -s "$work/held-out" ] || die "no text is held out with remainder $remainder"
documents="$("$llmtrain" data files "${recipe[@]}" --held-out | wc -l)"
ours="$(sed -n 's|.*"eval/bits_per_byte":\([0-9.eE+-]*\).*|\1|p' "$run_dir/metrics.jsonl" | tail -n 1)"
[ -n "$ours" ] || die "$run_dir/metrics.jsonl holds no eval/bits_per_byte"
bytes="$(wc -c <"$work/held-out")"
gzip_bytes="$(gzip -9 <"$work/held-out" | wc -c)"
xz_bytes="$(xz -9e <"$work/held-out" | wc -c)"
awk -v ours="$ours" -v bytes="$bytes" -v gz="$gzip_bytes" -v xz="$xz_bytes" \
  -v documents="$documents" 'BEGIN {
    printf "%d bytes in %d documents\n", bytes, documents
    printf "  %-10s %7.4f\n  %-10s %7.4f\n  %-10s %7.4f\n", "llmtrain", ours,
      "gzip -9", 8 * gz / bytes, "xz -9e", 8 * xz / bytes
    exit !(ours < 8 * gz / bytes)
  }' && beaten=yes || beaten=no

title "report"
"$llmtrain" report "$run_dir"

# What a small text teaches may not be enough; the headers are.
if [ "$beaten" = no ] && [ "$smoke" = no ]; then
  [ "${#files[@]}" -gt 0 ] || die "the model is worse than gzip -9"
  echo "The model is worse than gzip -9: it needs more text."
fi

if [ "$smoke" = yes ]; then
  title "smoke checks"
  "$llmtrain" report "$run_dir" --check || die "the report cannot be read back"
  sed -n 's|.*"train/loss":\([0-9.eE+-]*\).*|\1|p' "$run_dir/metrics.jsonl" |
    awk 'NR == 1 { first = $1 } { last = $1 }
         END {
           printf "loss %.4f at the first step, %.4f at the last of %d\n", first, last, NR
           exit !(NR >= 2 && last < first)
         }' || die "the loss did not fall"
  printf 'smoke passed\n'
fi
