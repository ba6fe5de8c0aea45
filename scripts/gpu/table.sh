# shellcheck shell=bash disable=SC2154,SC2034
# Rows of gpu_check.sh's table, and what stands above them in every table. Sourced by it.

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
table_of() { python3 "$root/scripts/bench/gpu_table.py" "$@"; }
# The first complaint of a log, from what was found where a comparison is one; else its last line.
complaint() {
  local text
  text="$(grep -m 1 -A 3 -E 'ERROR:|[Ee]rror|failed|cannot' "$1" 2>/dev/null | tr -s ' \n' ' ' | sed 's/.* values: //')" || true
  [ -n "$text" ] || text="$(tail -n 1 "$1" 2>/dev/null)" || true
  cut -c 1-200 <<<"$text"
}
# try NAME SECONDS COMMAND...: true if it ended well; its output is in logs/NAME.log, or what it prints in the file
# `into`. Nothing begins too late. 3: it found nothing to check here, and said so by exit code 77.
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
  [ "$status" = 77 ] && return 3
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
# 0 if it passed or had nothing to check.
passes() {
  local begin=$SECONDS status=0
  try "$@" || status=$?
  case "$status" in
    0) row "$1" "passed, $((SECONDS - begin)) s" ;;
    3)
      row "$1" "skipped: $(grep -m 1 -oE '^SKIPPED: .*|^skipped: .*' "$logs/$1.log" | cut -c 10-160)"
      status=0
      ;;
  esac
  return "$status"
}

# One figure of the driver's: smi FIELD.
smi() { nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits 2>>"$logs/nvidia-smi.log" | head -n 1; }

# Device, driver, date and commit, and what a copy and a product reach here; ends the script where no GPU can be used.
facts() {
  row "date, commit" "$(date -u '+%Y-%m-%d %H:%M UTC'), $(cat "$build/BUNDLE" 2>/dev/null || commit)"
  nvidia-smi >"$logs/nvidia-smi.log" 2>&1 || row "nvidia-smi" "FAILED: $(complaint "$logs/nvidia-smi.log")"
  row "device, driver" "$(smi name), driver $(smi driver_version), $(smi memory.total) MiB, $(
    smi memory.used) MiB in use, $(smi clocks.max.sm) MHz at most, $(smi power.limit) W"
  mine ldd "$llmtrain" "$plugin" >"$logs/ldd.log" 2>&1 || true
  if grep -q 'not found' "$logs/ldd.log"; then
    row "libraries" "MISSING: $(awk '/not found/ {print $1}' "$logs/ldd.log" | sort -u | tr '\n' ' ')"
    failed=1
  fi
  # What it says of the GPU comes first, and the CPU's kernels do not matter here: it is ended then.
  mine timeout --kill-after=5 40 "$llmtrain" doctor --quick --threads 2 --output "$work/profile.json" \
    >"$logs/doctor.log" 2>&1 &
  local doctor=$!
  while kill -0 "$doctor" 2>/dev/null && ! grep -q '^  measured' "$logs/doctor.log"; do sleep 0.2; done
  kill "$doctor" 2>/dev/null || true
  wait "$doctor" 2>/dev/null || true
  grep -E '^(CUDA|cuBLASLt|cuDNN|driver|GPU|  data sheet|  measured)' "$logs/doctor.log" >"$work/facts" || true
  rows_of cat "$work/facts"
  grep -q '^GPU 0' "$work/facts" && return
  # The last of what it says of plugin, driver and GPU is where it ended.
  grep -E '^(GPU|CUDA|driver) ' "$logs/doctor.log" | tail -n 1 | grep . >"$work/facts" || complaint "$logs/doctor.log" >"$work/facts"
  row "doctor" "FAILED, and nothing else can run: $(tr -s ' ' <"$work/facts")"
  exit 1
}
