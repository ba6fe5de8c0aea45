#include "kernels/attention.hpp"

#include <doctest/doctest.h>

#include "kernels/cuda/rules/workspace.hpp"
#include "lib/base/error.hpp"
#include "tests/unit/kernels/attention_case.hpp"

namespace llmtrain::kernels {

namespace {

double weighted_sum(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// d sum(out * dout) / d x by central differences.
std::vector<double> numeric_gradient(const AttentionCase& c, AttentionData data,
                                     std::vector<double> AttentionData::*x) {
  AttentionRun run(c, DType::f64, cpu_reference_table());
  std::vector<double> gradient;
  for (double& value : data.*x) {
    const double kept = value;
    constexpr double kStep = 1e-5;
    value = kept + kStep;
    run.forward(data);
    const double above = weighted_sum(data.out, data.dout);
    value = kept - kStep;
    run.forward(data);
    const double below = weighted_sum(data.out, data.dout);
    value = kept;
    gradient.push_back((above - below) / (2 * kStep));
  }
  return gradient;
}

}  // namespace

TEST_CASE("attention is softmax(scale q k^T) v over what causality and documents leave") {
  // Scores by hand: one head of one component, q = k = 0, so that all visible keys weigh the same.
  AttentionCase c{.tq = 5, .tk = 5, .heads = 1, .head_dim = 1, .documents = {0, 3}};
  AttentionData data;
  data.q = data.k = {0, 0, 0, 0, 0};
  data.v = {1, 3, 8, 5, 7};
  data.dout = {1, 1, 1, 1, 1};
  data = run_attention(c, data, DType::f64, cpu_reference_table());
  CHECK(max_abs_difference(data.out, {1, 2, 4, 5, 6}) < 1e-15);
  const double two = std::log(2.0);
  CHECK(max_abs_difference(data.lse, {0, two, std::log(3.0), 0, two}) < 1e-15);
  CHECK(max_abs_difference(data.dv, {1 + 0.5 + 1.0 / 3, 0.5 + 1.0 / 3, 1.0 / 3, 1.5, 0.5}) < 1e-15);
}

TEST_CASE("a window of two leaves a query its own key and the one before") {
  AttentionCase c{.tq = 4, .tk = 4, .heads = 1, .head_dim = 1, .window = 2};
  AttentionData data;
  data.q = data.k = {0, 0, 0, 0};
  data.v = {1, 3, 8, 5};
  data.dout = {1, 1, 1, 1};
  data = run_attention(c, data, DType::f64, cpu_reference_table());
  CHECK(max_abs_difference(data.out, {1, 2, 5.5, 6.5}) < 1e-15);
}

TEST_CASE(
    "dropout of attention drops the elements that the stream names by sample, head, q and k") {
  // Two queries at positions 2 and 3 of samples 3 and 4, two heads, all keys weigh the same.
  AttentionCase c{
      .sequences = 2, .tq = 2, .tk = 4, .heads = 2, .head_dim = 1, .dropout = 0.4, .q_begin = 2};
  AttentionData data;
  data.q.assign(8, 0);
  data.k.assign(8, 0);
  data.v = {1, 10, 100, 1000, 1, 10, 100, 1000};
  data.dout.assign(8, 1);
  data = run_attention(c, data, DType::f64, cpu_reference_table());
  std::vector<double> expected;
  int dropped = 0;
  for (std::uint64_t sample : {3, 4}) {
    for (std::uint64_t q : {2, 3}) {
      for (std::uint64_t head : {0, 1}) {
        double sum = 0;
        for (std::uint64_t k = 0; k <= q; ++k) {
          const std::uint64_t element = ((sample * 2 + head) * 4 + q) * 4 + k;
          const std::uint32_t word = philox_word(philox_key(5, "dropout", "layer 0"), 17, element);
          const bool kept = unit_interval(word) >= 0.4;
          if (!kept) ++dropped;
          if (kept) sum += std::pow(10.0, static_cast<double>(k)) / 0.6;
        }
        expected.push_back(sum / static_cast<double>(q + 1));
      }
    }
  }
  CHECK(dropped > 0);
  CHECK(max_abs_difference(data.out, expected) < 1e-12);
}

TEST_CASE("the gradients of attention are those of finite differences") {
  const std::vector<AttentionCase> cases = {
      {.tq = 7, .tk = 7, .heads = 4, .kv_heads = 2, .head_dim = 4, .documents = {0, 3}},
      {.sequences = 2, .tq = 3, .tk = 7, .head_dim = 4, .window = 3, .q_begin = 4},
      {.tq = 6, .tk = 6, .head_dim = 2, .dropout = 0.3, .fused = true},
      {.tq = 4, .tk = 3, .head_dim = 2, .k_begin = 2},
  };
  for (const AttentionCase& c : cases) {
    const AttentionData data =
        run_attention(c, random_operands(c, DType::f64), DType::f64, cpu_reference_table());
    CHECK(max_abs_difference(data.dq, numeric_gradient(c, data, &AttentionData::q)) < 1e-8);
    CHECK(max_abs_difference(data.dk, numeric_gradient(c, data, &AttentionData::k)) < 1e-8);
    CHECK(max_abs_difference(data.dv, numeric_gradient(c, data, &AttentionData::v)) < 1e-8);
  }
}

TEST_CASE("some heads of a layer are dropped as they are among all of them") {
  const AttentionCase all{
      .sequences = 2, .tq = 9, .tk = 9, .heads = 4, .kv_heads = 4, .head_dim = 2, .dropout = 0.4};
  AttentionCase last = all;
  last.heads = last.kv_heads = 2;
  last.first_head = 2;
  last.layer_heads = 4;
  const auto second_half = [&](const std::vector<double>& values) {
    const std::size_t cols = 8;
    std::vector<double> half;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i % cols >= cols / 2) half.push_back(values[i]);
    }
    return half;
  };
  const AttentionData operands = random_operands(all, DType::f64);
  AttentionData part;
  part.q = second_half(operands.q);
  part.k = second_half(operands.k);
  part.v = second_half(operands.v);
  part.dout = second_half(operands.dout);
  const AttentionData whole = run_attention(all, operands, DType::f64, cpu_reference_table());
  const AttentionData found = run_attention(last, part, DType::f64, cpu_reference_table());
  CHECK(found.out == second_half(whole.out));
  CHECK(found.dq == second_half(whole.dq));
  CHECK(found.dv == second_half(whole.dv));
}

