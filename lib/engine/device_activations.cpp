#include "lib/engine/host_activations.hpp"

#include <utility>

#include "lib/base/error.hpp"
#include "lib/base/require.hpp"
#include "lib/engine/activation_offload.hpp"
#include "lib/tensor/pinned_memory.hpp"

namespace llmtrain::engine {

namespace {

/// As large an arena as addresses allow, of memory that does not exist.
constexpr std::uint64_t kUnlimitedBytes = std::uint64_t{1} << 50;

}  // namespace

/// What nodes one behind the other have saved; a block's. Lives as long as a way back.
class HostActivations::Group {
 public:
  /// Copies begin behind everything launched so far. `before`: what the walk back comes to next.
  Group(HostActivations& of, std::vector<Leaving> tensors, std::weak_ptr<Group> before);
  /// Of what nobody has taken copies may be under way.
  ~Group() {
    try {
      leave();
    } catch (const DeviceError&) {
      // The device is of no use any more, and neither is its memory.
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
  struct Value {
    Tensor tensor;  // on the device; else undefined
    Shape shape;
    DType dtype = DType::f32;
    std::string tag;
    Part first = Part::input;
    std::byte* host = nullptr;
    std::uint64_t bytes = 0;
    bool is_taken = false;
    /// Behind a copy of its tensor for which launches do not hold yet.
    std::shared_ptr<const CopyQueue::Point> copied = nullptr;
  };

  /// Begins to copy what is on the host and what a walk reads: `asked`, and without it all but what
  /// deferred weight parts alone do.
  void bring(const OpCtx& ctx, const Value* asked = nullptr);
  /// Launches from now on find its copy done.
  void hold_for(const Value& value);

  HostActivations* of_;
  std::weak_ptr<Group> before_;
  std::vector<Value> values_;
  Tensor pinned_;
};

HostActivations::Group::Group(HostActivations& of, std::vector<Leaving> tensors,
                              std::weak_ptr<Group> before)
    : of_(&of), before_(std::move(before)) {
  std::uint64_t bytes = 0;
  for (const Leaving& leaving : tensors) {
    bytes += AddressSpace::round_up(leaving.tensor.view().bytes());
  }
  pinned_ = of_->host_->allocate({static_cast<std::int64_t>(bytes)}, DType::u8, Category::offload,
                                 "activations of a block");
  CopyQueue& copies = *of_->copies_;
  copies.follow(*copies.launched());
  auto* place = pinned_.view().as<std::byte>();
  for (Leaving& leaving : tensors) {
    const View& view = leaving.tensor.view();
    copies.to_host(place, view.data, view.bytes());
    values_.push_back({.tensor = leaving.tensor,
                       .shape = view.shape,
                       .dtype = view.dtype,
                       .tag = leaving.tensor.storage().tag(),
                       .first = leaving.first,
                       .host = place,
                       .bytes = view.bytes()});
    place += AddressSpace::round_up(view.bytes());
    of_->down_bytes_ += view.bytes();
  }
  const auto copied = copies.queued();
  for (Value& value : values_) value.copied = copied;
}

void HostActivations::Group::hold_for(const Value& value) {
  if (value.copied == nullptr) return;
  const auto copied = value.copied;
  of_->copies_->hold_launches(*copied);
  for (Value& other : values_) {
    if (other.copied == copied) other.copied = nullptr;
  }
}

void HostActivations::Group::leave() {
  for (Value& value : values_) {
    if (!value.tensor.defined()) continue;
    hold_for(value);
    value.tensor.reset();
  }
}

void HostActivations::Group::bring(const OpCtx& ctx, const Value* asked) {
  std::vector<Value*> coming;
  for (Value& value : values_) {
    const bool is_read = ctx.weight_grads == WeightGrads::now || value.first == Part::input;
    if (value.is_taken || value.tensor.defined() || !(is_read || &value == asked)) continue;
    value.tensor = ctx.allocate(value.shape, value.dtype, value.tag);
    coming.push_back(&value);
  }
  if (coming.empty()) return;
  CopyQueue& copies = *of_->copies_;
  copies.follow(*copies.launched());  // which may still use what was there
  for (const Value* value : coming) {
    copies.to_device(value->tensor.view().data, value->host, value->bytes);
    of_->up_bytes_ += value->bytes;
  }
  const auto copied = copies.queued();
  for (Value* value : coming) value->copied = copied;
}

Tensor HostActivations::Group::take(std::size_t number, const OpCtx& ctx) {
  Value& value = values_[number];
  require(!value.is_taken, "{} is taken from the host again", value.tag);
  bring(ctx, &value);
  hold_for(value);
  if (const auto before = before_.lock()) before->bring(ctx);
  value.is_taken = true;
  return std::exchange(value.tensor, {});
}

HostActivations::HostActivations(Device& device, std::span<const std::string> names,
                                 std::uint64_t pinned_bytes)
    : ops_(operations_of(names)), copies_(device.make_copy_queue()) {
  if (device.is_meta()) {
    host_ = std::make_unique<Device>(make_meta_memory(), kUnlimitedBytes);
  } else if (pinned_bytes > 0) {
    host_ = std::make_unique<Device>(make_pinned_memory(*copies_), pinned_bytes);
    pinned_bytes_ = pinned_bytes;
  }
}

HostActivations::~HostActivations() = default;

std::vector<std::function<Tensor(const OpCtx&)>> HostActivations::put_away(
    const OpCtx& ctx, std::vector<Leaving> tensors) {
  std::shared_ptr<Group> group;
  if (!tensors.empty()) {
    require(host_ != nullptr, "activations for the host, of which no plan knows");
    std::erase_if(newest_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<Group>& newest = newest_[ctx.tape];
    group = std::make_shared<Group>(*this, std::move(tensors), newest);
    newest = group;
  }
  if (const auto last = leaving_.lock()) last->leave();
  leaving_ = group;
  std::vector<std::function<Tensor(const OpCtx&)>> ways_back;
  for (std::size_t i = 0; group != nullptr && i < group->size(); ++i) {
    ways_back.emplace_back([group, i](const OpCtx& back) { return group->take(i, back); });
  }
  return ways_back;
}

HostActivationFacts HostActivations::facts() const {
  return {.pinned_bytes = host_ ? host_->arena_extent_bytes() : 0,
          .down_bytes = down_bytes_,
          .up_bytes = up_bytes_};
}

}  // namespace llmtrain::engine
