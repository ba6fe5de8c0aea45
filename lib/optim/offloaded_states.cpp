#include "lib/optim/offloaded_states.hpp"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "kernels/elementwise.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::optim {

namespace {

constexpr std::uint64_t kAlignment = offload::ScratchFile::kAlignment;

/// Elements in the middle of another tensor's memory, which lives as long as they do.
Tensor inside(const Tensor& of, const View& view) {
  const auto owner = std::make_shared<Tensor>(of);
  return {std::shared_ptr<Storage>(owner, const_cast<Storage*>(&owner->storage())), view};
}

/// Which of a parameter's states its master is, where it is one.
std::size_t master_of(const StatefulParameter& p) { return p.states.size() - 1; }

/// Zeros of any type.
void clear(const kernels::KernelCtx& ctx, View of) {
  of.shape = {static_cast<std::int64_t>(of.bytes())};
  of.row_stride = of.shape[0];
  of.dtype = DType::u8;
  launch(ctx, kernels::Fill{.y = of, .value = 0});
}

/// In which shape an optimizer has a state: that of its box where the rank has all of it.
Shape shape_of(const StateSpec& state, const Parameter& parameter, std::int64_t count) {
  const TensorPlace place = place_of(state, parameter);
  return count == place.box.shape.numel() ? place.box.shape : Shape{count};
}

}  // namespace

OffloadedStates::OffloadedStates(const kernels::KernelCtx& ctx, const OptimizerOptions& options,
                                 const Mesh& mesh, std::span<const OptimizedParameter> parameters,
                                 std::span<const StatefulParameter> stateful,
                                 const Offload& offload)
    : stateful_(stateful.begin(), stateful.end()),
      layout_(chunk_layout(stateful_, offload.buffer_bytes)) {
  Device& device = *ctx.device;
  require(device.kind() != DeviceKind::cuda, "optimizer states of a GPU in a file");
  if (layout_.chunks.empty()) return;
  pool_ = device.allocate({static_cast<std::int64_t>(layout_.pool_bytes + kAlignment)}, DType::u8,
                          Category::offload, "offload pool");
  const auto address = reinterpret_cast<std::uintptr_t>(pool_.view().data);
  pool_begin_ = pool_.view().as<std::byte>() + (kAlignment - address % kAlignment) % kAlignment;
  chunks_.resize(layout_.chunks.size());
  for (std::size_t c = 0; c < chunks_.size(); ++c) bind_chunk(c, parameters, device, mesh, options);
  if (!device.is_meta()) open(offload);
  fill(ctx);
}

OffloadedStates::~OffloadedStates() = default;

void OffloadedStates::bind_chunk(std::size_t chunk, std::span<const OptimizedParameter> parameters,
                                 Device& device, const Mesh& mesh,
                                 const OptimizerOptions& options) {
  const ChunkLayout::Chunk& layout = layout_.chunks[chunk];
  ChunkUpdate& update = chunks_[chunk];
  for (const ChunkPart& part : layout.parts) {
    const StatefulParameter& p = stateful_[part.parameter];
    OptimizedParameter& optimized = update.parameters.emplace_back(parameters[part.parameter]);
    if (part.elements.count < p.parameter->own_slice().count) optimized.part = part.elements;
    for (std::size_t s = 0; s < p.states.size(); ++s) {
      const Shape shape = shape_of(p.states[s], *p.parameter, part.values[s].count);
      const Tensor values =
          inside(pool_, {.data = pool_begin_ + layout.place.pool_offset + part.offsets[s],
                         .dtype = p.states[s].dtype,
                         .shape = shape,
                         .row_stride = shape.cols()});
      if (p.parameter->master_is_elsewhere() && s == master_of(p)) {
        optimized.master = values;
      } else {
        optimized.states.push_back(values);
      }
    }
  }
  update.optimizer = options.name().make(options.name);
  update.optimizer->bind(device, mesh, update.parameters);
}

void OffloadedStates::open(const Offload& offload) {
  require(!offload.directory.empty(), "optimizer states in a file without a directory");
  std::vector<offload::Chunk> chunks;
  for (const ChunkLayout::Chunk& chunk : layout_.chunks) chunks.push_back(chunk.place);
  store_ = std::make_unique<offload::ChunkStore>(
      offload::ScratchFile(offload.directory, layout_.file_bytes), std::move(chunks), pool_begin_,
      [this](std::size_t chunk, std::uint64_t begin, std::uint64_t end) {
        return names_in(chunk, begin, end);
      },
      offload::StoreOptions{.checksums = offload.checksums});
}

