// Where Slurm is not installed nothing is tested, and the exit code says so.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cstdio>

#include <doctest/doctest.h>

#include "tests/slurm/cluster.hpp"

int main(int argc, char** argv) {
  const int started = llmtrain::test::start_cluster();
  if (started == llmtrain::test::kSkipped) {
    std::puts("skipped: no Slurm (scripts/slurm/local_cluster.sh start --install)");
    return started;
  }
  if (started != 0) return 1;
  const int result = doctest::Context(argc, argv).run();
  llmtrain::test::stop_cluster();
  return result;
}
