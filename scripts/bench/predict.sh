#!/usr/bin/env bash
# Predicted against measured step time: measures this machine once with `llmtrain doctor`; then, for each
# of twelve recipes and as often as there are rounds, has `llmtrain bench` time the step. A machine that
# others use too is a third faster or slower from one quarter of an hour to the next, so that each step is
# divided by how much slower than in the profile multiply-adds were in short pauses of it. The table also
# has what `llmtrain plan --now` predicted just before, beside the steps as they were timed.
#
#   scripts/bench/predict.sh [--executable FILE] [--threads N] [--seconds N] [--rounds N] [--keep DIR] [--write]
#
#   --seconds N  time the steps of a recipe for about so long (3), in at least three steps
#   --rounds N   go through all recipes so often and take the median of their times (5)
#   --keep DIR   keep profile and times there and go on where an earlier call stopped
#   --write      put the table into docs/benchmarks.md
set -euo pipefail
root="$(cd "$(dirname "$0")/../.." && pwd)"
llmtrain="$root/build/release/apps/llmtrain/llmtrain"
threads="$(nproc)"
seconds=3
rounds=5
keep=""
write=no
die() {
  printf 'predict: %s\n' "$*" >&2
  exit 1
}
while [ $# -gt 0 ]; do
  case "$1" in
    --executable) llmtrain="$(realpath "$2")" && shift ;;
    --threads) threads="$2" && shift ;;
    --seconds) seconds="$2" && shift ;;
    --rounds) rounds="$2" && shift ;;
    --keep) keep="$(realpath -m "$2")" && shift ;;
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
if [ -z "$keep" ]; then
  keep="$(mktemp -d)"
  trap 'rm -rf "$keep"' EXIT
fi
mkdir -p "$keep"
cd "$keep"
# No profile of the user's may come into it.
export XDG_CACHE_HOME="$keep/cache"

# Steps of a twentieth of a second to two seconds, each about 1.4 times the one before, so that their order
# means something. Short ones: a machine changes less in five minutes than in twenty.
# name architecture hidden inner layers heads kv vocab seq_len micro global recompute dtype
recipes="
gpt2-s-bf16   gpt2  192  768  3  3  3  2048  128  2  2 none bf16
gpt2-s-fp32   gpt2  192  768  3  3  3  2048  128  3  3 none fp32
llama-s-fp32  llama 192  512  3  3  1  2560  128  2  4 none fp32
llama-s-bf16  llama 192  512  3  3  3  3072  256  2  2 full bf16
gpt2-m-fp32   gpt2  256 1024  4  4  4  4096  128  3  3 full fp32
gpt2-m-bf16   gpt2  256 1024  4  4  4  4096  256  3  3 none bf16
llama-m-fp32  llama 320  896  4  5  5  4096  128  3  6 none fp32
gpt2-l-fp32   gpt2  384 1536  6  6  6  4096  256  2  2 none fp32
gpt2-l-bf16   gpt2  384 1536  6  6  6  8192  256  2  2 sqrt bf16
llama-l-bf16  llama 320  896  6  5  5  4096  512  1  2 full bf16
llama-l-fp32  llama 448 1216  6  7  7  8192  256  2  4 none fp32
llama-m-bf16  llama 448 1216  6  7  7  8192  512  1  3 none bf16
"

write_recipe() {
  local name=$1 arch=$2 hidden=$3 inner=$4 layers=$5 heads=$6 kv=$7 vocab=$8 seq=$9
  local micro=${10} global=${11} recompute=${12} dtype=${13} kv_line=""
  if [ "$arch" = llama ]; then kv_line="num_key_value_heads: $kv,"; fi
  cat >"$name.yaml" <<END
recipe: 1
run: {threads: $threads}
model: {architecture: $arch, vocab_size: $vocab, hidden_size: $hidden,
        intermediate_size: $inner, num_hidden_layers: $layers, num_attention_heads: $heads, $kv_line
        max_position_embeddings: $seq}
tokenizer: {type: bytes}
data: {sources: [{path: never-read.txt}]}
training: {seq_len: $seq, micro_batch_size: $micro, global_batch_size: $global, max_steps: 100}
optimizer: {lr: 1.0e-4}
precision: {compute: $dtype}
activation_checkpoint: {mode: $recompute}
END
}

names=()
while read -r name rest; do
  [ -n "$name" ] || continue
  # shellcheck disable=SC2086  # the fields of a line are the arguments
  write_recipe "$name" $rest
  names+=("$name")
done <<<"$recipes"

# Writes FILE by a command that prints it, whole or not at all; does nothing when it is there.
printed() {
  [ -s "$1" ] || { "${@:2}" >unfinished && mv unfinished "$1"; }
}

# How many steps of recipe $1 take $seconds.
steps_of() {
  python3 -c 'import json, sys
print(max(3, round(float(sys.argv[1]) / json.load(open(sys.argv[2]))["time"]["step_seconds"])))' "$seconds" "$1.plan.json"
}

[ -s profile ] || "$llmtrain" doctor --threads "$threads" --output profile
for name in "${names[@]}"; do
  printed "$name.plan.json" "$llmtrain" plan "$name.yaml" --profile profile --json
done
for ((round = 1; round <= rounds; ++round)); do
  for name in "${names[@]}"; do
    printed "$name.now.$round" "$llmtrain" plan "$name.yaml" --profile profile --now --json
    printed "$name.bench.$round" "$llmtrain" bench "$name.yaml" --profile profile --steps "$(steps_of "$name")" --json
  done
done

python3 "$root/scripts/bench/compare.py" "$keep" >table.md
cat table.md
if [ "$write" = yes ]; then
  python3 "$root/scripts/bench/put_section.py" "$root/docs/benchmarks.md" predicted table.md
fi
