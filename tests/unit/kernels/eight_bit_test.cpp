// States of 8 bits: the dynamic map, codes of any number, an update by hand, and the fast kernel's
// bits in every form of the master.
#include "kernels/eight_bit.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include "kernels/cpu/fast/code_lines.hpp"
#include "lib/base/error.hpp"
#include "tests/support/eight_bit_case.hpp"
#include "tests/support/relative.hpp"
#include "tests/unit/kernels/optimizer_trial.hpp"

namespace llmtrain::kernels {

using fast::CodeLines;
using test::bytes_of_all;
using test::every_eight_bit_rule;
using test::Form;
using test::kEveryForm;
using test::rule_decision;
using test::run_eight_bit;
using trial::Machine;
using trial::values_of;

namespace {

using Case = test::EightBitCase<Machine>;

constexpr const DynamicMap* kMaps[] = {&kSignedDynamicMap, &kUnsignedDynamicMap};

// Less than a block and more, a short last one, more than a pass and more than a chunk.
constexpr std::int64_t kSizes[] = {0, 1, 15, 255, 256, 257, 1024, 5002, kListChunk + 300};

/// What two updates leave.
auto updated(const KernelTable& table, DType dtype, int threads, const EightBitRule& rule,
             std::int64_t n, Form form, WeightDecay decay = WeightDecay::before_step) {
  Machine machine(table, dtype, DType::f32, threads);
  const Case c(machine, rule, n, form);
  for (const int t : {1, 5}) {
    const Tensor now = rule_decision(machine, 0.7, t);
    run_eight_bit(machine, c.tensors, {.decision = now, .rule = rule, .decay = decay});
  }
  return bytes_of_all(c);
}

/// How many codes and bytes of scales of the states that an update with these gradients leaves
/// differ from the reference's, over all instruction sets.
std::int64_t wrong_codes(const std::vector<float>& gradients, const EightBitRule& rule) {
  const auto states = [&](const KernelTable& table) {
    Machine machine(table, DType::f32, DType::f32, 1);
    const Case c(machine, rule, static_cast<std::int64_t>(gradients.size()), Form::whole);
    std::copy(gradients.begin(), gradients.end(), c.tensors.to.gradient.as<float>());
    const Tensor now = rule_decision(machine, 1, 1);
    run_eight_bit(machine, c.tensors, {.decision = now, .rule = rule});
    std::vector<std::uint8_t> bytes;
    for (std::size_t k = 0; k < states_of(rule).size(); ++k) {
      for (const View& view : {c.tensors.codes[k], c.tensors.scales[k]}) {
        const auto* first = static_cast<const std::uint8_t*>(view.data);
        bytes.insert(bytes.end(), first, first + view.bytes());
      }
    }
    return bytes;
  };
  const auto expected = states(cpu_reference_table());
  std::int64_t differ = 0;
  for (std::int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    const trial::InstructionSet only(left & -left);
    const auto found = states(cpu_table());
    for (std::size_t i = 0; i < expected.size(); ++i) differ += found[i] != expected[i];
  }
  return differ;
}

}  // namespace

TEST_CASE("the dynamic maps hold 256 ascending values over seven powers of ten") {
  for (const DynamicMap* map : kMaps) {
    for (std::size_t i = 0; i + 1 < kDynamicCodes; ++i) CHECK(map->values[i] < map->values[i + 1]);
    CHECK(map->values[255] == 1.0f);
  }
  CHECK(kSignedDynamicMap.values[127] == 0.0f);
  CHECK(kSignedDynamicMap.values[128] == test::relative(5.5e-7, 1e-6));
  CHECK(kSignedDynamicMap.values[126] == -kSignedDynamicMap.values[128]);
  CHECK(kSignedDynamicMap.values[0] == test::relative(-0.99296875, 1e-6));
  CHECK(kSignedDynamicMap.values[254] == -kSignedDynamicMap.values[0]);
  CHECK(kUnsignedDynamicMap.values[0] == 0.0f);
  CHECK(kUnsignedDynamicMap.values[1] == test::relative(3.25e-7, 1e-6));
  CHECK(kUnsignedDynamicMap.values[254] == test::relative(0.996484375, 1e-6));
}

TEST_CASE("a number's code has the nearest value, of two the lower") {
  for (const DynamicMap* map : kMaps) {
    for (int i = 0; i < kDynamicCodes; ++i) {
      const auto at = static_cast<std::size_t>(i);
      CHECK(map->code_of(map->values[at]) == i);
      if (i + 1 == kDynamicCodes) continue;
      CHECK(map->code_of(map->bounds[at]) == i);
      CHECK(map->code_of(std::nextafter(map->bounds[at], 2.0f)) == i + 1);
    }
  }
}

TEST_CASE("a state keeps its sign, however small it is") {
  const DynamicMap& map = kSignedDynamicMap;
  CHECK(map.code_of(-2e-7f) == 126);
  CHECK(map.code_of(-std::numeric_limits<float>::denorm_min()) == 126);
  CHECK(map.code_of(0.0f) == 127);
  CHECK(map.code_of(-0.0f) == 127);
  CHECK(map.code_of(2e-7f) == 127);  // what is above zero may become zero
  CHECK(map.code_of(3e-7f) == 128);
}

TEST_CASE("a guess of a number's step is that of its code or one below") {
  for (const CodeLines& lines : fast::kCodeLines) {
    const auto last = std::bit_cast<std::int32_t>(1.0f) + 1;
    std::int64_t wrong = 0;
    for (auto bits = std::bit_cast<std::int32_t>(CodeLines::kLeast); bits <= last; bits += 64) {
      int step = 0;
      for (int s = 0; s < CodeLines::kSteps; ++s) {
        step += lines.above[static_cast<std::size_t>(s)] < std::bit_cast<float>(bits);
      }
      const int guess = CodeLines::guess(bits) - CodeLines::kGuessOfZero;
      wrong += guess < 0 || guess >= CodeLines::kSteps || step - guess < 0 || step - guess > 1;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("numbers on bounds, beside them and far from all get the reference's codes") {
  // With these betas m is g and v its square; the first of every block is one, the scale of both.
  const EightBitRule rule = rules::Adam{.beta1 = 0, .beta2 = 0};
  std::vector<float> numbers;
  const auto add = [&](float x) {
    for (const float number : {x, -x}) {
      if (numbers.size() % kDynamicBlock == 0) numbers.push_back(1);
      numbers.push_back(number);
    }
  };
  for (const DynamicMap* map : kMaps) {
    for (std::size_t i = 0; i + 1 < kDynamicCodes; ++i) {
      const float bound = std::abs(map->bounds[i]);
      for (int far = -4; far <= 4; ++far) {
        for (const float x : {bound, std::sqrt(bound)}) {
          add(std::bit_cast<float>(std::bit_cast<std::int32_t>(x) + far));
        }
      }
    }
  }
  for (const float x : {0.0f, 1e-45f, 1e-38f, 1e-7f, 1.0f}) add(x);
  CHECK(wrong_codes(numbers, rule) == 0);
}

TEST_CASE("every code stands for its value, to the bit, in every instruction set") {
  // A block for each code, of which all else is zero: with these betas the scale becomes its value.
  const EightBitRule rule = rules::Adam{.beta1 = 1, .beta2 = 1};
  for (std::int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    const trial::InstructionSet only(left & -left);
    Machine machine(cpu_table(), DType::f32, DType::f32, 1);
    const Case c(machine, rule, kDynamicCodes * kDynamicBlock, Form::whole);
    for (std::size_t k = 0; k < 2; ++k) {
      auto* const codes = c.tensors.codes[k].as<std::uint8_t>();
      std::fill_n(codes, kDynamicCodes * kDynamicBlock, kMaps[k]->code_of(0));
      for (int i = 0; i < kDynamicCodes; ++i) {
        codes[i * kDynamicBlock + i] = static_cast<std::uint8_t>(i);
        c.tensors.scales[k].as<float>()[i] = 1;
      }
    }
    const Tensor now = rule_decision(machine, 1, 1);
    run_eight_bit(machine, c.tensors, {.decision = now, .rule = rule});
    for (std::size_t k = 0; k < 2; ++k) {
      for (std::size_t i = 0; i < kDynamicCodes; ++i) {
        CHECK(c.tensors.scales[k].as<float>()[i] == std::abs(kMaps[k]->values[i]));
      }
    }
  }
}

TEST_CASE("blocks of zeros, of subnormal and infinite numbers and of none get the same codes") {
  const EightBitRule rule = rules::Adam{.beta1 = 0, .beta2 = 0};
  for (const float x : {0.0f, 1e-45f, 1e-38f, 2e-38f, 1e-20f, 3e38f, INFINITY, NAN}) {
    std::vector<float> numbers(kDynamicBlock + 100, x);
    for (std::size_t i = 0; i < numbers.size(); i += 3) numbers[i] = -x / 3;
    CHECK(wrong_codes(numbers, rule) == 0);
    for (std::size_t i = 5; i < numbers.size(); i += 90) numbers[i] = 1;
    CHECK(wrong_codes(numbers, rule) == 0);
  }
}

TEST_CASE("blocks are scaled into [-1, 1] whatever they hold") {
  for (const bool whole : {false, true}) {
    for (const float largest : {0.0f, 1e-45f, 1e-38f, 0.3f, 3.0f, 3e38f}) {
      const DynamicScale scale(largest, whole);
      for (const float x : {largest, -largest, largest / 3, 0.0f}) {
        const float y = scale.scaled(x);
        CHECK(std::abs(y) <= 1);
        if (largest >= 1e-38f) CHECK(y == test::relative(x / largest, 1e-6));
      }
      CHECK(std::abs(scale.scaled(NAN)) <= 1);
      CHECK(std::abs(scale.scaled(INFINITY)) <= 1);
    }
  }
}

TEST_CASE("whole blocks are multiplied by one over their scale, short ones divided") {
  const DynamicScale whole(0.7f, true), cut(0.7f, false);
  int differ = 0;
  for (int i = 1; i < 70; ++i) {
    const float x = 0.01f * static_cast<float>(i);
    CHECK(whole.scaled(x) == x * (1 / 0.7f));
    CHECK(cut.scaled(-x) == -x / 0.7f);
    differ += whole.scaled(x) != cut.scaled(x);
  }
  CHECK(differ > 0);
}

TEST_CASE("an update reads codes times scales, steps by new moments and codes them again") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    Machine machine(*table, DType::f32, DType::f32, 1);
    constexpr std::int64_t kCount = kDynamicBlock + 2;  // a whole block and a short one
    trial::Values gradients(kCount, 0);
    gradients[0] = 4, gradients[1] = -2, gradients[kDynamicBlock] = 0.5;
    const Tensor p = machine.of(trial::Values(kCount, 1), {kCount}, DType::f32);
    const Tensor g = machine.of(gradients, {kCount}, DType::f32);
    const Tensor codes = machine.integers(std::vector<std::uint8_t>(kCount, 255));
    const Tensor scales = machine.of({0.5, 0}, {2}, DType::f32);
    const Tensor now = rule_decision(machine, 1, 1);
    run_eight_bit(machine, {{p, g}, {codes}, {scales}, 0.5, 0},
                  {.decision = now, .rule = rules::Lion{.beta1 = 0.5, .beta2 = 0.75}});
    // m was 0.5 in the whole block and 0 in the short one; lr is 0.25.
    const std::uint8_t* const code = codes.view().as<std::uint8_t>();
    CHECK(values_of(scales) == trial::Values{0.75 * 0.5 + 0.25 * 4, 0.25 * 0.5});
    const float rest = 0.375f / 1.375f, second = -0.125f / 1.375f;
    CHECK(code[0] == 255);
    CHECK(code[1] == kSignedDynamicMap.code_of(second));
    CHECK(code[2] == kSignedDynamicMap.code_of(rest));
    CHECK(code[kDynamicBlock] == 255);
    CHECK(code[kDynamicBlock + 1] == 127);
    const trial::Values moved = values_of(p);
    CHECK(moved[0] == 0.75);
    CHECK(moved[1] == 1.25);
    CHECK(moved[2] == 0.75);  // by what it had
    CHECK(moved[kDynamicBlock] == 0.75);
    CHECK(moved[kDynamicBlock + 1] == 1);
  }
}

TEST_CASE("fast updates with states of 8 bits have the reference's bits, whatever the threads") {
  for (const EightBitRule& rule : every_eight_bit_rule()) {
    for (const Form form : kEveryForm) {
      for (const std::int64_t n : kSizes) {
        CAPTURE(rule.index());
        CAPTURE(static_cast<int>(form));
        CAPTURE(n);
        const auto expected = updated(cpu_reference_table(), DType::f32, 1, rule, n, form);
        for (const int threads : {1, 2, 3}) {
          CHECK(updated(cpu_table(), DType::f32, threads, rule, n, form) == expected);
        }
      }
    }
  }
}

TEST_CASE("every instruction set updates states of 8 bits to the reference's bits") {
  for (const EightBitRule& rule : every_eight_bit_rule()) {
    const auto expected = updated(cpu_reference_table(), DType::f32, 1, rule, 5002, Form::halves);
    for (std::int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
      const trial::InstructionSet only(left & -left);
      CHECK(updated(cpu_table(), DType::f32, 2, rule, 5002, Form::halves) == expected);
    }
  }
}

TEST_CASE("states of 8 bits beside fp64 masters, and decay after the step, are the reference's") {
  for (const EightBitRule& rule : every_eight_bit_rule()) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      const auto run = [&](const KernelTable& table, WeightDecay decay) {
        return updated(table, dtype, 2, rule, 5002, Form::with_copy, decay);
      };
      const auto after = run(cpu_reference_table(), WeightDecay::after_step);
      CHECK(run(cpu_table(), WeightDecay::after_step) == after);
      CHECK(run(cpu_table(), WeightDecay::before_step) != after);
    }
  }
}

