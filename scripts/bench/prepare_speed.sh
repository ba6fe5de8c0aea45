#!/usr/bin/env bash
# How fast `llmtrain data prepare` reads and cleans plain text, without tokenising: MB of text per second
# of one processor, for each stage (`data prepare --measure`), on the headers of the C++ standard library.
#
#   scripts/bench/prepare_speed.sh [--executable FILE] [--text DIRECTORY] [--rounds N] [--write]
#
#   --text    other text files; default the newest /usr/include/c++/*
#   --write   put the table into docs/benchmarks.md
#
# The best of N rounds (default 5) counts. Ends with exit code 1 when the stages together, with every
# filter, exact and near duplicates by words, are slower than 50 MB/s.
set -euo pipefail
root="$(cd "$(dirname "$0")/../.." && pwd)"
llmtrain="$root/build/release/apps/llmtrain/llmtrain"
text="$(printf '%s\n' /usr/include/c++/* | sort -V | tail -n 1)"
rounds=5
write=no
die() {
  printf 'prepare_speed: %s\n' "$*" >&2
  exit 1
}
while [ $# -gt 0 ]; do
  case "$1" in
    --executable) llmtrain="$(realpath "$2")" && shift ;;
    --text) text="$(realpath "$2")" && shift ;;
    --rounds) rounds="$2" && shift ;;
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

# Every filter is on, with a threshold that drops nothing: a dropped text would spare the others.
filters="$("$llmtrain" keys data.cleaning.filters | sed -n 's/^ *\(min_[a-z0-9_]*\) .*/\1: 0/p;
  s/^ *\(max_[a-z0-9_]*_share\) .*/\1: 1/p;
  s/^ *\(max_[a-z0-9_]*\(characters\|words\|length\|ratio\)\) .*/\1: 1e12/p' |
  sed 's/invalid_utf8_share: 1/invalid_utf8_share: 0.01/' | paste -sd, -)"
recipe() {
  cat <<EOF
recipe: 1
model: {architecture: llama, vocab_size: 257, hidden_size: 16, num_hidden_layers: 1,
        num_attention_heads: 2, intermediate_size: 32, max_position_embeddings: 64}
tokenizer: {type: bytes}
data:
  sources: [{path: $text, max_document_bytes: 0}]
  cache_dir: $work/cache
  cleaning:
    deduplication: {exact: true, near: {shingle_unit: $1}}
    filters: {$filters}
training: {seq_len: 16, global_batch_size: 4, max_steps: 4}
EOF
}

# Rows of the round with the least time in all; "all" is the last row of a round.
best() {
  recipe "$1" >"$work/$1.yaml"
  for ((round = 0; round < rounds; ++round)); do
    "$llmtrain" data prepare "$work/$1.yaml" --measure
  done | awk '
    / MB of text/ { rows = ""; text = $0 }
    / MB\/s/ { rows = rows sprintf("| %s | %s | %s |\n", $1, $2, $4); last = $2 }
    $1 == "all" && (least == "" || last + 0 < least + 0) { least = last; kept = rows }
    END { print text; print ""; print "| stage | seconds | MB/s |"; print "|---|---|---|"; printf "%s", kept }'
}

{
  printf 'Machine: %s.\n' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
  for unit in words characters; do
    printf '\nEvery filter, exact and near duplicates (128 entries, shingles of %s): ' "$unit"
    best "$unit"
  done
} >"$work/table.md"
cat "$work/table.md"
[ "$write" = no ] || "$root/scripts/bench/put_section.py" "$root/docs/benchmarks.md" prepare-speed "$work/table.md"
slowest="$(awk '/^\| all/ { print $6; exit }' "$work/table.md")"
[ "$slowest" -ge 50 ] || die "$slowest MB/s are below 50"
