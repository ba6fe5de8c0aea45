#include "lib/plan/kernel_clock.hpp"

#include <algorithm>
#include <array>
#include <chrono>

#include "lib/base/require.hpp"

namespace llmtrain::plan {

namespace {

// A table's rows hold plain functions, so each row number needs one of its own.
constexpr std::size_t kMaxRows = 80;

}  // namespace

template <std::size_t row>
void KernelClock::run_timed(const kernels::KernelCtx& ctx, const void* kernel,
                            const View& workspace) {
  static_cast<KernelClock&>(*ctx.recorder).run(row, ctx, kernel, workspace);
}

void KernelClock::run(std::size_t row, const kernels::KernelCtx& ctx, const void* kernel,
                      const View& workspace) {
  const kernels::KernelFunction function = table_.rows()[row].run;
  if (std::exchange(runs_, true)) return function(ctx, kernel, workspace);
  if (timer_) {
    timer_->begin();
    function(ctx, kernel, workspace);
    timer_->end();
    timed_launches_.push_back(current_);
  } else {
    ctx.device->synchronize();  // a kernel's time is its own, not that of what was queued before
    const auto begin = std::chrono::steady_clock::now();
    function(ctx, kernel, workspace);
    ctx.device->synchronize();
    current_->seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  runs_ = false;
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

KernelClock::KernelClock(const kernels::KernelTable& table,
                         std::unique_ptr<kernels::LaunchTimer> timer)
    : KernelClock(table) {
  timer_ = std::move(timer);
}

void KernelClock::reset() {
  times_.clear();
  std::fill(timed_launches_.begin(), timed_launches_.end(), nullptr);
}

void KernelClock::record(const kernels::LaunchRecord& launch) {
  if (between_) between_();
  const std::string name = table_row(timed_name(launch), launch.dtype, launch.sizes);
  current_ = &times_[name];
  current_->name = name;
  ++current_->count;
  current_->dtype = launch.dtype;
  current_->cost += launch.cost;
}

std::vector<KernelTime> KernelClock::times() {
  if (timer_) {
    const std::vector<double> seconds = timer_->take();
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      if (timed_launches_[i] != nullptr) timed_launches_[i]->seconds += seconds[i];
    }
    timed_launches_.clear();
  }
  std::vector<KernelTime> times;
  for (const auto& [name, time] : times_) times.push_back(time);
  std::stable_sort(times.begin(), times.end(),
                   [](const KernelTime& a, const KernelTime& b) { return a.seconds > b.seconds; });
  return times;
}

}  // namespace llmtrain::plan
