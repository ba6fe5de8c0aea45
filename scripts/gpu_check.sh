#!/usr/bin/env bash
# Checks or times the CUDA device on this machine's first GPU; each within ten minutes.
#
#   scripts/gpu_check.sh bundle --out DIR [--build DIR]
#   scripts/gpu_check.sh first|check|kernels|modes|runs|124m|1558m|1.5b|7b --out DIR [--build DIR] [--steps N]
#                        [--seconds N]
#
#   bundle  here, without a GPU: programs and libraries for a machine that builds nothing; there --build names them
#   first   what to run where nothing has run yet, the most telling things first: what is there, whether wgmma
#           computes what mma.sync does, every kernel against the reference, a run beside the CPU's, steps of
#           GPT-2 124M, compute-sanitizer's memcheck; until the time is over
#   check   every kernel and whole models against the CPU reference and the goldens; compute-sanitizer's
#           memcheck, racecheck and synccheck over the kernels; 200 steps of training on a GPU beside the CPU
#   kernels rates of single kernels, at 8,192 tokens and 128 columns a head: attention by cuDNN and by our own kernels
#           with wgmma and with mma.sync, norms, AdamW, products
#   modes   whole steps of GPT-2 124M beside those with one setting changed: run.determinism: fast, no CUDA graphs, our
#           own attention, products as the library guesses, either form of masters and none, fp16; fp32 beside TF32
#   runs    ten times N steps of training with the same settings beside each other: which have the same losses to the
#           bit, and how far apart the others end
#   others  whole steps of that model in bf16, 1,024 tokens a sample, beside PyTorch's, eager and compiled
#
#   --out      where table.txt and logs.tgz go, which are up to date whenever the script is stopped
#   --build    a build directory of the preset `ci` or `cuda` (build/cuda), which is brought up to date; or a bundle
#   --seconds  begin nothing after so many (540)
#
# What failed is a row with the first complaint of its log. A test case that leaves the GPU unusable ends no other:
# each has a process of its own.
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
out=""
build="$root/build/cuda"
steps=10
limit=540
die() {
  printf 'gpu_check: %s\n' "$*" >&2
  exit 1
}
what="${1:-}"
case "$what" in
  bundle | first | check | kernels | modes | runs | 124m | 1558m | 1.5b | 7b) shift ;;
  -h | --help)
    sed -n '2,/^set -euo/s/^# \{0,1\}//p' "$0" | head -n -1
    exit 0
    ;;
  *) die "say what: bundle, first, check, kernels, modes, runs, 124m, 1558m, 1.5b or 7b (try --help)" ;;
esac
while [ $# -gt 0 ]; do
  [ $# -gt 1 ] || die "$1 wants a value, or is unknown (try --help)"
  case "$1" in
    --out) out="$2" ;;
    --build) build="$(realpath "$2")" ;;
    --steps) steps="$2" ;;
    --seconds) limit="$2" ;;
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
  llmtrain="$build/llmtrain" plugin="$build/libllmtrain_cuda.so" cuda_test="$build/cuda_test"
else
  if [ ! -f "$build/CMakeCache.txt" ]; then
    cmake --preset cuda -S "$root" -B "$build" >"$out/configure.log"
  fi
  cmake --build "$build" --target llmtrain llmtrain_cuda cuda_test -j >"$out/build.log"
  llmtrain="$build/apps/llmtrain/llmtrain" plugin="$build/apps/llmtrain/libllmtrain_cuda.so"
  cuda_test="$build/tests/cuda_test"
fi
commit() { git -C "$root" describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || echo unknown; }

