// Updates with states of 8 bits on the device: the reference's bits.
#include "tests/cuda/machine.hpp"
#include "tests/support/eight_bit_case.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;
using llmtrain::test::bytes_of_all;
using llmtrain::test::every_eight_bit_rule;
using llmtrain::test::Form;
using llmtrain::test::kEveryForm;
using llmtrain::test::rule_decision;
using llmtrain::test::run_eight_bit;

namespace {

using Case = test::EightBitCase<Machine>;

constexpr DType kMasters[] = {DType::f64, DType::f32};

}  // namespace

TEST_CASE("updates with states of 8 bits have the reference's bits") {
  for (const EightBitRule& rule : every_eight_bit_rule()) {
    for (const DType dtype : kMasters) {
      for (const std::int64_t n : {0, 1, 39, 256, 257, 5002}) {
        CAPTURE(rule.index());
        CAPTURE(to_string(dtype));
        CAPTURE(n);
        const auto run = [&](Place place) {
          Machine m(place, dtype, DType::f32);
          const Case c(m, rule, n);
          for (const int t : {1, 5}) {
            const Tensor now = rule_decision(m, 0.3, t);
            run_eight_bit(m, c.tensors, {.decision = now, .rule = rule});
          }
          return bytes_of_all(c);
        };
        CHECK(run(Place::gpu) == run(Place::reference));
      }
    }
  }
}

TEST_CASE("updates with states of 8 bits have these bits in every form of the master") {
  for (const EightBitRule& rule : every_eight_bit_rule()) {
    for (const Form form : kEveryForm) {
      for (const WeightDecay decay : {WeightDecay::before_step, WeightDecay::after_step}) {
        CAPTURE(rule.index());
        CAPTURE(static_cast<int>(form));
        const auto run = [&](Place place) {
          Machine m(place, DType::f32, DType::f32);
          const Case c(m, rule, 5002, form);
          for (const int t : {2, 3}) {
            const Tensor now = rule_decision(m, 0.3, t);
            run_eight_bit(m, c.tensors, {.decision = now, .rule = rule, .decay = decay});
          }
          return bytes_of_all(c);
        };
        CHECK(run(Place::gpu) == run(Place::reference));
      }
    }
  }
}

TEST_CASE(
    "lists of parameters with states of 8 bits have the reference's bits, wherever they lie") {
  const std::int64_t sizes[] = {0, 5, kListChunk, 0, kListChunk + 1, 20001, 1, 0};
  for (const EightBitRule& rule : every_eight_bit_rule()) {
    for (const DType dtype : kMasters) {
      for (const std::int64_t offset : {0, 1, 4}) {
        CAPTURE(rule.index());
        CAPTURE(offset);
        const auto run = [&](Place place) {
          Machine m(place, dtype, DType::f32);
          std::vector<Case> cases;
          std::vector<EightBitTensors> tensors;
          for (const std::int64_t n : sizes) {
            Case& c = cases.emplace_back(m, rule, n, Form::with_copy, offset);
            c.tensors.lr_scale = 0.1 * static_cast<double>(cases.size());
            tensors.push_back(c.tensors);
          }
          const Tensor now = rule_decision(m, 0.3, 4);
          const std::span<const EightBitTensors> all(tensors);
          const Tensor table = make_table<EightBitUpdate>(m.device(), all, "table");
          m.run(EightBitUpdate{.tensors = all, .table = table, .decision = now, .rule = rule});
          std::vector<std::vector<std::byte>> found;
          for (const Case& c : cases) {
            for (auto& bytes : bytes_of_all(c)) found.push_back(std::move(bytes));
          }
          return found;
        };
        CHECK(run(Place::gpu) == run(Place::reference));
      }
    }
  }
}

TEST_CASE("states of 8 bits stay on the device where the decision does not apply") {
  for (const EightBitRule& rule : every_eight_bit_rule()) {
    Machine m(Place::gpu, DType::f32, DType::f32);
    const Case c(m, rule, 5002);
    const auto before = bytes_of_all(c);
    const Tensor no = rule_decision(m, 1, 3, false);
    run_eight_bit(m, c.tensors, {.decision = no, .rule = rule});
    CHECK(bytes_of_all(c) == before);
  }
}

TEST_CASE("bytes are filled on the device, too") {
  Machine m(Place::gpu, DType::f32, DType::f32);
  const Tensor bytes = m.integers(std::vector<std::uint8_t>(70'001, 3));
  m.run(Fill{.y = bytes, .value = 200});
  std::vector<std::uint8_t> found(70'001);
  m.device().copy_to_host(std::as_writable_bytes(std::span(found)), bytes);
  CHECK(found == std::vector<std::uint8_t>(70'001, 200));
}
