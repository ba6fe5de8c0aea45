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
  /// Memory through which they pass.
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

  /// Most of the file that can have been in use so far: by values at a time, and by those that were
  /// taken from the pool before the disk had written them.
  std::uint64_t most_file_bytes() const;
  /// All values that were put away.
  std::uint64_t put_bytes() const { return put_bytes_; }
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
  std::uint64_t blocks_ = 0, most_blocks_ = 0, put_blocks_ = 0, put_bytes_ = 0;
};

}  // namespace llmtrain::engine
