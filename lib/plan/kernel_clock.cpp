#include "lib/plan/kernel_clock.hpp"

#include <algorithm>
#include <array>
#include <chrono>

#include "lib/base/require.hpp"

namespace llmtrain::plan {

namespace {

// A table's rows hold plain functions, so each row number needs one of its own.
constexpr std::size_t kMaxRows = 64;

}  // namespace

template <std::size_t row>
void KernelClock::run_timed(const kernels::KernelCtx& ctx, const void* kernel,
                            const View& workspace) {
  auto& clock = static_cast<KernelClock&>(*ctx.recorder);
  ctx.device->synchronize();  // a kernel's time is its own, not that of what was queued before
  const auto begin = std::chrono::steady_clock::now();
  clock.table_.rows()[row].run(ctx, kernel, workspace);
  ctx.device->synchronize();
  clock.current_->seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

template <std::size_t... rows>
std::vector<kernels::KernelRow> KernelClock::timed_rows(const kernels::KernelTable& table,
                                                        std::index_sequence<rows...>) {
  require(table.rows().size() <= kMaxRows, "{} kernels, the clock has room for {}",
          table.rows().size(), kMaxRows);
  const std::array<kernels::KernelFunction, kMaxRows> functions = {run_timed<rows>...};
  std::vector<kernels::KernelRow> timed(table.rows().begin(), table.rows().end());
  for (std::size_t i = 0; i < timed.size(); ++i) timed[i].run = functions[i];
  return timed;
}

KernelClock::KernelClock(const kernels::KernelTable& table, std::function<void()> between)
    : table_(table),
      timed_(table.device(), timed_rows(table, std::make_index_sequence<kMaxRows>{}),
             {table.workspaces().begin(), table.workspaces().end()}, table.fuses()),
      between_(std::move(between)) {}

void KernelClock::record(const kernels::LaunchRecord& launch) {
  if (between_) between_();
  const std::string name = table_row(timed_name(launch), launch.dtype, launch.sizes);
  current_ = &times_[name];
  current_->name = name;
  ++current_->count;
  current_->dtype = launch.dtype;
  current_->cost += launch.cost;
}

std::vector<KernelTime> KernelClock::times() const {
  std::vector<KernelTime> times;
  for (const auto& [name, time] : times_) times.push_back(time);
  std::stable_sort(times.begin(), times.end(),
                   [](const KernelTime& a, const KernelTime& b) { return a.seconds > b.seconds; });
  return times;
}

}  // namespace llmtrain::plan
