#include "lib/param/parameter.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <numeric>

#include "lib/base/philox.hpp"
#include "lib/base/require.hpp"
#include "lib/param/slices.hpp"
#include "lib/tensor/split_master.hpp"

namespace llmtrain {

std::string_view to_string(ParameterRole role) {
  constexpr std::array<std::string_view, 5> kNames{"matrix", "embedding", "head", "norm", "bias"};
  return kNames[static_cast<int>(role)];
}

Parameter::Parameter(ParameterSpec spec, Box box, int stage_rank)
    : spec_(std::move(spec)), box_(std::move(box)), own_{0, box_.shape.numel()} {
  const std::vector<int>& holders = spec_.holders;
  if (holders.empty()) return;
  local_ = std::ranges::find(holders, stage_rank) != holders.end();
  first_held_ = holders.front() == stage_rank;
}

bool counts_here(const Parameter& parameter, const Mesh& mesh) {
  constexpr std::array kSplitting{Axis::tp};
  return parameter.is_local() && parameter.is_first_held() &&
         is_first_replica(parameter.placement(), mesh, kSplitting);
}

ParameterGroup& ParameterStore::declare(ParameterSpec spec) {
  std::vector<ParameterSpec> one;
  one.push_back(std::move(spec));
  return declare(std::move(one));
}

ParameterGroup& ParameterStore::declare(std::vector<ParameterSpec> specs) {
  require(!specs.empty(), "an empty parameter group");
  auto group = std::make_unique<ParameterGroup>();
  for (ParameterSpec& spec : specs) {
    const bool twice = std::any_of(parameters_.begin(), parameters_.end(),
                                   [&](const auto& p) { return p->name() == spec.name; });
    require(!twice, "parameter {} declared twice", spec.name);
    Box box = local_box(spec.placement, spec.shape, *mesh_, spec.name);
    const auto& first = group->members_.empty() ? box.shape : group->members_.front()->box().shape;
    require(box.shape.rank() <= 3 && box.shape.with(0, 0) == first.with(0, 0),
            "parameter {} {} cannot share a buffer with {}", spec.name, to_string(box.shape),
            to_string(first));
    if (spec.holders.empty()) spec.holders = holders_;
    parameters_.push_back(
        std::make_unique<Parameter>(std::move(spec), std::move(box), mesh_->index(Axis::pp)));
    const bool local = parameters_.back()->is_local();
    group->members_.push_back(parameters_.back().get());
    require(local == group->members_.front()->is_local(), "{}: a group that is partly local",
            group->name());
    require(parameters_.back()->is_trained() == group->members_.front()->is_trained(),
            "{}: a group that is partly trained", group->name());
    if (local) local_.push_back(parameters_.back().get());
  }
  const Parameter& first = *group->members_.front();
  if (first.is_local() && first.is_trained()) local_groups_.push_back(group.get());
  groups_.push_back(std::move(group));
  return *groups_.back();
}

namespace {

// Words are drawn by logical index, so that they do not depend on what part this rank holds.
StochasticRounding rounding_of(const Parameter& p, std::uint64_t seed) {
  const Box& box = p.box();
  StochasticRounding rounding{.on = true, .key = philox_key(seed, "stochastic rounding", p.name())};
  rounding.before = p.own_slice().first;
  rounding.columns = box.shape.numel();
  rounding.first = 0;
  std::int64_t stride = 1;  // of dim d
  int parts = 0;
  for (int d = box.shape.rank() - 1; d >= 0; --d) {
    rounding.first += box.offset[d] * stride;
    if (d > 0 && box.shape[d] != p.global_shape()[d]) {
      require(++parts == 1, "{}: parts along several dims", p.name());
      rounding.columns = box.shape[d] * stride;
      rounding.stride = p.global_shape()[d] * stride;
    }
    stride *= p.global_shape()[d];
  }
  return rounding;
}

// Part of a group's buffer, if it has this one, that belongs to one member.
Tensor member_view(const Tensor& group, std::int64_t begin, const Shape& shape) {
  if (!group.defined()) return {};
  if (shape.rank() == 1) return group.columns(begin, shape[0]);
  const std::int64_t rows = shape.rank() == 3 ? shape[1] : 1;  // of each element of the first dim
  return group.row_range(begin * rows, shape.rows()).reshape(shape);
}

}  // namespace

void ParameterStore::slice(const std::function<bool(const Parameter&)>& whole,
                           const Shards& shards) {
  std::map<const Communicator*, std::vector<std::int64_t>> loads_of;
  for (Parameter* p : local_) {
    if (!p->is_trained()) continue;
    const Communicator& owners = mesh_->owners(p->holders_of_data());
    const int ranks = owners.size();
    if (ranks == 1) continue;
    std::vector<std::int64_t>& loads = loads_of[&owners];
    loads.resize(static_cast<std::size_t>(ranks));
    const std::int64_t elements = p->box().shape.numel();
    if (whole(*p)) {  // parts on ranks of tp are as large: each chooses the same owner
      p->slice_counts_.assign(static_cast<std::size_t>(ranks), 0);
      const auto owner = std::min_element(loads.begin(), loads.end());
      *owner += elements;
      p->slice_counts_[static_cast<std::size_t>(owner - loads.begin())] = elements;
    } else {
      const SlicedTensor tensor{.elements = elements};
      p->slice_counts_ = slice_counts(slice_cuts(std::span(&tensor, 1), ranks), 0, elements);
    }
    const auto here = p->slice_counts_.begin() + owners.rank();
    p->own_ = {std::accumulate(p->slice_counts_.begin(), here, std::int64_t{0}), *here};
    p->shards_ = shards;
  }
}

namespace {

// Of a tensor that the members of a group share, [total]: the next as many as the parameter's
// slice has.
Tensor next_slice(const Tensor& shared, std::int64_t& begin, const Parameter& p) {
  if (!shared.defined()) return {};
  const std::int64_t count = p.own_slice().count;
  begin += count;
  return shared.columns(begin - count, count).reshape(p.own_shape());
}

}  // namespace

void ParameterGroup::set_compute(Tensor whole) {
  compute_ = std::move(whole);
  std::int64_t begin = 0;
  for (Parameter* p : members_) {
    p->compute_ = member_view(compute_, begin, p->box().shape);
    begin += p->box().shape[0];
  }
}

void ParameterGroup::set_grad(Tensor whole) {
  grad_ = std::move(whole);
  std::int64_t begin = 0;
  for (Parameter* p : members_) {
    p->grad_ = member_view(grad_, begin, p->box().shape);
    begin += p->box().shape[0];
  }
}

void ParameterGroup::open_compute(Device& device) {
  set_compute(device.allocate(shape_, compute_dtype_, Category::params, name()));
}

void ParameterGroup::close_compute() { set_compute({}); }

void ParameterGroup::open_grad(Device& device) {
  set_grad(device.allocate(shape_, grad_dtype_, Category::grads, name()));
}

void ParameterGroup::close_grad() { set_grad({}); }

void ParameterStore::allocate(Device& device, const ParameterDTypes& dtypes, bool trainable) {
  require(dtypes.form == MasterForm::whole ||
              (dtypes.compute == DType::bf16 && dtypes.master == DType::f32),
          "a remainder of {} beside {}, or none", to_string(dtypes.master),
          to_string(dtypes.compute));
  require(!dtypes.rounding_seed || dtypes.form == MasterForm::none,
          "stochastic rounding of copies of masters");
  device_ = &device;
  const ParameterDTypes untrained{.compute = dtypes.master, .master = dtypes.master};
  for (const auto& group : groups_) {
    const Parameter& first = *group->members_.front();
    if (!first.is_local()) continue;
    const bool trained = first.is_trained();
    group->allocate(device, trained ? dtypes : untrained, trainable && trained);
    for (Parameter* p : group->members_) {
      if (trained && dtypes.rounding_seed) p->rounding_ = rounding_of(*p, *dtypes.rounding_seed);
    }
  }
}

void ParameterGroup::allocate(Device& device, const ParameterDTypes& dtypes, bool trainable) {
  std::int64_t rows = 0, owned = 0;
  for (Parameter* p : members_) {
    rows += p->box().shape[0];
    owned += p->own_slice().count;
    p->master_dtype_ = dtypes.master;
    p->compute_dtype_ = dtypes.compute;
    p->form_ = dtypes.form;
  }
  const Parameter& first = *members_.front();
  shape_ = first.box().shape.with(0, rows);
  compute_dtype_ = dtypes.compute;
  grad_dtype_ = dtypes.grad;
  // Of own slices, which may be empty: never no tensor.
  const auto make_owned = [&](DType dtype, Category category) {
    return device.allocate({std::max<std::int64_t>(1, owned)}, dtype, category, name());
  };
  const auto make_master = [&](DType dtype) {
    return first.is_sliced() ? make_owned(dtype, Category::master)
                             : device.allocate(shape_, dtype, Category::master, name());
  };
  if (first.shards().parameters) {
    own_compute_ = make_owned(dtypes.compute, Category::params);
  } else {
    open_compute(device);
  }
  if (dtypes.form == MasterForm::remainder) {
    remainder_ = make_master(DType::u16);
  } else if (first.has_separate_copy() && dtypes.form == MasterForm::whole) {
    master_ = make_master(dtypes.master);
  }
  if (trainable && first.shards().gradients) {
    own_grad_ = make_owned(dtypes.grad, Category::grads);
  } else if (trainable) {
    open_grad(device);
  }
  step_grad_ = own_grad_.defined() ? own_grad_ : grad_;
  set_own_parts();
}

void ParameterGroup::set_own_parts() {
  std::int64_t rows = 0;
  std::array<std::int64_t, 4> begin{};
  for (Parameter* p : members_) {
    const auto own = [&](const Tensor& owned, const Tensor& whole, std::int64_t& at) {
      if (owned.defined()) return next_slice(owned, at, *p);
      return whole.defined() ? p->own_part(whole) : Tensor();
    };
    p->own_compute_ = own(own_compute_, p->compute_, begin[0]);
    p->own_grad_ = own(own_grad_, p->grad_, begin[1]);
    if (!p->has_separate_copy()) {
      p->master_ = p->is_sliced() ? p->own_compute_ : p->compute_;
    } else if (p->is_sliced()) {
      p->master_ = next_slice(master_, begin[2], *p);
      p->remainder_ = next_slice(remainder_, begin[3], *p);
    } else {
      p->master_ = member_view(master_, rows, p->box().shape);
      p->remainder_ = member_view(remainder_, rows, p->box().shape);
    }
    rows += p->box().shape[0];
  }
}

namespace {

// First values of elements that are logically adjacent, from logical index `first` on.
template <class T>
void set_initial_values(const Initializer& init, PhiloxKey key, std::int64_t first,
                        std::span<T> values) {
  if (init.kind != Initializer::Kind::normal) {
    std::fill(values.begin(), values.end(), T(init.kind == Initializer::Kind::ones ? 1 : 0));
    return;
  }
  PhiloxWords words{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t index = static_cast<std::uint64_t>(first) + i;
    if (i == 0 || index % 4 == 0) words = philox_block(key, 0, index);
    values[i] = static_cast<T>(init.std * normal_quantile(unit_interval(words[index % 4])));
  }
}

// Logical index of the first element of the box's row `row`.
std::int64_t logical_begin(const Box& box, const Shape& global, std::int64_t row) {
  const int rank = box.shape.rank();
  std::int64_t logical = box.offset[std::max(0, rank - 1)];
  std::int64_t stride = global.cols();
  for (int d = rank - 2; d >= 0; --d) {
    logical += (box.offset[d] + row % box.shape[d]) * stride;
    row /= box.shape[d];
    stride *= global[d];
  }
  return logical;
}

// First values of the box's elements from `first` on, in its own order.
template <class T>
void set_box_values(const Parameter& p, PhiloxKey key, std::int64_t first, std::span<T> values) {
  const std::int64_t cols = p.box().shape.cols();
  for (std::size_t done = 0; done < values.size();) {
    const std::int64_t at = first + static_cast<std::int64_t>(done);
    const std::size_t count =
        std::min(values.size() - done, static_cast<std::size_t>(cols - at % cols));
    set_initial_values(p.initializer(), key,
                       logical_begin(p.box(), p.global_shape(), at / cols) + at % cols,
                       values.subspan(done, count));
    done += count;
  }
}

// Elements that are made, rounded or joined at a time, so that the host never holds a second
// parameter; while a GPU takes some, the next are made.
constexpr std::int64_t kChunk = 1 << 18;
// Of a chunk, by one thread.
constexpr std::int64_t kPart = 1 << 13;

template <class T>
void write_initial_values(ParameterStore& store, const Parameter& p, std::uint64_t seed,
                          int threads) {
  const PhiloxKey key = philox_key(seed, "init", p.name());
  const std::int64_t elements = p.box().shape.numel();
  std::vector<T> values;
  for (std::int64_t first = 0; first < elements; first += kChunk) {
    const std::int64_t count = std::min(kChunk, elements - first);
    values.resize(static_cast<std::size_t>(count));
#pragma omp parallel for num_threads(threads) schedule(static) if (count > kPart)
    for (std::int64_t begin = 0; begin < count; begin += kPart) {
      const auto size = static_cast<std::size_t>(std::min(kPart, count - begin));
      set_box_values(p, key, first + begin,
                     std::span(values).subspan(static_cast<std::size_t>(begin), size));
    }
    store.write_part(p, first, std::as_bytes(std::span(values)));
  }
}

std::size_t master_bytes(const Parameter& p) {
  return static_cast<std::size_t>(p.box().shape.numel()) * size_of(p.master_dtype());
}

// The part of elements [first, first + count) of the box that lies in the own slice.
ParameterSlice held_part(const Parameter& p, std::int64_t first, std::int64_t count) {
  const std::int64_t begin = std::max(first, p.own_slice().first);
  return {begin, std::max<std::int64_t>(0, std::min(first + count, p.own_slice().end()) - begin)};
}

// `count` elements from `first` on, as one row.
Tensor part_of(const Tensor& tensor, std::int64_t first, std::int64_t count) {
  return tensor.reshape({tensor.numel()}).columns(first, count);
}

}  // namespace

void ParameterStore::initialize(std::uint64_t seed, int threads) {
  for (const Parameter* p : local_) {
    if (device_->is_meta()) continue;
    if (p->master_dtype() == DType::f64) {
      write_initial_values<double>(*this, *p, seed, threads);
    } else {
      write_initial_values<float>(*this, *p, seed, threads);
    }
  }
}

void ParameterStore::write(const Parameter& p, std::span<const std::byte> master_values) {
  require(master_values.size() == master_bytes(p), "{}: {} bytes given for {} of {}", p.name(),
          master_values.size(), to_string(p.box().shape), to_string(p.master_dtype()));
  write_part(p, 0, master_values);
}

namespace {

// What this rank has of the compute copy: the box, or with Shards the own slice; and where in the
// box that begins.
struct HeldCopy {
  Tensor tensor;
  std::int64_t first;
};
HeldCopy held_copy(const Parameter& p) {
  if (p.shards().parameters) return {p.own_compute(), p.own_slice().first};
  return {p.compute(), 0};
}

// Of `values`, elements [first, ..) of `size` bytes each, those of `some`.
std::span<const std::byte> bytes_of(std::span<const std::byte> values, std::int64_t first,
                                    const ParameterSlice& some, std::uint64_t size) {
  return values.subspan(static_cast<std::uint64_t>(some.first - first) * size,
                        static_cast<std::uint64_t>(some.count) * size);
}

}  // namespace

void ParameterStore::write_part(const Parameter& p, std::int64_t first,
                                std::span<const std::byte> master_values) {
  const std::uint64_t size = size_of(p.master_dtype());
  const auto count = static_cast<std::int64_t>(master_values.size() / size);
  const ParameterSlice own = held_part(p, first, count);
  const ParameterSlice copied = p.shards().parameters ? own : ParameterSlice{first, count};
  const HeldCopy copy = held_copy(p);
  if (!p.has_separate_copy()) {
    if (copied.count == 0) return;
    device_->copy_from_host(part_of(copy.tensor, copied.first - copy.first, copied.count),
                            bytes_of(master_values, first, copied, size));
    return;
  }
  if (p.master().defined() && own.count > 0) {
    device_->copy_from_host(part_of(p.master(), own.first - p.own_slice().first, own.count),
                            bytes_of(master_values, first, own, size));
  }
  require(p.master_dtype() == DType::f32 && is_half_width(p.compute_dtype()),
          "{}: no rounding from {} to {}", p.name(), to_string(p.master_dtype()),
          to_string(p.compute_dtype()));
  const bool to_f16_copies = p.compute_dtype() == DType::f16;
  std::vector<std::uint16_t> copies, remainders;
  for (std::int64_t begin = copied.first; begin < copied.end(); begin += kChunk) {
    const ParameterSlice chunk{begin, std::min(kChunk, copied.end() - begin)};
    const std::span<const std::byte> values = bytes_of(master_values, first, chunk, size);
    copies.resize(static_cast<std::size_t>(chunk.count));
    remainders.resize(copies.size());
    for (std::size_t i = 0; i < copies.size(); ++i) {
      float master = 0;
      std::memcpy(&master, &values[i * sizeof(float)], sizeof(float));
      const MasterParts parts = split_master(master);
      copies[i] = to_f16_copies ? to_f16(master).bits : parts.copy.bits;
      remainders[i] = parts.remainder;
    }
    device_->copy_from_host(part_of(copy.tensor, begin - copy.first, chunk.count),
                            std::as_bytes(std::span(copies)));
    const ParameterSlice some = held_part(p, begin, chunk.count);
    if (!p.remainder().defined() || some.count == 0) continue;
    device_->copy_from_host(
        part_of(p.remainder(), some.first - p.own_slice().first, some.count),
        bytes_of(std::as_bytes(std::span(remainders)), begin, some, sizeof(std::uint16_t)));
  }
}

std::vector<std::byte> ParameterStore::read(const Parameter& p) const {
  std::vector<std::byte> values(master_bytes(p));
  read_part(p, 0, values);
  return values;
}

void ParameterStore::read_part(const Parameter& p, std::int64_t first,
                               std::span<std::byte> master_values) const {
  const auto count = static_cast<std::int64_t>(master_values.size() / size_of(p.master_dtype()));
  if (count == 0) return;
  const bool in_copy = !p.has_master() || !p.has_separate_copy();
  require(held_part(p, first, count).count == count || (in_copy && !p.shards().parameters),
          "{}: elements {} to {} of the master are another rank's", p.name(), first, first + count);
  const HeldCopy copy = held_copy(p);
  if (!p.has_separate_copy()) {
    device_->copy_to_host(master_values, part_of(copy.tensor, first - copy.first, count));
    return;
  }
  if (p.master().defined()) {
    device_->copy_to_host(master_values, part_of(p.master(), first - p.own_slice().first, count));
    return;
  }
  std::vector<bf16> copies;
  std::vector<std::uint16_t> remainders;
  for (std::int64_t begin = 0; begin < count; begin += kChunk) {
    const std::int64_t n = std::min(kChunk, count - begin);
    copies.resize(static_cast<std::size_t>(n));
    remainders.resize(copies.size());
    device_->copy_to_host(std::as_writable_bytes(std::span(copies)),
                          part_of(copy.tensor, first + begin - copy.first, n));
    if (p.remainder().defined()) {  // else the copy alone is the value
      device_->copy_to_host(std::as_writable_bytes(std::span(remainders)),
                            part_of(p.remainder(), first + begin - p.own_slice().first, n));
    }
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const float master = join_master({copies[at], remainders[at]});
      std::memcpy(&master_values[static_cast<std::size_t>(begin + i) * sizeof(float)], &master,
                  sizeof(float));
    }
  }
}

Parameter& ParameterStore::find(std::string_view name) const {
  const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                  [&](const auto& p) { return p->name() == name; });
  require(found != parameters_.end(), "no parameter {}", name);
  return **found;
}

std::int64_t ParameterStore::num_elements() const {
  std::int64_t n = 0;
  for (const auto& p : parameters_) n += p->is_trained() ? p->global_shape().numel() : 0;
  return n;
}

}  // namespace llmtrain
