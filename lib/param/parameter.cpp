#include "lib/param/parameter.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "lib/base/require.hpp"
#include "lib/param/parameter_words.hpp"
#include "lib/param/slices.hpp"

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

// Part of a group's buffer, if it has this one, that belongs to one member.
Tensor member_view(const Tensor& group, std::int64_t begin, const Shape& shape) {
  if (!group.defined()) return {};
  if (shape.rank() == 1) return group.columns(begin, shape[0]);
  const std::int64_t rows = shape.rank() == 3 ? shape[1] : 1;  // of each element of the first dim
  return group.row_range(begin * rows, shape.rows()).reshape(shape);
}

}  // namespace

void ParameterStore::slice(const std::function<std::int64_t(const Parameter&)>& piece,
                           const Shards& shards) {
  std::map<const Communicator*, std::vector<std::int64_t>> loads_of;
  for (Parameter* p : local_) {
    if (!p->is_trained()) continue;
    const Communicator& owners = mesh_->owners(p->holders_of_data());
    const int ranks = owners.size();
    if (ranks == 1) {
      p->shards_.parameters = shards.parameters_of_one;
      continue;
    }
    std::vector<std::int64_t>& loads = loads_of[&owners];
    loads.resize(static_cast<std::size_t>(ranks));
    const std::int64_t elements = p->box().shape.numel();
    const std::int64_t indivisible = piece(*p);
    if (indivisible == 0) {  // by what ranks of tp have alike: each chooses the same owner
      p->slice_counts_.assign(static_cast<std::size_t>(ranks), 0);
      const auto owner = std::min_element(loads.begin(), loads.end());
      *owner += p->global_shape().numel();
      p->slice_counts_[static_cast<std::size_t>(owner - loads.begin())] = elements;
    } else {
      const SlicedTensor tensor{.elements = elements,
                                .step = std::lcm(kSliceElements, indivisible)};
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
      if (!trained || !dtypes.rounding_seed) continue;
      p->rounding_ = words_of(*p, *dtypes.rounding_seed, "stochastic rounding");
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
    p->master_elsewhere_ = dtypes.master_elsewhere && p->has_master() && p->has_separate_copy();
    p->copy_elsewhere_ = dtypes.copy_elsewhere && p->shards().parameters;
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
  if (!first.shards().parameters) {
    open_compute(device);
  } else if (!first.copy_is_elsewhere()) {
    own_compute_ = make_owned(dtypes.compute, Category::params);
  }
  if (first.has_master() && first.has_separate_copy() && !first.master_is_elsewhere()) {
    Tensor& kept = dtypes.form == MasterForm::remainder ? remainder_ : master_;
    kept = make_master(first.kept_master_dtype());
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