namespace {

// Keys [0, count) of a case, or those from `count` on, as a case of its own.
AttentionCase some_keys(AttentionCase c, std::int64_t count, bool first) {
  c.k_begin = first ? 0 : static_cast<std::int32_t>(count);
  c.tk = first ? count : c.tk - count;
  c.sink = c.sink && first;  // counts once
  return c;
}

std::vector<double> of_keys(const AttentionCase& all, const AttentionCase& some,
                            const std::vector<double>& values) {
  const std::int64_t cols = all.kv_heads * all.head_dim;
  std::vector<double> result;
  for (std::int64_t s = 0; s < all.sequences; ++s) {
    const auto from = values.begin() + (s * all.tk + some.k_begin) * cols;
    result.insert(result.end(), from, from + some.tk * cols);
  }
  return result;
}

// What `table` makes of two halves of the keys one after another, merged.
AttentionData in_two_parts(const AttentionCase& c, const AttentionData& all, std::int64_t count,
                           DType dtype, const KernelTable& table) {
  Machine machine(table, 2);
  const DType wide = dtype == DType::f64 ? dtype : DType::f32;
  Tensor out[2], lse[2];
  for (const int part : {0, 1}) {
    const AttentionCase some = some_keys(c, count, part == 0);
    AttentionRun run(some, dtype, table);
    AttentionData data = all;
    data.k = of_keys(c, some, all.k);
    data.v = of_keys(c, some, all.v);
    run.load(data);
    out[part] = machine.allocate({c.sequences * c.tq, c.heads * c.head_dim}, wide);
    lse[part] = machine.allocate({c.sequences, c.heads, c.tq}, wide);
    AttentionForward kernel = run.forward_kernel();
    kernel.out = out[part];
    kernel.lse = lse[part];
    launch(machine.ctx(), kernel);
  }
  launch(machine.ctx(), AttentionMerge{.num_sequences = c.sequences,
                                       .num_heads = c.heads,
                                       .part_out = out[1],
                                       .part_lse = lse[1],
                                       .out = out[0],
                                       .lse = lse[0]});
  AttentionData merged = all;
  merged.out = read_rows(out[0]);
  merged.lse = read_rows(lse[0]);
  return merged;
}

}  // namespace

