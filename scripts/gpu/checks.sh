# shellcheck shell=bash disable=SC2154,SC2034
# What gpu_check.sh checks: kernels, sanitizers, a run beside the CPU's. Sourced by it.

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

# Operands of the test cases are others in every run; who repeats one names its seed.
export LLMTRAIN_TEST_SEED="${LLMTRAIN_TEST_SEED:-$(date +%s)}"

# Names of the test cases in the order of their numbers, as $work/names; how many there are. None: the log says why.
count_of_cases() {
  mine "$cuda_test" --list-test-cases --no-colors 2>/dev/null | grep -vE '^(=|\[doctest)' >"$work/names" || true
  wc -l <"$work/names"
}

# How many processes use the GPU at a time: what a case waits for is mostly the reference on the CPU.
at_a_time() {
  local cores
  cores="$(nproc)"
  printf '%s' "$((cores > 8 ? 8 : cores > 2 ? cores / 2 : 1))"
}

# a_case N DEADLINE: the status of that test case, in a file of its own.
a_case() {
  local seconds=$(($2 - $(date +%s))) status=0 longest="${GPU_CHECK_CASE_SECONDS:-150}"
  [ "$seconds" -gt 0 ] || return 0
  [ "$seconds" -lt "$longest" ] || seconds="$longest"
  OMP_NUM_THREADS=2 mine timeout --kill-after=10 "$seconds" "$cuda_test" --no-colors --duration=true --first="$1" --last="$1" \
    >"$logs/case_$1.log" 2>&1 || status=$?
  if { [ "$status" = 124 ] || [ "$status" = 137 ]; } && [ "$seconds" != "$longest" ]; then return 0; fi
  printf '%s' "$status" >"$work/status_$1"
}

# cases SECONDS: every test case (whose name GPU_CHECK_CASES matches) in a process of its own, several at a time, until
# so many seconds have passed since the beginning.
cases() {
  local count n good=0 bad=0 skipped=0 status begin=$SECONDS end=$(($1 < limit ? $1 : limit))
  count="$(count_of_cases)"
  if [ "$count" = 0 ]; then
    passes "cuda_test" 30 "$cuda_test" --count || true
    return 0
  fi
  export -f a_case mine
  export cuda_test logs work own_libraries
  grep -nE "${GPU_CHECK_CASES:-.}" "$work/names" | cut -d : -f 1 | xargs -r -P "$(at_a_time)" -I{} bash -c 'a_case "$1" "$2"' _ {} $(($(date +%s) + end - SECONDS)) || true
  for ((n = 1; n <= count; ++n)); do
    status="$(cat "$work/status_$n" 2>/dev/null)" || continue
    case "$status" in
      0) good=$((good + 1)) ;;
      77) skipped=$((skipped + 1)) ;;
      *)
        bad=$((bad + 1))
        failed=1
        row "case_$n FAILED ($status)" "$(sed -n "${n}p" "$work/names" | cut -c 1-108), $(
          grep -m 1 -oE '[a-z_]+\.[ch]pp:[0-9]+: [A-Z ]*ERROR' "$logs/case_$n.log"): $(complaint "$logs/case_$n.log")"
        ;;
    esac
  done
  row "kernels against the reference" "LLMTRAIN_TEST_SEED=$LLMTRAIN_TEST_SEED: $good of $count test cases passed, $bad failed, $skipped have nothing to check here, $((
    count - good - bad - skipped)) not tried, $((SECONDS - begin)) s"
  grep -hos '^SKIPPED: .*' "$logs"/case_*.log >"$out/skipped.txt" || true
}

# Where the toolkit or PyTorch's packages have it.
find_sanitizer() {
  command -v compute-sanitizer && return
  local file
  for file in /usr/local/cuda*/bin/compute-sanitizer /opt/nvidia/*/compute-sanitizer \
    /usr/local/cuda*/compute-sanitizer/compute-sanitizer ${own_libraries//:/ }; do
    case "$file" in *compute-sanitizer) ;; *) file="${file%/lib*}/bin/compute-sanitizer" ;; esac
    if [ -x "$file" ]; then
      printf '%s\n' "$file"
      return
    fi
  done
  return 1
}