TEST_CASE("a list of parameters with states of 8 bits has the bits of its parameters one by one") {
  const std::int64_t sizes[] = {0, 5, kListChunk, 0, kListChunk + 1, 1, 0};
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const EightBitRule& rule : every_eight_bit_rule()) {
      Machine machine(*table, DType::f32, DType::f32, 2);
      const Tensor now = rule_decision(machine, 0.3, 4);
      std::vector<Case> listed, alone;
      std::vector<EightBitTensors> tensors;
      for (std::size_t i = 0; i < std::size(sizes); ++i) {
        for (std::vector<Case>* to : {&listed, &alone}) {
          Case& c = to->emplace_back(machine, rule, sizes[i]);
          c.tensors.lr_scale = 0.1 * static_cast<double>(i + 1);
          c.tensors.weight_decay = i % 2 == 0 ? 0.1 : 0;
        }
        tensors.push_back(listed.back().tensors);
      }
      const std::span<const EightBitTensors> all(tensors);
      const Tensor rows = make_table<EightBitUpdate>(*machine.ctx().device, all, "table");
      machine.run(EightBitUpdate{.tensors = all, .table = rows, .decision = now, .rule = rule});
      for (std::size_t i = 0; i < alone.size(); ++i) {
        run_eight_bit(machine, alone[i].tensors, {.decision = now, .rule = rule});
        CHECK(bytes_of_all(alone[i]) == bytes_of_all(listed[i]));
      }
    }
  }
}

