#!/usr/bin/env bash
# Hostile input: runs the fuzz targets of tests/fuzz under the address and undefined-behaviour
# sanitizers and writes the table of docs/fuzzing.md.
#
#   scripts/fuzz.sh [--seconds N] [--jobs N] [--built] [TARGET...]
#
#   --seconds N   seconds of a processor that each target gets (600); more by the clock on a busy machine
#   --jobs N      targets that run at a time (2)
#   --built       run what build/fuzz holds instead of building first
#   TARGET        recipe, tokenizer, safetensors, weight_map, token_shard, token_file, manifest, metrics,
#                 hf_config, decompress, tcp_frames, run_files;
#                 default all
#
# The time that an executable already ran clean counts, so that a run that was cut off goes on and a target
# that is done is not run again. build/fuzz/state/TARGET keeps the inputs found, the last log and the result. Exit code 0: all clean; 1: an input violates its target,
# and the last lines name it and the command that repeats it; 2: cannot run.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly all_targets=(recipe tokenizer safetensors weight_map token_shard token_file manifest metrics hf_config decompress tcp_frames run_files)
readonly state_root=build/fuzz/state
seconds=600 jobs=2 built=no
targets=()

die() {
  printf 'fuzz: %s\n' "$*" >&2
  exit 2
}

while [ $# -gt 0 ]; do
  case $1 in
    --seconds | --jobs)
      [[ "${2:-}" =~ ^[1-9][0-9]*$ ]] || die "$1 needs a whole number above 0"
      declare "${1#--}=$2"
      shift ;;
    --built) built=yes ;;
    -*) die "unknown option $1 (see the head of $0)" ;;
    *)
      [[ " ${all_targets[*]} " == *" $1 "* ]] || die "no target '$1'; there are: ${all_targets[*]}"
      targets+=("$1") ;;
  esac
  shift
done
[ "${#targets[@]}" -gt 0 ] || targets=("${all_targets[@]}")

# Longest input of a target. Longer ones only make mutation slower.
max_len() {
  case $1 in
    tokenizer) echo 16384 ;;
    recipe | manifest) echo 8192 ;;
    safetensors | weight_map | run_files) echo 1024 ;;
    *) echo 4096 ;;
  esac
}

# Files of the repository that a target starts from, besides tests/fuzz/seeds/TARGET.
seed_files() {
  case $1 in
    recipe) ls configs/*.yaml ;;
    tokenizer) ls tests/unit/data/golden/{gpt2,llama3}.json ;;
    hf_config) ls tests/parity/golden/hf_*/config.json ;;
  esac
}

check_compiler() {
  local packages="clang-16 libclang-rt-16-dev libomp-16-dev"
  command -v clang++-16 >/dev/null || die "clang++-16 is missing: apt-get install $packages"
  echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
    clang++-16 -x c++ - -fsanitize=fuzzer,address,undefined -fopenmp -o /dev/null 2>/dev/null ||
    die "clang++-16 cannot link a fuzz target: apt-get install $packages"
}

build() {
  check_compiler
  cmake --preset fuzz >/dev/null
  cmake --build --preset fuzz --target "${targets[@]/%/_fuzz}"
}

executable() { echo "build/fuzz/tests/fuzz/$1_fuzz"; }

# The commit, marked when files other than documents differ from it.
commit() {
  local dirty=
  [ -z "$(git status --porcelain -- . ':!docs')" ] || dirty=-dirty
  echo "$(git rev-parse --short=12 HEAD)$dirty"
}

hash_of() { sha256sum <"$(executable "$1")" | cut -c1-64; }

# Sets executions, edges, violations, ran, at and hash to what this very executable did so far.
load_result() {
  executions=0 edges=0 violations=0 ran=0 at=$(commit) hash=
  local current
  current=$(hash_of "$1")
  [ ! -f "$state_root/$1/result" ] || read -r executions edges violations ran at hash <"$state_root/$1/result"
  if [ "$hash" != "$current" ] || [ "$violations" != 0 ]; then
    executions=0 edges=0 violations=0 ran=0 at=$(commit) hash=$current
  fi
}

