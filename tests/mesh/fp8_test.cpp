// FP8 where ranks have parts of what is quantized: a tensor has one scale on all of them, that of
// the whole, and a step is that of one rank but for what sums in another order round to other
// codes.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/mesh/layouts.hpp"
#include "tests/mesh/workshop.hpp"

namespace llmtrain::test {

namespace {

using Settings = std::vector<std::string>;

enum Operand : int { input, weight, output_grad };

// Products of a block of a model without experts, by their numbers.
enum Product : int { qkv, o, gate_up, down, kProducts };

const ProbeModel& model_named(std::string_view name) {
  return *std::ranges::find(probe_models(), name, &ProbeModel::name);
}

Settings with(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

std::string fp8(std::string_view keys) {
  return fmt::format("precision={{compute: fp8, fp8: {{{}, include: [\"*\"]}}}}", keys);
}

/// A run with `scaling: current`: the scales that each rank made in its first step.
class Scales {
 public:
  Scales(const ProbeResult& run, int layers) : run_(&run), layers_(layers) {
    for (const auto& [name, values] : run.own) count_ += name.starts_with("scale ");
    REQUIRE(count_ > 0);
    REQUIRE(count_ % (3 * layers) == 0);
  }
  int micro_batches() const { return count_ / (3 * layers_); }
  int layers() const { return layers_; }
  /// A forward makes those of inputs and weights, layer by layer, and its backward comes back.
  const std::vector<double>& by_rank(int micro_batch, Operand operand, int layer) const {
    const int at = operand == output_grad ? 3 * layers_ - 1 - layer : 2 * layer + operand;
    return run_->own.at(fmt::format("scale {}", 3 * layers_ * micro_batch + at));
  }

 private:
  const ProbeResult* run_;
  int layers_, count_ = 0;
};

using IsExact = std::function<bool(Operand, int layer)>;

/// The same, or what sums in another order came before: a number that they took over the middle
/// between two codes changed by up to a quarter, and the largest of a tensor may be a sum of few.
bool is_alike(double found, double expected, bool exact) {
  return exact ? found == expected : found > expected / 2 && found < expected * 2;
}

/// All ranks have the same scales, which are one rank's.
void check_scales(const Scales& found, const Scales& one, const IsExact& is_exact) {
  REQUIRE(found.micro_batches() == one.micro_batches());
  for (int micro_batch = 0; micro_batch < one.micro_batches(); ++micro_batch) {
    for (const Operand operand : {input, weight, output_grad}) {
      for (int layer = 0; layer < one.layers(); ++layer) {
        CAPTURE(micro_batch);
        CAPTURE(operand);
        CAPTURE(layer);
        const double expected = one.by_rank(micro_batch, operand, layer).front();
        for (const double scale : found.by_rank(micro_batch, operand, layer)) {
          REQUIRE(scale == found.by_rank(micro_batch, operand, layer).front());
          REQUIRE(is_alike(scale, expected, is_exact(operand, layer)));
        }
      }
    }
  }
}

double norm_of_difference(const Logical& a, const Logical& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    sum += (a.values[i] - b.values[i]) * (a.values[i] - b.values[i]);
  }
  return std::sqrt(sum);
}

double norm_of(const Logical& a) {
  return norm_of_difference(a, {.values = std::vector<double>(a.values.size()), .times = {}});
}

bool is_gradient(const std::string& name) { return name.starts_with("gradient "); }

constexpr double kSumsOfFp32 = 1e-6;

/// Where all that makes a gradient is the same, its FP32 sum over rows is in another order; all
/// together they are nearer to one rank's than these are to those of FP64.
void check_gradients(const ProbeResult& found, const ProbeResult& one, const ProbeResult& exact,
                     const std::function<bool(const std::string&)>& of_same_terms) {
  double off = 0, error = 0;
  for (const auto& [name, tensor] : exact.tensors) {
    if (!is_gradient(name)) continue;
    CAPTURE(name);
    const Logical& expected = one.tensors.at(name);
    const double here = norm_of_difference(found.tensors.at(name), expected);
    if (of_same_terms(name)) CHECK(here <= kSumsOfFp32 * norm_of(expected));
    off += here * here;
    const double of_fp8 = norm_of_difference(expected, tensor);
    error += of_fp8 * of_fp8;
  }
  CHECK(off < error);
  MESSAGE("gradients are off by ", std::sqrt(off / error), " of what FP8 changes");
}

struct Shared {
  int ranks;
  Settings parallelism;
  IsExact is_exact;
  std::function<bool(const std::string&)> of_same_terms;
  double loss_bound = 0;
  bool extra = false;  // where there is time
};

// Embeddings, norms and products by columns of weights add up what one rank does, in its order: so
// inputs of the first block's attention and of its output are the same bits.
bool before_sums_over_tp(Operand operand, int layer) {
  return operand == weight || (operand == input && layer <= o);
}
// Rows come together where they are attended to, and are not added up: so is all of the forward
// pass, and on the way back what comes before the gradients of the last block's keys and values.
bool before_sums_over_sp(Operand operand, int layer) {
  return operand != output_grad || layer >= 2 * kProducts + o;
}
bool is_behind_last_attention(const std::string& name) {
  for (const char* text : {"lm_head", "model.norm", "layers.2.mlp", "layers.2.post_attention",
                           "layers.2.self_attn.o_proj"}) {
    if (name.find(text) != name.npos) return true;
  }
  return false;
}
// With ulysses keys and values have their gradients from all rows at once.
bool everything(Operand, int) { return true; }
bool every_name(const std::string&) { return true; }
bool no_name(const std::string&) { return false; }

constexpr double kLossBound = 5e-3;  // of other codes; the first losses below are 4.5e-4 off

const std::vector<Shared>& shared() {
  static const std::vector<Shared> kShared{
      {2, {"parallelism.tp=2"}, before_sums_over_tp, no_name, kLossBound},
      {2,
       {"parallelism.tp=2", "parallelism.tp_sequence_parallel=true"},
       before_sums_over_tp,
       no_name,
       kLossBound,
       true},
      {2, {"parallelism.sp=2"}, before_sums_over_sp, is_behind_last_attention},
      {2, {"parallelism.sp=2", "parallelism.sp_algo=ulysses"}, everything, every_name},
      {4,
       {"parallelism.tp=2", "parallelism.sp=2"},
       [](Operand operand, int layer) {
         return before_sums_over_tp(operand, layer) && before_sums_over_sp(operand, layer);
       },
       no_name,
       kLossBound,
       true}};
  return kShared;
}

bool is_near(const ProbeResult& found, const ProbeResult& expected, int step, double bound) {
  const std::string name = fmt::format("loss {}", step);
  const double loss = expected.numbers.at(name);
  return std::abs(found.numbers.at(name) - loss) <= bound * loss;
}

}  // namespace

TEST_CASE("with scaling: current ranks of tp and sp scale parts of a tensor as the whole") {
  set_mpi_environment();
  const ProbeModel& model = model_named("llama");
  constexpr int kLayers = 3 * kProducts;
  const Settings current{fp8("scaling: current")};
  const ProbeResult exact = run_probe(model, 1, 1, {}), one = run_probe(model, 1, 1, current);
  REQUIRE(exact.problem == "");
  REQUIRE(one.problem == "");
  const Scales expected(one, kLayers);
  REQUIRE(expected.micro_batches() == 8);
  for (const Shared& by : shared()) {
    if (by.extra && is_quick()) continue;
    CAPTURE(fmt::format("{}", fmt::join(by.parallelism, " ")));
    const ProbeResult found = run_probe(model, by.ranks, 1, with(current, by.parallelism));
    REQUIRE(found.problem == "");
    check_scales(Scales(found, kLayers), expected, by.is_exact);
    CHECK(is_near(found, one, 1, by.loss_bound));
    check_gradients(found, one, exact, by.of_same_terms);
  }
}

namespace {

/// With `scaling: delayed, amax_history: 2`: what the first step found in a layer of block `block`
/// ("self_attn.q_proj"), and the scales that follow.
struct Delayed {
  const std::vector<double>&amax, &scale, &scale_inv;

