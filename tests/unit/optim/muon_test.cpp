// The type in which Muon iterates.
#include <doctest/doctest.h>

#include "tests/unit/optim/fixture.hpp"

namespace llmtrain::optim {

TEST_CASE(
    "with products in fp16 Muon iterates in bf16: masters and states have the bits of those") {
  const Rig of_fp16(kFp16), of_bf16(kBf16), of_fp32(kFp32);
  OptimizerOptions options;
  read_options(options, "name: muon\nlr: 0.05\n");
  OptimizerSet one(of_fp16.ctx, options, of_fp16.store, of_fp16.mesh),
      two(of_bf16.ctx, options, of_bf16.store, of_bf16.mesh),
      three(of_fp32.ctx, options, of_fp32.store, of_fp32.mesh);
  for (int t = 1; t <= 3; ++t) {
    of_fp16.set_gradients(t, 1.0);
    of_bf16.set_gradients(t, 1.0);
    of_fp32.set_gradients(t, 1.0);
    run_step(of_fp16, one, 1.0);
    run_step(of_bf16, two, 1.0);
    run_step(of_fp32, three, 1.0);
  }
  for (const auto& p : of_fp16.store.all()) {
    CAPTURE(p->name());
    const auto master = of_fp16.store.read(*p);
    CHECK(master == of_bf16.store.read(of_bf16.store.find(p->name())));
    // What is no matrix has no iteration, and the bits of any type of products.
    const bool is_matrix = p->role() == ParameterRole::matrix;
    CHECK((master != of_fp32.store.read(of_fp32.store.find(p->name()))) == is_matrix);
  }
  REQUIRE(one.states().size() == two.states().size());
  for (std::size_t i = 0; i < one.states().size(); ++i) {
    CHECK(bytes_of(one.states()[i].tensor) == bytes_of(two.states()[i].tensor));
  }
}

}  // namespace llmtrain::optim
