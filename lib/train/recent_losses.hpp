#pragma once
/// Losses of the last steps, which tell a loss that is far above them.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain::train {

class RecentLosses {
 public:
  struct StepLoss {
    std::int64_t step = 0;
    double loss = 0;  // nats per trained token
    bool operator==(const StepLoss&) const = default;
  };

  /// Steps come in their order; the oldest goes when there are more than `kept`.
  void add(StepLoss of, std::size_t kept);
  /// Median of the last `window` losses up to step `last`; nothing where there are fewer.
  std::optional<double> median(std::int64_t last, std::size_t window) const;

  bool empty() const { return losses_.empty(); }
  /// "12 3.25\n13 3.5\n"
  std::string text() const;
  /// CheckpointError, naming `name`, for what is no such text.
  static RecentLosses parse(std::string_view text, std::string_view name);

  bool operator==(const RecentLosses&) const = default;

 private:
  std::vector<StepLoss> losses_;
};

}  // namespace llmtrain::train
