#!/usr/bin/env bash
# Checks or times the CUDA device on this machine's first GPU; each within eight minutes.
#
#   scripts/gpu_check.sh check|modes|runs|124m|1558m|1.5b|7b --out DIR [--build DIR] [--steps N]
#
#   check   every kernel and whole models against the CPU reference and the goldens; compute-sanitizer's
#           memcheck, racecheck and synccheck over the kernels; 200 steps of training on a GPU beside the CPU
#   modes   whole steps of GPT-2 124M beside those with one setting changed: run.determinism: fast, no CUDA graphs, our
#           own attention, products as the library guesses, either form of masters and none, fp16; fp32 beside TF32
#   runs    ten times N steps of training with the same settings beside each other: which have the same losses to the
#           bit, and how far apart the others end
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
  check | modes | runs | 124m | 1558m | 1.5b | 7b) shift ;;
  -h | --help)
    sed -n '2,/^set -euo/s/^# \{0,1\}//p' "$0" | head -n -1
    exit 0
    ;;
  *) die "say what: check, modes, runs, 124m, 1558m, 1.5b or 7b (try --help)" ;;
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
    passes "train_$device" 60 "$llmtrain" run "$root/configs/quickstart.yaml" run.device="$device" \
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
    timeout 40 "$llmtrain" bench "$root/configs/gpt2-124m.yaml" run.device=cuda training.micro_batch_size=16 \
      training.global_batch_size=16 data.packing.cross_document_attention=true "run.product_cache=$out/products.txt" \
      --steps "$steps" --json $overrides \
      >"$out/mode_$name.json" 2>"$out/mode_$name.log" || failed=1
  done <<<"$settings"
  python3 - "$out" "$settings" >>"$table" <<'PY' || failed=1
import json, pathlib, sys
seconds = {}
for line in sys.argv[2].splitlines():
    name, overrides = line.split("\t")
    text = (pathlib.Path(sys.argv[1]) / f"mode_{name}.json").read_text()
    try:
        seconds[name] = json.loads(text[text.index("{") :])["median_step_seconds"]
    except ValueError:
        print(f"{name:<44} no result, see mode_{name}.log")
        continue
    beside = seconds.get("fp32" if name == "tf32" else "bf16")
    ratio = f", {seconds[name] / beside:.3f} times as long" if beside else ""
    print(f"{name:<44} {1e3 * seconds[name]:.2f} ms a step{ratio}")
PY
}

runs() {
  local name overrides
  work="$(mktemp -d)"
  trap 'rm -rf "$work"' EXIT
  while IFS=$'\t' read -r name overrides; do
    # shellcheck disable=SC2086  # words
    timeout 40 "$llmtrain" run "$root/configs/quickstart.yaml" run.device=cuda run.output_dir="$work/$name" \
      "data.sources=[{path: $root/lib}]" training.max_time=null training.num_epochs=null \
      data.packing.cross_document_attention=true training.max_steps=$((10 * steps)) lr_scheduler.horizon=steps \
      checkpoint.interval=100000 eval.interval=100000 \
      metrics.interval=1 "run.product_cache=$out/products.txt" $overrides >"$out/run_$name.log" 2>&1 || failed=1
  done <<<"$settings"
  python3 - "$work" "$settings" >>"$table" <<'PY' || failed=1
import json, pathlib, sys
equal = {"again", "no_graphs", "remainder"}  # what these promise
farthest = 0.1  # nats, of the mean of the last tenth, that other orders of sums and roundings may move
ended_well, losses = True, {}
for line in sys.argv[2].splitlines():
    name, overrides = line.split("\t")
    path = pathlib.Path(sys.argv[1]) / name / "metrics.jsonl"
    records = [json.loads(text) for text in path.open()] if path.exists() else []
    losses[name] = [r["train/loss"] for r in records if "train/loss" in r]
    beside = losses["fp32" if name == "tf32" else "bf16"]
    if not losses[name] or len(losses[name]) != len(beside):
        print(f"{name:<44} no result, see run_{name}.log")
        ended_well = False
        continue
    tenth = max(1, len(beside) // 10)
    apart = abs(sum(losses[name][-tenth:]) - sum(beside[-tenth:])) / tenth
    same = losses[name] == beside
    good = same if name in equal else apart <= farthest
    words = "the same losses to the bit" if same else f"ends {apart:.4f} nats apart"
    print(f"{name:<44} {words}{'' if good else ': WRONG'}")
    ended_well = ended_well and good
sys.exit(not ended_well)
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

case "$what" in
  check) check ;;
  modes) modes ;;
  runs) runs ;;
  *) benchmark ;;
esac
printf '\n%s, commit %s\n' "$what" "$(git -C "$root" describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || echo unknown)"
cat "$table"
exit "$failed"
