#!/usr/bin/env bash
# Kills, failing disks, damage, foreign directories and changes of layout, one by one, and counts what does
# not hold afterwards: docs/reliability.md. scripts/test.sh tries a part of the cases.
#
#   scripts/reliability.sh [--build DIR] [--fresh] [CLASS...]
#   scripts/reliability.sh --quick
#   scripts/reliability.sh --table
#
#   CLASS        T1 to T9, T11, T13 or T16; all of them if none is named
#   --quick      a part of the cases of every class, in minutes, as scripts/test.sh does
#   --table      only what was tried so far
#   --fresh      forgets what was tried of these classes
#   --build DIR  a build directory with tests (build/ci)
#
# What was tried stays in DIR/reliability, so an interrupted run goes on where it was; cases that held at
# other sources are forgotten by themselves. Exit code 1 if something did not hold.
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
build="$root/build/ci"
classes=()
quick=no
table=no
fresh=no
while [ $# -gt 0 ]; do
  case "$1" in
    --build) build="$(realpath "$2")" && shift ;;
    --quick) quick=yes ;;
    --table) table=yes ;;
    --fresh) fresh=yes ;;
    -h | --help)
      sed -n '2,/^set -euo/s/^# \{0,1\}//p' "$0" | head -n -1
      exit 0
      ;;
    T1 | T2 | T3 | T4 | T5 | T6 | T7 | T8 | T9 | T11 | T13 | T16) classes+=("$1") ;;
    *) printf 'reliability: unknown class or option %s (try --help)\n' "$1" >&2 && exit 2 ;;
  esac
  shift
done
if [ ! -x "$build/tests/reliability_test" ]; then
  printf 'reliability: %s has no tests: scripts/test.sh builds them, or name another with --build\n' "$build" >&2
  exit 2
fi
export LLMTRAIN_MPI_PLUGIN="$build/apps/llmtrain/libllmtrain_mpi.so"
tried="$build/reliability"

print_table() {
  printf '%-15s %8s %8s %11s  %s\n' class cases missed violations commit
  local file
  for file in "$tried"/T*.txt; do
    [ -e "$file" ] || continue
    # A case that was violated once is, whatever came of another try; one that its fault did not hit, and
    # no later try did, is no case.
    awk -F '\t' -v name="$(basename "$file" .txt)" -v commit="$(cat "${file%.txt}.commit" 2>/dev/null)" '
      $1 == "missed" { missed[$2]; next }
      { cases[$2]; if ($1 != "held") violated[$2] }
      END {
        for (name_of in cases) delete missed[name_of]
        printf "%-15s %8d %8d %11d  %s\n", name, length(cases), length(missed), length(violated), commit
      }' "$file"
  done | sort -V
}

if [ "$table" = yes ]; then
  print_table
  exit 0
fi
cmake --build "$build" --target reliability_test
if [ "$quick" = yes ]; then
  ctest --test-dir "$build" --output-on-failure --parallel 2 --tests-regex '^reliability'
  exit
fi
mkdir -p "$tried"
sources="$(cd "$root" && git ls-files -z -c -o --exclude-standard lib apps kernels cmake third_party CMakeLists.txt tests/CMakeLists.txt tests/reliability tests/e2e tests/mesh tests/support | sort -z |
  xargs -0 sha256sum 2>&1 | sha256sum | cut -d' ' -f1)"
if [ "$(cat "$tried/sources" 2>/dev/null)" != "$sources" ]; then
  rm -f "$tried"/T*.txt
  printf '%s\n' "$sources" >"$tried/sources"
fi
[ ${#classes[@]} -gt 0 ] || classes=(T3 T6 T16 T8 T9 T13 T1 T7 T4 T2 T5 T11)
status=0
commit="$(cd "$root" && git rev-parse --short HEAD)$(cd "$root" && git diff --quiet HEAD || printf ' and changes')"
for class in "${classes[@]}"; do
  [ "$fresh" = no ] || rm -f "$tried/$class".txt "$tried/$class"-*.txt
  LLMTRAIN_RELIABILITY="$tried" "$build/tests/reliability_test" -tc="$class *" || status=1
  for file in "$tried/$class".txt "$tried/$class"-*.txt; do
    [ ! -e "$file" ] || printf '%s\n' "$commit" >"${file%.txt}.commit"
  done
done
print_table
exit $status
