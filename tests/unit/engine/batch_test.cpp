#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include "tests/support/relative.hpp"
#include "tests/support/small_engine.hpp"

namespace llmtrain::engine {

namespace {

using test::kSmallModels;
using test::small_batch;
using test::SmallEngine;

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

TEST_CASE("gradients are divided by the trained tokens, not by all rows") {
  for (const std::string_view model : kSmallModels) {
    SmallEngine engine(model);
    const auto grad_norm = [&](const StepBatch& batch) {
      return engine->train_step(batch, 1, 0.0).update.grad_norm;
    };
    const double two = grad_norm(small_batch({kFirst, kSecond}));
    CHECK(two > 0.1);
    CHECK(grad_norm(small_batch({kFirst, kSecond, {}, {}})) == test::relative(two, 1e-12));
    CHECK(grad_norm(small_batch({kFirst, kSecond, kFirst, kSecond})) == test::relative(two, 1e-12));
  }
}

TEST_CASE("an evaluation drops nothing out") {
  constexpr std::string_view kModel =
      "architecture: gpt2, vocab_size: 31, hidden_size: 12, num_hidden_layers: 2, "
      "num_attention_heads: 2, initializer_range: 0.4";
  const StepBatch batch = small_batch({kFirst, kSecond});
  SmallEngine plain(kModel);
  const double expected = plain->evaluate(batch).loss_sum;
  for (const std::string_view key : {"resid_pdrop", "attn_pdrop", "embd_pdrop"}) {
    CAPTURE(key);
    SmallEngine dropping(fmt::format("{}, {}: 0.5", kModel, key));
    CHECK(dropping->train_step(batch, 1, 0.0).loss_sum != expected);  // there is dropout
    CHECK(dropping->evaluate(batch).loss_sum == expected);
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