# sanitized_case TOOL N DEADLINE: what became of it, as a line of TOOL.txt, in a file of its own.
sanitized_case() {
  local tool="$1" n="$2" seconds status=0 log="$logs/$1_$2.log" verdict longest="${GPU_CHECK_CASE_SECONDS:-150}"
  seconds=$(($3 - $(date +%s)))
  [ "$seconds" -gt 0 ] || return 0
  [ "$seconds" -lt "$longest" ] || seconds="$longest"
  mine timeout --kill-after=10 "$seconds" "$sanitizer" --tool "$tool" --error-exitcode 9 "$cuda_test" --no-colors \
    --first="$n" --last="$n" >"$log" 2>&1 || status=$?
  case "$status" in
    # A tool that came to no end of its own has checked nothing.
    0) grep -qE '^=+ .*SUMMARY: 0 (errors|hazards)' "$log" && verdict=passed || verdict="FAILED: no summary of the tool's" ;;
    77) verdict=skipped ;;
    124 | 137)
      [ "$seconds" = "$longest" ] && verdict="HUNG: not done after $longest s" || verdict="not done when the time was over"
      ;;
    *) verdict="FAILED ($status): $(grep -m 1 -E '^=+ (Invalid|Error|Race|Barrier|Program hit|Internal)' "$log" || complaint "$log")" ;;
  esac
  printf '%s\t%s\t%s\n' "$n" "$verdict" "$(sed -n "${n}p" "$work/names")" >"$logs/$tool.$n.result"
}

# sanitize TOOL: the test cases under compute-sanitizer, several processes at a time, each case in one of its own.
# Bounds between tensors it cannot see: the arena is one block. $out/TOOL.txt has a line for each case.
sanitize() {
  local tool="$1" count
  if ! sanitizer="$(find_sanitizer)"; then
    failed=1
    row "$tool" "FAILED: no compute-sanitizer here, nothing was checked (it is part of the CUDA toolkit)"
    return 0
  fi
  if [ $((limit - SECONDS)) -le 5 ]; then
    row "$tool" "not reached"
    return 0
  fi
  count="$(count_of_cases)"
  export -f sanitized_case mine complaint
  export sanitizer cuda_test logs work own_libraries
  # It reports races wherever data are handed over by mbarriers, in cuDNN's kernels as in our own with wgmma.
  local own_way=(env) left_out='^$'
  if [ "$tool" = racecheck ]; then
    own_way=(env LLMTRAIN_WGMMA=off LLMTRAIN_CUDNN=/none) left_out='wgmma|cuDNN'
    row "racecheck" "without wgmma and cuDNN, whose mbarriers it does not follow"
  fi
  # Those of models last: they take longest, and have no kernel that the others have not.
  awk -v left_out="$left_out" '$0 !~ left_out {print ($0 ~ /^in |model|step|run/) ? 1 : 0, NR}' "$work/names" | sort -n -s -k1,1 | cut -d ' ' -f 2 |
    xargs -r -P "$(at_a_time)" -I{} "${own_way[@]}" bash -c 'sanitized_case "$1" "$2" "$3"' _ "$tool" {} \
      $(($(date +%s) + limit - SECONDS)) || true
  cat "$logs/$tool".*.result 2>/dev/null | sort -n >"$out/$tool.txt" || true
  rows_of table_of sanitizer "$tool" "$out/$tool.txt" "$count"
}