TEST_CASE("queries that see their keys in two parts get what they get of all at once") {
  const AttentionCase cases[] = {
      {.tq = 9, .tk = 9, .heads = 4, .kv_heads = 2, .head_dim = 6},
      {.sequences = 2, .tq = 70, .tk = 70, .sink = true, .documents = {0, 20, 50}},
      {.sequences = 2, .tq = 40, .tk = 40, .window = 7, .softcap = 3, .alibi = true},
      {.sequences = 2, .tq = 40, .tk = 40, .dropout = 0.3},
  };
  for (const AttentionCase& c : cases) {
    for (const KernelTable* table : {&cpu_table(), &cpu_reference_table()}) {
      for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
        CAPTURE(to_string(dtype));
        CAPTURE(table == &cpu_table());
        const AttentionData operands = random_operands(c, dtype);
        const AttentionData exact = run_attention(c, operands, DType::f64, cpu_reference_table());
        const AttentionData found = in_two_parts(c, operands, c.tk / 3, dtype, *table);
        // Sums are FP32 for narrower types, too.
        const double bound = dtype == DType::f64 ? 1e-13 : 5e-6;
        for (std::size_t i = 0; i < exact.out.size(); ++i) {
          REQUIRE(found.out[i] == doctest::Approx(exact.out[i]).epsilon(bound).scale(1));
        }
        for (std::size_t i = 0; i < exact.lse.size(); ++i) {
          REQUIRE(found.lse[i] == doctest::Approx(exact.lse[i]).epsilon(bound).scale(1));
        }
      }
    }
  }
}

TEST_CASE("gradients of attention that are parts of sums are those in FP32") {
  const AttentionCase c{.sequences = 2, .tq = 70, .tk = 70, .heads = 4, .kv_heads = 2};
  for (const KernelTable* table : {&cpu_table(), &cpu_reference_table()}) {
    AttentionData data = random_operands(c, DType::bf16);
    Machine machine(*table, 2);
    AttentionRun run(c, DType::bf16, *table);
    run.forward(data);
    run.backward(data);
    AttentionBackward kernel = run.backward_kernel();
    const Tensor dq = machine.allocate({c.sequences * c.tq, c.heads * c.head_dim}, DType::f32);
    const Tensor dk = machine.allocate({c.sequences * c.tk, c.kv_heads * c.head_dim}, DType::f32);
    const Tensor dv = machine.allocate(dk.shape(), DType::f32);
    kernel.dq = dq;
    kernel.dk = dk;
    kernel.dv = dv;
    launch(machine.ctx(), kernel);
    CHECK(read_rows(dq) != data.dq);
    CHECK(rounded(read_rows(dq), DType::bf16) == data.dq);
    CHECK(rounded(read_rows(dk), DType::bf16) == data.dk);
    CHECK(rounded(read_rows(dv), DType::bf16) == data.dv);
    kernel.dk.dtype = DType::bf16;
    CHECK_THROWS_AS(kernel.check(), InternalError);
    kernel.dk = dk;
    kernel.dq.dtype = DType::f16;
    CHECK_THROWS_AS(kernel.check(), InternalError);
  }
}

