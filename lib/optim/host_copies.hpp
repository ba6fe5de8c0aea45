#pragma once
/// Compute copies of a device's parameters in pinned memory of its host: updated there, and copied
/// up for each unit of the model before its work.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "lib/optim/optimizer.hpp"

namespace llmtrain::optim {

class HostCopies {
 public:
  /// Of undefined content, for those of `parameters` whose copies are elsewhere. Pinned by a queue
  /// of `device`, which outlives this; on meta they are planned.
  HostCopies(Device& device, std::span<const OptimizedParameter> parameters);
  ~HostCopies();

  /// The own slice, in Parameter::own_shape(); it stays where it is.
  const Tensor& of(const Parameter& parameter) const;
  /// ValuesElsewhere::bring_copies(); what comes does not outlive this.
  std::unique_ptr<ValuesElsewhere::Coming> bring(
      const std::vector<ValuesElsewhere::CopyRead>& reads);
  /// Waits until nothing of them is read any more, for whoever writes them.
  void finish() const { queue_->finish(); }

  /// Held as long as this.
  std::uint64_t pinned_bytes() const { return memory_->arena_extent_bytes(); }
  /// What bring() has copied; on meta, would have.
  std::uint64_t brought_bytes() const { return brought_bytes_; }

 private:
  // In the order in which they need each other: copies end before their memory is given back.
  std::unique_ptr<CopyQueue> queue_;
  std::unique_ptr<Device> memory_;
  std::map<const Parameter*, Tensor> copies_;
  std::uint64_t brought_bytes_ = 0;
};

}  // namespace llmtrain::optim
