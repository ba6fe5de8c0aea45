#include "kernels/cpu/copy.hpp"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/copy.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void copy_block(const MemoryCopy& copy) {
  const hn::ScalableTag<std::uint8_t> bytes;
  const std::size_t vector = hn::Lanes(bytes);
  auto* to = reinterpret_cast<std::uint8_t*>(copy.to.data());
  const auto* from = reinterpret_cast<const std::uint8_t*>(copy.from.data());
  const std::size_t size = copy.to.size();
  const std::size_t past = reinterpret_cast<std::uintptr_t>(to) % vector;
  const std::size_t head = std::min(size, past == 0 ? 0 : vector - past);
  std::memcpy(to, from, head);
  std::size_t i = head;
  for (; i + vector <= size; i += vector) {
    hn::Stream(hn::LoadU(bytes, from + i), bytes, to + i);
  }
  std::memcpy(to + i, from + i, size - i);
  hwy::FlushStream();
}

}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels {

namespace fast {
HWY_EXPORT(copy_block);
}  // namespace fast

std::vector<MemoryCopy> in_blocks(std::span<const MemoryCopy> copies) {
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  std::vector<MemoryCopy> blocks;
  for (MemoryCopy copy : copies) {
    while (!copy.to.empty()) {
      const std::size_t size = std::min(copy.to.size(), kBlock);
      blocks.push_back({copy.to.first(size), copy.from.first(size)});
      copy = {copy.to.subspan(size), copy.from.subspan(size)};
    }
  }
  return blocks;
}

void copy_past_caches(const MemoryCopy& copy) {
  using namespace fast;
  HWY_DYNAMIC_DISPATCH(copy_block)(copy);
}

}  // namespace llmtrain::kernels
#endif  // HWY_ONCE