TEST_CASE("attention checks its operands") {
  const AttentionCase c{
      .sequences = 2, .tq = 3, .tk = 5, .heads = 4, .kv_heads = 2, .dropout = 0.1};
  const AttentionRun run(c, DType::bf16, cpu_table());
  run.forward_kernel().check();
  run.backward_kernel().check();
  const auto refused = [&](auto&& change) {
    AttentionForward forward = run.forward_kernel();
    change(forward);
    CHECK_THROWS_AS(forward.check(), InternalError);
    AttentionBackward backward = run.backward_kernel();
    change(backward);
    CHECK_THROWS_AS(backward.check(), InternalError);
  };
  refused([](auto& op) { op.shape.num_kv_heads = 3; });
  refused([](auto& op) { op.shape.num_kv_heads = 0; });
  refused([](auto& op) { op.shape.num_heads = 2; });
  refused([](auto& op) { op.shape.head_dim = 0; });
  refused([](auto& op) { op.shape.num_sequences = 4; });
  refused([](auto& op) { op.shape.window = -1; });
  refused([](auto& op) { op.shape.scale = NAN; });
  refused([](auto& op) { op.shape.dropout.p = 1; });
  refused([](auto& op) { op.shape.dropout.seq_len = 0; });
  refused([](auto& op) { op.shape.dropout.first_head = 1; });
  refused([](auto& op) { op.shape.dropout.heads = 3; });
  refused([](auto& op) { op.shape.q_sample = View(); });
  refused([](auto& op) { op.shape.known_rows = KnownRows::in_order; });  // with other keys
  refused([](auto& op) { op.shape.q_position.dtype = DType::i64; });
  refused([](auto& op) { op.shape.k_position.shape = {6}; });
  refused([](auto& op) { op.shape.q_document_begin.shape = {10}; });
  refused([](auto& op) { op.q.dtype = DType::f32; });
  refused([](auto& op) { op.k.shape = {10, 24}; });
  refused([](auto& op) { op.v.shape = {9, 16}; });
  refused([](auto& op) { op.v.row_stride = 8; });
  refused([](auto& op) { op.out.shape = {6, 16}; });
  refused([](auto& op) { op.lse.dtype = DType::bf16; });
  refused([](auto& op) { op.lse.shape = {2, 4, 5}; });

  AttentionForward in_place = run.forward_kernel();
  in_place.out = in_place.q;
  CHECK_THROWS_AS(in_place.check(), InternalError);
  AttentionBackward backward = run.backward_kernel();
  backward.dq = backward.dout;
  CHECK_THROWS_AS(backward.check(), InternalError);
}

TEST_CASE("the cost of attention counts the pairs that causality leaves") {
  const auto flops = [](const AttentionCase& c) {
    return AttentionRun(c, DType::f32, cpu_table()).forward_kernel().cost().flops;
  };
  // 2 products, 2 FLOPs, 2 heads of 8.
  const double pair = 2 * 2 * 2 * 8;
  CHECK(flops({.tq = 64, .tk = 64}) == pair * 64 * 64 / 2);
  CHECK(flops({.sequences = 3, .tq = 64, .tk = 64}) == 3 * pair * 64 * 64 / 2);
  CHECK(flops({.tq = 1, .tk = 64, .q_begin = 63}) == pair * 63.5);
  CHECK(flops({.tq = 16, .tk = 64, .q_begin = 48}) == pair * (16 * 64 - 16 * 16 / 2));
  CHECK(flops({.tq = 64, .tk = 64, .window = 16}) == pair * (64 * 16 - 16 * 16 / 2));
  CHECK(flops({.tq = 64, .tk = 64, .window = 100}) == pair * 64 * 64 / 2);

  const AttentionRun run({.tq = 64, .tk = 64}, DType::bf16, cpu_table());
  const Cost backward = run.backward_kernel().cost();
  CHECK(backward.flops == 2.5 * run.forward_kernel().cost().flops);
  CHECK(backward.bytes_written == 2 * 8 * 64 * (2 + 1 + 1));
}

TEST_CASE("on the meta device attention is recorded and nothing runs") {
  struct Log : Recorder {
    std::vector<LaunchRecord> launches;
    void record(const LaunchRecord& launch) override { launches.push_back(launch); }
  } log;
  const AttentionRun real({.tq = 64, .tk = 64}, DType::bf16, cpu_table());
  AttentionForward kernel = real.forward_kernel();
  for (View* view : {&kernel.q, &kernel.k, &kernel.v, &kernel.out, &kernel.lse}) {
    view->data = reinterpret_cast<void*>(std::uintptr_t{256});  // nobody may touch it
  }
  kernel.q.data = reinterpret_cast<void*>(std::uintptr_t{512});
  kernel.out.data = reinterpret_cast<void*>(std::uintptr_t{768});
  Device meta(make_meta_memory(), std::uint64_t{1} << 30);
  const KernelCtx ctx{&meta, &meta_table(), {}, 3, Determinism::run, &log};
  launch(ctx, kernel);
  REQUIRE(log.launches.size() == 1);
  CHECK(log.launches[0].name == "attention_forward");
  CHECK(log.launches[0].cost.flops == kernel.cost().flops);
  CHECK(log.launches[0].sizes == std::array<std::int64_t, 4>{1, 64, 2, 8});
  CHECK(meta.ledger().held_bytes() == 0);
  CHECK(meta.arena_extent_bytes() >= kernel.workspace_bytes(3));
}