# Programs without symbols, and what they need beside the C library and CUDA's.
bundle() {
  mkdir -p "$out/lib"
  for file in "$llmtrain" "$plugin" "$cuda_test"; do
    strip --strip-unneeded -o "$out/$(basename "$file")" "$file"
    ldd "$file" | awk '$3 ~ /\/lib(hwy|gomp|stdc\+\+|gcc_s)\.so/ {print $3}' | xargs -r cp -Lt "$out/lib"
  done
  chmod +x "$out/llmtrain" "$out/cuda_test"
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
while IFS= read -r folder; do
  own_libraries+=":$folder"
  if [ -z "${LLMTRAIN_CUDNN:-}" ] && [ -f "$folder/libcudnn.so.9" ]; then
    export LLMTRAIN_CUDNN="$folder/libcudnn.so.9"
  fi
done < <(python3 -c 'import glob, site
for path in site.getsitepackages(): print(*glob.glob(path + "/nvidia/*/lib"), sep="\n")' 2>/dev/null || true)
# Another plugin than the one that was built, to try this script itself without a GPU.
export LLMTRAIN_CUDA_PLUGIN="${GPU_CHECK_PLUGIN:-$plugin}"
export LLMTRAIN_TESTS_DIR="$root/tests"
mine() {
  if [ -n "${theirs:-}" ]; then "$@"; else LD_LIBRARY_PATH="$own_libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$@"; fi
}
table_of() { python3 "$root/scripts/bench/gpu_table.py" "$@"; }

# ---- Rows of the table
logs="$work/logs"
mkdir "$logs"
table="$out/table.txt"
: >"$table"
failed=0
pack() { tar -C "$work" -czf "$out/logs.tgz.new" logs && mv "$out/logs.tgz.new" "$out/logs.tgz"; }
# row NAME TEXT; rows_of COMMAND...: what it prints.
row() {
  printf '%-44s %s\n' "$@" | tee -a "$table"
  pack
}
rows_of() {
  "$@" | tee -a "$table" || failed=1
  pack
}
# The first complaint of a log, from what was found where a comparison is one; else its last line.
complaint() {
  local text
  text="$(grep -m 1 -A 3 -E 'ERROR:|[Ee]rror|failed|cannot' "$1" 2>/dev/null | tr -s ' \n' ' ' | sed 's/.* values: //')" || true
  [ -n "$text" ] || text="$(tail -n 1 "$1" 2>/dev/null)" || true
  cut -c 1-200 <<<"$text"
}
# try NAME SECONDS COMMAND...: true if it ended well; its output is in logs/NAME.log, or what it prints in the file
# `into`. Nothing begins too late.
try() {
  local name="$1" seconds=$((limit - SECONDS)) status=0 cut=1
  [ "$2" -gt "$seconds" ] || seconds="$2" cut=0
  shift 2
  if [ "$seconds" -le 0 ]; then
    row "$name" "not reached"
    return 2
  fi
  : >"$logs/$name.log"
  mine timeout --kill-after=10 "$seconds" "$@" >>"${into:-$logs/$name.log}" 2>>"$logs/$name.log" || status=$?
  [ "$status" = 0 ] && return 0
  if [ "$status" = 124 ] || [ "$status" = 137 ]; then
    if [ "$cut" = 1 ]; then
      row "$name" "not done when the time was over"
      return 2
    fi
    failed=1
    row "$name" "FAILED: not done after $seconds s; $(grep -v Killed "$logs/$name.log" | tail -n 1 | cut -c 1-160)"
  else
    failed=1
    row "$name" "FAILED ($status): $(complaint "$logs/$name.log")"
  fi
  return 1
}
passes() {
  local begin=$SECONDS
  try "$@" && row "$1" "passed, $((SECONDS - begin)) s"
}

facts() {
  row "commit" "$(cat "$build/BUNDLE" 2>/dev/null || commit)"
  nvidia-smi >"$logs/nvidia-smi.log" 2>&1 || row "nvidia-smi" "FAILED: $(complaint "$logs/nvidia-smi.log")"
  mine ldd "$llmtrain" "$plugin" >"$logs/ldd.log" 2>&1 || true
  if grep -q 'not found' "$logs/ldd.log"; then
    row "libraries" "MISSING: $(awk '/not found/ {print $1}' "$logs/ldd.log" | sort -u | tr '\n' ' ')"
    failed=1
  fi
  grep -oE 'NVIDIA [A-Z][A-Za-z0-9 ]*[0-9]+|Driver Version: [0-9.]+' "$logs/nvidia-smi.log" | head -n 2 >"$work/facts" || true
  rows_of cat "$work/facts"
  # What it says of the GPU comes first; the CPU's kernels do not matter here.
  mine timeout --kill-after=5 25 "$llmtrain" doctor --quick --threads 2 --output "$work/profile.json" \
    >"$logs/doctor.log" 2>&1 || true
  grep -E '^(CUDA|cuBLASLt|cuDNN|driver|GPU|  data sheet|  measured)' "$logs/doctor.log" >"$work/facts" || true
  rows_of cat "$work/facts"
  grep -q '^GPU 0' "$work/facts" && return
  # The last of what it says of plugin, driver and GPU is where it ended.
  grep -E '^(GPU|CUDA|driver) ' "$logs/doctor.log" | tail -n 1 | grep . >"$work/facts" || complaint "$logs/doctor.log" >"$work/facts"
  row "doctor" "FAILED, and nothing else can run: $(tr -s ' ' <"$work/facts")"
  exit 1
}

# Kernels with wgmma are given up for what follows where those of bf16 fail. Where only those of fp16 do, every process
# finds that out by itself and goes on without them.
trial() {
  if ! passes "wgmma_trial" 60 "$cuda_test" --no-colors -tc='wgmma is used where there is any*'; then
    look_at_wgmma
    export LLMTRAIN_WGMMA=off
    row "LLMTRAIN_WGMMA" "off from here on"
  elif ! passes "wgmma_trial_fp16" 60 "$cuda_test" --no-colors -tc='wgmma is used in fp16*'; then
    look_at_wgmma
  fi
}
# What they compute where they are not to be trusted.
look_at_wgmma() {
  if LLMTRAIN_WGMMA=untried try "wgmma_untried" 60 "$cuda_test" --no-colors \
    -tc='attention in bf16 and fp16 on tensor cores*'; then
    row "wgmma_untried" "passed"
  fi
}

# cases SECONDS: every test case by itself, until so many seconds have passed since the beginning.
cases() {
  local count n good=0 bad=0 status name whole="$limit"
  count="$(mine "$cuda_test" --count --no-colors 2>/dev/null | grep -oE '[0-9]+$' | tail -n 1)" || true
  if [ -z "$count" ]; then
    passes "cuda_test" 30 "$cuda_test" --count || true
    return 0
  fi
  [ "$1" -lt "$limit" ] && limit="$1"
  for ((n = 1; n <= count && SECONDS < limit; ++n)); do
    name="case_$n"
    status=0
    try "$name" 120 "$cuda_test" --no-colors --first="$n" --last="$n" || status=$?
    case "$status" in
      0) good=$((good + 1)) ;;
      1)
        bad=$((bad + 1))
        row "" "$(grep -m 1 '^TEST CASE:' "$logs/$name.log" | cut -c 13-120), $(
          grep -m 1 -oE '[a-z_]+\.[ch]pp:[0-9]+: [A-Z ]*ERROR' "$logs/$name.log"
        )"
        ;;
    esac
  done
  limit="$whole"
  row "kernels against the reference" "$good of $count test cases passed, $bad failed, $((count - good - bad)) not tried"
}

