#!/usr/bin/env bash
# Checks or times the CUDA device on this machine's first GPU; each within eight minutes.
#
#   scripts/gpu_check.sh bundle --out DIR [--build DIR]
#   scripts/gpu_check.sh VERB[,VERB...] --out DIR [--build DIR] [--steps N] [--seconds N] [--rows NAMES]
#
#   bundle  here, without a GPU: programs and libraries for a machine that builds nothing; there --build names them
#   first   what to run where nothing has run yet, the most telling things first: what is there, whether wgmma
#           computes what mma.sync does, every kernel against the reference, a run beside the CPU's, steps of
#           GPT-2 124M, compute-sanitizer's memcheck; until the time is over
#   check   every kernel and whole models against the CPU reference and the goldens; 200 steps of training on a GPU
#           beside the CPU; memcheck in the time that is left
#   cases   of that, the kernels against the reference alone; beside_the_cpu: the 200 steps alone
#   memcheck, racecheck, synccheck, initcheck
#           that tool of compute-sanitizer over every kernel, test case by test case: OUT/TOOL.txt has a line for each
#   kernels rates of single kernels by the GPU's clock, beside a copy's, at 8,192 tokens and 128 columns a head:
#           attention by cuDNN (whole, in pieces, with sums in any order) and by our own kernels with wgmma and with
#           mma.sync, norms, AdamW, products
#   attention  both directions of it by cuDNN and by our kernels, heads of 64 and 128, 1,024 and 4,096 tokens; and in
#           models that are little else, beside PyTorch's on cuDNN; attention_alone: of that, the latter
#   norms   rows as cuDNN's benchmark of RMSNorm has them
#   profile what limits each of our kernels, by ncu: OUT/profile_RECIPE.txt
#   several processes that share the GPU and meet by TCP, 2 to 8 of them, each kind of parallelism and some together, in
#           fp64 beside one process on the CPU; and NCCL in a group of one
#   memory  what the driver says of the GPU's memory beside the plan, with an arena of the size that the plan says
#   modes   whole steps of GPT-2 124M beside those with one setting changed: run.determinism: fast, no CUDA graphs, our
#           own attention, products as the library guesses, either form of masters and none, fp16; fp32 beside TF32
#   runs    ten times N steps of training with the same settings beside each other: which have the same losses to the
#           bit, and how far apart the others end
#   offload the same of what a GPU's host has: states, masters, parameters and activations, in its memory and in files
#   losses-124m, losses-1b
#           200 steps of GPT-2 124M, or of a Llama of 1.1B, in bf16 on text of the machine (GPU_CHECK_TEXT names
#           directories), beside PyTorch's from the same weights on the same batches, eager and compiled, two seeds
#   124m, 1558m, 1.5b, 7b
#           whole steps of that model in bf16, 1,024 tokens a sample and several micro-batches an update, beside
#           PyTorch's, eager and compiled, and of ours those with other settings; 7b wants 141 GB. fp8: the same in
#           FP8 with run.determinism: fast, beside determinism_fast, with the rates of what only FP8 launches
#
#   --out      where table.txt and logs.tgz go, which are up to date whenever the script is stopped
#   --build    a build directory of the preset `ci` or `cuda` (build/cuda), which is brought up to date; or a bundle
#   --seconds  begin nothing after so many, and end what runs then (465)
#   --rows     of a model's steps: any of "determinism_fast fp8 pytorch own_attention guessed_products documents" (all);
#              pytorch_compile: of PyTorch's that one alone
#
# What failed is a row with the first complaint of its log. A test case that leaves the GPU unusable ends no other:
# each has a process of its own. A table begins with date, commit, device and driver, and says how MFU is counted.
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
out=""
build="$root/build/cuda"
steps=""
limit=465
die() {
  printf 'gpu_check: %s\n' "$*" >&2
  exit 1
}
what="${1:-}"
for verb in ${what//,/ } ${what:-none}; do
  case "$verb" in
    bundle | first | check | cases | beside_the_cpu | kernels | attention | attention_alone | norms | profile | several | memory | modes | runs | offload | 124m | 1558m | 1.5b | 7b) ;;
    memcheck | racecheck | synccheck | initcheck | losses-124m | losses-1b | losses-tiny-llama | *,*) ;;
    -h | --help)
      sed -n '2,/^set -euo/s/^# \{0,1\}//p' "$0" | head -n -1
      exit 0
      ;;
    *) die "say what: first, for instance (try --help)" ;;
  esac
