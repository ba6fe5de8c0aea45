#pragma once
/// Saved activations in a file between the pass forth and the walk back.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/autograd/tape.hpp"
#include "lib/offload/value_file_use.hpp"
#include "lib/offload/value_store.hpp"

namespace llmtrain::engine {

/// A name of offload.activations, and the operations whose saved tensors it means.
struct OffloadedOps {
  std::string_view name;
  std::vector<std::string_view> ops;
};
std::span<const OffloadedOps> offloaded_ops();
std::vector<std::string> offloaded_names();
/// All operations of some of these names.
std::set<std::string_view> operations_of(std::span<const std::string> names);

struct ActivationOffloadOptions {
  std::vector<std::string> names;  // some of offloaded_names()
  /// A GPU's in a file, too, and not in its host's memory, which nothing but the names concerns.
  bool gpu_has_file = false;
  /// Memory through which they pass to a file.
  std::uint64_t buffer_bytes = 0;
  bool checksums = true;
  std::filesystem::path directory = {};
};

/// What blocks have saved goes to a file behind their forward pass; the walk back through a block
/// brings the values of the one before near. On the CPU, and meta, which opens no file.
class ActivationOffload final : public TensorKeeper {
 public:
  ActivationOffload(Device& device, const ActivationOffloadOptions& options);

  bool takes(std::string_view op) const override { return ops_.contains(op); }
  std::vector<std::function<Tensor(const OpCtx&)>> put_away(const OpCtx& ctx,
                                                            std::vector<Leaving> tensors) override;

  const offload::ValueFileUse& file_use() const { return use_; }
  std::uint64_t most_file_bytes() const { return use_.most_file_bytes(pool_bytes()); }
  std::uint64_t pool_bytes() const { return pool_.view().bytes(); }
  /// Both empty where there is no file.
  std::optional<offload::StoreTraffic> traffic() const;
  std::string how() const;

 private:
  class Away;
  std::function<Tensor(const OpCtx&)> put_away(const OpCtx& ctx, const Tensor& tensor);

  std::set<std::string_view> ops_;
  Tensor pool_;
  std::optional<offload::ValueStore> store_;
  /// The last one that went there, of each tape.
  std::map<const Tape*, offload::ValueStore::Id> newest_;
  offload::ValueFileUse use_;
};

}  // namespace llmtrain::engine