TEST_CASE("states of 8 bits stay where the decision does not apply") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      for (const EightBitRule& rule : every_eight_bit_rule()) {
        Machine machine(*table, dtype, dtype, 2);
        const Case c(machine, rule, 300);
        const auto before = bytes_of_all(c);
        const Tensor no = rule_decision(machine, 1, 1, false);
        run_eight_bit(machine, c.tensors, {.decision = no, .rule = rule});
        CHECK(bytes_of_all(c) == before);
      }
    }
  }
}

TEST_CASE("an update with states of 8 bits says what it costs and what it does not take") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 1);
  const Case c(machine, rules::Adam{}, 300, Form::whole);
  const Tensor now = rule_decision(machine, 1, 1);
  EightBitUpdate op{.tensors = std::span(&c.tensors, 1), .table = {}, .decision = now, .rule = {}};
  op.check();
  CHECK(op.cost().bytes_read == 300 * (4 + 4 + 1 + 1) + 2 * 2 * 4);
  CHECK(op.cost().bytes_written == 300 * (4 + 1 + 1) + 2 * 2 * 4);
  op.rule = rules::Lion{};
  CHECK_THROWS_AS(op.check(), InternalError);
  op.rule = rules::Adam{};
  EightBitTensors few = c.tensors;
  const Tensor one = machine.of({0}, {1}, DType::f32);  // of two
  few.scales[1] = one;
  op.tensors = std::span(&few, 1);
  CHECK_THROWS_AS(op.check(), InternalError);
}

TEST_CASE("bytes are filled, too") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    Machine machine(*table, DType::f32, DType::f32, 2);
    const Tensor bytes = machine.integers(std::vector<std::uint8_t>(70'001, 3));
    machine.run(Fill{bytes, 200});
    for (std::int64_t i = 0; i < bytes.numel(); ++i) {
      REQUIRE(bytes.view().as<std::uint8_t>()[i] == 200);
    }
  }
}

}  // namespace llmtrain::kernels
