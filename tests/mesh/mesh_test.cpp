// Every layout trains as one rank does: the same gradients, losses and weights, in fp64 to within
// what the order of additions changes.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>
#include <tuple>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/mesh/layouts.hpp"

namespace llmtrain::test {

namespace {

constexpr int kSteps = 20;
constexpr double kBound = 1e-11;

// With LLMTRAIN_LAYOUTS=TEXT those with this text in their titles; "quick" is a word of its own.
std::string_view wanted() {
  const char* text = std::getenv("LLMTRAIN_LAYOUTS");
  return text == nullptr ? "" : text;
}
bool is_wanted(const Layout& layout) {
  return is_quick() || title_of(layout).find(wanted()) != std::string::npos;
}
bool is_chosen(const Layout& layout) { return is_wanted(layout) && (layout.quick || !is_quick()); }

// One rank's run on the CPU, kept for all layouts that are compared with it.
const ProbeResult& one_rank(const Layout& layout, int steps = kSteps) {
  static std::map<std::tuple<std::string_view, std::string_view, bool, int>, ProbeResult> kept;
  const auto key = std::tuple(layout.model, layout.overrides, layout.one_word, steps);
  const auto found = kept.find(key);
  if (found != kept.end()) return found->second;
  return kept[key] = run_probe(model_of(layout), 1, steps, arguments_of(layout, false));
}

// What is smaller than this throughout is noise around zero, like the gradient of a key's bias,
// which no probability of attention depends on; Adam makes steps of a weight from it, of which the
// learning rate is the measure. Its second moments are squares of gradients. Where all values are
// the same no probability matters, and there is more such noise.
double noise(const std::string& name, bool one_word = false) {
  const double of_gradient = one_word ? 1e-5 : 1e-6;
  if (name.starts_with("state#v")) return of_gradient * of_gradient;
  return name.starts_with("master") ? 2e-2 : of_gradient;
}

// The largest difference, relative to the largest element; infinite where one is no number.
double difference(const Logical& a, const Logical& b, double at_least) {
  double largest = at_least, off = 0;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    largest = std::max(largest, std::abs(b.values[i]));
    const double here = std::abs(a.values[i] - b.values[i]);
    off = std::isnan(here) ? std::numeric_limits<double>::infinity() : std::max(off, here);
  }
  return off / largest;
}

// The first one that differs: gradients of the first step before what came of them.
void compare(const ProbeResult& found, const ProbeResult& expected, double bound = kBound,
             bool one_word = false) {
  REQUIRE(found.tensors.size() == expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    CAPTURE(name);
    REQUIRE(found.tensors.contains(name));
    const Logical& other = found.tensors.at(name);
    REQUIRE(other.values.size() == tensor.values.size());
    // Optimizers keep gradients of the last steps, of which twenty steps have grown the errors.
    const double at_most = name.starts_with("state") ? 10 * bound : bound;
    REQUIRE(difference(other, tensor, noise(name, one_word)) <= at_most);
  }
  for (const auto& [name, value] : expected.numbers) {
    CAPTURE(name);
    REQUIRE(found.numbers.contains(name));
    REQUIRE(std::abs(found.numbers.at(name) - value) <= bound * std::abs(value));
  }
}

// Every token of every step has the experts that it has on one rank.
void compare_routing(const ProbeResult& found, const ProbeResult& expected) {
  REQUIRE(found.routing.size() == expected.routing.size());
  for (const auto& [name, choices] : expected.routing) {
    CAPTURE(name);
    REQUIRE(found.routing.contains(name));
    const std::vector<double>& other = found.routing.at(name).values;
    REQUIRE(other.size() == choices.values.size());
    // token * top_k + choice
    const auto first = std::ranges::mismatch(choices.values, other).in1 - choices.values.begin();
    REQUIRE(first == std::ssize(choices.values));
  }
}

// Ranks that share experts get as many rows at once as the plan says at most; where all tokens go
// to one expert it gets exactly those, and every rank but its own none.
void check_rows(const ProbeResult& found, const Layout& layout) {
  const std::vector<double>& most = found.own.at("most rows");
  const std::vector<double>& room = found.own.at("room");
  REQUIRE(most.size() == static_cast<std::size_t>(layout.ranks));
  for (std::size_t rank = 0; rank < most.size(); ++rank) REQUIRE(most[rank] <= room[rank]);
  constexpr std::string_view kEp = "parallelism.ep=";
  const std::size_t at = layout.parallelism.find(kEp);
  if (at == std::string_view::npos) return;
  REQUIRE(std::ranges::max(most) > 0);
  if (!layout.one_word) return;
  const auto all = [&](const std::string& name) {
    double sum = 0;
    for (const double of_rank : found.own.at(name)) sum += of_rank;
    return sum;
  };
  const double ep = layout.parallelism[at + kEp.size()] - '0';
  REQUIRE(ep * all("arrivals of none") == (ep - 1) * all("arrivals"));
  REQUIRE(std::ranges::max(most) == room.front());
}

}  // namespace

