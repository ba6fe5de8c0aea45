// Where the plugin finds no GPU nothing is tested, and the exit code says so.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cstdio>

#include <doctest/doctest.h>

#include "kernels/backend.hpp"

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  const auto& loaded = llmtrain::kernels::load_backend(llmtrain::DeviceKind::cuda);
  if (loaded.backend == nullptr) {
    std::fprintf(stderr, "no CUDA plugin: %s\n", loaded.problem.c_str());
    return 1;
  }
  const llmtrain::kernels::BackendReport report = loaded.backend->report();
  if (!report.problem.empty()) {
    std::printf("skipped: no GPU (%s)\n", report.problem.c_str());
    return kSkipped;
  }
  return doctest::Context(argc, argv).run();
}
