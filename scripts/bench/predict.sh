#!/usr/bin/env bash
# Predicted against measured step time: times steps of twelve recipes with `llmtrain bench`, measures this
# machine with `llmtrain doctor` before and after each, and compares the median step with what the plan
# says from these two profiles: a machine that does other work too is a third faster or slower from one
# quarter of an hour to the next.
#
#   scripts/bench/predict.sh [--executable FILE] [--threads N] [--seconds N] [--rounds N] [--keep DIR] [--write]
#
#   --seconds N  time the steps of a recipe for about so long (20), in at least three steps
#   --rounds N   go through all recipes so often and take the medians of all profiles and steps (3)
#   --keep DIR   keep profiles and times there and go on where an earlier call stopped
#   --write      put the table into docs/benchmarks.md
set -euo pipefail
root="$(cd "$(dirname "$0")/../.." && pwd)"
llmtrain="$root/build/release/apps/llmtrain/llmtrain"
threads="$(nproc)"
seconds=20
rounds=3
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

# Steps of a quarter of a second to a quarter of a minute, each about 1.4 times the one before, so that their
# order means something.
# name architecture hidden inner layers heads kv vocab seq_len micro global recompute dtype
recipes="
gpt2-s-bf16   gpt2  256 1024  4  4  4  4096  256  3  3 none bf16
gpt2-s-fp32   gpt2  256 1024  4  4  4  4096  256  4  4 none fp32
llama-s-fp32  llama 256  704  4  4  2  4096  256  3  6 none fp32
llama-s-bf16  llama 256  704  4  4  2  4096  512  4  4 full bf16
gpt2-m-fp32   gpt2  384 1536  6  6  6  8192  256  3  3 full fp32
gpt2-m-bf16   gpt2  384 1536  6  6  6  8192  512  3  3 none bf16
llama-l-fp32  llama 768 2048  4 12 12  8192  256  3  3 none fp32
llama-m-fp32  llama 512 1408  6  8  4  8192  128  7 14 none fp32
gpt2-l-fp32   gpt2  768 3072  6 12 12 16384  256  4  4 none fp32
gpt2-l-bf16   gpt2  768 3072  6 12 12 16384  256  5  5 sqrt bf16
llama-m-bf16  llama 512 1408  6  8  4  8192 1024  1  5 none bf16
llama-l-bf16  llama 768 2048  8 12  4 16384  512  1  5 full bf16
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

# The profile number $1 of this machine.
examine() {
  [ -s "profile.$1" ] || "$llmtrain" doctor --threads "$threads" --output "profile.$1"
}

# How many steps of recipe $1 take $seconds by profile number $2.
steps_of() {
  "$llmtrain" plan "$1.yaml" --profile "profile.$2" --json |
    python3 -c 'import json, sys
print(max(3, round(float(sys.argv[1]) / json.load(sys.stdin)["time"]["step_seconds"])))' "$seconds"
}

at=0 # the last profile
examine $at
for ((round = 1; round <= rounds; ++round)); do
  for name in "${names[@]}"; do
    printed "$name.bench.$round" "$llmtrain" bench "$name.yaml" --profile "profile.$at" \
      --steps "$(steps_of "$name" $at)" --json
    examine $((at + 1))
    printed "$name.profile.$round" python3 "$root/scripts/bench/merge_profiles.py" "profile.$at" "profile.$((at + 1))"
    at=$((at + 1))
  done
done
for name in "${names[@]}"; do
  python3 "$root/scripts/bench/merge_profiles.py" "$name".profile.? >"$name.profile"
  "$llmtrain" plan "$name.yaml" --profile "$name.profile" --json >"$name.plan.json"
done

python3 "$root/scripts/bench/compare.py" "$keep" >table.md
cat table.md
if [ "$write" = yes ]; then
  python3 "$root/scripts/bench/put_section.py" "$root/docs/benchmarks.md" predicted table.md
fi
