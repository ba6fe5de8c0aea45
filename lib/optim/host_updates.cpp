#include "lib/optim/host_updates.hpp"

#include <algorithm>
#include <chrono>

#include "lib/base/activity.hpp"
#include "lib/base/refused_key.hpp"
#include "lib/base/require.hpp"
#include "lib/tensor/pinned_memory.hpp"

namespace llmtrain::optim {

namespace {

/// One brings what the next update needs, one is updated with, one goes; the others even out what
/// differs between chunks.
constexpr std::uint64_t kMostLanes = 8;
/// As large an arena as addresses allow, of memory that does not exist.
constexpr std::uint64_t kUnlimitedBytes = std::uint64_t{1} << 50;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// A tensor of a parameter on the device that an update on the host reads, or writes, or both.
struct Traveller {
  StateSpec spec;
  View on_device;  // of the own slice
  Tensor OptimizedParameter::*stands_for;
  bool comes_down = false, goes_up = false;
};

std::vector<Traveller> travellers_of(const Parameter& p) {
  const bool from_master = p.has_separate_copy() && p.master_form() == MasterForm::whole;
  std::vector<Traveller> all{{.spec = {.name = "gradient", .dtype = p.own_grad().dtype()},
                              .on_device = p.own_grad(),
                              .stands_for = &OptimizedParameter::gradient,
                              .comes_down = true}};
  if (!p.copy_is_elsewhere()) {
    all.push_back({.spec = copy_spec(p),
                   .on_device = p.own_compute(),
                   .stands_for = &OptimizedParameter::copy,
                   .comes_down = !from_master,  // else it is written anew
                   .goes_up = true});
  }
  if (!p.has_separate_copy() || !p.has_master() || p.master_is_elsewhere()) return all;
  const bool whole = p.master_form() == MasterForm::whole;
  all.push_back({.spec = master_spec(p),
                 .on_device = whole ? p.master() : p.remainder(),
                 .stands_for = &OptimizedParameter::master,
                 .comes_down = true,
                 .goes_up = true});
  return all;
}

Tensor elements_of(const Tensor& tensor, const ParameterSlice& some) {
  if (some.count == tensor.numel()) return tensor;
  return tensor.reshape({tensor.numel()}).columns(some.first, some.count);
}

/// Bytes [offset, ..) of a pool, as the elements of a parameter's own slice that are updated.
Tensor place_in(const Tensor& pool, std::uint64_t offset, DType dtype, const Shape& shape) {
  const auto first = static_cast<std::int64_t>(offset);
  const auto bytes = shape.numel() * static_cast<std::int64_t>(size_of(dtype));
  View view = pool.columns(first, bytes);
  view.dtype = dtype;
  view.shape = shape;
  view.row_stride = shape.cols();
  const auto owner = std::make_shared<Tensor>(pool);
  return {std::shared_ptr<Storage>(owner, const_cast<Storage*>(&owner->storage())), view};
}

void require_no_exchange(const Mesh& mesh, const Optimizer& optimizer, std::string_view name,
                         std::string_view place, std::span<const OptimizedParameter> parameters) {
  if (mesh.size(Axis::tp) == 1) return;
  for (const OptimizedParameter& p : parameters) {
    if (optimizer.divisible(*p.parameter) > 0) continue;
    throw RefusedKey(
        "offload.optimizer",
        fmt::format("{}, and updates of {} exchange among {} ranks of tp, which "
                    "have no way between hosts",
                    place, name, mesh.size(Axis::tp)),
        "leave it out, set parallelism.tp: 1, or choose an element-wise optimizer like "
        "adamw");
  }
}

}  // namespace

HostUpdates::HostUpdates(Device& device, const Offload& offload)
    : device_(&device), offload_(offload) {
  host_ = device.is_meta() ? std::make_unique<Device>(make_meta_memory(), kUnlimitedBytes)
                           : std::make_unique<Device>(make_cpu_memory(), physical_memory_bytes());
}

HostUpdates::~HostUpdates() = default;

kernels::KernelCtx HostUpdates::context(const kernels::KernelCtx& of_device) const {
  return {.device = host_.get(),
          .table = host_->is_meta() ? &kernels::meta_table() : &kernels::cpu_table(),
          .stream = host_->compute_stream(),
          .threads = of_device.threads,
          .determinism = of_device.determinism};
}

void HostUpdates::bind(const kernels::KernelCtx& of_device, const OptimizerOptions& options,
                       const Mesh& mesh, std::span<const OptimizedParameter> parameters,
                       std::vector<StatefulParameter> stateful) {
  const auto optimizer = options.name().make(options.name);
  require_no_exchange(mesh, *optimizer, options.name().name, offload_.in_file() ? "nvme" : "host",
                      parameters);
  for (StatefulParameter& p : stateful) {
    has_states_ = has_states_ || p.has_states();
    for (const Traveller& traveller : travellers_of(*p.parameter)) {
      p.travelling.push_back(traveller.spec);
    }
  }
  if (offload_.in_file()) {
    file_ = std::make_unique<OffloadedStates>(context(of_device), parameters, stateful, offload_);
  } else if (offload_.parameters) {
    copies_ = std::make_unique<HostCopies>(*device_, parameters);
  }
  const ChunkLayout layout = file_ ? file_->layout() : chunk_layout(stateful, offload_);
  if (!file_) allocate_masters(parameters);
  if (!parameters.empty()) allocate_lanes(layout);
  if (file_ && offload_.parameters) {
    file_copies_ = std::make_unique<FileCopies>(*file_, copy_lanes(), device_->is_meta());
  }
  for (std::size_t c = 0; c < layout.chunks.size(); ++c) {
    Chunk& chunk = chunks_.emplace_back();
    if (file_) chunk.parameters = file_->parameters_of(c);
    const std::vector<ChunkPart>& parts = layout.chunks[c].parts;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (!file_) {
        chunk.parameters.push_back(part_in_memory(parts[i], parameters[parts[i].parameter]));
      }
      add_travellers(chunk, parts[i], chunk.parameters[i], c % lanes_.size() * lane_bytes_);
    }
    chunk.optimizer = options.name().make(options.name);
  }
  // When all are there: optimizers keep where they are.
  for (Chunk& chunk : chunks_) chunk.optimizer->bind(*host_, mesh, chunk.parameters);
}

