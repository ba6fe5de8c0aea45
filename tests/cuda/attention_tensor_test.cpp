// Attention on tensor cores: the kernels with wgmma where the GPU has it, and those with mma.sync.
#include <cstdlib>
#include <utility>

#include "lib/base/error.hpp"
#include "tests/cuda/attention_case.hpp"
#include "tests/cuda/skip.hpp"
#include "tests/support/variable.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

namespace {

// Before the second product of each direction tensor cores need probabilities (and gradients of
// scores) in the type of the operands, as FlashAttention has it; the CPU keeps them in FP32. Their
// rounding adds an error of the kind that the result's own rounding is: twice the reference's for
// an average over few keys, and a unit where the result's magnitude is below that of its terms.
constexpr Limits kForward{.times_reference = 3, .floor = 3};
constexpr Limits kBackward{.times_reference = 3, .floor = 4};

// Blocks have 128 queries or keys, tiles 32, 64 or 128.
const std::vector<AttentionCase> kCases = {
    {.name = "causal", .tq = 200, .tk = 200, .head_dim = 64},
    {.name = "one row", .tq = 1, .tk = 1, .head_dim = 8},
    {.name = "documents",
     .tq = 260,
     .tk = 260,
     .heads = 1,
     .head_dim = 32,
     .documents = {0, 20, 23, 130, 255}},
    {.name = "window", .tq = 300, .tk = 300, .heads = 1, .head_dim = 32, .window = 50},
    {.name = "groups",
     .sequences = 2,
     .tq = 70,
     .tk = 70,
     .heads = 6,
     .kv_heads = 2,
     .head_dim = 40},
    {.name = "cache", .sequences = 2, .tq = 5, .tk = 133, .head_dim = 128, .q_begin = 128},
    {.name = "later keys", .tq = 130, .tk = 140, .head_dim = 72, .q_begin = 30, .k_begin = 64},
    {.name = "half a tile, all of it seen", .tq = 64, .tk = 96, .q_begin = 100},
    {.name = "nothing seen", .tq = 40, .tk = 33, .k_begin = 100},
    {.name = "scattered", .tq = 200, .tk = 230, .documents = {0, 50, 160}, .scattered = true},
    {.name = "alibi", .tq = 70, .tk = 70, .head_dim = 64, .alibi = true},
    {.name = "sink", .sequences = 2, .tq = 70, .tk = 70, .head_dim = 64, .sink = true},
    {.name = "sink beside nothing", .tq = 33, .tk = 40, .sink = true, .k_begin = 16},
    {.name = "softcap", .tq = 70, .tk = 70, .head_dim = 64, .softcap = 0.8},
    {.name = "dropout", .sequences = 2, .tq = 75, .tk = 75, .dropout = 0.3},
    {.name = "dropout of some heads",
     .sequences = 2,
     .tq = 75,
     .tk = 75,
     .dropout = 0.3,
     .first_head = 2,
     .layer_heads = 5},
    {.name = "peaked", .tq = 140, .tk = 140, .head_dim = 64, .scale = 3},
    {.name = "three tiles, groups",
     .tq = 290,
     .tk = 290,
     .heads = 2,
     .kv_heads = 1,
     .head_dim = 128,
     .fused = true},
    {.name = "window over tiles", .tq = 400, .tk = 400, .heads = 1, .head_dim = 64, .window = 130},
    {.name = "rows apart", .tq = 70, .tk = 70, .head_dim = 64, .gap = 16},
    {.name = "negative scale", .tq = 40, .tk = 40, .scale = -0.5},
    {.name = "96", .tq = 140, .tk = 140, .heads = 1, .head_dim = 96, .fused = true},
    {.name = "128", .tq = 140, .tk = 140, .heads = 1, .head_dim = 128, .fused = true},
    {.name = "256", .tq = 70, .tk = 90, .heads = 2, .head_dim = 256, .documents = {0, 20}},
    {.name = "softcap at 160", .tq = 40, .tk = 40, .heads = 1, .head_dim = 160, .softcap = 1},
    {.name = "all",
     .sequences = 2,
     .tq = 141,
     .tk = 141,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 24,
     .window = 60,
     .softcap = 2,
     .alibi = true,
     .sink = true,
     .dropout = 0.2,
     .fused = true,
     .documents = {0, 10, 100}},
    {.name = "all at 128",
     .tq = 150,
     .tk = 150,
     .heads = 2,
     .head_dim = 128,
     .window = 100,
     .softcap = 2,
     .alibi = true,
     .sink = true,
     .dropout = 0.2,
     .documents = {0, 30}},
};

/// Every kernel, with tiles that end in the middle; plain where heads are no whole chunks.
const std::vector<AttentionCase> kWideCases = {
    {.name = "64",
     .sequences = 2,
     .tq = 70,
     .tk = 90,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 40,
     .q_begin = 20},
    {.name = "128", .tq = 140, .tk = 140, .heads = 1, .head_dim = 128, .fused = true},
    {.name = "96", .tq = 70, .tk = 70, .heads = 1, .head_dim = 96, .documents = {0, 30}},
    {.name = "256", .tq = 70, .tk = 70, .heads = 1, .kv_heads = 1, .head_dim = 256},
    {.name = "plain", .sequences = 2, .tq = 30, .tk = 30, .head_dim = 12},
    {.name = "plain, odd rows", .tq = 30, .tk = 30, .head_dim = 20, .fused = true},
};

/// The line of a machine that ran the forward.
std::string choice(const AttentionCase& c, DType dtype = DType::bf16) {
  Machine machine(Place::gpu, dtype, dtype);
  AttentionProblem(machine, c).forward();
  const auto lines = gpu().choices(machine.device());
  return lines.empty() ? "" : lines.front();
}

constexpr const char* kNoWgmma = "the GPU has no wgmma, or LLMTRAIN_WGMMA decides about it";

bool has_wgmma() { return gpu().report().devices.front().capability == 90; }

}  // namespace

