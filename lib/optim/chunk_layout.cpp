#include "lib/optim/chunk_layout.hpp"

#include <algorithm>

#include <fmt/ranges.h>

#include "kernels/tensor_list.hpp"
#include "lib/base/refused_key.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::optim {

namespace {

constexpr std::uint64_t kAlignment = offload::ScratchFile::kAlignment;
/// As that of tensors of their own, so that kernels take the same paths.
constexpr std::uint64_t kTensorAlignment = AddressSpace::kAlignment;
/// Of the buffer; the others are read and written while one is updated.
constexpr std::uint64_t kChunks = 8;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t to) {
  return (value + to - 1) / to * to;
}

class Cutter {
 public:
  Cutter(std::span<const StatefulParameter> parameters, const Offload& offload)
      : parameters_(parameters),
        in_file_(offload.in_file()),
        // The pool begins where a block of the disk may.
        room_((offload.buffer_bytes - std::min(offload.buffer_bytes, kAlignment)) / kAlignment *
              kAlignment),
        target_(std::max(room_ / kChunks / kAlignment * kAlignment, kAlignment)) {}

  ChunkLayout cut() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const StatefulParameter& p = parameters_[i];
      p.divisible > 0 ? add_in_parts(i) : add_whole(i);
    }
    close();
    place();
    return std::move(layout_);
  }

 private:
  /// Bytes of a chunk: its states', in the file, and what travels with it.
  struct Sizes {
    std::uint64_t states = 0, lane = 0;
  };

  Sizes sizes_of(const StatefulParameter& p, std::int64_t elements) const {
    const auto bytes_of = [&](const std::vector<StateSpec>& specs) {
      std::uint64_t bytes = 0;
      for (const StateSpec& spec : specs) bytes += tensor_bytes(spec, *p.parameter, elements);
      return bytes;
    };
    return {.states = in_file_ ? bytes_of(p.states) : 0, .lane = bytes_of(p.travelling)};
  }

  static std::uint64_t tensor_bytes(const StateSpec& spec, const Parameter& parameter,
                                    std::int64_t elements) {
    const auto values = static_cast<std::uint64_t>(values_for(spec, parameter, elements));
    return round_up(values * size_of(spec.dtype), kTensorAlignment);
  }

  bool fits(const StatefulParameter& p, std::int64_t elements) const {
    const Sizes more = sizes_of(p, elements);
    return used_.states + more.states <= target_ && used_.lane + more.lane <= target_;
  }

  void add_whole(std::size_t index) {
    const StatefulParameter& p = parameters_[index];
    const std::int64_t count = p.parameter->own_slice().count;
    if (!fits(p, count)) close();
    add(index, {0, count});
  }

  void add_in_parts(std::size_t index) {
    const StatefulParameter& p = parameters_[index];
    const std::int64_t all = p.parameter->own_slice().count, step = kernels::kListChunk;
    require(step % p.divisible == 0, "parts of {} elements", p.divisible);
    for (std::int64_t first = 0; first < all;) {
      std::int64_t count = all - first;
      if (!fits(p, count)) {
        if (!fits(p, std::min(step, count))) close();
        count = std::min(step, count);  // even where it is more than is meant for a chunk
        while (first + count < all && fits(p, std::min(count + step, all - first))) {
          count = std::min(count + step, all - first);
        }
      }
      add(index, {first, count});
      first += count;
    }
  }

  void add(std::size_t index, const ParameterSlice& elements) {
    const StatefulParameter& p = parameters_[index];
    ChunkPart part{
        .parameter = index, .elements = elements, .values = {}, .offsets = {}, .lane_offsets = {}};
    for (const StateSpec& state : p.states) {
      const std::int64_t first = values_for(state, *p.parameter, elements.first);
      const std::int64_t count = values_for(state, *p.parameter, elements.count);
      part.values.push_back({first, count});
    }
    std::uint64_t at = used_.lane;
    for (const StateSpec& spec : p.travelling) {
      part.lane_offsets.push_back(at);
      at += tensor_bytes(spec, *p.parameter, elements.count);
    }
    part.offsets.resize(p.states.size());
    const Sizes more = sizes_of(p, elements.count);
    used_ = {used_.states + more.states, used_.lane + more.lane};
    parts_.push_back(std::move(part));
  }

  /// Copies are read without the rest: a unit's are one piece of the file, or few.
  void set_offsets() {
    std::uint64_t at = 0;
    for (const bool copies : {false, true}) {
      for (ChunkPart& part : parts_) {
        const StatefulParameter& p = parameters_[part.parameter];
        const auto copy = p.place_of(Kept::copy);
        for (std::size_t s = 0; s < p.states.size(); ++s) {
          if ((copy == s) != copies) continue;
          part.offsets[s] = at;
          at += tensor_bytes(p.states[s], *p.parameter, part.elements.count);
        }
      }
    }
    require(at == used_.states, "a chunk of {} bytes has {}", used_.states, at);
  }

  void close() {
    if (parts_.empty()) return;
    // What has no state needs no memory, but its update a chunk.
    const std::uint64_t in_file =
        in_file_ ? round_up(std::max<std::uint64_t>(used_.states, 1), kAlignment) : 0;
    const std::uint64_t in_lane = round_up(used_.lane, kAlignment);
    const std::uint64_t bytes = std::max(in_file, in_lane);
    const std::string& largest = parameters_[parts_.front().parameter].parameter->name();
    // Multiples of 4 KiB, so that no digit of the advice is rounded away.
    const auto kib = [](std::uint64_t of) { return fmt::format("{}KiB", of >> 10); };
    if (bytes > room_) {
      throw RefusedKey("offload.buffer",
                       fmt::format("has {}, and the tensors of {}, which an update needs at once, "
                                   "take {}",
                                   kib(room_), largest, kib(bytes)),
                       fmt::format("raise it to {}, or to {} for others to travel meanwhile",
                                   kib(bytes + kAlignment), kib(3 * bytes + kAlignment)));
    }
    if (in_file_) set_offsets();
    layout_.chunks.push_back({.place = {.bytes = in_file}, .parts = std::move(parts_)});
    layout_.lane_bytes = std::max(layout_.lane_bytes, in_lane);
    parts_.clear();
    used_ = {};
  }

  void place() {
    for (const auto& chunk : layout_.chunks) layout_.file_bytes += chunk.place.bytes;
    layout_.pool_bytes = std::min(room_, layout_.file_bytes);
    std::uint64_t file = 0, pool = 0;
    for (auto& chunk : layout_.chunks) {
      if (pool + chunk.place.bytes > layout_.pool_bytes) pool = 0;
      chunk.place.file_offset = file;
      chunk.place.pool_offset = pool;
      file += chunk.place.bytes;
      pool += chunk.place.bytes;
    }
  }

  std::span<const StatefulParameter> parameters_;
  bool in_file_;
  std::uint64_t room_, target_;
  std::vector<ChunkPart> parts_;  // of the chunk that is being filled
  Sizes used_;
  ChunkLayout layout_;
};

}  // namespace

