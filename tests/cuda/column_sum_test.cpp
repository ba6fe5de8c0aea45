#include "kernels/matmul.hpp"
#include "tests/cuda/machine.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

TEST_CASE("column sums have the reference's bits") {
  struct Case {
    Shape shape;
    std::int64_t gap;
  };
  // Fewer rows than a row block, several blocks, more blocks than are fetched together; packs and
  // none; nothing.
  for (const Case& c :
       {Case{{1, 1}, 0}, Case{{63, 37}, 0}, Case{{64, 64}, 8}, Case{{65, 64}, 6},
        Case{{300, 1032}, 0}, Case{{kRowsPerBlock * 260 + 1, 8}, 16}, Case{{0, 8}, 0}}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(to_string(c.shape));
      compare(
          [&](Machine& m) {
            const Tensor x = m.operand("x", c.shape, c.gap);
            const Tensor out = m.wide_operand("out", {c.shape.cols()});
            m.run(ColumnSum{.x = x, .out = out});
            return outputs(m, out);
          },
          dtype, {.same_bits = true});
    }
  }
}