void HostUpdates::allocate_masters(std::span<const OptimizedParameter> parameters) {
  for (const OptimizedParameter& p : parameters) {
    if (!p.parameter->master_is_elsewhere()) continue;
    master_tensors_[p.parameter] =
        host_->allocate(p.parameter->own_shape(), p.parameter->kept_master_dtype(),
                        Category::master, p.parameter->name());
  }
}

void HostUpdates::allocate_lanes(const ChunkLayout& layout) {
  lane_bytes_ = layout.lane_bytes;
  const std::uint64_t room = std::max<std::uint64_t>(offload_.buffer_bytes / lane_bytes_, 1);
  const std::uint64_t lanes = std::min({kMostLanes, std::uint64_t{layout.chunks.size()}, room});
  pinned_ = device_->make_copy_queue();
  for (std::uint64_t i = 0; i < lanes; ++i) lanes_.push_back(device_->make_copy_queue());
  const Shape decision{kernels::UpdateDecision::kScalars};
  const std::uint64_t all = lanes * lane_bytes_;
  const std::uint64_t capacity =
      AddressSpace::round_up(all) + AddressSpace::round_up(sizeof(kernels::UpdateDecision));
  staging_ = std::make_unique<Device>(
      device_->is_meta() ? make_meta_memory() : make_pinned_memory(*pinned_), capacity);
  pool_ = staging_->allocate({static_cast<std::int64_t>(all)}, DType::u8, Category::offload,
                             "lanes of updates");
  decision_ = staging_->allocate(decision, DType::f64, Category::offload, "update decision");
}

std::vector<CopyLane> HostUpdates::copy_lanes() const {
  std::vector<CopyLane> all;
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    all.push_back({lanes_[l].get(), {pool_.view().as<std::byte>() + l * lane_bytes_, lane_bytes_}});
  }
  return all;
}

OptimizedParameter HostUpdates::part_in_memory(const ChunkPart& part,
                                               const OptimizedParameter& whole) const {
  OptimizedParameter here = whole;
  const Parameter& parameter = *whole.parameter;
  if (part.elements.count < parameter.own_slice().count) here.part = part.elements;
  for (std::size_t s = 0; s < here.states.size(); ++s) {
    here.states[s] = elements_of(whole.states[s], part.values[s]);
  }
  if (const auto at = master_tensors_.find(&parameter); at != master_tensors_.end()) {
    here.master = elements_of(at->second, part.elements);
  }
  if (copies_) here.copy = elements_of(copies_->of(parameter), part.elements);
  return here;
}

void HostUpdates::add_travellers(Chunk& chunk, const ChunkPart& part, OptimizedParameter& here,
                                 std::uint64_t lane_begin) {
  const Parameter& parameter = *here.parameter;
  const Shape shape = here.part ? Shape{part.elements.count} : parameter.own_shape();
  const std::vector<Traveller> travellers = travellers_of(parameter);
  for (std::size_t t = 0; t < travellers.size(); ++t) {
    const Traveller& traveller = travellers[t];
    const DType dtype = traveller.spec.dtype;
    const Tensor place = place_in(pool_, lane_begin + part.lane_offsets[t], dtype, shape);
    here.*traveller.stands_for = place;
    const Copy copy{.host = place.view().data,
                    .device = traveller.on_device.as<std::byte>() +
                              static_cast<std::size_t>(part.elements.first) * size_of(dtype),
                    .bytes = place.view().bytes()};
    if (traveller.comes_down) chunk.down.push_back(copy);
    if (traveller.goes_up) chunk.up.push_back(copy);
  }
}