TEST_CASE("every layout has the gradients, losses and weights of one rank") {
  set_mpi_environment();
  REQUIRE(std::ranges::any_of(layouts(), is_chosen));
  for (const Layout& layout : layouts()) {
    if (!is_chosen(layout)) continue;
    CAPTURE(title_of(layout));
    const ProbeResult& expected = one_rank(layout);
    REQUIRE(expected.problem == "");
    REQUIRE(expected.numbers.size() == 2 * kSteps + 1);  // and an evaluation
    const bool routes = model_of(layout).yaml.find("experts") < model_of(layout).yaml.size();
    REQUIRE(expected.routing.empty() != routes);
    const ProbeResult found =
        run_probe(model_of(layout), layout.ranks, kSteps, arguments_of(layout, true));
    REQUIRE(found.problem == "");
    for (const double steps : found.own.at("steps by the textbook")) REQUIRE(steps == kSteps);
    compare_routing(found, expected);
    compare(found, expected, kBound, layout.one_word);
    check_rows(found, layout);
  }
}

namespace {

void compare_on_gpus(const std::string& how) {
  constexpr int kGpuSteps = 3;  // parts of a step are recorded in the second, if not before
  constexpr double kGpuBound = 1e-9;
  set_mpi_environment();
  ::setenv("LLMTRAIN_CUDA_PLUGIN", LLMTRAIN_EMULATED_GPU, 1);
  std::size_t number = how == "nccl" ? 1 : 0;
  for (const Layout& layout : gpu_layouts()) {
    if (!is_wanted(layout)) continue;
    // Where there is little time, each by one of both ways to exchange.
    if (number++ % 2 == 1 && is_quick()) continue;
    CAPTURE(title_of(layout));
    const ProbeResult& expected = one_rank(layout, kGpuSteps);
    REQUIRE(expected.problem == "");
    std::vector<std::string> overrides = arguments_of(layout, true);
    overrides.insert(overrides.end(), {"run.device=cuda", "run.memory_limit=256 MiB",
                                       "parallelism.gpu_collectives=" + how});
    const ProbeResult found = run_probe(model_of(layout), layout.ranks, kGpuSteps, overrides);
    REQUIRE(found.problem == "");
    compare(found, expected, kGpuBound);
  }
}

}  // namespace

// Exchanges go through pinned memory, behind and before launches that only queues order. Ranks
// share the one GPU that there is.
TEST_CASE("on a GPU a layout has the gradients, losses and weights of one rank on the CPU" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  compare_on_gpus("host");
}

TEST_CASE("on GPUs that NCCL connects a layout has the gradients, losses and weights of one rank" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  ::setenv("LLMTRAIN_FAKE_GPUS", "4", 1);
  compare_on_gpus("nccl");
  ::unsetenv("LLMTRAIN_FAKE_GPUS");
}

