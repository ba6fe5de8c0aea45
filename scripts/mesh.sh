#!/usr/bin/env bash
# Trains every layout of tests/mesh/*layouts.cpp under mpirun and holds it to one rank: gradients, losses,
# weights, planned memory, bytes sent; then all other runs of several ranks. scripts/test.sh does the same
# for a few layouts, and for a few of those runs that differ in their layouts alone.
#
#   scripts/mesh.sh [--build DIR] [--all] [TEXT]
#
#   TEXT         only the layouts with this text in their titles: "ep=2", "qwen3", "8 ranks";
#                "quick": those of scripts/test.sh
#   --all        each of them in bf16, too, else every fifth; in fp32 all are
#   --build DIR  a build directory with tests (build/ci)
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
build="$root/build/ci"
text=""
while [ $# -gt 0 ]; do
  case "$1" in
    --build) build="$(realpath "$2")" && shift ;;
    --all) export LLMTRAIN_LAYOUTS_STRIDE=1 ;;
    -h | --help)
      sed -n '2,/^set -euo/s/^# \{0,1\}//p' "$0" | head -n -1
      exit 0
      ;;
    -*) printf 'mesh: unknown option %s (try --help)\n' "$1" >&2 && exit 2 ;;
    *) text="$1" ;;
  esac
  shift
done
if [ ! -x "$build/tests/mesh_test" ]; then
  printf 'mesh: %s has no tests: scripts/test.sh builds them, or name another with --build\n' "$build" >&2
  exit 2
fi
cmake --build "$build" --target mesh_test mesh_probe llmtrain llmtrain_mpi
cases=()
if [ -n "$text" ]; then
  export LLMTRAIN_LAYOUTS="$text"
  cases=(-tc="every layout*,in fp32 and bf16*")
fi
LLMTRAIN_MPI_PLUGIN="$build/apps/llmtrain/libllmtrain_mpi.so" exec "$build/tests/mesh_test" "${cases[@]}"
