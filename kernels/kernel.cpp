#include "kernels/kernel.hpp"

#include <algorithm>

#include "lib/base/require.hpp"

namespace llmtrain::kernels {

KernelTable::KernelTable(std::string_view device, std::vector<KernelRow> rows)
    : device_(device), rows_(std::move(rows)) {
  std::sort(rows_.begin(), rows_.end(),
            [](const KernelRow& a, const KernelRow& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < rows_.size(); ++i) {
    require(rows_[i - 1].name != rows_[i].name, "two rows named {} in the {} table", rows_[i].name,
            device_);
  }
}

KernelFunction KernelTable::find(std::string_view name) const {
  const auto row =
      std::lower_bound(rows_.begin(), rows_.end(), name,
                       [](const KernelRow& r, std::string_view key) { return r.name < key; });
  require(row != rows_.end() && row->name == name, "the {} device has no kernel {}", device_, name);
  return row->run;
}

const KernelTable& meta_table() {
  static const KernelTable table("meta", {});
  return table;
}

namespace detail {

void launch(const KernelCtx& ctx, std::string_view name, const void* kernel, const Cost& cost,
            DType dtype, const std::array<std::int64_t, 4>& sizes, std::uint64_t workspace_bytes) {
  if (ctx.recorder != nullptr) ctx.recorder->record({name, cost, dtype, sizes});
  Tensor workspace;
  if (workspace_bytes > 0) {
    workspace = ctx.device->allocate({static_cast<std::int64_t>(workspace_bytes)}, DType::u8,
                                     Category::workspace, name);
  }
  if (ctx.device->is_meta()) return;
  ctx.table->find(name)(ctx, kernel, workspace.view());
}

}  // namespace detail

}  // namespace llmtrain::kernels