# One libFuzzer process for at most $2 seconds; prints "<exit code> <processor seconds>".
run_round() {
  local target=$1 state=$state_root/$1 rc=0 options=() seeds dictionary
  seeds=$(seed_files "$target" | paste -sd,)
  [ -z "$seeds" ] || options+=("-seed_inputs=$seeds")
  dictionary=tests/fuzz/dictionaries/$target.txt
  [ ! -f "$dictionary" ] || options+=("-dict=$dictionary")
  options+=("$state/corpus" "$state/artifacts")
  [ ! -d "tests/fuzz/seeds/$target" ] || options+=("tests/fuzz/seeds/$target")
  TIMEFORMAT='%U %S'
  { time "$(executable "$target")" -max_total_time="$2" -timeout=10 -rss_limit_mb=2048 \
    -max_len="$(max_len "$target")" -artifact_prefix="$state/artifacts/" -print_final_stats=1 \
    "${options[@]}" >"$state/log" 2>&1; } 2>"$state/times" || rc=$?
  echo "$rc $(awk '{printf "%.0f", $1 + $2}' "$state/times")"
}

# The input that the round which started at the time of state/started left, if any.
new_artifact() {
  find "$state_root/$1/artifacts" -newer "$state_root/$1/started" \
    \( -name 'crash-*' -o -name 'leak-*' -o -name 'oom-*' -o -name 'timeout-*' \) | head -1
}

# Runs one target until it has had $seconds of a processor, and keeps the result after each round, so that
# a run that was cut off goes on; 1 if there was a violation. libFuzzer takes -timeout by the clock on the
# wall: on a machine that stops the process an innocent input looks slow. Such an input is run once more
# alone, and is no violation if it is fast then.
fuzz() {
  local target=$1 state=$state_root/$1 executions edges violations ran at hash rc used input
  mkdir -p "$state/corpus" "$state/artifacts"
  load_result "$target"
  while [ "$ran" -lt "$seconds" ] && [ "$violations" = 0 ]; do
    touch "$state/started"
    read -r rc used < <(run_round "$target" $((seconds - ran < 60 ? seconds - ran : 60)))
    if [ "$rc" = 72 ]; then  # ended by a signal
      echo "$target: interrupted"
      return 1
    elif [ "$rc" -ne 0 ]; then
      input=$(new_artifact "$target")
      if [[ "$input" == */timeout-* ]] && "$(executable "$target")" -timeout=10 "$input" >/dev/null 2>&1; then
        rm "$input"
      else
        violations=1
        printf '\n%s: violation (log: %s)\n  input:  %s\n  repeat: %s %s\n' "$target" "$state/log" \
          "${input:-none was left}" "$(executable "$target")" "$input"
      fi
    fi
    ran=$((ran + used))
    read -r executions edges < <(awk -v executions="$executions" -v edges="$edges" '
      /^stat::number_of_executed_units:/ { executions += $2 }
      { for (i = 1; i < NF; ++i) if ($i == "cov:" && $(i + 1) + 0 > edges + 0) edges = $(i + 1) }
      END { print executions, edges }' "$state/log")
    echo "$executions $edges $violations $ran $at $hash" >"$state/result"
  done
  return "$violations"
}

table_rows() {
  local target executions edges violations ran at hash
  for target in "${all_targets[@]}"; do
    if [ -f "$state_root/$target/result" ]; then
      read -r executions edges violations ran at hash <"$state_root/$target/result"
      echo "| $target | $executions | $edges | $violations | $ran | $at |"
    else
      grep "^| $target | [0-9]" docs/fuzzing.md || true  # what another machine measured stays
    fi
  done
}

write_table() {
  local rows
  rows=$(table_rows)
  awk -v rows="$rows" '
    /^\| target / { print; getline; print; print rows; table = 1; next }
    table && /^\|/ { next }
    { table = 0; print }' docs/fuzzing.md >build/fuzz/fuzzing.md
  cp build/fuzz/fuzzing.md docs/fuzzing.md
}

[ "$built" = yes ] || build
ASAN_SYMBOLIZER_PATH=$(command -v llvm-symbolizer-16 || true)
export ASAN_SYMBOLIZER_PATH

trap 'trap - INT; kill 0' INT  # the targets too
failed=0 running=0
reap() {
  wait -n || failed=1
  running=$((running - 1))
}
for target in "${targets[@]}"; do
  [ -x "$(executable "$target")" ] || die "$(executable "$target") is not built"
  load_result "$target"
  if [ "$ran" -ge "$seconds" ]; then
    echo "$target: this executable already ran clean for $seconds s"
    continue
  fi
  [ "$running" -lt "$jobs" ] || reap
  fuzz "$target" &
  running=$((running + 1))
done
while [ "$running" -gt 0 ]; do reap; done
write_table
sed -n '/^| target /,/^$/p' docs/fuzzing.md
exit "$failed"
