#pragma once
/// Wall time of every kernel of a real step.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.hpp"
#include "lib/plan/predict.hpp"

namespace llmtrain::plan {

/// A table that runs another table's kernels with a clock, and the recorder that the clock reports
/// to: an engine must be given both. Must outlive the engine; one thread launches. The clock is the
/// host's, which waits before and behind each kernel, or a device's own, which waits for nothing.
class KernelClock final : public kernels::Recorder {
 public:
  /// `between` is called before each kernel; its time is no kernel's.
  explicit KernelClock(const kernels::KernelTable& table, std::function<void()> between = nullptr);
  /// By the clock of the device whose launches `timer` times.
  KernelClock(const kernels::KernelTable& table, std::unique_ptr<kernels::LaunchTimer> timer);

  const kernels::KernelTable& table() const { return timed_; }
  void record(const kernels::LaunchRecord& launch) override;

  /// Forgets everything so far.
  void reset();
  /// Launches and their time since the last reset, under the names of table_row, longest first. A
  /// device's clock is waited for.
  std::vector<KernelTime> times();

 private:
  template <std::size_t row>
  static void run_timed(const kernels::KernelCtx& ctx, const void* kernel, const View& workspace);
  /// Those of one launch; what a kernel leaves to another one of the table is its own time.
  void run(std::size_t row, const kernels::KernelCtx& ctx, const void* kernel,
           const View& workspace);
  template <std::size_t... rows>
  static std::vector<kernels::KernelRow> timed_rows(const kernels::KernelTable& table,
                                                    std::index_sequence<rows...>);

  const kernels::KernelTable& table_;
  kernels::KernelTable timed_;
  std::function<void()> between_;
  std::map<std::string, KernelTime> times_;
  KernelTime* current_ = nullptr;
  bool runs_ = false;
  std::unique_ptr<kernels::LaunchTimer> timer_;
  /// Whose time each launch of the timer is; null for what was forgotten.
  std::vector<KernelTime*> timed_launches_;
};

}  // namespace llmtrain::plan