TEST_CASE("what is said to be known of positions is compared with them") {
  for (const KernelTable* table : {&cpu_table(), &cpu_reference_table()}) {
    const auto run = [&](AttentionCase c, KnownRows known) {
      c.sequences = 2;
      c.tq = c.tk = 6;
      c.known = known;
      AttentionRun(c, DType::f32, *table).launch_forward();
    };
    run({}, KnownRows::one_document);
    run({.documents = {0, 3}}, KnownRows::in_order);
    CHECK_THROWS_AS(run({.documents = {0, 3}}, KnownRows::one_document), InternalError);
    CHECK_THROWS_AS(run({.rotated = true}, KnownRows::in_order), InternalError);
    CHECK_THROWS_AS(run({.q_begin = 1, .k_begin = 1}, KnownRows::in_order), InternalError);
  }
}

TEST_CASE("a plan reserves on a GPU for the library's attention and ours alike") {
  const AttentionCase c{.tq = 64, .tk = 64, .known = KnownRows::one_document};
  const AttentionRun run(c, DType::bf16, cpu_table());
  constexpr std::uint64_t kLibrary = 1 << 20;
  const auto bytes = [&](KernelCtx ctx, const auto& op) {
    ctx.library_workspace_bytes = kLibrary;
    return meta_cuda_table().workspace_bytes(ctx, op.name, &op, 0);
  };
  AttentionForward forward = run.forward_kernel();
  AttentionBackward backward = run.backward_kernel();
  CHECK(bytes({}, forward) == kLibrary);
  CHECK(bytes({.attention = AttentionChoice::own}, forward) < kLibrary);
  // Scores of all pairs, where the library's sums keep their order, within 32 times the rest.
  const AttentionCase longer{
      .tq = 8192, .tk = 8192, .heads = 3, .kv_heads = 3, .known = KnownRows::one_document};
  AttentionBackward wide = AttentionRun(longer, DType::bf16, cpu_table()).backward_kernel();
  const std::uint64_t of_longer = std::uint64_t(longer.heads * longer.tq) * sizeof(float);
  CHECK(bytes({}, wide) == of_longer + 32 * kLibrary);
  // delta [S, H, T]; in any order also the sums of dq, [S, H, T, D].
  const auto statistics = static_cast<std::uint64_t>(c.heads * c.tq) * sizeof(float);
  CHECK(bytes({}, backward) == statistics + kLibrary);
  CHECK(bytes({.determinism = Determinism::fast}, backward) ==
        statistics * static_cast<std::uint64_t>(1 + c.head_dim) + kLibrary);
  // Documents are ours unless the recipe insists; caps are ours, and refused if it does.
  for (auto* shape : {&forward.shape, &backward.shape}) shape->known_rows = KnownRows::in_order;
  CHECK(bytes({}, forward) < kLibrary);
  CHECK(bytes({.attention = AttentionChoice::cudnn}, forward) == kLibrary);
  forward.shape.softcap = backward.shape.softcap = 2;
  CHECK(bytes({}, forward) < kLibrary);
  CHECK_THROWS_AS(bytes({.attention = AttentionChoice::cudnn}, forward), RecipeError);
  CHECK_THROWS_AS(bytes({.attention = AttentionChoice::cudnn}, backward), RecipeError);
  // Results in FP32, parts of sums, are ours, and refused if the recipe insists on the library.
  for (auto* shape : {&forward.shape, &backward.shape}) {
    shape->softcap = 0;
    shape->known_rows = KnownRows::one_document;
  }
  CHECK(bytes({}, forward) == kLibrary);
  forward.out.dtype = backward.dq.dtype = backward.dk.dtype = backward.dv.dtype = DType::f32;
  CHECK(bytes({}, forward) < kLibrary);
  CHECK(bytes({}, backward) < statistics + kLibrary);
  CHECK_THROWS_AS(bytes({.attention = AttentionChoice::cudnn}, forward), RecipeError);
}

}  // namespace llmtrain::kernels
