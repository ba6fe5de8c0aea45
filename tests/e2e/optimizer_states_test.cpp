// What docs/optimizers.md says of each optimizer's states per parameter is what plan says, and what
// a checkpoint has.
#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/e2e/offload_runs.hpp"

namespace llmtrain {

namespace {

/// A parameter; vectors have one row.
struct Shape {
  double rows = 1, columns = 1;
  bool is_projected = false;  // a matrix of attention or MLP
  double heads = 0;           // of what makes queries or keys

  double numel() const { return rows * columns; }
  bool is_vector() const { return rows == 1; }
};

constexpr double kHidden = 64, kKeys = 32, kInner = 128, kVocabulary = 257;

std::vector<Shape> shapes_of_model() {
  std::vector<Shape> shapes{{kVocabulary, kHidden}, {kVocabulary, kHidden}, {1, kHidden}};
  for (int layer = 0; layer < 2; ++layer) {
    shapes.insert(shapes.end(), {{1, kHidden},
                                 {1, kHidden},
                                 {kHidden, kHidden, true, 4},
                                 {kKeys, kHidden, true, 2},
                                 {kKeys, kHidden, true},
                                 {kHidden, kHidden, true},
                                 {kInner, kHidden, true},
                                 {kInner, kHidden, true},
                                 {kHidden, kInner, true}});
  }
  return shapes;
}

constexpr const char* kModel =
    "model={architecture: llama, vocab_size: 257, hidden_size: 64, intermediate_size: 128, "
    "num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, "
    "max_position_embeddings: 64, tie_word_embeddings: false}";

struct Row {
  const char* optimizer;
  std::function<double(const Shape&)> bytes;  // of FP32 states
  double tolerance = 0;
};

std::function<double(const Shape&)> each(double bytes) {
  return [bytes](const Shape& of) { return bytes * of.numel(); };
}

double sides(const Shape& of) { return of.is_vector() ? of.columns : of.rows + of.columns; }

/// m and v, and P, of `rank` dims.
double projected(const Shape& of, double rank) {
  const double n = std::max(of.rows, of.columns), s = std::min(of.rows, of.columns);
  return 4 * (s * std::min(rank, s) + 2 * n * std::min(rank, s));
}

double coded(const Shape& of, int states) {
  return of.numel() < 4096 ? 4 * states * of.numel()
                           : states * (of.numel() + 4 * std::ceil(of.numel() / 256));
}

const std::vector<Row> kRows{
    {"{name: sgd}", each(0)},
    {"{name: momentum}", each(4)},
    {"{name: nesterov}", each(4)},
    {"{name: adagrad}", each(4)},
    {"{name: lion}", each(4)},
    {"{name: lion, state_dtype: bf16}", each(2)},
    {"{name: rmsprop}", each(4)},
    {"{name: rmsprop, centered: true, momentum: 0.9}", each(12)},
    {"{name: adam}", each(8)},
    {"{name: adamw}", each(8)},
    {"{name: adamw, state_dtype: bf16}", each(4)},
    {"{name: amsgrad}", each(12)},
    {"{name: amsgrad, state_dtype: bf16}", each(6)},
    {"{name: adam_mini}",
     [](const Shape& of) {
       return 4 * (of.numel() + (of.heads > 0 ? of.heads : of.is_vector() ? 1 : of.rows));
     }},
    {"{name: lion_8bit}", [](const Shape& of) { return coded(of, 1); }},
    {"{name: adamw_8bit}", [](const Shape& of) { return coded(of, 2); }},
    {"{name: adafactor}", [](const Shape& of) { return 4 * sides(of); }},
    {"{name: adafactor, beta1: 0.9}", [](const Shape& of) { return 4 * (sides(of) + of.numel()); }},
    {"{name: sm3}", [](const Shape& of) { return 4 * (sides(of) + of.numel()); }},
    {"{name: came}",
     [](const Shape& of) { return 4 * ((of.is_vector() ? 1 : 2) * sides(of) + of.numel()); }},
    {"{name: muon}", [](const Shape& of) { return (of.is_projected ? 4 : 8) * of.numel(); }},
    {"{name: galore, rank: 16}",
     [](const Shape& of) { return of.is_projected ? projected(of, 16) : 8 * of.numel(); }},
    {"{name: ldadamw, rank: 16}",
     [](const Shape& of) {
       return of.is_projected ? projected(of, 16) + 4 * of.numel() : 8 * of.numel();
     }},
    {"{name: q_galore, rank: 16, min_8bit_size: 256}",
     [](const Shape& of) {
       const double n = std::max(of.rows, of.columns), s = std::min(of.rows, of.columns);
       const double per_parameter = 16 * (1.020 / n + 2.031 / s) + 4 / n + 48 / (n * s);
       return of.is_projected    ? per_parameter * of.numel()
              : of.numel() < 256 ? 8 * of.numel()
                                 : 2.031 * of.numel();
     },
     0.01}};

}  // namespace

TEST_CASE("states take as many bytes a parameter as the table of optimizers says") {
  const Workspace here(kTinyRecipe);
  for (const Row& row : kRows) {
    CAPTURE(std::string(row.optimizer));
    double parameters = 0, bytes = 0;
    for (const Shape& of : shapes_of_model()) {
      parameters += of.numel();
      bytes += row.bytes(of);
    }
    const Overrides overrides{kModel, fmt::format("optimizer={}", row.optimizer)};
    const Json plan = plan_of(here, overrides);
    CHECK(plan["parameters"].get<double>() == parameters);
    const double planned = plan["optimizer_state_bytes"].get<double>();
    CHECK(std::abs(planned - bytes) <= row.tolerance * bytes);
    if (std::string_view(row.optimizer).find("adam") != std::string_view::npos) {
      const Json of_two = plan_of(here, joined(overrides, {"parallelism.pp=2", "--ranks", "2"}));
      CHECK(of_two["optimizer_state_bytes"].get<double>() == planned);
    }
    // The checkpoint has parameters (FP32) and states.
    CHECK(plan["checkpoint_bytes"].get<double>() == 4 * parameters + planned);
    const auto text = here.call(joined({"plan", "recipe.yaml"}, overrides)).output;
    CHECK(holds(text, {fmt::format("{:.4g} B a parameter", planned / parameters)}));
    if (std::string_view(row.optimizer).find("galore") != std::string_view::npos ||
        std::string_view(row.optimizer).find("state_dtype") != std::string_view::npos) {
      continue;  // states of types of their own
    }
    const Json wide = plan_of(here, joined(overrides, {"precision.compute=fp64"}));
    const bool is_coded = std::string_view(row.optimizer).find("8bit") != std::string_view::npos;
    if (!is_coded) CHECK(wide["optimizer_state_bytes"].get<double>() == 2 * planned);
  }
}

TEST_CASE("a run that goes on says nothing of states that are FP64 in any run") {
  const Workspace here(kTinyRecipe);
  const Overrides galore{"optimizer={name: q_galore, rank: 4, min_8bit_size: 256}"};
  REQUIRE(here.run(joined(galore, {"training.max_steps=2"})).exit_code == 0);
  const auto result = here.run(joined(galore, {"training.max_steps=3"}));
  CHECK(result.exit_code == 0);
  CHECK_MESSAGE(result.output.find("rounded") == std::string::npos, result.output);
}

TEST_CASE("states of another shape are refused with the key that changed, and the remedy") {
  const Workspace here(kTinyRecipe);
  REQUIRE(here.run({"optimizer={name: galore, rank: 4}", "training.max_steps=2"}).exit_code == 0);
  const auto result = here.run({"optimizer={name: galore, rank: 8}", "training.max_steps=3"});
  CHECK(result.exit_code == 4);
  CHECK(holds(result.output,
              {"but this run needs", "; optimizer.rank: 4 -> 8; set the recipe back"}));
}

// Muon needs whole matrices, of 64 x 16,384 numbers.
TEST_CASE("a buffer is large enough that holds what a rank has of each matrix") {
  const Workspace here(kTinyRecipe);
  const Overrides settings{"optimizer={name: muon}", "model.hidden_size=64",
                           "model.intermediate_size=16384",
                           "offload={optimizer: nvme, buffer: 3MiB}"};
  const auto whole = here.call(joined({"plan", "recipe.yaml"}, settings));
  CHECK(whole.exit_code == 2);
  CHECK(holds(whole.output, {"offload.buffer"}));
  const auto halves =
      here.call(joined({"plan", "recipe.yaml", "--ranks", "2", "parallelism.tp=2"}, settings));
  CHECK_MESSAGE(halves.exit_code == 0, halves.output);
}

}  // namespace llmtrain
