#pragma once
/// Sums of squares over runs of elements, in the order of SquaredNorm, in parallel over runs and
/// over the chunks of long ones.

#include <array>

#include "kernels/cpu/fast/lists.hpp"
#include "kernels/optimizer.hpp"
#include "lib/base/tree_sum.hpp"

namespace llmtrain::kernels::fast {

static_assert(kPass == SquaredNorm::kBlock);

/// out[k] = sum over elements [k each, (k + 1) each) for every k; sum_of_pass(Segment) is that over
/// one block. `workspace` has chunk_sums_bytes().
template <class F>
void sum_runs(int threads, std::int64_t each, const View& out, const View& workspace,
              const F& sum_of_pass) {
  const std::int64_t runs = out.numel(), chunks = std::max<std::int64_t>(1, list_chunks(each));
  auto* const sums = chunks > 1 ? workspace.as<double>() : out.as<double>();
  const std::int64_t at_once =
      std::max<std::int64_t>(1, kElementsPerBlock / std::max<std::int64_t>(1, each));
  parallel_blocks(threads, runs * chunks, at_once, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t run = i / chunks;
      const std::int64_t first = run * each + i % chunks * kListChunk;
      std::array<double, kListChunk / kPass> blocks;
      std::size_t count = 0;
      for_passes(first, std::min((run + 1) * each, first + kListChunk),
                 [&](const Segment& at) { blocks[count++] = sum_of_pass(at); });
      sums[i] = tree_sum({blocks.data(), count});
    }
  });
  if (chunks == 1) return;
  for (std::int64_t run = 0; run < runs; ++run) {
    out.as<double>()[run] = tree_sum({sums + run * chunks, static_cast<std::size_t>(chunks)});
  }
}

}  // namespace llmtrain::kernels::fast
