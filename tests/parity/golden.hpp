#pragma once
/// The files that scripts/golden/models.py wrote: a batch, and what PyTorch makes of it.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lib/checkpoint/safetensors.hpp"
#include "lib/models/architecture.hpp"
#include "tests/support/decoder_run.hpp"

namespace llmtrain::test {

/// Its models: every family with odd shapes, in each of its variants.
extern const std::vector<std::string> kGoldenModels;

/// A tensor in FP64 and how far PyTorch's own runs are from it in the L2 norm.
struct Reference {
  std::vector<double> values;
  double fp32_error = 0;
  double bf16_error = 0, fp16_error = 0;
};

class Golden {
 public:
  explicit Golden(const std::string& name);

  /// The family of the model.
  const models::Architecture& architecture() const {
    return models::hf_architecture(file_.metadata().at("config"), file_.path().string());
  }
  const models::DecoderSpec& spec() const { return spec_; }
  const Batch& batch() const { return batch_; }
  /// The parameter's value by the formula that the file names.
  std::vector<float> weights(const Parameter& parameter) const;
  Reference gradient(const std::string& parameter) const;
  Reference logits() const { return overall("logits", fp16_logits_error_); }
  Reference loss() const { return overall("loss", fp16_loss_error_); }
  std::vector<std::string> parameters() const;

 private:
  Reference overall(const std::string& what, double fp16_error) const;

  std::map<std::string, double> fp16_gradient_errors_;
  double fp16_logits_error_ = 0, fp16_loss_error_ = 0;
  checkpoint::SafetensorsFile file_;
  models::DecoderSpec spec_;
  Batch batch_;
};

/// tests/parity/golden of the source tree.
std::filesystem::path golden_folder();

double l2_norm(const std::vector<double>& x);
double l2_distance(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace llmtrain::test
