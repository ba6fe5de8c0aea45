#include "lib/optim/offloaded_states.hpp"

#include <algorithm>
#include <future>
#include <utility>

#include <fmt/ranges.h>

#include "kernels/elementwise.hpp"
#include "lib/base/require.hpp"
#include "lib/base/trace.hpp"

namespace llmtrain::optim {

namespace {

constexpr std::uint64_t kAlignment = offload::ScratchFile::kAlignment;

/// Elements in the middle of another tensor's memory, which lives as long as they do.
Tensor inside(const Tensor& of, const View& view) {
  const auto owner = std::make_shared<Tensor>(of);
  return {std::shared_ptr<Storage>(owner, const_cast<Storage*>(&owner->storage())), view};
}

/// Zeros of any type.
void clear(const kernels::KernelCtx& ctx, View of) {
  of.shape = {static_cast<std::int64_t>(of.bytes())};
  of.row_stride = of.shape[0];
  of.dtype = DType::u8;
  launch(ctx, kernels::Fill{.y = of, .value = 0});
}

struct Reading final : ValuesElsewhere::Coming {
  void arrive() override {
    if (!done.valid()) return;
    const trace::Scope span(trace::Kind::io, "wait for parameters");
    done.get();
  }
  std::future<void> done;  // of nothing on meta
};

/// In which shape an optimizer has a state: that of its box where the rank has all of it.
Shape shape_of(const StateSpec& state, const Parameter& parameter, std::int64_t count) {
  const TensorPlace place = place_of(state, parameter);
  return count == place.box.shape.numel() ? place.box.shape : Shape{count};
}

}  // namespace

OffloadedStates::OffloadedStates(const kernels::KernelCtx& ctx,
                                 std::span<const OptimizedParameter> parameters,
                                 std::span<const StatefulParameter> stateful,
                                 const Offload& offload)
    : stateful_(stateful.begin(), stateful.end()), layout_(chunk_layout(stateful_, offload)) {
  Device& device = *ctx.device;
  require(device.kind() != DeviceKind::cuda, "a pool of files in the memory of a GPU");
  if (layout_.chunks.empty()) return;
  pool_ = device.allocate({static_cast<std::int64_t>(layout_.pool_bytes + kAlignment)}, DType::u8,
                          Category::offload, "offload pool");
  const auto address = reinterpret_cast<std::uintptr_t>(pool_.view().data);
  pool_begin_ = pool_.view().as<std::byte>() + (kAlignment - address % kAlignment) % kAlignment;
  chunks_.resize(layout_.chunks.size());
  for (std::size_t c = 0; c < chunks_.size(); ++c) place_chunk(c, parameters);
  if (!device.is_meta()) open(offload);
  fill(ctx);
}

OffloadedStates::~OffloadedStates() = default;

void OffloadedStates::place_chunk(std::size_t chunk,
                                  std::span<const OptimizedParameter> parameters) {
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
      if (p.place_of(Kept::master) == s) {
        optimized.master = values;
      } else if (p.place_of(Kept::copy) == s) {
        optimized.copy = values;
      } else {
        optimized.states.push_back(values);
      }
    }
  }
}

void OffloadedStates::bind(const OptimizerOptions& options, Device& device, const Mesh& mesh) {
  for (ChunkUpdate& update : chunks_) {
    update.optimizer = options.name().make(options.name);
    update.optimizer->bind(device, mesh, update.parameters);
  }
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
      for (const Tensor& values : {optimized.master, optimized.copy}) {
        if (values.defined()) clear(ctx, values);
      }
    }
    if (store_) store_->release(c);
  }
}

void OffloadedStates::acquire(std::size_t chunk) const {
  if (store_) store_->acquire(chunk);
}

void OffloadedStates::release(std::size_t chunk) const {
  if (store_) store_->release(chunk);
}

void OffloadedStates::update(const kernels::KernelCtx& ctx, const View& decision) const {
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    acquire(c);
    chunks_[c].optimizer->update(ctx, decision);
    release(c);
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

std::pair<std::size_t, std::size_t> OffloadedStates::indices_of(const Parameter& parameter,
                                                                Kept what) const {
  const auto at = std::ranges::find(stateful_, &parameter, &StatefulParameter::parameter);
  require(at != stateful_.end() && at->place_of(what), "{} has no such values in a file",
          parameter.name());
  return {static_cast<std::size_t>(at - stateful_.begin()), *at->place_of(what)};
}

void OffloadedStates::read_kept(const Parameter& parameter, Kept what, std::int64_t first,
                                std::span<std::byte> to) const {
  const auto [index, state] = indices_of(parameter, what);
  read(index, state, first, to);
}

void OffloadedStates::write_kept(const Parameter& parameter, Kept what, std::int64_t first,
                                 std::span<const std::byte> values) const {
  const auto [index, state] = indices_of(parameter, what);
  write(index, state, first, values);
}

std::unique_ptr<ValuesElsewhere::Coming> OffloadedStates::bring_copies(
    std::vector<CopyRead> reads) const {
  auto coming = std::make_unique<Reading>();
  if (store_ == nullptr) {
    read_copies(reads);  // counts them
  } else {               // where there is no thread to be had, who waits reads
    coming->done = std::async([this, reads = std::move(reads)] { read_copies(reads); });
  }
  return coming;
}

void OffloadedStates::read_copies(std::span<const CopyRead> reads) const {
  CopyReader reader(*this);
  for (const CopyRead& read : reads) reader.read(*read.parameter, 0, read.to);
}

void OffloadedStates::CopyReader::read(const Parameter& parameter, std::int64_t first,
                                       std::span<std::byte> to) {
  constexpr std::uint64_t kBlock = offload::ChunkStore::kBlock;
  const OffloadedStates& of = *states_;
  const auto [index, state] = of.indices_of(parameter, Kept::copy);
  of.for_parts(index, state, first, to.size(),
               [&](std::size_t chunk, std::uint64_t offset, std::size_t at, std::size_t bytes) {
                 const std::uint64_t all = of.layout_.chunks[chunk].place.bytes;
                 for (std::uint64_t b = offset / kBlock; b * kBlock < offset + bytes; ++b) {
                   if (std::exchange(counted_, {chunk, b}) == std::pair{chunk, b}) continue;
                   of.copy_bytes_read_ += std::min(kBlock, all - b * kBlock);
                 }
                 if (of.store_) of.store_->read(chunk, offset, to.subspan(at, bytes), last_);
               });
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

std::string OffloadedStates::contents() const {
  const auto has = [&](Kept what) {
    return std::ranges::any_of(
        stateful_, [&](const StatefulParameter& p) { return p.place_of(what).has_value(); });
  };
  return contents_of({.states = std::ranges::any_of(stateful_, &StatefulParameter::has_states),
                      .masters = has(Kept::master),
                      .copies = has(Kept::copy)});
}

std::string OffloadedStates::how() const { return store_ ? store_->how() : ""; }

offload::StoreTraffic OffloadedStates::traffic() const {
  return store_ ? store_->traffic() : offload::StoreTraffic{};
}

}  // namespace llmtrain::optim
