#include "lib/engine/activation_offload.hpp"

#include <algorithm>
#include <utility>

#include "lib/base/require.hpp"

namespace llmtrain::engine {

using offload::ValueStore;

std::span<const OffloadedOps> offloaded_ops() {
  static const std::vector<OffloadedOps> kTable{
      {"block", {"recompute_segment"}},
      {"attention",
       {"attention", "rope", "head norm", "head norm and rope", "rows_to_heads", "heads_to_rows"}},
      {"linear", {"linear", "activated_linear", "quantized_linear"}},
      {"norm", {"norm"}},
      {"activation", {"activation", "gated_activation"}},
      {"experts",
       {"route", "sort_weights", "gather_rows", "to_experts", "expert_linear", "from_experts",
        "scale_rows", "combine_rows"}},
      {"dropout", {"dropout", "add", "scale"}}};
  return kTable;
}

std::vector<std::string> offloaded_names() {
  std::vector<std::string> names;
  for (const OffloadedOps& row : offloaded_ops()) names.emplace_back(row.name);
  return names;
}

std::set<std::string_view> operations_of(std::span<const std::string> names) {
  std::set<std::string_view> operations;
  for (const OffloadedOps& row : offloaded_ops()) {
    if (std::ranges::count(names, row.name) > 0) operations.insert(row.ops.begin(), row.ops.end());
  }
  return operations;
}

ActivationOffload::ActivationOffload(Device& device, const ActivationOffloadOptions& options)
    : ops_(operations_of(options.names)) {
  require(device.kind() != DeviceKind::cuda, "activations of a GPU in a file");
  constexpr std::uint64_t kAlignment = offload::ScratchFile::kAlignment;
  const std::uint64_t bytes = options.buffer_bytes / ValueStore::kBlock * ValueStore::kBlock;
  pool_ = device.allocate({static_cast<std::int64_t>(bytes + kAlignment)}, DType::u8,
                          Category::offload, "offload pool of activations");
  if (device.is_meta()) return;
  require(!options.directory.empty(), "activations in a file without a directory");
  const auto address = reinterpret_cast<std::uintptr_t>(pool_.view().data);
  std::byte* begin =
      pool_.view().as<std::byte>() + (kAlignment - address % kAlignment) % kAlignment;
  store_.emplace(offload::ScratchFile(options.directory, ValueStore::kBlock),
                 std::span(begin, bytes), offload::StoreOptions{.checksums = options.checksums});
}

/// A value on its way; one that nobody asks for leaves the file, too.
class ActivationOffload::Away {
 public:
  Away(ActivationOffload& of, ValueStore::Id id, std::uint64_t bytes)
      : of_(&of), id_(id), bytes_(bytes) {
    of_->use_.put(bytes);
  }
  ~Away() {
    leave();
    if (of_->store_) of_->store_->drop(id_);
  }
  Away(const Away&) = delete;
  Away& operator=(const Away&) = delete;

  void take(const Tensor& to) {
    if (of_->store_) of_->store_->take(id_, {to.view().as<std::byte>(), to.view().bytes()});
    leave();
  }

 private:
  void leave() { of_->use_.gone(std::exchange(bytes_, 0)); }

  ActivationOffload* of_;
  ValueStore::Id id_;
  std::uint64_t bytes_;  // 0 when it has been taken
};

std::function<Tensor(const OpCtx&)> ActivationOffload::put_away(const OpCtx& ctx,
                                                                const Tensor& tensor) {
  const View& view = tensor.view();
  const std::string tag = tensor.storage().tag();
  ValueStore::Id& newest = newest_[ctx.tape];
  if (store_) newest = store_->put({view.as<std::byte>(), view.bytes()}, tag, newest);
  const auto away = std::make_shared<Away>(*this, newest, view.bytes());
  return [away, shape = view.shape, dtype = view.dtype, tag](const OpCtx& back) {
    const Tensor tensor = back.allocate(shape, dtype, tag);
    away->take(tensor);
    return tensor;
  };
}

std::vector<std::function<Tensor(const OpCtx&)>> ActivationOffload::put_away(
    const OpCtx& ctx, std::vector<Leaving> tensors) {
  std::vector<std::function<Tensor(const OpCtx&)>> ways_back;
  for (Leaving& leaving : tensors) {
    ways_back.push_back(put_away(ctx, leaving.tensor));
    leaving.tensor.reset();
  }
  return ways_back;
}

std::optional<offload::StoreTraffic> ActivationOffload::traffic() const {
  return store_ ? std::optional(store_->traffic()) : std::nullopt;
}

std::string ActivationOffload::how() const { return store_ ? store_->how() : ""; }

}  // namespace llmtrain::engine
