#pragma once
/// Updates that the host computes for a device: optimizer states, masters, and compute copies, in
/// its memory or in a file.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/optim/chunk_layout.hpp"
#include "lib/optim/file_copies.hpp"
#include "lib/optim/host_copies.hpp"
#include "lib/optim/offloaded_states.hpp"
#include "lib/optim/optimizer_options.hpp"

namespace llmtrain::optim {

/// What a plan and a log say of it.
struct HostUpdateFacts {
  /// "optimizer states, masters and parameters", or some of these: what is in the host's memory;
  /// empty where they are in a file.
  std::string contents;
  /// Of the host, held as long as the run: all but what is pinned, the pool of a file among it, and
  /// what is.
  std::uint64_t memory_bytes = 0, pinned_bytes = 0;
  /// Of what is pinned: compute copies, which come up beside the step for its products. From a file
  /// they come through what updates have pinned.
  std::uint64_t copies_bytes = 0;
  bool brings_copies = false;
  /// What every update that applies copies to the host, and to the device.
  std::uint64_t down_bytes = 0, up_bytes = 0;
};

/// Of all updates so far.
struct HostUpdateTimes {
  /// Of the host: for the decisions, before which the device has to be done, for copies that were
  /// not there in time, and for updates with these.
  double waited_for_decisions = 0, waited_for_copies = 0, all = 0;
};

/// Parameters are cut into chunks, each with an optimizer of its own, bound to tensors of the host.
/// What travels does so through pinned memory, in as many lanes as have room: while a chunk is
/// updated, gradients of those behind it come and compute copies of those before it go. Where its
/// states are in a file they pass through memory meanwhile (OffloadedStates).
class HostUpdates final : public ValuesElsewhere {
 public:
  /// For a device with copies of its own, which outlives this; on meta it is planned.
  HostUpdates(Device& device, const Offload& offload);
  ~HostUpdates() override;

  /// By which the host works on its memory, for the context of the device.
  kernels::KernelCtx context(const kernels::KernelCtx& of_device) const;
  /// Once, before any value is read. The states of `parameters` are the host's already, allocated
  /// by context(), and all of them stay where they are; with OffloadPlace::host_file they have
  /// none. `stateful` is of the same parameters. RefusedKey for a buffer that is too small, and for
  /// an optimizer whose updates exchange with ranks of Axis::tp.
  void bind(const kernels::KernelCtx& of_device, const OptimizerOptions& options, const Mesh& mesh,
            std::span<const OptimizedParameter> parameters,
            std::vector<StatefulParameter> stateful);

  /// Optimizer::update() of all parameters, behind everything launched so far. `decision` is on the
  /// device. Returns when the last copy has come to the device, so that whatever is launched next
  /// finds what was updated, and may write gradients. After a DeviceError, and a StorageError, some
  /// parameters are updated and others not.
  void update(const kernels::KernelCtx& of_device, const View& decision);

  /// Masters and compute copies, as far as they are here; between updates.
  void read_kept(const Parameter& parameter, Kept what, std::int64_t first,
                 std::span<std::byte> to) const override;
  void write_kept(const Parameter& parameter, Kept what, std::int64_t first,
                  std::span<const std::byte> values) const override;
  std::unique_ptr<Coming> bring_copies(std::vector<CopyRead> reads) const override;

  /// Memory is that of all updates so far, of which each takes the same.
  HostUpdateFacts facts() const;
  const HostUpdateTimes& times() const { return times_; }
  /// What bring_copies() has copied to the device; on meta, would have.
  std::uint64_t copy_bytes_brought() const;
  /// Null where nothing is in a file.
  const OffloadedStates* file() const { return file_.get(); }

 private:
  struct Copy {
    void* host = nullptr;
    void* device = nullptr;
    std::uint64_t bytes = 0;
  };
  struct Chunk {
    std::vector<OptimizedParameter> parameters;
    std::unique_ptr<Optimizer> optimizer;
    std::vector<Copy> down, up;
  };

  void allocate_masters(std::span<const OptimizedParameter> parameters);
  void allocate_lanes(const ChunkLayout& layout);
  /// Between updates they are free for what comes up.
  std::vector<CopyLane> copy_lanes() const;
  /// The part of a parameter that is updated with a chunk, as far as it is in the host's memory.
  OptimizedParameter part_in_memory(const ChunkPart& part, const OptimizedParameter& whole) const;
  /// What of a part travels, in the memory of the chunk's lane.
  void add_travellers(Chunk& chunk, const ChunkPart& part, OptimizedParameter& here,
                      std::uint64_t lane_begin);
  Tensor kept_of(const Parameter& parameter, Kept what) const;
  /// Whether the step applies, as the device has decided it; waits for that.
  bool applies(const CopyQueue::Point& launched, const View& decision);
  void bring(std::size_t chunk);
  void update_chunk(const kernels::KernelCtx& ctx, std::size_t chunk) const;
  void send(std::size_t chunk);
  CopyQueue& lane_of(std::size_t chunk) const { return *lanes_[chunk % lanes_.size()]; }

  Device* device_;
  Offload offload_;
  bool has_states_ = false;
  // In the order in which they need each other: copies end before their memory is given back.
  std::unique_ptr<CopyQueue> pinned_;  // has the memory of all lanes, and brings decisions
  std::vector<std::unique_ptr<CopyQueue>> lanes_;
  std::unique_ptr<Device> staging_, host_;
  Tensor pool_, decision_;
  std::uint64_t lane_bytes_ = 0;
  std::map<const Parameter*, Tensor> master_tensors_;
  std::unique_ptr<HostCopies> copies_;  // null where they are on the device, or in a file
  std::unique_ptr<OffloadedStates> file_;
  std::unique_ptr<FileCopies> file_copies_;
  std::vector<Chunk> chunks_;
  HostUpdateTimes times_;
};

}  // namespace llmtrain::optim