std::string contents_of(const OffloadContents& contents) {
  std::vector<std::string_view> parts;
  if (contents.states) parts.emplace_back("optimizer states");
  if (contents.masters) parts.emplace_back("masters");
  if (contents.copies) parts.emplace_back("parameters");
  if (parts.empty()) return "optimizer states";
  const std::string_view last = parts.back();
  parts.pop_back();
  if (parts.empty()) return std::string(last);
  return fmt::format("{} and {}", fmt::join(parts, ", "), last);
}

StateSpec master_spec(const Parameter& parameter) {
  const bool whole = parameter.master_form() == MasterForm::whole;
  return {.name = whole ? "master" : "remainder", .dtype = parameter.kept_master_dtype()};
}

StateSpec copy_spec(const Parameter& parameter) {
  return {.name = "parameter", .dtype = parameter.compute_dtype()};
}

std::optional<std::size_t> StatefulParameter::place_of(Kept what) const {
  const bool has_copy = parameter->copy_is_elsewhere();
  if (what == Kept::copy) return has_copy ? std::optional(states.size() - 1) : std::nullopt;
  if (!parameter->master_is_elsewhere()) return std::nullopt;
  return states.size() - (has_copy ? 2 : 1);
}

bool StatefulParameter::has_states() const {
  const std::size_t kept = (place_of(Kept::master) ? 1u : 0u) + (place_of(Kept::copy) ? 1u : 0u);
  return states.size() > kept;
}

ChunkLayout chunk_layout(std::span<const StatefulParameter> parameters, const Offload& offload) {
  return Cutter(parameters, offload).cut();
}

}  // namespace llmtrain::optim