bool HostUpdates::applies(const CopyQueue::Point& launched, const View& decision) {
  const Clock::time_point begin = Clock::now();
  pinned_->follow(launched);
  pinned_->to_host(decision_.view().data, decision.data, decision.bytes());
  pinned_->finish();
  times_.waited_for_decisions += seconds_since(begin);
  if (device_->is_meta()) return true;
  kernels::UpdateDecision made;
  staging_->copy_to_host(std::as_writable_bytes(std::span(&made, 1)), decision_);
  return made.applies();
}

void HostUpdates::bring(std::size_t chunk) {
  for (const Copy& copy : chunks_[chunk].down) {
    lane_of(chunk).to_host(copy.host, copy.device, copy.bytes);
  }
}

void HostUpdates::update_chunk(const kernels::KernelCtx& ctx, std::size_t chunk) const {
  if (file_) file_->acquire(chunk);
  chunks_[chunk].optimizer->update(ctx, decision_);
  if (file_) file_->release(chunk);
}

void HostUpdates::send(std::size_t chunk) {
  for (const Copy& copy : chunks_[chunk].up) {
    lane_of(chunk).to_device(copy.device, copy.host, copy.bytes);
  }
}

void HostUpdates::update(const kernels::KernelCtx& of_device, const View& decision) {
  if (chunks_.empty()) return;
  const Clock::time_point begin = Clock::now();
  const std::shared_ptr<const CopyQueue::Point> launched = pinned_->launched();
  if (applies(*launched, decision)) {
    if (copies_) copies_->finish();
    for (const auto& lane : lanes_) lane->follow(*launched);
    for (std::size_t c = 0; c < lanes_.size(); ++c) bring(c);
    const kernels::KernelCtx ctx = context(of_device);
    const auto arrive = [&](CopyQueue& lane) {
      const Clock::time_point from = Clock::now();
      lane.finish();
      times_.waited_for_copies += seconds_since(from);
    };
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      arrive(lane_of(c));
      update_chunk(ctx, c);
      send(c);
      // In the lane's order: what comes now is written when what goes has gone.
      if (c + lanes_.size() < chunks_.size()) bring(c + lanes_.size());
      activity::tick();
    }
    for (const auto& lane : lanes_) arrive(*lane);
  }
  times_.all += seconds_since(begin);
}

Tensor HostUpdates::kept_of(const Parameter& parameter, Kept what) const {
  if (what == Kept::copy && copies_) return copies_->of(parameter);
  const auto at = master_tensors_.find(&parameter);
  require(what == Kept::master && at != master_tensors_.end(), "the host has no such values of {}",
          parameter.name());
  return at->second;
}

void HostUpdates::read_kept(const Parameter& parameter, Kept what, std::int64_t first,
                            std::span<std::byte> to) const {
  if (file_) return file_->read_kept(parameter, what, first, to);
  const Tensor kept = kept_of(parameter, what);
  const auto count = static_cast<std::int64_t>(to.size() / size_of(kept.dtype()));
  host_->copy_to_host(to, elements_of(kept, {first, count}));
}

void HostUpdates::write_kept(const Parameter& parameter, Kept what, std::int64_t first,
                             std::span<const std::byte> values) const {
  if (file_) return file_->write_kept(parameter, what, first, values);
  const Tensor kept = kept_of(parameter, what);
  const auto count = static_cast<std::int64_t>(values.size() / size_of(kept.dtype()));
  if (what == Kept::copy) copies_->finish();
  host_->copy_from_host(elements_of(kept, {first, count}), values);
}

std::unique_ptr<ValuesElsewhere::Coming> HostUpdates::bring_copies(
    std::vector<CopyRead> reads) const {
  if (file_copies_) return file_copies_->bring(std::move(reads));
  require(copies_ != nullptr, "compute copies are on the device");
  return copies_->bring(reads);
}

std::uint64_t HostUpdates::copy_bytes_brought() const {
  if (file_copies_) return file_copies_->brought_bytes();
  return copies_ ? copies_->brought_bytes() : 0;
}

HostUpdateFacts HostUpdates::facts() const {
  HostUpdateFacts facts{.memory_bytes = host_->arena_extent_bytes(),
                        .pinned_bytes = staging_ ? staging_->arena_extent_bytes() : 0,
                        .brings_copies = offload_.parameters};
  if (!file_) {
    facts.contents = contents_of(
        {.states = has_states_, .masters = offload_.masters, .copies = offload_.parameters});
  }
  if (copies_) facts.copies_bytes = copies_->pinned_bytes();
  facts.pinned_bytes += facts.copies_bytes;
  for (const Chunk& chunk : chunks_) {
    for (const Copy& copy : chunk.down) facts.down_bytes += copy.bytes;
    for (const Copy& copy : chunk.up) facts.up_bytes += copy.bytes;
  }
  return facts;
}

}  // namespace llmtrain::optim
