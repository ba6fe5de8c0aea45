#include "kernels/gradient_noise.hpp"

#include "tests/cuda/optimizer_case.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

TEST_CASE("noise on gradients has the reference's bits") {
  constexpr std::int64_t kSizes[] = {0, 5, kListChunk, kListChunk + 1, 40'003, 1};
  for (const DType dtype : kMasters) {
    for (const bool applies : {true, false}) {
      compare(
          [&](Machine& m) {
            const Tensor decision = decision_of(m, 0.3, 4, applies);
            std::vector<Tensor> owned;
            std::vector<NoisyGradient> list;
            for (const std::int64_t n : kSizes) {
              const auto i = static_cast<std::int64_t>(owned.size());
              // Not every one at a multiple of a pack, nor the first of its tensor.
              owned.push_back(m.operand("g", {n + i % 2}).columns(i % 2, n));
              list.push_back({owned.back(),
                              {.on = true,
                               .key = philox_key(7, "gradient noise", "w"),
                               .first = i,
                               .columns = i % 3 == 0 ? n + 1 : 7,
                               .stride = 19}});
            }
            const std::span<const NoisyGradient> all(list);
            const Tensor table = make_table<GradientNoise>(*m.ctx().device, all, "table");
            m.run(GradientNoise{.gradients = all,
                                .table = table,
                                .decision = decision,
                                .eta = 0.01,
                                .gamma = 0.55});
            const NoisyGradient alone = list[4];
            m.run(GradientNoise{.gradients = std::span(&alone, 1),
                                .table = {},
                                .decision = decision,
                                .eta = 1,
                                .gamma = 0});
            return outputs(m, owned[0], owned[1], owned[2], owned[3], owned[4], owned[5]);
          },
          dtype, {.same_bits = true});
    }
  }
}
