#!/usr/bin/env bash
# Checks or times the CUDA device on this machine's first GPU; each within eight minutes.
#
#   scripts/gpu_check.sh check|124m|1558m|1.5b|7b --out DIR [--build DIR] [--steps N]
#
#   check   every kernel and whole models against the CPU reference and the goldens; compute-sanitizer's
#           memcheck, racecheck and synccheck over the kernels; 200 steps of training on a GPU beside the CPU
#   others  whole steps of that model in bf16, 1,024 tokens a sample, beside PyTorch's, eager and compiled
#
#   --out    where logs and JSON go
#   --build  a build directory of the preset `ci` or `cuda` (build/cuda); it is brought up to date, unless
#            GPU_CHECK_CARRIED=1 says that it was built elsewhere
#
# The last lines are one short table.
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
out=""
build="$root/build/cuda"
steps=10
die() {
  printf 'gpu_check: %s\n' "$*" >&2
  exit 1
}
what="${1:-}"
case "$what" in
  check | 124m | 1558m | 1.5b | 7b) shift ;;
  -h | --help)
    sed -n '2,/^set -euo/s/^# \{0,1\}//p' "$0" | head -n -1
    exit 0
    ;;
  *) die "say what: check, 124m, 1558m, 1.5b or 7b (try --help)" ;;
esac
while [ $# -gt 0 ]; do
  case "$1" in
    --out) out="$2" && shift ;;
    --build) build="$(realpath "$2")" && shift ;;
    --steps) steps="$2" && shift ;;
    *) die "unknown option $1 (try --help)" ;;
  esac
  shift
done
[ -n "$out" ] || die "--out DIR is missing"
mkdir -p "$out"
out="$(realpath "$out")"

if [ ! -f "$build/CMakeCache.txt" ]; then
  cmake --preset cuda -S "$root" -B "$build" >"$out/configure.log"
fi
if [ ! -x "$build/tests/cuda_test" ] || [ -z "${GPU_CHECK_CARRIED:-}" ]; then
  cmake --build "$build" --target llmtrain llmtrain_cuda cuda_test -j >"$out/build.log"
fi
llmtrain="$build/apps/llmtrain/llmtrain"
plugin="$build/apps/llmtrain/libllmtrain_cuda.so"
export LLMTRAIN_CUDA_PLUGIN="$plugin"
table="$out/table.txt"
: >"$table"
row() { printf '%-44s %s\n' "$@" >>"$table"; }

# passes NAME SECONDS COMMAND...: a row that says whether it ended well; its output is in NAME.log.
failed=0
passes() {
  local name="$1" limit="$2" begin=$SECONDS
  shift 2
  if timeout --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1; then
    row "$name" "passed, $((SECONDS - begin)) s"
  else
    row "$name" "FAILED ($?), see $name.log"
    failed=1
  fi
}

check() {
  "$llmtrain" doctor --quick --threads 2 --output "$out/profile.json" >"$out/doctor.log" 2>&1 || true
  grep -E '^(CUDA|cuBLASLt|cuDNN|driver|GPU)' "$out/doctor.log" >>"$table" || true
  passes kernels 100 "$build/tests/cuda_test"
  if command -v compute-sanitizer >/dev/null; then
    # Bounds between tensors it cannot see: the arena is one block.
    for tool in memcheck racecheck synccheck; do
      passes "$tool" 90 compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/tests/cuda_test" -tce='in *'
    done
  else
    row "compute-sanitizer" "not there"
  fi
  work="$(mktemp -d)"
  trap 'rm -rf "$work"' EXIT
  for device in cpu cuda; do
    passes "train_$device" 60 "$llmtrain" run "$root/configs/quickstart.yaml" run.device=$device \
      run.output_dir="$work/$device" "data.sources=[{path: $root/lib}]" training.max_time=null \
      training.num_epochs=null training.max_steps=200 lr_scheduler.horizon=steps precision.compute=fp32 \
      checkpoint.interval=1000 eval.interval=1000 metrics.interval=1
  done
  python3 - "$work/cpu/metrics.jsonl" "$work/cuda/metrics.jsonl" >>"$table" <<'PY' || failed=1
import json, sys
runs = [[json.loads(line) for line in open(path)] for path in sys.argv[1:]]
losses = [{r["step"]: r["train/loss"] for r in run if "train/loss" in r} for run in runs]
worst = max(abs(losses[0][step] - losses[1][step]) for step in losses[0])
print(f"{'fp32 loss, GPU against CPU, 200 steps':<44} largest difference {worst:.2e}")
sys.exit(not worst <= 1e-4)
PY
}

benchmark() {
  local recipe batch
  case "$what" in
    # As many samples as PyTorch's activations have room for, here and there (torch_step.py).
    124m) recipe=gpt2-124m batch=32 ;;
    1558m) recipe=gpt2-1558m batch=8 ;;
    1.5b) recipe=qwen2.5-1.5b batch=8 ;;
    7b) recipe=qwen2.5-7b batch=4 ;;
  esac
  local ours=("$llmtrain" bench "$root/configs/$recipe.yaml" run.device=cuda "training.micro_batch_size=$batch"
    "training.global_batch_size=$batch" "run.product_cache=$out/products.txt" --steps "$steps" --json)
  timeout 180 "${ours[@]}" >"$out/ours.json" 2>"$out/ours.log" || failed=1
  grep -ho 'products: .*' "$out/ours.log" "$out/ours.json" | head -n 1 >>"$table" || true
  timeout 60 "${ours[@]}" run.tune_products=false >"$out/untuned.json" 2>"$out/untuned.log" || true
  for setting in "fused cuda" "fused compile cuda"; do
    # shellcheck disable=SC2086  # words
    timeout 150 python3 "$root/scripts/bench/torch_step.py" "$what" bf16 0 "$steps" $setting \
      >"$out/torch_${setting// /_}.json" 2>"$out/torch_${setting// /_}.log" || true
  done
  python3 - "$out" >>"$table" <<'PY' || failed=1
import json, pathlib, statistics, sys
out = pathlib.Path(sys.argv[1])
def bench(name):
    text = (out / name).read_text()
    return json.loads(text[text.index("{"):])
ours = bench("ours.json")
rate = ours["tokens_per_step"] / ours["median_step_seconds"]
for kernel in ours["kernels"][:8]:
    print(f"{kernel['name']:<44} {1e3 * kernel['seconds']:.2f} ms, {100 * kernel.get('of_peak', 0):.0f} % of peak")
print(f"{'ours':<44} {rate:,.0f} tokens/s, MFU {100 * ours.get('mfu', 0):.1f} %")
try:
    untuned = bench("untuned.json")["median_step_seconds"]
    print(f"{'without run.tune_products':<44} {untuned / ours['median_step_seconds']:.3f} times as long")
except ValueError:
    print(f"{'without run.tune_products':<44} no result, see untuned.log")
for path in sorted(out.glob("torch_*.json")):
    try:
        theirs = json.loads(path.read_text())
        speed = theirs["tokens"] / statistics.median(theirs["seconds"])
        print(f"{'PyTorch ' + theirs['version'] + ' ' + path.stem[6:]:<44} {speed:,.0f} tokens/s, ours is {rate / speed:.2f} times as fast")
    except (ValueError, KeyError):
        print(f"{path.stem:<44} no result, see {path.stem}.log")
PY
}

if [ "$what" = check ]; then check; else benchmark; fi
printf '\n%s, commit %s\n' "$what" "$(git -C "$root" describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || echo unknown)"
cat "$table"
exit "$failed"
