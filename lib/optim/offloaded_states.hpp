#pragma once
/// Optimizer states, masters and compute copies that live in a file and pass through memory during
/// an update.

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/offload/chunk_store.hpp"
#include "lib/optim/chunk_layout.hpp"
#include "lib/optim/optimizer_options.hpp"

namespace llmtrain::optim {

/// Each chunk of parameters has an optimizer of its own, bound to the memory through which its
/// states pass: that of a CPU, which updates; beside another device that of its host (HostUpdates).
class OffloadedStates final : public ValuesElsewhere {
 public:
  /// Sets all states to their first values, all else to zero. `parameters` has no states;
  /// `stateful` is of the same parameters, and both are in the order of updates. RecipeError for a
  /// buffer that is too small.
  OffloadedStates(const kernels::KernelCtx& ctx, std::span<const OptimizedParameter> parameters,
                  std::span<const StatefulParameter> stateful, const Offload& offload);
  ~OffloadedStates() override;

  const ChunkLayout& layout() const { return layout_; }
  /// The parts of a chunk, in the order of its layout, for an optimizer of it alone; whose content
  /// is theirs between acquire() and release() of it.
  const std::vector<OptimizedParameter>& parameters_of(std::size_t chunk) const {
    return chunks_[chunk].parameters;
  }
  /// An update goes through all chunks, in their order. StorageError when the disk fails, and
  /// states are of no use any more.
  void acquire(std::size_t chunk) const;
  void release(std::size_t chunk) const;

  /// Once, before update(): an optimizer for each chunk.
  void bind(const OptimizerOptions& options, Device& device, const Mesh& mesh);
  /// Optimizer::update() of all parameters. StorageError as above.
  void update(const kernels::KernelCtx& ctx, const View& decision) const;

  /// Values of a state of a parameter, by index, from `first` of this rank's on. Between updates,
  /// by any thread; on meta nothing happens.
  void read(std::size_t parameter, std::size_t state, std::int64_t first,
            std::span<std::byte> to) const;
  void write(std::size_t parameter, std::size_t state, std::int64_t first,
             std::span<const std::byte> values) const;

  void read_kept(const Parameter& parameter, Kept what, std::int64_t first,
                 std::span<std::byte> to) const override;
  void write_kept(const Parameter& parameter, Kept what, std::int64_t first,
                  std::span<const std::byte> values) const override;
  /// Read in a thread of its own.
  std::unique_ptr<Coming> bring_copies(std::vector<CopyRead> reads) const override;

  /// Of reads that follow one another: pieces of compute copies, from any element on. On meta they
  /// are counted.
  class CopyReader {
   public:
    explicit CopyReader(const OffloadedStates& states) : states_(&states) {}
    void read(const Parameter& parameter, std::int64_t first, std::span<std::byte> to);

   private:
    const OffloadedStates* states_;
    offload::ChunkStore::LastBlock last_;
    std::pair<std::size_t, std::uint64_t> counted_{~std::size_t{0}, 0};  // a chunk, a block of it
  };

  /// "optimizer states, masters and parameters", or some of these.
  std::string contents() const;
  /// What every update reads, and writes.
  std::uint64_t file_bytes() const { return layout_.file_bytes; }
  /// What was read of copies, in whole blocks of the file; on meta, would have been.
  std::uint64_t copy_bytes_read() const { return copy_bytes_read_; }
  std::uint64_t pool_bytes() const { return pool_.defined() ? pool_.view().bytes() : 0; }
  /// "by io_uring, past the page cache"; empty on meta.
  std::string how() const;
  offload::StoreTraffic traffic() const;

 private:
  struct ChunkUpdate {
    std::vector<OptimizedParameter> parameters;
    std::unique_ptr<Optimizer> optimizer;  // null where somebody else has it
  };

  void read_copies(std::span<const CopyRead> reads) const;
  void place_chunk(std::size_t chunk, std::span<const OptimizedParameter> parameters);
  void open(const Offload& offload);
  /// Where a parameter is among `stateful_`, and `what` among its states.
  std::pair<std::size_t, std::size_t> indices_of(const Parameter& parameter, Kept what) const;
  void fill(const kernels::KernelCtx& ctx) const;
  /// The states that have something of bytes [begin, end) of a chunk.
  std::string names_in(std::size_t chunk, std::uint64_t begin, std::uint64_t end) const;
  /// visit(chunk, offset in it, offset in the values, bytes).
  template <class Visit>
  void for_parts(std::size_t parameter, std::size_t state, std::int64_t first, std::uint64_t bytes,
                 const Visit& visit) const;

  std::vector<StatefulParameter> stateful_;
  ChunkLayout layout_;
  Tensor pool_;
  std::byte* pool_begin_ = nullptr;  // aligned for the disk
  std::vector<ChunkUpdate> chunks_;
  std::unique_ptr<offload::ChunkStore> store_;  // null on meta
  mutable std::atomic<std::uint64_t> copy_bytes_read_ = 0;
};

}  // namespace llmtrain::optim
