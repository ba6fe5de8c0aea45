#pragma once
/// Updates that the host computes for a device: optimizer states, masters, and compute copies, in
/// its memory.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/optim/chunk_layout.hpp"
#include "lib/optim/host_copies.hpp"
#include "lib/optim/optimizer_options.hpp"

namespace llmtrain::optim {

/// What a plan and a log say of it.
struct HostUpdateFacts {
  /// "optimizer states, masters and parameters", or some of these; what is in the host's memory.
  std::string contents;
  /// Of the host, held as long as the run: all but what is pinned, and what is.
  std::uint64_t memory_bytes = 0, pinned_bytes = 0;
  /// Of what is pinned: compute copies, which come up beside the step for its products.
  std::uint64_t copies_bytes = 0;
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
/// updated, gradients of those behind it come and compute copies of those before it go.
class HostUpdates final : public ValuesElsewhere {
 public:
  /// For a device with copies of its own, which outlives this; on meta it is planned.
  HostUpdates(Device& device, const Offload& offload);
  ~HostUpdates() override;

  /// By which the host works on its memory, for the context of the device.
  kernels::KernelCtx context(const kernels::KernelCtx& of_device) const;
  /// Once, before any value is read. The states of `parameters` are the host's already, allocated
  /// by context(), and all of them stay where they are. RefusedKey for a buffer that is too small,
  /// and for an optimizer whose updates exchange with ranks of Axis::tp.
  void bind(const OptimizerOptions& options, const Mesh& mesh,
            std::span<const OptimizedParameter> parameters);

  /// Optimizer::update() of all parameters, behind everything launched so far. `decision` is on the
  /// device. Returns when the last copy has come to the device, so that whatever is launched next
  /// finds what was updated, and may write gradients. After a DeviceError some parameters are
  /// updated and others not.
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
  std::uint64_t copy_bytes_brought() const { return copies_ ? copies_->brought_bytes() : 0; }

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
  /// A part of a parameter that is updated with a chunk, in the memory of the chunk's lane.
  void add_part(Chunk& chunk, const ChunkPart& part, const OptimizedParameter& whole,
                std::span<const StateSpec> states, std::uint64_t lane_begin);
  Tensor kept_of(const Parameter& parameter, Kept what) const;
  /// Whether the step applies, as the device has decided it; waits for that.
  bool applies(const CopyQueue::Point& launched, const View& decision);
  void bring(std::size_t chunk);
  void send(std::size_t chunk);
  CopyQueue& lane_of(std::size_t chunk) const { return *lanes_[chunk % lanes_.size()]; }

  Device* device_;
  std::uint64_t buffer_bytes_;
  bool masters_, keeps_copies_;
  bool has_states_ = false;
  // In the order in which they need each other: copies end before their memory is given back.
  std::unique_ptr<CopyQueue> pinned_;  // has the memory of all lanes, and brings decisions
  std::vector<std::unique_ptr<CopyQueue>> lanes_;
  std::unique_ptr<Device> staging_, host_;
  Tensor pool_, decision_;
  std::uint64_t lane_bytes_ = 0;
  std::map<const Parameter*, Tensor> master_tensors_;
  std::unique_ptr<HostCopies> copies_;  // null where they are on the device
  std::vector<Chunk> chunks_;
  HostUpdateTimes times_;
};

}  // namespace llmtrain::optim
