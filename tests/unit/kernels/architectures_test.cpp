#include "kernels/cuda/rules/architectures.hpp"

#include <doctest/doctest.h>

namespace llmtrain::kernels::cuda {

TEST_CASE("machine code runs on its major version, PTX on everything newer") {
  struct Case {
    const char* built_for;
    int capability;
    bool runs;
  };
  const Case cases[] = {
      {"80-real,90a-real", 80, true}, {"80-real,90a-real", 86, true},
      {"80-real,90a-real", 90, true}, {"80-real,90a-real", 100, false},
      {"90a-real", 80, false},        {"86-real", 80, false},
      {"90-real", 100, false},        {"90", 100, true},
      {"90-virtual", 120, true},      {"90a", 100, false},
      {"100f-real", 103, true},       {"100f", 120, false},
      {"native", 70, true},           {"75-real,80", 75, true},
  };
  for (const Case& c : cases) {
    CAPTURE(c.built_for);
    CAPTURE(c.capability);
    CHECK(architecture_problem(c.built_for, c.capability).empty() == c.runs);
  }
}

TEST_CASE("what a plugin is built for, what it met, and the remedy are named") {
  const std::string a100 = architecture_problem("90a-real,100-virtual", 80);
  CHECK(a100.find("built for sm_90a, sm_100; this GPU is sm_80") != a100.npos);
  CHECK(a100.find("-DCMAKE_CUDA_ARCHITECTURES=80") != a100.npos);
  const std::string h100 = architecture_problem("80a-real", 90);
  CHECK(h100.find("-DCMAKE_CUDA_ARCHITECTURES=90a") != h100.npos);
}

TEST_CASE("kernels with wgmma need sm_90a in what was compiled") {
  CHECK(has_wgmma_code("80-real,90a-real"));
  CHECK(has_wgmma_code("90a"));
  CHECK(has_wgmma_code("native"));
  CHECK_FALSE(has_wgmma_code("80-real,90-real,100a-real"));
  CHECK_FALSE(has_wgmma_code(""));
}

}  // namespace llmtrain::kernels::cuda
