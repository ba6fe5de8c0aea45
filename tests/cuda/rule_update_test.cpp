// Updates by the element-wise rules on the device: the reference's bits.
#include "tests/cuda/machine.hpp"
#include "tests/support/rule_case.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;
using llmtrain::test::every_rule;
using llmtrain::test::kEveryDecay;
using llmtrain::test::rule_decision;
using llmtrain::test::run_rule;

namespace {

using Case = test::RuleCase<Machine>;

constexpr DType kMasters[] = {DType::f64, DType::f32};

std::vector<Output> contents(Machine& m, const Case& c) {
  std::vector<Output> all;
  for (const Tensor& tensor : c.all) all.push_back(outputs(m, tensor).front());
  return all;
}

}  // namespace

TEST_CASE("updates by rules have the reference's bits") {
  for (const UpdateRule& rule : every_rule()) {
    for (const DType dtype : kMasters) {
      for (const WeightDecay decay : kEveryDecay) {
        for (const std::int64_t n : {0, 1, 39, 5002}) {
          CAPTURE(rule.index());
          CAPTURE(n);
          compare(
              [&](Machine& m) {
                const Case c(m, rule, n);
                for (const int t : {1, 5}) {
                  const Tensor now = rule_decision(m, 0.3, t);
                  run_rule(m, c.tensors, {.decision = now, .rule = rule, .decay = decay});
                }
                return contents(m, c);
              },
              dtype, {.same_bits = true});
        }
      }
    }
  }
}

TEST_CASE("updates by rules have these bits in every form of the master") {
  constexpr std::int64_t kCount = 5002;
  for (const UpdateRule& rule : every_rule()) {
    for (const bool halves : {false, true}) {
      CAPTURE(rule.index());
      const auto run = [&](Place place) {
        Machine m(place, DType::f32, DType::f32);
        Case c(m, rule, kCount);
        const Tensor high = m.normals("p", {kCount}, DType::bf16, DType::bf16);
        const Tensor low = m.integers(std::vector<std::uint16_t>(kCount, 99));
        c.tensors.to.parameter = {};
        c.tensors.to.compute_copy = high;
        if (halves) {
          c.tensors.to.remainder = low;
        } else {
          c.tensors.to.rounding = {.on = true,
                                   .key = philox_key(3, "stochastic rounding", "w"),
                                   .first = 5,
                                   .columns = kCount};
        }
        // Twice, so that what the remainder holds counts.
        for (const int t : {2, 3}) {
          const Tensor now = rule_decision(m, 0.3, t);
          run_rule(m, c.tensors, {.decision = now, .rule = rule});
        }
        std::vector<Values> all{m.read(high)};
        for (std::size_t i = 3; i < c.all.size(); ++i) all.push_back(m.read(c.all[i]));
        return all;
      };
      CHECK(run(Place::gpu) == run(Place::reference));
    }
  }
}

TEST_CASE("lists of parameters have the reference's bits under rules, wherever they lie") {
  const std::int64_t sizes[] = {0, 5, kListChunk, 0, kListChunk + 1, 20001, 1, 0};
  for (const UpdateRule& rule : every_rule()) {
    for (const DType dtype : kMasters) {
      for (const std::int64_t offset : {0, 1, 4}) {
        CAPTURE(rule.index());
        CAPTURE(offset);
        compare(
            [&](Machine& m) {
              std::vector<Case> cases;
              std::vector<RuleTensors> tensors;
              for (const std::int64_t n : sizes) {
                Case& c = cases.emplace_back(m, rule, n, offset);
                c.tensors.lr_scale = 0.1 * static_cast<double>(cases.size());
                tensors.push_back(c.tensors);
              }
              const Tensor now = rule_decision(m, 0.3, 4);
              const std::span<const RuleTensors> all(tensors);
              const Tensor table = make_table<RuleUpdate>(m.device(), all, "table");
              m.run(RuleUpdate{.tensors = all, .table = table, .decision = now, .rule = rule});
              std::vector<Output> found;
              for (const Case& c : cases) {
                for (Output& output : contents(m, c)) found.push_back(std::move(output));
              }
              return found;
            },
            dtype, {.same_bits = true});
      }
    }
  }
}

TEST_CASE("rules touch nothing on the device where the decision does not apply") {
  for (const UpdateRule& rule : every_rule()) {
    Machine m(Place::gpu, DType::f32, DType::f32);
    const Case c(m, rule, 5002);
    const auto all = [&] {
      std::vector<Values> values;
      for (const Tensor& tensor : c.all) {
        if (tensor.dtype() != DType::bf16) values.push_back(m.read(tensor));  // that is NaN
      }
      return values;
    };
    const auto before = all();
    const Tensor no = rule_decision(m, 1, 3, false);
    run_rule(m, c.tensors, {.decision = no, .rule = rule});
    CHECK(all() == before);
  }
}
