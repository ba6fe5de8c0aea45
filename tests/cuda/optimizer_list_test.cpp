// Updates on the device: masters in either form, and lists of parameters.
#include <bit>

#include "lib/tensor/split_master.hpp"
#include "tests/cuda/optimizer_case.hpp"
#include "tests/support/norm_runs.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;
using llmtrain::test::norm_runs;
using llmtrain::test::NormRuns;
using llmtrain::test::run_adam;
using llmtrain::test::run_rule;
using llmtrain::test::run_squared_norm;

namespace {

/// FP32 masters that three updates and two of other kinds have changed, and the bits of their
/// copies.
struct Updated {
  std::vector<std::uint32_t> masters;
  std::vector<std::uint16_t> copies;
};

/// Masters in whole on the reference, as halves on the GPU.
Updated update_masters(Place place, std::int64_t n) {
  Machine m(place, DType::f32, DType::f32);
  const auto count = static_cast<std::size_t>(n);
  const Tensor p = m.operand("p", {n}), g = m.operand("g", {n}), moment = m.operand("m", {n});
  const Tensor square = m.of(Values(count, 0.01), {n}, DType::f32);
  const Tensor direction = m.normals("d", {n}, DType::bf16, DType::bf16);
  const Tensor copy = m.zeros({n}, DType::bf16);
  const Tensor low = m.integers(std::vector<std::uint16_t>(count));
  UpdateOperands to{p, g, copy};
  if (place == Place::gpu) {
    to = {{}, p, copy, low};
    const Tensor decision = decision_of(m, 1, 1);
    m.run(StepUpdate{to, decision, 1, 0, 1});  // zero plus p
    to.gradient = g;
  }
  UpdateOperands along = to;
  along.gradient = direction;
  for (int t = 1; t <= 3; ++t) {
    const Tensor decision = decision_of(m, 1, t);
    run_adam(m, {to, moment, square, 3e-3}, {.decision = decision});
    run_rule(m, {to, {}, 0.1}, {.decision = decision});
    m.run(StepUpdate{along, decision, 0.01, 1});
  }
  Updated found{std::vector<std::uint32_t>(count), std::vector<std::uint16_t>(count)};
  const Device& device = *m.ctx().device;
  device.copy_to_host(std::as_writable_bytes(std::span(found.copies)), copy);
  if (place == Place::reference) {
    device.copy_to_host(std::as_writable_bytes(std::span(found.masters)), p);
    return found;
  }
  std::vector<std::uint16_t> remainders(count);
  device.copy_to_host(std::as_writable_bytes(std::span(remainders)), low);
  for (std::size_t i = 0; i < count; ++i) {
    found.masters[i] =
        std::bit_cast<std::uint32_t>(join_master({{found.copies[i]}, remainders[i]}));
  }
  return found;
}

}  // namespace

TEST_CASE("updates of halves have the bits of the reference's whole masters") {
  for (const std::int64_t n : {0, 1, 39, 4096, 5002}) {
    CAPTURE(n);
    const Updated whole = update_masters(Place::reference, n);
    const Updated halves = update_masters(Place::gpu, n);
    CHECK(halves.masters == whole.masters);
    CHECK(halves.copies == whole.copies);
  }
}

TEST_CASE("a step along a direction has the reference's bits") {
  for (const DType dtype : kMasters) {
    for (const std::int64_t n : {0, 1, 39, 4096, 5002}) {
      compare(
          [&](Machine& m) {
            const Tensor p = m.operand("p", {n}), d = m.operand("d", {n});
            const Tensor narrow = m.normals("narrow", {n}, m.or_double(DType::bf16), DType::bf16);
            const Tensor copy = m.empty({n}, DType::bf16);
            const Tensor decision = decision_of(m, 0.3, 2);
            m.run(StepUpdate{{p, d}, decision, 0.2, 0.5});
            m.run(StepUpdate{{p, narrow, copy}, decision, 0.2, 0.5});
            m.run(StepUpdate{{p, d}, decision, 0.2, 0.5, -1, true});
            return outputs(m, p, copy);
          },
          dtype, {.same_bits = true});
    }
  }
}

