#pragma once
/// Wall time of every kernel of a real step.

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lib/plan/predict.hpp"

namespace llmtrain::plan {

/// A table that runs another table's kernels with a clock, and the recorder that the clock reports
/// to: an engine must be given both. Must outlive the engine; one thread launches.
class KernelClock final : public kernels::Recorder {
 public:
  /// `between` is called before each kernel; its time is no kernel's.
  explicit KernelClock(const kernels::KernelTable& table, std::function<void()> between = nullptr);

  const kernels::KernelTable& table() const { return timed_; }
  void record(const kernels::LaunchRecord& launch) override;

  /// Forgets everything so far.
  void reset() { times_.clear(); }
  /// Launches and their time since the last reset, under the names of table_row, longest first.
  std::vector<KernelTime> times() const;

 private:
  template <std::size_t row>
  static void run_timed(const kernels::KernelCtx& ctx, const void* kernel, const View& workspace);
  template <std::size_t... rows>
  static std::vector<kernels::KernelRow> timed_rows(const kernels::KernelTable& table,
                                                    std::index_sequence<rows...>);

  const kernels::KernelTable& table_;
  kernels::KernelTable timed_;
  std::function<void()> between_;
  std::map<std::string, KernelTime> times_;
  KernelTime* current_ = nullptr;
};

}  // namespace llmtrain::plan
