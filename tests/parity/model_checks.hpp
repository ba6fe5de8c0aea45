#pragma once
/// A golden model run here, on any device, and compared.

#include <map>
#include <string>
#include <vector>

#include "tests/parity/golden.hpp"

namespace llmtrain::test {

struct Outcome {
  double loss = 0;
  std::vector<double> logits;
  std::map<std::string, std::vector<double>> gradients;
};

/// Forward, backward and logits with the golden's weights.
Outcome run_golden(const Golden& golden, RunOptions options);

/// Logits, loss and every gradient within `tolerance` of its norm, a gradient's being at least 1e-3
/// of its layer's largest. Returns the largest share of the tolerance that a gradient used.
double check_against(const Golden& golden, const Outcome& ours, double tolerance);

/// bf16 or fp16: every error at most twice that of PyTorch's own run in that type. Returns the
/// largest gradient error as a multiple of PyTorch's.
double check_narrow(const Golden& golden, const Outcome& ours, DType dtype);

}  // namespace llmtrain::test
