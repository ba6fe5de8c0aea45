#pragma once
/// Blocks that save and read back, on a device that does nothing before somebody waits.

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/engine/device_activations.hpp"
#include "tests/support/lazy_device.hpp"

namespace llmtrain::engine {

using WayBack = std::function<Tensor(const OpCtx&)>;
using MakeShelf = std::function<std::unique_ptr<ActivationShelf>(Device&)>;

inline constexpr std::uint64_t kPlenty = 1 << 20;
inline constexpr int kMicroBatches = 4;

/// Blocks that save three tensors each, the last of them for weight parts alone, on a device that
/// does nothing before somebody waits; on meta without values.
class ActivationRig {
 public:
  /// Of `unit` times 1 to 3 elements a tensor.
  ActivationRig(std::optional<testing::LazyMemory::Copying> copying, const MakeShelf& make,
                std::int64_t unit = 37)
      : device(copying ? std::unique_ptr<MemoryBackend>(new testing::LazyMemory(*copying))
                       : make_meta_memory(),
               kPlenty * static_cast<std::uint64_t>(unit)),
        activations(make(device), names),
        unit_(unit) {
    device.ledger().start_trace();
  }

  /// A kernel that writes.
  void write(const Tensor& t, float value) {
    launch([t = t.view(), value] { std::ranges::fill(values_of(t), value); });
  }
  /// One that reads.
  void read(const Tensor& t, float expected) {
    launch([this, t = t.view(), expected] {
      ++reads;
      wrong += std::ranges::count(values_of(t), expected) != t.numel();
    });
  }
  /// One that takes memory for itself.
  void work(std::int64_t elements) { write(tensor(elements, "scratch"), -1); }

  void forward(int micro_batch, int block) {
    std::vector<Leaving> saved;
    for (int i = 0; i < 3; ++i) {
      saved.push_back({.tensor = tensor(unit_ * (1 + i + block % 2), "saved"),
                       .first = i == 2 ? Part::weight : Part::input});
      write(saved.back().tensor, value(micro_batch, block, i));
    }
    work(unit_ * 2);
    ways(micro_batch, block) = activations.put_away(context(micro_batch), std::move(saved));
    work(unit_ * 5);
  }
  void backward(int micro_batch, int block, int end = 0, WeightGrads when = WeightGrads::now) {
    for (int i = 2; i >= end; --i) {
      if (ways(micro_batch, block)[static_cast<std::size_t>(i)] == nullptr) continue;
      OpCtx ctx = context(micro_batch);
      ctx.weight_grads = when;
      const Tensor t =
          std::exchange(ways(micro_batch, block)[static_cast<std::size_t>(i)], {})(ctx);
      read(t, value(micro_batch, block, i));
      work(unit_ * 3);
    }
    if (end == 0) ways(micro_batch, block).clear();
  }
  void forward(int micro_batch) {
    for (int b = 0; b < num_blocks; ++b) forward(micro_batch, b);
    work(unit_ * 9);  // a loss
  }
  void backward(int micro_batch) {
    for (int b = num_blocks - 1; b >= 0; --b) backward(micro_batch, b);
  }

  std::vector<WayBack>& ways(int micro_batch, int block) {
    return ways_[static_cast<std::size_t>(micro_batch)][static_cast<std::size_t>(block)];
  }
  OpCtx context(int micro_batch) {
    OpCtx ctx;
    ctx.kernel.device = &device;
    ctx.tape = &tapes_[static_cast<std::size_t>(micro_batch)];
    return ctx;
  }
  std::uint64_t held() const { return device.ledger().held_bytes(); }

  const std::vector<std::string> names{"linear"};
  int num_blocks = 5;
  std::int64_t reads = 0, wrong = 0;
  Device device;
  DeviceActivations activations;

 private:
  static std::span<float> values_of(const View& t) {
    return {t.as<float>(), static_cast<std::size_t>(t.numel())};
  }
  static float value(int micro_batch, int block, int i) {
    return static_cast<float>(1 + micro_batch * 100 + block * 10 + i);
  }
  Tensor tensor(std::int64_t elements, std::string_view tag) {
    return device.allocate({elements}, DType::f32, Category::activations, tag);
  }
  void launch(std::function<void()> kernel) {
    if (!device.is_meta())
      static_cast<testing::LazyMemory&>(device.backend()).launch(std::move(kernel));
  }

  std::int64_t unit_;
  std::array<Tape, kMicroBatches> tapes_;
  std::array<std::array<std::vector<WayBack>, 16>, kMicroBatches> ways_;
};

using Program = std::function<void(ActivationRig&)>;

inline void one_after_the_other(ActivationRig& rig) {
  for (int m = 0; m < kMicroBatches; ++m) {
    rig.forward(m);
    rig.backward(m);
  }
}

inline void all_forth_then_back(ActivationRig& rig) {
  for (int m = 0; m < kMicroBatches; ++m) rig.forward(m);
  for (int m = 0; m < kMicroBatches; ++m) rig.backward(m);
}

inline void in_turn(ActivationRig& rig) {
  rig.forward(0);
  for (int m = 1; m < kMicroBatches; ++m) {
    rig.forward(m);
    rig.backward(m - 1);
  }
  rig.backward(kMicroBatches - 1);
}

// Weight parts of a micro-batch behind the next one's forward.
inline void weight_parts_later(ActivationRig& rig) {
  const auto input_parts = [&](int m) {
    for (int b = rig.num_blocks - 1; b >= 0; --b) {
      auto weight_part = std::exchange(rig.ways(m, b)[2], {});
      rig.backward(m, b, 0, WeightGrads::deferred);
      rig.ways(m, b).resize(3);
      rig.ways(m, b)[2] = std::move(weight_part);
    }
  };
  rig.forward(0);
  for (int m = 0; m < kMicroBatches; ++m) {
    input_parts(m);
    if (m + 1 < kMicroBatches) rig.forward(m + 1);
    rig.backward(m);
  }
}

inline const std::vector<Program> kPrograms{one_after_the_other, all_forth_then_back, in_turn,
                                            weight_parts_later};

}  // namespace llmtrain::engine