  Delayed(const ProbeResult& run, int block, std::string_view layer)
      : amax(state(run, "fp8_history", block, layer)),
        scale(state(run, "fp8_scale", block, layer)),
        scale_inv(state(run, "fp8_scale_inv", block, layer)) {}

 private:
  static const std::vector<double>& state(const ProbeResult& run, std::string_view name, int block,
                                          std::string_view layer) {
    return run.tensors.at(fmt::format("state#{} model.layers.{}.{}.weight", name, block, layer))
        .values;
  }
};

}  // namespace

TEST_CASE("delayed scales follow from the largest numbers of all ranks of tp and sp") {
  set_mpi_environment();
  const ProbeModel& model = model_named("llama");
  const Settings delayed{fp8("scaling: delayed, amax_history: 2")};
  const ProbeResult one = run_probe(model, 1, 1, delayed), longer = run_probe(model, 1, 3, delayed);
  REQUIRE(one.problem == "");
  REQUIRE(longer.problem == "");
  constexpr std::string_view kLayers[] = {"self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj",
                                          "mlp.down_proj"};
  for (const Shared& by : shared()) {
    if (by.extra && is_quick()) continue;
    CAPTURE(fmt::format("{}", fmt::join(by.parallelism, " ")));
    const Settings settings = with(delayed, by.parallelism);
    const ProbeResult found = run_probe(model, by.ranks, 1, settings);
    REQUIRE(found.problem == "");  // all ranks have the same states
    CHECK(is_near(found, one, 1, by.loss_bound));
    for (int layer = 0; layer < 3 * kProducts; ++layer) {
      CAPTURE(layer);
      const Delayed here(found, layer / kProducts, kLayers[layer % kProducts]);
      const Delayed expected(one, layer / kProducts, kLayers[layer % kProducts]);
      REQUIRE(here.amax.size() == 3);
      for (const Operand operand : {input, weight, output_grad}) {
        CAPTURE(operand);
        CHECK(is_alike(here.amax[operand], expected.amax[operand], by.is_exact(operand, layer)));
        const float max = operand == output_grad ? 57344 : 448;
        CHECK(here.scale[operand] == max / static_cast<float>(here.amax[operand]));
        CHECK(here.scale_inv[operand] == 1 / static_cast<float>(here.scale[operand]));
      }
    }
    // The second step is made by these scales.
    const ProbeResult goes_on = run_probe(model, by.ranks, 3, settings);
    REQUIRE(goes_on.problem == "");
    for (int step = 1; step <= 3; ++step) CHECK(is_near(goes_on, longer, step, 2 * kLossBound));
  }
}

TEST_CASE("in FP8 ranks that share experts have one rank's bits before gradients are added up") {
  set_mpi_environment();
  const ProbeModel& model = model_named("qwen3_moe");
  // Of three blocks the second has no experts, of which no product is quantized.
  constexpr int kLayers = 2 * 3 + 2;
  const Settings current{fp8("scaling: current")};
  const ProbeResult one = run_probe(model, 1, 1, current);
  REQUIRE(one.problem == "");
  const Scales expected(one, kLayers);
  const ProbeResult found =
      run_probe(model, 2, 1, with(current, {"parallelism.dp=2", "parallelism.ep=2"}));
  REQUIRE(found.problem == "");
  CHECK(is_near(found, one, 1, 0));
  const Scales scales(found, kLayers);
  const int of_rank = scales.micro_batches();
  REQUIRE(2 * of_rank == expected.micro_batches());
  for (int micro_batch = 0; micro_batch < 2 * of_rank; ++micro_batch) {
    CAPTURE(micro_batch);
    const auto rank = static_cast<std::size_t>(micro_batch / of_rank);
    for (const Operand operand : {input, weight, output_grad}) {
      CAPTURE(operand);
      for (int layer = 0; layer < kLayers; ++layer) {
        CAPTURE(layer);
        CHECK(scales.by_rank(micro_batch % of_rank, operand, layer).at(rank) ==
              expected.by_rank(micro_batch, operand, layer).front());
      }
    }
  }
  for (const auto& [name, tensor] : one.tensors) {
    if (!is_gradient(name)) continue;
    CAPTURE(name);
    CHECK(norm_of_difference(found.tensors.at(name), tensor) <= kSumsOfFp32 * norm_of(tensor));
  }
}

TEST_CASE("blocks of FP8 that ranks of tp and sp leave whole have one rank's scales") {
  set_mpi_environment();
  const ProbeModel& model = model_named("llama");
  const Settings block{fp8("scaling: block"), "training.global_batch_size=2"};
  const Settings wide = with(block, {"model.head_dim=128", "model.intermediate_size=256"});
  const Settings longer =
      with(block, {"training.seq_len=512", "model.max_position_embeddings=512"});
  const auto compare = [&](const Settings& settings, const Settings& parallelism,
                           const std::function<bool(const std::string&)>& of_same_terms,
                           double loss_bound) {
    CAPTURE(fmt::format("{}", fmt::join(parallelism, " ")));
    Settings in_fp64 = settings;
    in_fp64.front() = "precision.compute=fp64";
    const ProbeResult exact = run_probe(model, 1, 1, in_fp64);
    const ProbeResult one = run_probe(model, 1, 1, settings);
    const ProbeResult found = run_probe(model, 2, 1, with(settings, parallelism));
    REQUIRE(exact.problem == "");
    REQUIRE(one.problem == "");
    REQUIRE(found.problem == "");
    CHECK(is_near(found, one, 1, loss_bound));
    check_gradients(found, one, exact, of_same_terms);
  };
  compare(wide, {"parallelism.tp=2"}, no_name, kLossBound);
  compare(longer, {"parallelism.sp=2"}, is_behind_last_attention, 0);
  compare(longer, {"parallelism.sp=2", "parallelism.sp_algo=ulysses"}, every_name, 0);
}

TEST_CASE("records of a step in FP8 have the largest numbers of all ranks of tp and sp") {
  const Workshop w;
  // The first product alone: no sum over ranks comes before its input. With this seed the largest
  // number of a weight is on the second rank of tp, that of the input on the second of sp.
  const Settings settings{"run.seed=3", "training.max_steps=1", "checkpoint.interval=null",
                          "precision={compute: fp8, fp8: {scaling: delayed, include: "
                          "[\"model.layers.0.self_attn.q_proj*\"]}}"};
  const auto records = [&](int ranks, const std::string& name, const std::string& parallelism) {
    const ProcessResult result =
        w.run(ranks, with(settings, {"run.output_dir=" + name, "parallelism=" + parallelism}));
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    std::map<std::string, double> found;
    for (const auto& record : train::read_metrics(w.scratch / name / "metrics.jsonl")) {
      for (const std::string operand : {"input", "weight", "output_grad"}) {
        const auto amax = record.number("fp8/amax/" + operand);
        if (!amax) continue;
        found[operand] = *amax;
        CHECK(record.number("fp8/saturated/" + operand) == 0);
      }
    }
    REQUIRE(found.size() == 3);
    return found;
  };
  const auto one = records(1, "one", "{}");
  CHECK(records(2, "ulysses", "{sp: 2, sp_algo: ulysses}") == one);
  for (const std::string shared : {"{tp: 2}", "{sp: 2}"}) {
    CAPTURE(shared);
    const auto found = records(2, shared.substr(1, 2), shared);
    CHECK(found.at("input") == one.at("input"));
    CHECK(found.at("weight") == one.at("weight"));
    CHECK(is_alike(found.at("output_grad"), one.at("output_grad"), false));
  }
}

}  // namespace llmtrain::test
