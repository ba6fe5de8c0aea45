#include "lib/engine/device_activations.hpp"

#include <utility>

#include "lib/base/require.hpp"
#include "lib/engine/activation_offload.hpp"

namespace llmtrain::engine {

/// What nodes one behind the other have saved; a block's. Lives as long as a way back.
class DeviceActivations::Group {
 public:
  /// `before`: what the walk back comes to next.
  Group(ActivationShelf& shelf, const std::vector<Leaving>& tensors, std::weak_ptr<Group> before);
  /// Of what nobody has taken copies may be under way.
  ~Group() {
    try {
      leave();
    } catch (const std::exception&) {
      // Of a device or a file that is of no use any more: whoever asks for more is told.
    }
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  std::size_t size() const { return values_.size(); }
  /// Frees the memory of tensors that were not taken, behind copies from it and to it.
  void leave();
  /// A tensor of the group, once. What this walk reads of the group before is on its way then.
  Tensor take(std::size_t number, const OpCtx& ctx);

 private:
  using Copies = std::shared_ptr<ActivationShelf::Copies>;
  struct Value {
    Tensor tensor;  // on the device; else undefined
    Shape shape;
    DType dtype = DType::f32;
    std::string tag;
    Part first = Part::input;
    bool is_taken = false;
    /// Of its tensor, for which launches do not hold yet.
    Copies copies = nullptr;
  };

  /// Begins to copy what is away and what a walk reads: `asked`, and without it all but what
  /// deferred weight parts alone do.
  void bring(const OpCtx& ctx, const Value* asked = nullptr);
  /// Launches from now on find its copy done.
  void hold_for(const Value& value);

  std::weak_ptr<Group> before_;
  std::vector<Value> values_;
  std::unique_ptr<ActivationShelf::Block> there_;
};

DeviceActivations::Group::Group(ActivationShelf& shelf, const std::vector<Leaving>& tensors,
                                std::weak_ptr<Group> before)
    : before_(std::move(before)) {
  std::vector<ActivationShelf::Item> items;
  for (const Leaving& leaving : tensors) {
    const View& view = leaving.tensor.view();
    const std::string tag = leaving.tensor.storage().tag();
    items.push_back({view.as<std::byte>(), view.bytes(), tag});
    values_.push_back({.tensor = leaving.tensor,
                       .shape = view.shape,
                       .dtype = view.dtype,
                       .tag = tag,
                       .first = leaving.first});
  }
  const auto next = before_.lock();
  ActivationShelf::Put put = shelf.put(items, next == nullptr ? nullptr : next->there_.get());
  there_ = std::move(put.block);
  for (Value& value : values_) value.copies = put.copies;
}

void DeviceActivations::Group::hold_for(const Value& value) {
  if (value.copies == nullptr) return;
  const Copies copies = value.copies;
  for (Value& other : values_) {
    if (other.copies == copies) other.copies = nullptr;
  }
  copies->hold_launches();
}

void DeviceActivations::Group::leave() {
  for (Value& value : values_) {
    if (!value.tensor.defined()) continue;
    hold_for(value);
    value.tensor.reset();
  }
}

void DeviceActivations::Group::bring(const OpCtx& ctx, const Value* asked) {
  std::vector<ActivationShelf::Place> places;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    Value& value = values_[i];
    const bool is_read = ctx.weight_grads == WeightGrads::now || value.first == Part::input;
    if (value.is_taken || value.tensor.defined() || !(is_read || &value == asked)) continue;
    value.tensor = ctx.allocate(value.shape, value.dtype, value.tag);
    places.push_back({i, value.tensor.view().as<std::byte>()});
  }
  if (places.empty()) return;
  const Copies copies = there_->bring(places);
  for (const ActivationShelf::Place& place : places) values_[place.number].copies = copies;
}

Tensor DeviceActivations::Group::take(std::size_t number, const OpCtx& ctx) {
  Value& value = values_[number];
  require(!value.is_taken, "{} is taken again from where it was put away", value.tag);
  bring(ctx, &value);
  hold_for(value);
  if (const auto before = before_.lock()) before->bring(ctx);
  value.is_taken = true;
  return std::exchange(value.tensor, {});
}

DeviceActivations::DeviceActivations(std::unique_ptr<ActivationShelf> shelf,
                                     std::span<const std::string> names)
    : ops_(operations_of(names)), shelf_(std::move(shelf)) {}

DeviceActivations::~DeviceActivations() = default;

std::vector<std::function<Tensor(const OpCtx&)>> DeviceActivations::put_away(
    const OpCtx& ctx, std::vector<Leaving> tensors) {
  std::shared_ptr<Group> group;
  if (!tensors.empty()) {
    std::erase_if(newest_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<Group>& newest = newest_[ctx.tape];
    group = std::make_shared<Group>(*shelf_, tensors, newest);
    newest = group;
    tensors.clear();
  }
  if (const auto last = leaving_.lock()) last->leave();
  leaving_ = group;
  std::vector<std::function<Tensor(const OpCtx&)>> ways_back;
  for (std::size_t i = 0; group != nullptr && i < group->size(); ++i) {
    ways_back.emplace_back([group, i](const OpCtx& back) { return group->take(i, back); });
  }
  return ways_back;
}

}  // namespace llmtrain::engine