# Bounds between tensors it cannot see: the arena is one block.
sanitize() {
  if ! command -v compute-sanitizer >/dev/null; then
    row "$1" "no compute-sanitizer here"
    return
  fi
  local before="$failed" found
  if passes "$1" "$2" compute-sanitizer --tool "$1" --error-exitcode 9 "$cuda_test" --no-colors -tce='in *'; then
    return 0
  fi
  [ -f "$logs/$1.log" ] || return 0  # not reached
  # What it finds it says at once.
  found="$(grep -cE '^=+ (Invalid|Error|Race|Barrier|Program hit)' "$logs/$1.log")" || true
  row "" "it found $found errors in $(grep -c '^TEST CASE' "$logs/$1.log" || true) cases with messages"
  [ "$found" != 0 ] || failed="$before"
}

beside_the_cpu() {
  local device
  for device in cpu cuda; do
    try "train_$device" 60 "$llmtrain" run "$root/configs/quickstart.yaml" run.device="$device" \
      run.output_dir="$work/$device" "data.sources=[{path: $root/lib}]" training.max_time=null \
      training.num_epochs=null training.max_steps="${GPU_CHECK_TRAIN_STEPS:-200}" lr_scheduler.horizon=steps \
      precision.compute=fp32 checkpoint.interval=1000 eval.interval=1000 metrics.interval=1 || return 0
  done
  grep -h -E 'attention:|took memory as planned|products:' "$logs/train_cuda.log" >"$work/said" || true
  rows_of cat "$work/said"
  rows_of table_of losses "$work/cpu/metrics.jsonl" "$work/cuda/metrics.jsonl"
}

# bench NAME SECONDS RECIPE SETTINGS...: steps of it, as logs/NAME.json.
bench() {
  local name="$1" seconds="$2" recipe="$3" sheet
  shift 3
  sheet="$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | grep -ioE -m 1 'h[128]00|a100|b200')" || true
  into="$logs/$name.json" try "$name" "$seconds" "$llmtrain" bench "$root/configs/$recipe.yaml" run.device=cuda \
    "run.product_cache=$work/products.txt" --steps "$steps" --json ${sheet:+--profile "${sheet,,}"} "$@"
}

# What is compared: a name, a tab, settings.
settings="bf16	precision.compute=bf16
again	precision.compute=bf16
determinism_fast	precision.compute=bf16 run.determinism=fast
no_graphs	precision.compute=bf16 run.cuda_graphs=off
own_attention	precision.compute=bf16 run.attention=own
guessed_products	precision.compute=bf16 run.tune_products=false
remainder	precision.compute=bf16 precision.master=bf16+remainder
no_master	precision.compute=bf16 precision.master=none
fp16	precision.compute=fp16
fp32	precision.compute=fp32
tf32	precision.compute=fp32 precision.tf32=true"

