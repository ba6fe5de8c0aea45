#include "lib/param/parameter.hpp"

#include <algorithm>
#include <array>

#include "lib/base/philox.hpp"
#include "lib/base/require.hpp"

namespace llmtrain {

std::string_view to_string(ParameterRole role) {
  constexpr std::array<std::string_view, 5> kNames{"matrix", "embedding", "head", "norm", "bias"};
  return kNames[static_cast<int>(role)];
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
    require(box.shape.rank() == first.rank() && box.shape.rank() <= 2 &&
                (box.shape.rank() < 2 || box.shape[1] == first[1]),
            "parameter {} {} cannot share a buffer with {}", spec.name, to_string(box.shape),
            to_string(first));
    parameters_.push_back(std::make_unique<Parameter>(std::move(spec), std::move(box)));
    group->members_.push_back(parameters_.back().get());
  }
  groups_.push_back(std::move(group));
  return *groups_.back();
}

namespace {

// Part of a group's buffer that belongs to one member.
Tensor member_view(const Tensor& group, std::int64_t begin, const Shape& shape) {
  return shape.rank() == 1 ? group.columns(begin, shape[0])
                           : group.row_range(begin, shape[0]).reshape(shape);
}

}  // namespace

void ParameterStore::allocate(Device& device, const ParameterDTypes& dtypes, bool trainable) {
  for (const auto& group : groups_) {
    std::int64_t rows = 0;
    for (const Parameter* p : group->members_) rows += p->box().shape[0];
    const Shape shape = group->members_.front()->box().shape.with(0, rows);
    group->compute_ = device.allocate(shape, dtypes.compute, Category::params, group->name());
    group->master_ = dtypes.master == dtypes.compute
                         ? group->compute_
                         : device.allocate(shape, dtypes.master, Category::master, group->name());
    if (trainable) {
      group->grad_ = device.allocate(shape, dtypes.grad, Category::grads, group->name());
    }
    std::int64_t begin = 0;
    for (Parameter* p : group->members_) {
      p->compute_ = member_view(group->compute_, begin, p->box().shape);
      p->master_ = member_view(group->master_, begin, p->box().shape);
      if (trainable) p->grad_ = member_view(group->grad_, begin, p->box().shape);
      begin += p->box().shape[0];
    }
  }
}

namespace {

double initial_value(const Initializer& init, PhiloxKey key, std::uint64_t index) {
  switch (init.kind) {
    case Initializer::Kind::zeros:
      return 0;
    case Initializer::Kind::ones:
      return 1;
    case Initializer::Kind::normal:
      return init.std * normal_quantile(unit_interval(philox_word(key, 0, index)));
  }
  return 0;
}

// Calls visit(local_begin, logical_begin, count) for each run of logically adjacent elements.
template <class Visit>
void for_each_row(const Box& box, const Shape& global, const Visit& visit) {
  const int rank = box.shape.rank();
  const std::int64_t cols = box.shape.cols();
  for (std::int64_t row = 0; row < box.shape.rows(); ++row) {
    std::int64_t rest = row;
    std::int64_t logical = box.offset[std::max(0, rank - 1)];
    std::int64_t stride = global.cols();
    for (int d = rank - 2; d >= 0; --d) {
      logical += (box.offset[d] + rest % box.shape[d]) * stride;
      rest /= box.shape[d];
      stride *= global[d];
    }
    visit(row * cols, logical, cols);
  }
}

template <class T>
std::vector<std::byte> initial_values(const Parameter& p, std::uint64_t seed) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(p.box().shape.numel()) * sizeof(T));
  T* values = reinterpret_cast<T*>(bytes.data());
  const PhiloxKey key = philox_key(seed, "init", p.name());
  for_each_row(
      p.box(), p.global_shape(), [&](std::int64_t local, std::int64_t logical, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) {
          values[local + i] = static_cast<T>(
              initial_value(p.initializer(), key, static_cast<std::uint64_t>(logical + i)));
        }
      });
  return bytes;
}

}  // namespace

void ParameterStore::initialize(std::uint64_t seed) {
  for (const auto& p : parameters_) {
    if (p->master().device().is_meta()) continue;
    write(*p, p->master().dtype() == DType::f64 ? initial_values<double>(*p, seed)
                                                : initial_values<float>(*p, seed));
  }
}

void ParameterStore::write(const Parameter& p, std::span<const std::byte> master_values) {
  p.master().device().copy_from_host(p.master(), master_values);
  if (!p.has_separate_master()) return;
  require(p.master().dtype() == DType::f32 && p.compute().dtype() == DType::bf16,
          "{}: no rounding from {} to {}", p.name(), to_string(p.master().dtype()),
          to_string(p.compute().dtype()));
  std::vector<bf16> rounded(static_cast<std::size_t>(p.master().numel()));
  const auto* values = reinterpret_cast<const float*>(master_values.data());
  std::transform(values, values + rounded.size(), rounded.begin(), to_bf16);
  p.compute().device().copy_from_host(p.compute(), std::as_bytes(std::span(rounded)));
}

std::vector<std::byte> ParameterStore::read(const Parameter& p) const {
  std::vector<std::byte> values(p.master().view().bytes());
  p.master().device().copy_to_host(values, p.master());
  return values;
}

Parameter& ParameterStore::find(std::string_view name) const {
  const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                  [&](const auto& p) { return p->name() == name; });
  require(found != parameters_.end(), "no parameter {}", name);
  return **found;
}

std::int64_t ParameterStore::num_elements() const {
  std::int64_t n = 0;
  for (const auto& p : parameters_) n += p->global_shape().numel();
  return n;
}

}  // namespace llmtrain
