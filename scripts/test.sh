#!/usr/bin/env bash
# Everything from nothing: installs packages, builds, runs all tests, then the quick start in small.
# This is what continuous integration runs. Exit code 0 when all of it passed.
#
#   scripts/test.sh
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/install_packages.sh

start=$SECONDS
cmake --preset ci
cmake --build --preset ci
build_seconds=$((SECONDS - start))

start=$SECONDS
tests=passed
log=build/ci/ctest.log
ctest --preset ci 2>&1 | tee "$log" || tests=FAILED
test_seconds=$((SECONDS - start))

start=$SECONDS
smoke=passed
timeout --kill-after=10 1200 scripts/quickstart.sh --smoke || smoke=FAILED
smoke_seconds=$((SECONDS - start))

printf '\nbuild  %5d s\ntests  %5d s  %s\nsmoke  %5d s  %s\n' \
  "$build_seconds" "$test_seconds" "$tests" "$smoke_seconds" "$smoke"
grep 'tests passed' "$log" || true
[ "$tests" = passed ] && [ "$smoke" = passed ]