void OffloadedStates::fill(const kernels::KernelCtx& ctx) const {
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    if (store_) store_->acquire_fresh(c);
    for (std::size_t i = 0; i < chunks_[c].parameters.size(); ++i) {
      const StatefulParameter& p = stateful_[layout_.chunks[c].parts[i].parameter];
      const OptimizedParameter& optimized = chunks_[c].parameters[i];
      for (std::size_t s = 0; s < optimized.states.size(); ++s) {
        launch(ctx, kernels::Fill{.y = optimized.states[s], .value = p.states[s].initial});
      }
      if (optimized.master.defined()) clear(ctx, optimized.master);
    }
    if (store_) store_->release(c);
  }
}

void OffloadedStates::update(const kernels::KernelCtx& ctx, const View& decision) const {
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    if (store_) store_->acquire(c);
    chunks_[c].optimizer->update(ctx, decision);
    if (store_) store_->release(c);
  }
}

template <class Visit>
void OffloadedStates::for_parts(std::size_t parameter, std::size_t state, std::int64_t first,
                                std::uint64_t bytes, const Visit& visit) const {
  const auto size = static_cast<std::int64_t>(size_of(stateful_[parameter].states[state].dtype));
  const std::int64_t end = first + static_cast<std::int64_t>(bytes) / size;
  for (std::size_t c = 0; c < layout_.chunks.size(); ++c) {
    for (const ChunkPart& part : layout_.chunks[c].parts) {
      if (part.parameter != parameter) continue;
      const std::int64_t from = std::max(first, part.values[state].first);
      const std::int64_t to = std::min(end, part.values[state].end());
      if (from >= to) continue;
      visit(c,
            part.offsets[state] +
                static_cast<std::uint64_t>((from - part.values[state].first) * size),
            static_cast<std::size_t>((from - first) * size),
            static_cast<std::size_t>((to - from) * size));
    }
  }
}

void OffloadedStates::read(std::size_t parameter, std::size_t state, std::int64_t first,
                           std::span<std::byte> to) const {
  if (!store_) return;
  for_parts(parameter, state, first, to.size(),
            [&](std::size_t chunk, std::uint64_t offset, std::size_t at, std::size_t bytes) {
              store_->read(chunk, offset, to.subspan(at, bytes));
            });
}

void OffloadedStates::write(std::size_t parameter, std::size_t state, std::int64_t first,
                            std::span<const std::byte> values) const {
  if (!store_) return;
  for_parts(parameter, state, first, values.size(),
            [&](std::size_t chunk, std::uint64_t offset, std::size_t at, std::size_t bytes) {
              store_->write(chunk, offset, values.subspan(at, bytes));
            });
}

std::size_t OffloadedStates::index_of(const Parameter& parameter) const {
  const auto at = std::ranges::find(stateful_, &parameter, &StatefulParameter::parameter);
  require(at != stateful_.end(), "{} has no master in a file", parameter.name());
  return static_cast<std::size_t>(at - stateful_.begin());
}

void OffloadedStates::read_masters(const Parameter& parameter, std::int64_t first,
                                   std::span<std::byte> to) const {
  const std::size_t index = index_of(parameter);
  read(index, master_of(stateful_[index]), first, to);
}

void OffloadedStates::write_masters(const Parameter& parameter, std::int64_t first,
                                    std::span<const std::byte> values) const {
  const std::size_t index = index_of(parameter);
  write(index, master_of(stateful_[index]), first, values);
}

std::string OffloadedStates::names_in(std::size_t chunk, std::uint64_t begin,
                                      std::uint64_t end) const {
  constexpr std::size_t kMost = 3;
  std::vector<std::string> names;
  for (const ChunkPart& part : layout_.chunks[chunk].parts) {
    const StatefulParameter& p = stateful_[part.parameter];
    for (std::size_t s = 0; s < p.states.size(); ++s) {
      const std::uint64_t bytes =
          static_cast<std::uint64_t>(part.values[s].count) * size_of(p.states[s].dtype);
      if (part.offsets[s] >= end || part.offsets[s] + bytes <= begin) continue;
      names.push_back(fmt::format("{}#{}", p.parameter->name(), p.states[s].name));
    }
  }
  const std::size_t more = names.size() - std::min(names.size(), kMost);
  names.resize(std::min(names.size(), kMost));
  return fmt::format("{}{}", fmt::join(names, ", "),
                     more > 0 ? fmt::format(" and {} states more", more) : "");
}

std::string_view OffloadedStates::contents() const {
  const auto has_master = [](const StatefulParameter& p) {
    return p.parameter->master_is_elsewhere();
  };
  const auto has_states = [&](const StatefulParameter& p) {
    return p.states.size() > (has_master(p) ? 1 : 0);
  };
  if (std::ranges::none_of(stateful_, has_master)) return "optimizer states";
  return std::ranges::any_of(stateful_, has_states) ? "optimizer states and masters" : "masters";
}

std::string OffloadedStates::how() const { return store_ ? store_->how() : ""; }

offload::StoreTraffic OffloadedStates::traffic() const {
  return store_ ? store_->traffic() : offload::StoreTraffic{};
}

}  // namespace llmtrain::optim