namespace {

struct Precision {
  std::string_view name;
  double rounding;  // relative, of one operation
  double loss_bound;
};

// Steps of a rate that does not carry the rounding of the first ones far.
std::vector<std::string> with_small_steps(std::vector<std::string> overrides) {
  const auto names_it = [](const std::string& key) { return key.starts_with("optimizer.lr="); };
  if (std::ranges::none_of(overrides, names_it)) overrides.emplace_back("optimizer.lr=5e-3");
  return overrides;
}

// Step 1 of a layout in another precision beside one rank's, both against one rank in fp64 on the
// CPU, and the losses of all `steps`; `place` is of the former two.
void compare_errors(const Layout& layout, const Precision& precision,
                    const std::vector<std::string>& place = {}, int steps = 1) {
  const auto in_precision = [&](std::vector<std::string> overrides) {
    if (steps > 1) overrides = with_small_steps(std::move(overrides));
    overrides.push_back(fmt::format("precision.compute={}", precision.name));
    overrides.insert(overrides.end(), place.begin(), place.end());
    return overrides;
  };
  const ProbeResult exact = steps == 1 ? one_rank(layout)
                                       : run_probe(model_of(layout), 1, steps,
                                                   with_small_steps(arguments_of(layout, false)));
  const ProbeResult one =
      run_probe(model_of(layout), 1, steps, in_precision(arguments_of(layout, false)));
  const ProbeResult found =
      run_probe(model_of(layout), layout.ranks, steps, in_precision(arguments_of(layout, true)));
  REQUIRE(exact.problem == "");
  REQUIRE(one.problem == "");
  REQUIRE(found.problem == "");
  for (const double done : found.own.at("steps by the textbook")) {
    REQUIRE(done == (place.empty() ? steps : 0));
  }
  for (const auto& [name, tensor] : exact.tensors) {
    if (!name.starts_with("gradient")) continue;
    CAPTURE(name);
    const double at_least = noise(name, layout.one_word);
    const double own = difference(one.tensors.at(name), tensor, at_least);
    const double off = difference(found.tensors.at(name), tensor, at_least);
    // What is zero but for rounding is as large as chance makes it in either run.
    const bool is_noise = std::ranges::all_of(
        tensor.values, [&](double value) { return std::abs(value) < at_least; });
    REQUIRE(off <= (is_noise ? 16 : 4) * std::max(own, precision.rounding));
  }
  for (int step = 1; step <= steps; ++step) {
    const std::string name = fmt::format("loss {}", step);
    CAPTURE(name);
    const double loss = exact.numbers.at(name);
    const double bound = precision.loss_bound * loss;
    const double off = std::abs(found.numbers.at(name) - loss);
    CHECK(off <= bound);
    if (off > bound) return;  // later ones follow from this one
  }
}

}  // namespace

TEST_CASE("in fp32 and bf16 a layout's errors are those of one rank") {
  set_mpi_environment();
  for (const Precision& precision : {Precision{"fp32", 0x1p-24, 1e-5}, {"bf16", 0x1p-9, 1e-2}}) {
    CAPTURE(precision.name);
    // Each layout in fp32, but for a quick look, and of every few one, or of as few as
    // LLMTRAIN_LAYOUTS_STRIDE says.
    const char* text = std::getenv("LLMTRAIN_LAYOUTS_STRIDE");
    const std::size_t few = precision.name == "fp32" && !is_quick() ? 1 : 5;
    const std::size_t stride = text == nullptr ? few : std::stoul(text);
    std::size_t chosen = 0;
    for (const Layout& layout : layouts()) {
      if (!is_chosen(layout) || chosen++ % stride != 0) continue;
      if (is_quick() && (chosen / stride % 2 == 0) != (precision.name == "bf16")) continue;
      CAPTURE(title_of(layout));
      // Rounding may choose another expert, and another loss with it, or another code of a state.
      const bool chooses = !one_rank(layout).routing.empty() ||
                           layout.overrides.find("_8bit ") < layout.overrides.size() ||
                           layout.overrides.find("q_galore") < layout.overrides.size();
      const bool follows = precision.name == "fp32" && !chooses;
      compare_errors(layout, precision, {}, follows ? kSteps : 1);
    }
    REQUIRE(chosen > 0);
  }
}

// Parts of attention are FP32 beside narrower operands, on tensor cores and without (heads of 6).
TEST_CASE("on a GPU ring attention in bf16 and fp16 has the errors of one rank" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  set_mpi_environment();
  ::setenv("LLMTRAIN_CUDA_PLUGIN", LLMTRAIN_EMULATED_GPU, 1);
  constexpr std::string_view kRing = "parallelism.sp=2 | parallelism.sp_algo=ring";
  for (const Precision& precision :
       {Precision{"bf16", 0x1p-9, 1e-2}, Precision{"fp16", 0x1p-12, 2e-3}}) {
    CAPTURE(precision.name);
    for (const Layout& layout :
         {Layout{2, "llama", kRing, "model.head_dim=8"}, Layout{2, "gpt_oss", kRing},
          Layout{3, "llama", "parallelism.sp=3 | parallelism.sp_algo=ring",
                 "model.head_dim=8 | training.micro_batch_size=2"}}) {
      if (is_quick() && (layout.ranks == 3) != (precision.name == "bf16")) continue;
      CAPTURE(title_of(layout));
      // The probe times no products.
      std::vector<std::string> place{"run.device=cuda", "run.memory_limit=256 MiB",
                                     "run.tune_products=false"};
      if (precision.name == "fp16") place.push_back("precision.loss_scale=1");
      compare_errors(layout, precision, place);
    }
  }
}

}  // namespace llmtrain::test
