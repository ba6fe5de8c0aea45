#!/usr/bin/env bash
# Speed of GPT-2 124M, 4 sequences of 256 tokens, in fp32 and bf16: step time, percent of the measured
# multiply-add peak, and the time of each kernel beside the predicted one.
#
#   scripts/bench/gpt2_124m.sh [--executable FILE] [--threads N] [--steps N] [--profile FILE] [--write]
#
#   --write   put the table into docs/benchmarks.md
#
# The peak is measured in short pauses of each step; predictions come from `llmtrain doctor`, run in the
# same call unless --profile names a profile.
# Steps run on random tokens, which cost what text costs: all 1,024 positions see all earlier ones of
# their sequence.
set -euo pipefail
root="$(cd "$(dirname "$0")/../.." && pwd)"
llmtrain="$root/build/release/apps/llmtrain/llmtrain"
threads=2
steps=7
profile=""
write=no
die() {
  printf 'gpt2_124m: %s\n' "$*" >&2
  exit 1
}
while [ $# -gt 0 ]; do
  case "$1" in
    --executable) llmtrain="$(realpath "$2")" && shift ;;
    --threads) threads="$2" && shift ;;
    --steps) steps="$2" && shift ;;
    --profile) profile="$(realpath "$2")" && shift ;;
    --write) write=yes ;;
    -h | --help)
      sed -n '2,/^set -euo/s/^# \{0,1\}//p' "$0" | head -n -1
      exit 0
      ;;
    *) die "unknown option $1 (try --help)" ;;
  esac
  shift
done
[ -x "$llmtrain" ] || die "$llmtrain: no executable; build it, or name one with --executable"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cd "$work"
if [ -z "$profile" ]; then
  profile="$work/profile.json"
  "$llmtrain" doctor --threads "$threads" --output "$profile"
fi
for dtype in fp32 bf16; do
  cat >"$dtype.yaml" <<END
recipe: 1
run: {threads: $threads}
model: {architecture: gpt2, vocab_size: 50304, hidden_size: 768, num_hidden_layers: 12,
        num_attention_heads: 12, max_position_embeddings: 1024}
tokenizer: {type: bytes}
data: {sources: [{path: /usr/include/c++}]}
training: {seq_len: 256, micro_batch_size: 4, global_batch_size: 4, max_steps: 100}
optimizer: {lr: 1.0e-4}
precision: {compute: $dtype}
END
  "$llmtrain" bench "$dtype.yaml" --steps "$steps" --profile "$profile" >"$dtype.txt"
done
{
  python3 -c 'import json, sys
machine = json.load(open(sys.argv[1]))["machine"]
print("Machine: {cpu}, {instruction_set}.".format(**machine))' "$profile"
  for dtype in fp32 bf16; do
    printf '\nGPT-2 124M, 4x256, %s, %s threads, %s steps:\n\n```\n' "$dtype" "$threads" "$steps"
    cat "$dtype.txt"
    printf '```\n'
  done
} >table.md
cat table.md
if [ "$write" = yes ]; then
  python3 "$root/scripts/bench/put_section.py" "$root/docs/benchmarks.md" gpt2-124m table.md
fi
