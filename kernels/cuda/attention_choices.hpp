#pragma once
/// Who computes the attention of one device.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cuda/attention_trial.hpp"
#include "kernels/cuda/library_attention.hpp"

namespace llmtrain::kernels::cuda {

class AttentionChoices {
 public:
  AttentionChoices() = default;
  explicit AttentionChoices(WarpgroupKernels warpgroups) : warpgroups_(std::move(warpgroups)) {}

  const WarpgroupKernels& warpgroups() const { return warpgroups_; }
  /// The library, opened at the first call; null, with the reason in `why`, where there is none.
  LibraryAttention* library(std::string& why);

  /// Keeps who computed a direction and why, if anything but the recipe's wish speaks for it.
  void record(bool backward, std::string_view who, std::string_view why);
  /// Backend::choices: "attention: cuDNN 9.19.0 (forward, backward)".
  std::vector<std::string> lines() const;

 private:
  struct Entry {
    std::string who, why;
    bool forward = false, backward = false;
  };
  WarpgroupKernels warpgroups_;
  bool opened_ = false;
  std::unique_ptr<LibraryAttention> library_;
  std::string problem_;
  std::vector<Entry> entries_;
};

}  // namespace llmtrain::kernels::cuda
