#!/usr/bin/env bash
# The installed tree alone, elsewhere: in a root directory that holds it, the libraries that the
# executable itself names, and a text. No MPI, no CUDA, no driver, no compiler, no source tree: it trains,
# saves, goes on, verifies and generates; and says what it lacks where a GPU or several ranks are asked for.
#
#   installed_test.sh CMAKE BUILD_DIRECTORY
#
# Exit code 77 where no process may have a root of its own.
set -euo pipefail
unset LLMTRAIN_MPI_PLUGIN LLMTRAIN_CUDA_PLUGIN
cmake="$1"
build="$2"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
die() {
  printf 'installed: %s\n' "$*" >&2
  exit 1
}

namespace=(unshare --mount)
"${namespace[@]}" true 2>/dev/null || namespace=(unshare --user --map-root-user --mount)
if ! "${namespace[@]}" true 2>/dev/null; then
  printf 'installed: skipped, this system lets no process have mounts of its own\n'
  exit 77
fi

root="$work/root"
"$cmake" --install "$build" --prefix "$root/opt/llmtrain" >/dev/null
program=opt/llmtrain/bin/llmtrain
[ -x "$root/$program" ] || die "$program was not installed"
! grep -aq "$build" "$root/$program" || die "the executable names the directory in which it was built"

# What the loader takes for it: "name => path (address)", and the loader itself: "path (address)".
ldd "$root/$program" | sed -n 's|^.*[[:space:]]\(/[^ ]*\) (0x.*|\1|p' >"$work/libraries"
[ -s "$work/libraries" ] || die "ldd names no library"
if grep -E 'mpi|cuda|cublas|cudnn|nccl|python' "$work/libraries"; then
  die "the executable cannot start without these"
fi
while read -r library; do install -D "$library" "$root/$library"; done <"$work/libraries"

mkdir -p "$root"/{dev,proc,tmp,home}
cat "$(dirname "$0")"/../*/*.hpp >"$root/home/text.hpp"
cat >"$root/home/recipe.yaml" <<'EOF'
recipe: 1
model: {architecture: llama, vocab_size: 300, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2,
        num_attention_heads: 2, max_position_embeddings: 32}
tokenizer: {type: bpe, vocab_size: 300}
data: {sources: [{path: /home/text.hpp}], cache_dir: /home/cache}
training: {seq_len: 32, micro_batch_size: 2, global_batch_size: 4, max_steps: 4}
optimizer: {name: adamw, lr: 1.0e-3}
checkpoint: {interval: 2}
run: {output_dir: /home/out}
EOF

# in_root ARGUMENTS...: llmtrain in that root; its output in $work/log.
in_root() {
  "${namespace[@]}" bash -c '
    set -e
    root="$1" && shift
    touch "$root/dev/null" "$root/dev/urandom"
    mount --bind /dev/null "$root/dev/null"
    mount --bind /dev/urandom "$root/dev/urandom"
    mount --rbind /proc "$root/proc"
    exec chroot "$root" "$@"
  ' in_root "$root" "/$program" "$@" >"$work/log" 2>&1
}
# try CODE ARGUMENTS...: the exit code is CODE.
try() {
  local wanted="$1" code=0
  shift
  in_root "$@" || code=$?
  [ "$code" = "$wanted" ] || { cat "$work/log" >&2 && die "llmtrain $*: exit code $code, not $wanted"; }
}
said() { grep -q "$1" "$work/log" || { cat "$work/log" >&2 && die "not said: $1"; }; }

try 0 run /home/recipe.yaml
try 0 run /home/recipe.yaml training.max_steps=6
said 'resum'
try 0 ckpt verify /home/out
try 0 generate /home/out --prompt 'struct' --max-tokens 4
try 0 plan gpt2-124m --device cuda --profile h200
try 1 run /home/recipe.yaml run.device=cuda run.output_dir=/home/gpu
said 'no GPU to use'
OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 try 6 run /home/recipe.yaml
said 'libmpi.so'
printf 'installed: trains, goes on, verifies, generates with %s libraries\n' "$(wc -l <"$work/libraries")"
