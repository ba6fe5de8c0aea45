#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include "tests/support/relative.hpp"
#include "tests/unit/engine/small_engine.hpp"

namespace llmtrain::engine {

namespace {

const std::vector<std::int32_t> kFirst{3, 14, 15, 9, 26};
const std::vector<std::int32_t> kSecond{5, 30, 8, 9, 7};

// Both documents in one sample.
StepBatch packed() {
  StepBatch batch = small_batch({{}});
  for (std::size_t i = 0; i < 10; ++i) {
    const std::size_t row = i % 5;
    const std::vector<std::int32_t>& document = i < 5 ? kFirst : kSecond;
    batch.tokens[i] = document[row];
    batch.targets[i] = row == 4 ? -1 : document[row + 1];
    batch.doc_begin[i] = i < 5 ? 0 : 5;
    batch.positions[i] = static_cast<std::int32_t>(row);
  }
  batch.trained_tokens = 8;
  return batch;
}

}  // namespace

TEST_CASE("documents packed into a sample lose what they lose alone") {
  for (const std::string_view model : kSmallModels) {
    SmallEngine engine(model);
    const double alone = engine->evaluate(small_batch({kFirst, kSecond})).loss_sum;
    CHECK(engine->evaluate(packed()).loss_sum == test::relative(alone, 1e-12));
  }
}

TEST_CASE("positions and document borders of the batch reach the model") {
  for (const std::string_view model : kSmallModels) {
    SmallEngine engine(model);
    const double expected = engine->evaluate(packed()).loss_sum;
    StepBatch joined = packed();
    std::fill(joined.doc_begin.begin(), joined.doc_begin.end(), 0);
    CHECK(std::abs(engine->evaluate(joined).loss_sum - expected) > 1e-3);
    StepBatch stretched = packed();
    stretched.positions[4] = 12;
    CHECK(std::abs(engine->evaluate(stretched).loss_sum - expected) == 0);  // untrained, unseen
    stretched.positions[3] = 12;
    const double moved = std::abs(engine->evaluate(stretched).loss_sum - expected);
    if (model.find("mpt") == std::string_view::npos)
      CHECK(moved > 1e-6);
    else
      CHECK(moved == 0);  // ALiBi counts rows between query and key
  }
}

TEST_CASE("every step starts from gradients of zero") {
  for (const std::string_view model : kSmallModels) {
    SmallEngine engine(model);
    const StepBatch batch = small_batch({kFirst, kSecond, kSecond, kFirst});
    const double first = engine->train_step(batch, 1, 0.0).update.grad_norm;
    const double second = engine->train_step(batch, 2, 0.0).update.grad_norm;
    CHECK(first > 0.1);
    CHECK(second == test::relative(first, 1e-12));
  }
}

}  // namespace llmtrain::engine