# At a rate of 1e-4: at the quick start's own the CPU's fp32 and fp64 part by 1e-4 within twenty steps, here by less than
# 2e-6 in ninety.
beside_the_cpu() {
  local device
  for device in cpu cuda; do
    # shellcheck disable=SC2086  # words
    try "train_$device" 60 "$llmtrain" run "$root/configs/quickstart.yaml" run.device="$device" \
      run.output_dir="$work/$device" "data.sources=[{path: $root/lib}]" training.max_time=null \
      training.num_epochs=null training.max_steps="${GPU_CHECK_TRAIN_STEPS:-200}" lr_scheduler.horizon=steps \
      optimizer.lr=1.0e-4 precision.compute=fp32 checkpoint.interval=1000 eval.interval=1000 metrics.interval=1 ${GPU_CHECK_OURS:-} || return 0
  done
  grep -h -E 'attention:|took memory as planned|products:' "$logs/train_cuda.log" >"$work/said" || true
  rows_of cat "$work/said"
  rows_of table_of losses "$work/cpu/metrics.jsonl" "$work/cuda/metrics.jsonl"
}

# How many processes, and how they share the work; in the last rows of a model with experts.
several_layouts="2 parallelism.zero=2
2 parallelism.zero=3
2 parallelism.tp=2
2 parallelism.pp=2
2 parallelism={sp: 2, sp_algo: ring}
4 parallelism={tp: 2, pp: 2}
4 parallelism={dp: 2, sp: 2, sp_algo: ulysses}
8 parallelism={dp: 2, tp: 2, pp: 2, zero: 2}
2 parallelism.ep=2
4 parallelism={ep: 2, tp: 2}"
several_experts="model={architecture: mixtral, num_local_experts: 4, num_experts_per_tok: 2}"

# small_run NAME OVERRIDES...: of several.yaml, in $work/NAME.
small_run() {
  (cd "$root" && mine "$llmtrain" run scripts/gpu/several.yaml "run.output_dir=$work/$1" "${@:2}")
}

# ranks NAME COUNT ARGUMENTS: small_run by so many processes that meet as torchrun's do; the largest of their exit codes.
ranks() {
  local name="$1" count="$2" r worst=0 pids=() port=$((20000 + RANDOM % 20000))
  shift 2
  for ((r = 0; r < count; ++r)); do
    RANK=$r WORLD_SIZE=$count LOCAL_RANK=$r LOCAL_WORLD_SIZE=$count MASTER_ADDR=localhost MASTER_PORT=$port OMP_NUM_THREADS=1 \
      small_run "$name" "$@" &
    pids+=($!)
  done
  for r in "${pids[@]}"; do wait "$r" || worst=$?; done
  return "$worst"
}

several() {
  local n=0 kind count share experts
  export -f small_run ranks mine
  export llmtrain root work own_libraries
  try several_dense 60 bash -c 'small_run "$@"' _ one_dense run.device=cpu || return 0
  try several_experts 60 bash -c 'small_run "$@"' _ one_experts run.device=cpu "$several_experts" || return 0
  while read -r count share; do
    n=$((n + 1)) kind=dense experts=()
    case "$share" in *ep*) kind=experts experts=("$several_experts") ;; esac
    try "several_$n" 60 bash -c 'ranks "$@"' _ "several_$n" "$count" run.device=cuda run.memory_limit=2GiB "$share" "${experts[@]}" ||
      continue
    grep -hos -m 1 'ranks exchange .*' "$logs/several_$n.log" >"$work/said" || true
    rows_of table_of ranks "$count, $share" "$work/one_$kind/metrics.jsonl" "$work/several_$n/metrics.jsonl" "$(cat "$work/said")"
  done <<<"$several_layouts"
  # Of NCCL, which takes one process a GPU, a group of one.
  if [ ! -x "$nccl_test" ]; then
    row "nccl" "skipped: built without NCCL's headers"
  else
    passes nccl 60 "$nccl_test" --no-colors || true
  fi
}

first() {
  trial
  cases $((limit * 50 / 100))
  beside_the_cpu
  benchmark 124m
  sanitize memcheck
}

check() {
  trial
  cases "$limit"
  beside_the_cpu
  sanitize memcheck
}
