// What docs/optimizers.md says of each optimizer's states per parameter is what plan says, and what
// a checkpoint has.
#include <algorithm>
#include <cmath>
#include <functional>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/error.hpp"
#include "lib/optim/optimizer.hpp"
#include "tests/e2e/offload_runs.hpp"
#include "tests/e2e/states_page.hpp"

namespace llmtrain {

namespace {

/// A parameter; vectors have one row.
struct Weight {
  double rows = 1, columns = 1;
  bool is_projected = false;  // a matrix of attention or MLP
  double heads = 0;           // of what makes queries or keys

  double numel() const { return rows * columns; }
  bool is_vector() const { return rows == 1; }
};

constexpr double kHidden = 64, kKeys = 32, kInner = 128, kVocabulary = 257;

std::vector<Weight> shapes_of_model() {
  std::vector<Weight> shapes{{kVocabulary, kHidden}, {kVocabulary, kHidden}, {1, kHidden}};
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

using Bytes = std::function<double(const Weight&, double width)>;

struct Row {
  std::string name, settings;
  /// Of states in a master's type of `width` bytes.
  Bytes bytes;
  /// The same by the numbers of the page: bytes of states of FP32, or FP64.
  std::function<double(const Weight&, bool wide)> of_page;
  /// How far the page rounds its numbers, of them.
  double rounding = 0;
};

const StatesRow& page(std::string_view name) {
  static const std::vector<StatesRow> kTable = states_table();
  return row_of(kTable, name);
}

Row each(const std::string& name, double states, const std::string& settings = "",
         std::size_t alternative = 0) {
  return {name, settings,
          [=](const Weight& of, double width) { return states * width * of.numel(); },
          [=](const Weight& of, bool wide) {
            return page(name).bytes(wide, alternative, {}) * of.numel();
          }};
}

/// The same with states of bf16, in any run.
Row each_bf16(const std::string& name, double states, const std::string& settings = "",
              std::size_t alternative = 0) {
  Row row = each(name, states, ", state_dtype: bf16" + settings, alternative);
  row.bytes = [=](const Weight& of, double) { return 2 * states * of.numel(); };
  row.of_page = [of_fp32 = row.of_page](const Weight& of, bool) { return of_fp32(of, false) / 2; };
  return row;
}

Row adam_mini() {
  const auto blocks = [](const Weight& of) {
    return of.heads > 0 ? of.heads : of.is_vector() ? 1 : of.rows;
  };
  return {"adam_mini", "",
          [=](const Weight& of, double width) { return width * (of.numel() + blocks(of)); },
          [=](const Weight& of, bool wide) {
            const double a_row =
                page("adam_mini").in_text("n elements ", " bytes", {{"n", of.columns}}) *
                of.columns;
            return page("adam_mini").bytes(wide, 0, {}) * of.numel() +
                   (wide ? 2 : 1) * a_row * blocks(of);
          }};
}

constexpr double kMinCoded = 4096, kRun = 256;

double coded(double numel, int states, double width, double min_coded = kMinCoded) {
  return numel < min_coded ? width * states * numel
                           : states * (numel + 4 * std::ceil(numel / kRun));
}

/// Of 8 bits, what is at least so large.
double coded_by_page(const std::string& name, double numel, bool wide,
                     double min_coded = kMinCoded) {
  if (numel >= min_coded) return page(name).bytes(wide, 0, {}) * numel;
  return (wide ? 2 : 1) * page(name).in_text("too small ", "", {}) * numel;
}

Row of_codes(const std::string& name, int states) {
  return {name, "",
          [=](const Weight& of, double width) { return coded(of.numel(), states, width); },
          [=](const Weight& of, bool wide) { return coded_by_page(name, of.numel(), wide); }, 5e-4};
}

constexpr double kDoubles = 1e-12;  // as they round what the page divides

/// A code, and a part of a scale.
void check_lion_8bit_page() {
  const double scales = page("lion_8bit").in_text("of a block (", " bytes", {});
  CHECK(scales == 4 / kRun);
  CHECK(std::abs(1 + scales - page("lion_8bit").bytes(false, 0, {})) <= 5e-4);
}

double sides(const Weight& of) { return of.is_vector() ? of.columns : of.rows + of.columns; }

double sides_by_page(const Weight& of, bool wide) {
  const StatesRow& row = page("adafactor");
  const double each = of.is_vector() ? row.in_text("of a vector ", ")", {})
                                     : row.in_text("of a matrix m x n ", " bytes",
                                                   {{"m", of.rows}, {"n", of.columns}});
  return (wide ? 2 : 1) * each * of.numel();
}

/// With a mean of steps, or without.
Row factored(const std::string& name, bool mean, const std::string& settings) {
  return {
      name, settings,
      [=](const Weight& of, double width) { return width * (sides(of) + (mean ? of.numel() : 0)); },
      [=](const Weight& of, bool wide) {
        return sides_by_page(of, wide) + page(name).bytes(wide, mean ? 1 : 0, {}) * of.numel();
      },
      kDoubles};
}

Row came() {
  return {"came", "",
          [](const Weight& of, double width) {
            return width * ((of.is_vector() ? 1 : 2) * sides(of) + of.numel());
          },
          [](const Weight& of, bool wide) {
            CHECK(page("came").states.find("(twice as much)") != std::string::npos);
            return (of.is_vector() ? 1 : 2) * sides_by_page(of, wide) +
                   page("came").bytes(wide, 0, {}) * of.numel();
          },
          kDoubles};
}

Sizes sizes_of(const Weight& of, double rank) {
  const double s = std::min(of.rows, of.columns);
  return {{"n", std::max(of.rows, of.columns)}, {"s", s}, {"r", std::min(rank, s)}};
}

/// `states` for each element of a matrix, and of what else there is two.
Row of_matrices(const std::string& name, const std::string& settings,
                const std::function<double(const Weight&)>& states, double rank = 0) {
  return {name, settings,
          [=](const Weight& of, double width) {
            return width * (of.is_projected ? states(of) : 2 * of.numel());
          },
          [=](const Weight& of, bool wide) {
            return page(name).bytes(wide, of.is_projected ? 0 : 1, sizes_of(of, rank)) * of.numel();
          },
          kDoubles};
}

/// m and v, and P, of `rank` dims.
double projected(const Weight& of, double rank) {
  const double n = std::max(of.rows, of.columns), s = std::min(of.rows, of.columns);
  return s * std::min(rank, s) + 2 * n * std::min(rank, s);
}

Row q_galore(double rank, double min_coded) {
  const auto in_codes = [=](const Weight& of) {
    return std::max(of.rows, of.columns) * rank >= min_coded;
  };
  return {"q_galore", fmt::format(", rank: {}, min_8bit_size: {}", rank, min_coded),
          [=](const Weight& of, double width) {
            if (!of.is_projected) return coded(of.numel(), 2, width, min_coded);
            const double n = std::max(of.rows, of.columns), s = std::min(of.rows, of.columns);
            return s * rank + 5 * std::ceil(s * rank / kRun) + width * s + 8 * 5 + 8 +
                   coded(n * rank, 2, width, min_coded);
          },
          [=](const Weight& of, bool wide) {
            const StatesRow& row = page("q_galore");
            if (!of.is_projected) {
              return of.numel() < min_coded
                         ? coded_by_page("adamw_8bit", of.numel(), wide, min_coded)
                         : row.bytes(wide, 1, {}) * of.numel();
            }
            const Sizes sizes = sizes_of(of, rank);
            // What does not depend on the rank is not rounded: the first vector, cosines and gap.
            const double of_queue = row.in_text("gap (", " bytes)", {{"queue_size", 5}});
            CHECK(of_queue == 8 * 5 + 8);
            const double without_rank = row.bytes(wide, 0, sizes_of(of, 0)) * of.numel();
            CHECK(std::abs(without_rank - (wide ? 8 : 4) * sizes.at("s") - of_queue) < 1e-9);
            double each = row.bytes(wide, 0, sizes);
            if (!in_codes(of)) {
              each += (wide ? 2 : 1) * row.in_text("whole, ", ",", sizes) -
                      row.bytes(wide, 1, {}) * rank / sizes.at("s");
            }
            return each * of.numel();
          },
          // Groups and blocks that are not full.
          in_codes({kKeys, kHidden}) ? 5e-4 : 1e-2};
}

std::vector<Row> rows() {
  std::vector<Row> all{
      each("sgd", 0),
      each("momentum", 1),
      each("nesterov", 1),
      each("adagrad", 1),
      each("lion", 1),
      each("rmsprop", 1),
      each("rmsprop", 3, ", centered: true, momentum: 0.9", 1),
      each("adam", 2),
      each("adamw", 2),
      each("amsgrad", 3),
      adam_mini(),
      of_codes("lion_8bit", 1),
      of_codes("adamw_8bit", 2),
      factored("adafactor", false, ""),
      factored("adafactor", true, ", beta1: 0.9"),
      factored("sm3", false, ", momentum: 0"),
      factored("sm3", true, ""),
      came(),
      of_matrices("muon", "", [](const Weight& of) { return of.numel(); }),
      of_matrices(
          "galore", ", rank: 16", [](const Weight& of) { return projected(of, 16); }, 16),
      of_matrices(
          "galore", ", rank: 48", [](const Weight& of) { return projected(of, 48); }, 48),
      of_matrices(
          "ldadamw", ", rank: 16", [](const Weight& of) { return projected(of, 16) + of.numel(); },
          16),
      q_galore(16, 256),
      q_galore(2, 4096)};
  for (const char* name : {"momentum", "nesterov", "adagrad", "lion"}) {
    all.push_back(each_bf16(name, 1));
  }
  for (const char* name : {"adam", "adamw"}) all.push_back(each_bf16(name, 2));
  all.push_back(each_bf16("amsgrad", 3));
  all.push_back(each_bf16("rmsprop", 1));
  all.push_back(each_bf16("rmsprop", 3, ", centered: true, momentum: 0.9", 1));
  return all;
}

double sum(const std::function<double(const Weight&)>& of_shape) {
  double all = 0;
  for (const Weight& of : shapes_of_model()) all += of_shape(of);
  return all;
}

}  // namespace

TEST_CASE("every optimizer has a row in the page's table of states, and one here") {
  std::vector<std::string> on_page, in_table, here;
  for (const StatesRow& row : states_table()) {
    on_page.insert(on_page.end(), row.names.begin(), row.names.end());
  }
  for (const optim::OptimizerRow& row : optim::optimizer_table()) in_table.emplace_back(row.name);
  for (const Row& row : rows()) here.push_back(row.name);
  for (auto* names : {&on_page, &in_table, &here}) std::ranges::sort(*names);
  CHECK(on_page == in_table);
  here.erase(std::ranges::unique(here).begin(), here.end());
  CHECK(here == in_table);
  check_lion_8bit_page();
}

TEST_CASE("states take as many bytes a parameter as the table of optimizers says") {
  const Workspace here(kTinyRecipe);
  const double parameters = sum(&Weight::numel);
  for (const Row& row : rows()) {
    const std::string optimizer = fmt::format("{{name: {}{}}}", row.name, row.settings);
    CAPTURE(optimizer);
    const Overrides overrides{kModel, "optimizer=" + optimizer};
    for (const bool wide : {false, true}) {
      if (wide && optimizer.find("state_dtype") != optimizer.npos) continue;  // refused
      CAPTURE(wide);
      const double width = wide ? 8 : 4;
      const Overrides all =
          joined(overrides, {wide ? "precision.compute=fp64" : "precision.compute=fp32"});
      const Json plan = plan_of(here, all);
      CHECK(plan["parameters"].get<double>() == parameters);
      const double planned = plan["optimizer_state_bytes"].get<double>();
      CHECK(planned == sum([&](const Weight& of) { return row.bytes(of, width); }));
      const double by_page = sum([&](const Weight& of) { return row.of_page(of, wide); });
      CHECK(std::abs(planned - by_page) <= row.rounding * by_page);
      // The checkpoint has masters and states.
      CHECK(plan["checkpoint_bytes"].get<double>() == width * parameters + planned);
      if (wide) continue;
      if (row.name.find("adam") != std::string::npos) {
        const Json of_two = plan_of(here, joined(all, {"parallelism.pp=2", "--ranks", "2"}));
        CHECK(of_two["optimizer_state_bytes"].get<double>() == planned);
      }
      const auto text = here.call(joined({"plan", "recipe.yaml"}, all)).output;
      CHECK(holds(text, {fmt::format("{:.4g} B a parameter", planned / parameters)}));
    }
  }
}

TEST_CASE("formulas of the page's table are read as they are meant") {
  const Sizes sizes{{"r", 3}, {"n", 4}, {"s", 2}, {"queue_size", 5}};
  CHECK(value_of("4 r (1 / n + 2 / s) + 4", sizes) == 4 * 3 * (1.0 / 4 + 2.0 / 2) + 4);
  CHECK(value_of("4 (s + n) / (s n)", sizes) == 4.0 * 6 / 8);
  CHECK(value_of("8 `queue_size` - 1.5", sizes) == 38.5);
  for (const char* none : {"", "4 x", "4 (", "4 +", "4 )", "of a"}) {
    CHECK_THROWS_AS(value_of(none, sizes), InternalError);
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