modes() {
  local name overrides
  while IFS=$'\t' read -r name overrides; do
    # shellcheck disable=SC2086  # words
    bench "mode_$name" 40 gpt2-124m training.micro_batch_size=16 training.global_batch_size=16 \
      data.packing.cross_document_attention=true $overrides || true
  done <<<"$settings"
  rows_of table_of modes "$logs" "$settings"
}

runs() {
  local name overrides
  while IFS=$'\t' read -r name overrides; do
    # shellcheck disable=SC2086  # words
    try "run_$name" 40 "$llmtrain" run "$root/configs/quickstart.yaml" run.device=cuda run.output_dir="$work/$name" \
      "data.sources=[{path: $root/lib}]" training.max_time=null training.num_epochs=null \
      data.packing.cross_document_attention=true training.max_steps=$((10 * steps)) lr_scheduler.horizon=steps \
      checkpoint.interval=100000 eval.interval=100000 \
      metrics.interval=1 "run.product_cache=$work/products.txt" $overrides || true
  done <<<"$settings"
  rows_of table_of runs "$work" "$settings"
}

# Two layers of the 7B shape; a sample is 8,192 tokens of one document.
kernels() {
  local name
  for name in cudnn wgmma mma; do
    LLMTRAIN_WGMMA="$([ "$name" = mma ] && echo off || echo "${LLMTRAIN_WGMMA:-}")" \
      bench "kernels_$name" 120 qwen2.5-7b model.num_hidden_layers=2 training.seq_len=8192 \
      training.micro_batch_size=2 training.global_batch_size=2 activation_checkpoint.mode=none \
      data.packing.cross_document_attention=true \
      run.attention="$([ "$name" = cudnn ] && echo auto || echo own)" || continue
    grep -hos 'attention: .*' "$logs/kernels_$name.log" >"$work/said" || true
    rows_of cat "$work/said"
    rows_of table_of kernels "$logs/kernels_$name.json" "$name"
  done
}

# benchmark MODEL: ours, PyTorch's beside it, and ours with other settings. The work is PyTorch's: each sample is one
# document, but for the last row.
benchmark() {
  local recipe batch setting name
  case "$1" in
    # As many samples as PyTorch's activations have room for, here and there (torch_step.py).
    124m) recipe=gpt2-124m batch=32 ;;
    1558m) recipe=gpt2-1558m batch=8 ;;
    1.5b) recipe=qwen2.5-1.5b batch=8 ;;
    7b) recipe=qwen2.5-7b batch=4 ;;
  esac
  local ours=("training.micro_batch_size=$batch" "training.global_batch_size=$batch")
  local whole=data.packing.cross_document_attention=true
  bench ours 180 "$recipe" "${ours[@]}" "$whole" || return 0
  grep -hos -E '(products|attention): .*' "$logs/ours.log" >"$work/said" || true
  rows_of cat "$work/said"
  rows_of table_of step "$logs"
  if bench determinism_fast 90 "$recipe" "${ours[@]}" "$whole" run.determinism=fast; then rows_of table_of other "$logs" determinism_fast; fi
  for setting in "fused compile cuda" "fused cuda"; do
    name="torch_${setting// /_}"
    # shellcheck disable=SC2086  # words
    if theirs=1 into="$logs/$name.json" try "$name" 150 \
      python3 "$root/scripts/bench/torch_step.py" "$1" bf16 0 "$steps" $setting; then
      rows_of table_of pytorch "$logs" "$name"
    fi
  done
  if bench own_attention 90 "$recipe" "${ours[@]}" "$whole" run.attention=own; then rows_of table_of other "$logs" own_attention; fi
  if bench guessed_products 90 "$recipe" "${ours[@]}" "$whole" run.tune_products=false; then rows_of table_of other "$logs" guessed_products; fi
  if bench documents 90 "$recipe" "${ours[@]}"; then rows_of table_of other "$logs" documents; fi
}

first() {
  facts
  trial
  cases $((limit * 55 / 100))
  beside_the_cpu
  benchmark 124m
  sanitize memcheck 90
}

check() {
  facts
  trial
  cases "$limit"
  for tool in memcheck racecheck synccheck; do sanitize "$tool" 90; done
  beside_the_cpu
}

case "$what" in
  first) first ;;
  check) check ;;
  kernels) kernels ;;
  modes) modes ;;
  runs) runs ;;
  *) benchmark "$what" ;;
esac
pack
printf '\n%s, commit %s\n' "$what" "$(cat "$build/BUNDLE" 2>/dev/null || commit)"
cat "$table"
exit "$failed"
