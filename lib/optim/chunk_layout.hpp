#pragma once
/// How the states of a rank's parameters are cut into chunks, and where these lie in a file and in
/// the memory through which they pass. Sums only: plans and runs have the same.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/offload/chunk_store.hpp"
#include "lib/optim/optimizer.hpp"

namespace llmtrain::optim {

/// The recipe's `offload` for what an update alone reads.
struct Offload {
  /// What is kept beside compute copies goes to the file, too.
  bool masters = false;
  /// Most memory through which they pass.
  std::uint64_t buffer_bytes = std::uint64_t{256} << 20;
  bool checksums = true;
  /// Of the file. Where nothing is computed (meta) there is none.
  std::filesystem::path directory = {};
};

/// What stands for a master among states.
StateSpec master_spec(const Parameter& parameter);

/// What an update takes of one parameter at a time.
struct ChunkPart {
  std::size_t parameter = 0;
  /// Of the own elements, counted from their first.
  ParameterSlice elements;
  /// Of each state: which values, counted from the first of this rank, and where they begin in the
  /// chunk, in bytes.
  std::vector<ParameterSlice> values;
  std::vector<std::uint64_t> offsets;
};

struct ChunkLayout {
  struct Chunk {
    offload::Chunk place;
    std::vector<ChunkPart> parts;
  };
  std::vector<Chunk> chunks;
  std::uint64_t pool_bytes = 0, file_bytes = 0;
};

/// A parameter, of which this rank updates something, with what of it is in the file.
struct StatefulParameter {
  const Parameter* parameter = nullptr;
  /// Optimizer::states() and, where Parameter::master_is_elsewhere(), its master behind them.
  std::vector<StateSpec> states;
  /// Optimizer::divisible().
  std::int64_t divisible = 0;
};

/// In the given order. RecipeError, with the size that suffices, where the states of what is
/// indivisible are larger than the buffer.
ChunkLayout chunk_layout(std::span<const StatefulParameter> parameters, std::uint64_t buffer_bytes);

}  // namespace llmtrain::optim
