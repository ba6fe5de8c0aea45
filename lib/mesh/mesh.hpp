#pragma once
/// The process mesh: named axes, rank <-> coordinate, one communicator per axis.

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "lib/comm/communicator.hpp"
#include "lib/tensor/device.hpp"

namespace llmtrain {

class DeviceWatch;
class World;

/// World = dp * tp * pp * sp.
enum class Axis : std::uint8_t { dp, tp, pp, sp };
inline constexpr int kNumAxes = 4;
std::string_view to_string(Axis axis);

/// How the ranks of Axis::sp, which have the rows of every sequence in parts, attend to all of it.
enum class SequenceSharing : std::uint8_t {
  all_gather,  // each its own queries, to the keys and values of all
  ulysses,     // each some of the heads, over all rows (arXiv 2309.14509)
  ring,        // each its own queries, to keys and values that go around (arXiv 2310.01889)
};

/// Sizes of the axes, all at least 1.
struct MeshShape {
  std::array<int, kNumAxes> sizes{1, 1, 1, 1};
  /// Axes from innermost (neighbouring ranks) to outermost.
  std::array<Axis, kNumAxes> order{Axis::tp, Axis::sp, Axis::dp, Axis::pp};
  /// Between the layers that the ranks of Axis::tp share, they share the rows.
  bool tp_sequence_parallel = false;
  /// Groups of neighbours along Axis::dp, each with all slices of what ZeRO divides.
  int dp_replicate = 1;
  SequenceSharing sp_algo = SequenceSharing::all_gather;
  /// Neighbours along Axis::sp that share heads as with `ulysses`, while groups of them share rows
  /// by `sp_algo`.
  int sp_ulysses = 1;
  /// Neighbours among the ranks of dp x sp, within a group of dp_replicate, that each have some of
  /// the experts.
  int ep = 1;
  /// Rows that a rank sends to the experts of each, as a multiple of their even share; 0: those
  /// that there are.
  double ep_room = 0;

  int operator[](Axis axis) const { return sizes[static_cast<int>(axis)]; }
  int world_size() const;
  /// Of Axis::sp, the ranks that share heads, and the groups of them that share rows.
  int head_sharers() const;
  int row_groups() const { return sizes[static_cast<int>(Axis::sp)] / head_sharers(); }
};

using MeshCoordinate = std::array<int, kNumAxes>;

/// Pure functions of the shape; InternalError outside the world.
MeshCoordinate coordinate_of(const MeshShape& shape, int rank);
int rank_of(const MeshShape& shape, const MeshCoordinate& coordinate);
/// Ranks that differ from `rank` along the given axes only, ordered by coordinate, first axis
/// fastest.
std::vector<int> group_of(const MeshShape& shape, int rank, std::span<const Axis> axes);

/// Makes the communicator of a group: its name, the world ranks of its members, this rank's index.
using CommunicatorFactory = std::function<std::unique_ptr<Communicator>(
    std::string_view name, const std::vector<int>& members, int index)>;

/// Of dp x sp, the ranks that hold the same of a tensor: all, or those with the same experts.
enum class DataHolders : std::uint8_t { all, same_experts };

/// This rank's place and its communicators. Construction is collective over the world.
class Mesh {
 public:
  Mesh(const MeshShape& shape, int rank, const CommunicatorFactory& factory);

  const MeshShape& shape() const { return shape_; }
  int rank() const { return rank_; }
  int size(Axis axis) const { return shape_[axis]; }
  int index(Axis axis) const { return coordinate_[static_cast<int>(axis)]; }
  bool tp_shares_rows() const { return shape_.tp_sequence_parallel && size(Axis::tp) > 1; }
  Communicator& axis(Axis axis) const { return *axes_[static_cast<int>(axis)]; }
  /// The ranks over which losses, token counts and gradients are summed: dp * sp, or of them those
  /// with the same experts.
  Communicator& data(DataHolders of = DataHolders::all) const {
    return *(of == DataHolders::same_experts && same_experts_ ? same_experts_ : data_);
  }
  /// Of the data ranks, those that divide among them what ZeRO divides, and those that have the
  /// same slices: all and itself alone, unless MeshShape::dp_replicate says otherwise.
  Communicator& owners(DataHolders of = DataHolders::all) const {
    if (of == DataHolders::same_experts && expert_owners_) return *expert_owners_;
    return *(owners_ ? owners_ : data_);
  }
  Communicator& replicas() const { return *replicas_; }
  /// Of Axis::sp, the ranks that share the heads of this one's group of rows, and those that share
  /// all rows with this one's heads. Whoever asks for one shares with somebody.
  Communicator& head_sharers() const { return *(head_sharers_ ? head_sharers_ : axes_[kSp]); }
  Communicator& row_sharers() const { return *(row_sharers_ ? row_sharers_ : axes_[kSp]); }
  /// The ranks that have all experts together, in the order of these.
  Communicator& experts() const { return *experts_; }
  /// The ranks that hold one copy of the model together: tp * pp.
  Communicator& model() const { return *model_; }
  Communicator& world() const { return *world_; }
  /// Collectives so far of the groups that have other members than this rank.
  std::uint64_t collectives() const;
  /// Communicator::use_staging for every group.
  void use_staging(const Tensor& staging) const;

 private:
  template <class Visit>
  void for_each_group(const Visit& visit) const;
  void make_sequence_groups(const CommunicatorFactory& factory);
  void make_replicas(const CommunicatorFactory& factory);
  void make_experts(const CommunicatorFactory& factory);
  /// Of `members` those that `belongs` picks, this rank among them.
  std::unique_ptr<Communicator> make_subgroup(std::string_view name, std::vector<int> members,
                                              const std::function<bool(int)>& belongs,
                                              const CommunicatorFactory& factory) const;

  static constexpr int kSp = static_cast<int>(Axis::sp);

  MeshShape shape_;
  int rank_;
  MeshCoordinate coordinate_;
  std::array<std::unique_ptr<Communicator>, kNumAxes> axes_;
  std::unique_ptr<Communicator> data_;
  std::unique_ptr<Communicator> head_sharers_, row_sharers_;
  std::unique_ptr<Communicator> owners_, replicas_;
  std::unique_ptr<Communicator> experts_, expert_owners_, same_experts_;
  std::unique_ptr<Communicator> model_;
  std::unique_ptr<Communicator> world_;
};

/// Groups of one use `self`; larger ones are refused with the reason.
CommunicatorFactory self_factory();
/// Groups of the processes of a job for the CPU's tensors; `world` outlives them.
CommunicatorFactory world_factory(World& world);
/// For tensors of the device, which outlives them and the factory.
CommunicatorFactory world_factory(World& world, const Device& device);
/// Of tensors of a device that a library connects with the others'; `watch` sees to it.
CommunicatorFactory world_factory(World& world, const Device& device,
                                  std::shared_ptr<DeviceWatch> watch);
/// Groups of any size that record to `recorder`, for a plan of this kind of device.
CommunicatorFactory meta_factory(CollectiveRecorder* recorder, DeviceKind device = DeviceKind::cpu);

}  // namespace llmtrain