namespace {

/// Elements around chunks, without any at every place, and parts that begin off a pack's address.
constexpr std::int64_t kListSizes[] = {0,     5, kListChunk, 0, kListChunk + 1, 3 * kListChunk - 1,
                                       20001, 1, 0};

/// Masters, copies, moments and squared norms of a list after one launch each.
std::vector<Output> update_list(Machine& m, std::int64_t offset) {
  std::vector<Tensor> owned;
  std::vector<AdamTensors> tensors;
  std::vector<View> gradients;
  for (std::size_t i = 0; i < std::size(kListSizes); ++i) {
    const std::int64_t n = kListSizes[i];
    const auto make = [&](const char* name) {
      return View(owned.emplace_back(m.operand(name, {1, n + offset}).columns(offset, n)));
    };
    const Tensor v = m.of(Values(static_cast<std::size_t>(n), 0.01), {1, n}, m.compute());
    const Tensor copy = m.empty({1, n + offset}, DType::bf16).columns(offset, n);
    owned.push_back(v);
    owned.push_back(copy);
    gradients.push_back(make(i % 2 == 0 ? "g" : "h"));
    tensors.push_back({{make("p"), gradients.back(), copy},
                       make("m"),
                       v,
                       0.1 * static_cast<double>(i + 1),
                       i % 2 == 0 ? 0.1 : 0});
  }
  Device& device = *m.ctx().device;
  const Tensor decision = decision_of(m, 0.3, 4);
  const Tensor norms = m.empty({std::ssize(gradients)}, DType::f64);
  const std::span<const AdamTensors> all(tensors);
  const Tensor table = make_table<AdamUpdate>(device, all, "table");
  m.run(AdamUpdate{.tensors = all, .table = table, .decision = decision});
  const Tensor norm_table = make_table<SquaredNorm>(device, gradients, "table");
  m.run(SquaredNorm{.gradients = gradients, .table = norm_table, .out = norms});
  std::vector<Output> found = outputs(m, norms);
  for (const Tensor& tensor : owned) found.push_back(outputs(m, tensor).front());
  return found;
}

}  // namespace

TEST_CASE("lists have the reference's bits, wherever their tensors lie") {
  for (const DType dtype : kMasters) {
    for (const std::int64_t offset : {0, 1, 4}) {
      CAPTURE(offset);
      compare([&](Machine& m) { return update_list(m, offset); }, dtype, {.same_bits = true});
    }
  }
}

TEST_CASE("squared norms of runs of blocks have the reference's bits, and those of the whole") {
  constexpr std::int64_t kBlock = SquaredNorm::kBlock;
  for (const std::int64_t blocks : {1, 7, 40}) {
    for (const DType dtype : kMasters) {
      CAPTURE(blocks);
      compare(
          [&](Machine& m) {
            const Tensor gradient = m.operand("g", {blocks * kBlock - 5});
            const NormRuns runs = norm_runs(gradient, {blocks / 3, blocks / 2});
            const std::int64_t count = std::ssize(runs.levels);
            const Tensor sums = m.empty({count}, DType::f64), joined = m.empty({2}, DType::f64);
            const Tensor whole = m.empty({1}, DType::f64);
            m.run(SquaredNorm{
                .gradients = runs.gradients,
                .table = make_table<SquaredNorm>(*m.ctx().device, runs.gradients, "table"),
                .out = sums});
            m.run(JoinSquaredNorms{
                .runs = sums,
                .levels = m.integers(runs.levels),
                .first = m.integers(std::vector<std::int32_t>{0, 0, std::int32_t(count)}),
                .out = joined});
            run_squared_norm(m, gradient, whole);
            CHECK(m.read(joined)[1] == m.read(whole)[0]);
            return outputs(m, joined);
          },
          dtype, {.same_bits = true});
    }
  }
}
