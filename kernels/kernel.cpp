#include "kernels/kernel.hpp"

#include <algorithm>
#include <array>

#include "lib/base/require.hpp"
#include "lib/base/trace.hpp"

namespace llmtrain::kernels {

namespace {

template <class Row>
void sort_by_name(std::vector<Row>& rows, std::string_view device) {
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < rows.size(); ++i) {
    require(rows[i - 1].name != rows[i].name, "two rows named {} in the {} table", rows[i].name,
            device);
  }
}

/// Null when there is none.
template <class Row>
const Row* row_named(const std::vector<Row>& rows, std::string_view name) {
  const auto row =
      std::lower_bound(rows.begin(), rows.end(), name,
                       [](const Row& r, std::string_view key) { return r.name < key; });
  return row != rows.end() && row->name == name ? &*row : nullptr;
}

}  // namespace

std::string_view to_string(Determinism determinism) {
  constexpr std::array<std::string_view, 3> kNames{"fast", "run", "layout"};
  return kNames.at(static_cast<std::size_t>(determinism));
}

KernelTable::KernelTable(std::string_view device, std::vector<KernelRow> rows,
                         std::vector<WorkspaceRow> workspaces, FusesActivation fuses)
    : device_(device), rows_(std::move(rows)), workspaces_(std::move(workspaces)), fuses_(fuses) {
  sort_by_name(rows_, device_);
  sort_by_name(workspaces_, device_);
}

KernelFunction KernelTable::find(std::string_view name) const {
  const KernelRow* row = row_named(rows_, name);
  require(row != nullptr, "the {} device has no kernel {}", device_, name);
  return row->run;
}

std::uint64_t KernelTable::workspace_bytes(const KernelCtx& ctx, std::string_view name,
                                           const void* kernel, std::uint64_t cpu_bytes) const {
  if (workspaces_.empty()) return cpu_bytes;
  const WorkspaceRow* row = row_named(workspaces_, name);
  require(row != nullptr, "the {} device does not say what workspace {} needs", device_, name);
  return row->bytes(ctx, kernel);
}

const KernelTable& meta_table() {
  static const KernelTable table("meta", {});
  return table;
}

namespace detail {

void launch(const KernelCtx& ctx, std::string_view name, const void* kernel, const Cost& cost,
            DType dtype, const std::array<std::int64_t, 4>& sizes,
            std::uint64_t cpu_workspace_bytes) {
  if (ctx.recorder != nullptr) {
    ctx.recorder->record({name, cost, dtype, sizes, ctx.tf32, kernel});
  }
  const std::uint64_t workspace_bytes =
      ctx.table->workspace_bytes(ctx, name, kernel, cpu_workspace_bytes);
  Tensor workspace;
  if (workspace_bytes > 0) {
    workspace = ctx.device->allocate({static_cast<std::int64_t>(workspace_bytes)}, DType::u8,
                                     Category::workspace, name);
  }
  if (ctx.device->is_meta()) return;
  const trace::Scope span(trace::Kind::compute, name);
  ctx.table->find(name)(ctx, kernel, workspace.view());
}

}  // namespace detail

}  // namespace llmtrain::kernels