TEST_CASE("attention in bf16 and fp16 on tensor cores with every feature") {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const AttentionCase& c : kCases) compare_attention(c, dtype, kForward, kBackward);
  }
}

TEST_CASE("attention in bf16 and fp16 with mma.sync on a GPU that has wgmma") {
  if (skip_if(!has_wgmma(), kNoWgmma)) return;
  const test::Variable off("LLMTRAIN_WGMMA", "off");
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const AttentionCase& c : kCases) compare_attention(c, dtype, kForward, kBackward);
  }
}

// What parts of sums are (AttentionMerge) is what a result was before it was rounded.
TEST_CASE("results in FP32 beside bf16 and fp16 are the narrow ones, not rounded") {
  for (const char* const wgmma : {"", "off"}) {
    const test::Variable setting("LLMTRAIN_WGMMA", wgmma);
    CAPTURE(wgmma);
    for (const DType dtype : {DType::bf16, DType::f16}) {
      CAPTURE(to_string(dtype));
      for (AttentionCase c : kWideCases) {
        CAPTURE(c.name);
        Machine exact(Place::reference, DType::f64, dtype);
        const std::vector<Output> known = AttentionProblem(exact, c).forward();
        const auto results = [&](bool wide) {
          c.wide = wide;
          Machine machine(Place::gpu, dtype, dtype);
          AttentionProblem problem(machine, c);
          std::vector<Output> all = problem.forward();
          for (Output& o : problem.backward(known[0].values, known[1].values)) {
            all.push_back(std::move(o));
          }
          return all;
        };
        const std::vector<Output> narrow_ones = results(false), wide_ones = results(true);
        REQUIRE(wide_ones.size() == narrow_ones.size());
        for (const std::size_t i : {0, 2, 3, 4}) {  // out, dq, dk, dv
          CAPTURE(i);
          Values rounded = wide_ones[i].values;
          bool finer = false;
          with_type(dtype, [&]<class T>() {
            for (double& x : rounded) {
              const double before = std::exchange(x, widen(narrow<T>(static_cast<float>(x))));
              finer |= before != x;
            }
          });
          CHECK(max_difference(rounded, narrow_ones[i].values) == 0);
          CHECK(finer);
        }
        CHECK(max_difference(wide_ones[1].values, narrow_ones[1].values) == 0);  // lse
      }
    }
  }
}

TEST_CASE("wgmma is used in fp16, too") {
  if (skip_if(!has_wgmma() || std::getenv("LLMTRAIN_WGMMA") != nullptr, kNoWgmma)) return;
  CHECK(choice({.name = "narrow", .head_dim = 40}, DType::f16) ==
        "attention: our kernels for wgmma (forward)");
}

TEST_CASE("wgmma is used where there is any, up to 128 columns, unless it is off") {
  if (skip_if(!has_wgmma() || std::getenv("LLMTRAIN_WGMMA") != nullptr, kNoWgmma)) return;
  const AttentionCase narrow{.name = "narrow", .head_dim = 40},
      wide{.name = "wide", .head_dim = 136};
  CHECK(choice(narrow) == "attention: our kernels for wgmma (forward)");
  CHECK(choice(wide) == "attention: our kernels for tensor cores (forward)");
  CHECK(choice({.name = "rows apart", .head_dim = 64, .gap = 16}) ==
        "attention: our kernels for tensor cores (forward; no wgmma: rows that are no whole number "
        "of heads apart)");
  {
    const test::Variable off("LLMTRAIN_WGMMA", "off");
    CHECK(choice(narrow) ==
          "attention: our kernels for tensor cores (forward; LLMTRAIN_WGMMA is off)");
    CHECK(choice(wide) == "attention: our kernels for tensor cores (forward)");
  }
  {
    const test::Variable untried("LLMTRAIN_WGMMA", "untried");
    CHECK(choice(narrow) ==
          "attention: our kernels for wgmma (forward; LLMTRAIN_WGMMA is untried)");
    CHECK(choice(wide) == "attention: our kernels for tensor cores (forward)");
  }
  const test::Variable unknown("LLMTRAIN_WGMMA", "on");
  CHECK_THROWS_AS(choice(narrow), DeviceError);
}