done
shift
rows="determinism_fast fp8 pytorch own_attention guessed_products documents"
while [ $# -gt 0 ]; do
  [ $# -gt 1 ] || die "$1 wants a value, or is unknown (try --help)"
  case "$1" in
    --out) out="$2" ;;
    --build) build="$(realpath "$2")" ;;
    --steps) steps="$2" ;;
    --seconds) limit="$2" ;;
    --rows) rows="$2" ;;
    *) die "unknown option $1 (try --help)" ;;
  esac
  shift 2
done
[ -n "$out" ] || die "--out DIR is missing"
mkdir -p "$out"
out="$(realpath "$out")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

if [ -f "$build/BUNDLE" ]; then
  llmtrain="$build/llmtrain" plugin="$build/libllmtrain_cuda.so" cuda_test="$build/cuda_test" nccl_test="$build/nccl_test"
else
  if [ ! -f "$build/CMakeCache.txt" ]; then
    cmake --preset cuda -S "$root" -B "$build" >"$out/configure.log"
  fi
  cmake --build "$build" --target llmtrain llmtrain_cuda cuda_test -j >"$out/build.log"
  # There is none where NCCL's headers are not.
  cmake --build "$build" --target nccl_test -j >>"$out/build.log" 2>&1 || true
  llmtrain="$build/apps/llmtrain/llmtrain" plugin="$build/apps/llmtrain/libllmtrain_cuda.so"
  cuda_test="$build/tests/cuda_test" nccl_test="$build/tests/nccl_test"
  SECONDS=0  # of building, which may take longer than all that follows, the limit says nothing
fi
commit() { git -C "$root" describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || echo unknown; }

# Programs without symbols, and what they need beside the C library and CUDA's.
bundle() {
  mkdir -p "$out/lib"
  for file in "$llmtrain" "$plugin" "$cuda_test" "$nccl_test"; do
    [ -f "$file" ] || continue
    strip --strip-unneeded -o "$out/$(basename "$file")" "$file"
    ldd "$file" | awk '$3 ~ /\/lib(hwy|gomp|stdc\+\+|gcc_s)\.so/ {print $3}' | xargs -r cp -Lt "$out/lib"
  done
  chmod +x "$out/llmtrain" "$out"/*_test
  commit >"$out/BUNDLE"
  du -sh "$out"
}
if [ "$what" = bundle ]; then
  bundle
  exit 0
fi

# ---- Where this runs
# Of our own programs only: PyTorch has libraries of its own.
own_libraries="$build/lib:/usr/local/cuda/lib64:/usr/local/cuda/lib"
cudnns=()
while IFS= read -r folder; do
  own_libraries+=":$folder"
  [ -f "$folder/libcudnn.so.9" ] && cudnns+=("$folder/libcudnn.so.9")
done < <(python3 -c 'import glob, site
for path in site.getsitepackages(): print(*glob.glob(path + "/nvidia/*/lib"), sep="\n")' 2>/dev/null || true)
# Another plugin than the one that was built, to try this script itself without a GPU.
export LLMTRAIN_CUDA_PLUGIN="${GPU_CHECK_PLUGIN:-$plugin}"
export LLMTRAIN_TESTS_DIR="$root/tests"
mine() {
  if [ -n "${theirs:-}" ]; then "$@"; else LD_LIBRARY_PATH="$own_libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$@"; fi
}
# The newest cuDNN of several, unless somebody chose: an older one may be refused, or slower. Rows say which it is.
if [ -z "${LLMTRAIN_CUDNN:-}" ] && [ "${#cudnns[@]}" -gt 0 ]; then
  newest="$(python3 "$root/scripts/bench/newest_cudnn.py" "" "${cudnns[@]}" 2>/dev/null)" || newest=""
  [ -z "$newest" ] || export LLMTRAIN_CUDNN="$newest"
fi

for part in table checks speed losses; do
  # shellcheck source=/dev/null
  source "$root/scripts/gpu/$part.sh"
done

facts
all_logs="$logs"
for verb in ${what//,/ }; do
  logs="$all_logs/$verb"
  mkdir -p "$logs"
  case "$verb" in
    first | check | beside_the_cpu | kernels | attention | attention_alone | norms | profile | several | memory | modes | runs | offload) "$verb" || true ;;
    cases) trial && cases "$limit" ;;
    memcheck | racecheck | synccheck | initcheck) sanitize "$verb" ;;
    losses-*) losses "${verb#losses-}" ;;
    *) benchmark "$verb" ;;
  esac
done
pack
printf '\n%s\n' "$what"
cat "$table"
exit "$failed"
