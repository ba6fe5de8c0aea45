#pragma once
/// How what an update needs of a rank's parameters is cut into chunks, and where these lie in a
/// file and in the memory through which they pass. Sums only: plans and runs have the same.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/offload/chunk_store.hpp"
#include "lib/optim/optimizer.hpp"

namespace llmtrain::optim {

/// Where optimizer states are between updates if not in a device's memory.
enum class OffloadPlace : std::uint8_t {
  file,       // from which an update on the device reads them (OffloadedStates)
  host,       // beside a device, where they are updated (HostUpdates)
  host_file,  // beside a device, in a file from which an update on the host reads them (likewise)
};

/// The recipe's `offload` for what an update alone reads.
struct Offload {
  OffloadPlace place = OffloadPlace::file;
  /// What is kept beside compute copies goes there, too.
  bool masters = false;
  /// And so do these: from there they come a unit of the model at a time.
  bool parameters = false;
  /// Most memory through which they pass; beside a device also most pinned memory, for what travels
  /// between the two.
  std::uint64_t buffer_bytes = std::uint64_t{256} << 20;
  bool checksums = true;
  /// Of the file. Where nothing is computed (meta) there is none.
  std::filesystem::path directory = {};

  bool in_file() const { return place != OffloadPlace::host; }
  bool updates_on_host() const { return place != OffloadPlace::file; }
};

/// Of the same, what there is on a rank.
struct OffloadContents {
  bool states = false, masters = false, copies = false;
};
/// "optimizer states, masters and parameters", or some of these.
std::string contents_of(const OffloadContents& contents);

/// What stands for a master among states, and for a compute copy.
StateSpec master_spec(const Parameter& parameter);
StateSpec copy_spec(const Parameter& parameter);

/// What an update takes of one parameter at a time.
struct ChunkPart {
  std::size_t parameter = 0;
  /// Of the own elements, counted from their first.
  ParameterSlice elements;
  /// Of each state: which values, counted from the first of this rank, and where they begin in the
  /// chunk, in bytes, if they are in a file.
  std::vector<ParameterSlice> values;
  std::vector<std::uint64_t> offsets;
  /// Where what travels begins in the lane, likewise.
  std::vector<std::uint64_t> lane_offsets;
};

struct ChunkLayout {
  struct Chunk {
    /// Of its states; of no bytes where these are in no file.
    offload::Chunk place;
    std::vector<ChunkPart> parts;
  };
  std::vector<Chunk> chunks;
  std::uint64_t pool_bytes = 0, file_bytes = 0;
  /// What travels with a chunk at most.
  std::uint64_t lane_bytes = 0;
};

/// A parameter, of which this rank updates something, with what of it is not on the device.
struct StatefulParameter {
  const Parameter* parameter = nullptr;
  /// Optimizer::states() and behind them its master, where that is elsewhere, and its compute copy
  /// likewise.
  std::vector<StateSpec> states;
  /// Where among them, if it is.
  std::optional<std::size_t> place_of(Kept what) const;
  /// Whether any of them is an optimizer's.
  bool has_states() const;
  /// Optimizer::divisible().
  std::int64_t divisible = 0;
  /// What an update on the host brings from the device or sends there, one value for each element.
  std::vector<StateSpec> travelling = {};
};

/// In the given order; of a chunk compute copies lie together, behind all else. Neither the states
/// of a chunk, where they are in a file, nor what travels with it take more than an eighth of the
/// buffer, if they can be cut. RecipeError, with the size that suffices, where one of both is
/// indivisible and larger than the buffer.
ChunkLayout chunk_layout(std::span<const StatefulParameter> parameters, const Offload& offload);

}  // namespace llmtrain::optim
