// Launches of routers and experts.
#include <algorithm>
#include <array>

#include "kernels/expert_slots.hpp"
#include "kernels/experts.hpp"
#include "kernels/router.hpp"
#include "kernels/scale_rows.hpp"
#include "lib/plan/kernel_cases.hpp"

namespace llmtrain::plan {

namespace {

using namespace kernels;

// As of the other cases.
constexpr std::int64_t kCols = 768;
constexpr std::int64_t kExperts = 64, kChosen = 4;

LaunchTime route_tokens(KernelBench& b, DType, std::int64_t rows) {
  return b.launch(RouteTokens{.logits = b.input(rows, kExperts, DType::f32),
                              .bias = {},
                              .expert = b.result(rows, kChosen, DType::i32),
                              .weight = b.result(rows, kChosen, DType::f32),
                              .rule = {.top_k = kChosen}});
}

// Of experts that all have room for half of their choices.
LaunchTime limit_choices(KernelBench& b, DType, std::int64_t rows) {
  View expert = b.numbers(rows * kChosen, kExperts);
  expert.shape = {rows, kChosen};
  expert.row_stride = kChosen;
  return b.launch(
      LimitChoices{.expert = expert,
                   .score = b.input(rows, kChosen, DType::f32),
                   .position = {},
                   .kept = b.result(rows, kChosen, DType::i32),
                   .experts = kExperts,
                   .capacity = std::max<std::int64_t>(1, rows * kChosen / kExperts / 2)});
}

LaunchTime count_choices(KernelBench& b, DType, std::int64_t rows) {
  return b.launch(CountChoices{.expert = b.numbers(rows * kChosen, kExperts),
                               .choices = b.result(1, kExperts, DType::f32)});
}

LaunchTime route_tokens_backward(KernelBench& b, DType, std::int64_t rows) {
  return b.launch(RouteTokensBackward{.logits = b.input(rows, kExperts, DType::f32),
                                      .expert = b.numbers(rows * kChosen, kExperts),
                                      .dweight = b.input(rows, kChosen, DType::f32),
                                      .choices = b.input(1, kExperts, DType::f32),
                                      .dlogits = b.result(rows, kExperts, DType::f32),
                                      .values = b.result(2, rows, DType::f32),
                                      .rule = {.top_k = kChosen},
                                      .losses = {.balance = 1, .seq_len = rows}});
}

LaunchTime balance_router(KernelBench& b, DType, std::int64_t experts) {
  return b.launch(BalanceRouter{.choices = b.input(1, experts, DType::f32),
                                .bias = b.result(1, experts, DType::f32),
                                .decision = b.decision(),
                                .speed = 1e-3});
}

LaunchTime group_by_expert(KernelBench& b, DType, std::int64_t rows) {
  return b.launch(GroupByExpert{.expert = b.numbers(rows, kExperts),
                                .offsets = b.result(1, kExperts + 1, DType::i32),
                                .source = b.result(1, rows, DType::i32),
                                .place = b.result(1, rows, DType::i32)});
}

// One choice of each row, in its place.
LaunchTime gather_rows(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(GatherRows{.x = b.input(rows, kCols, t),
                             .source = b.numbers(rows, rows),
                             .offsets = b.numbers(2, rows + 1, DType::i32, rows),
                             .y = b.result(rows, kCols, t)});
}

LaunchTime combine_rows(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(CombineRows{
      .x = b.input(rows, kCols, t), .place = b.numbers(rows, rows), .y = b.result(rows, kCols, t)});
}

// Of two ranks, as many slots as rows.
LaunchTime assign_slots(KernelBench& b, DType, std::int64_t rows) {
  return b.launch(
      AssignSlots{.offsets = b.numbers(kExperts + 1, rows + 1, DType::i32, rows / kExperts),
                  .source = b.result(1, rows / 2 * 2, DType::i32),
                  .expert = b.result(1, rows / 2 * 2, DType::i32),
                  .place = b.result(1, rows, DType::i32),
                  .needed = {},
                  .ranks = 2});
}

LaunchTime take_rows(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(TakeRows{
      .x = b.input(rows, kCols, t), .from = b.numbers(rows, rows), .y = b.result(rows, kCols, t)});
}

LaunchTime scale_rows(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(ScaleRows{.x = b.input(rows, kCols, t),
                            .weight = b.input(1, rows, DType::f32),
                            .y = b.result(rows, kCols, t)});
}

LaunchTime scale_rows_backward(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(ScaleRowsBackward{.x = b.input(rows, kCols, t),
                                    .weight = b.input(1, rows, DType::f32),
                                    .dy = b.input(rows, kCols, t),
                                    .dx = b.result(rows, kCols, t),
                                    .dweight = b.result(1, rows, DType::f32)});
}

constexpr auto kRowCases = std::to_array<RowCase>({
    {"route_tokens", kExperts, true, route_tokens},
    {"limit_choices", kChosen, true, limit_choices},
    {"count_choices", kChosen, true, count_choices},
    {"route_tokens_backward", kExperts, true, route_tokens_backward},
    {"balance_router", 1, true, balance_router},
    {"group_by_expert", 1, true, group_by_expert},
    {"gather_rows", kCols, false, gather_rows},
    {"combine_rows", kCols, false, combine_rows},
    {"assign_slots", 1, true, assign_slots},
    {"take_rows", kCols, false, take_rows},
    {"scale_rows", kCols, false, scale_rows},
    {"scale_rows_backward", kCols, false, scale_rows_backward},
});

}  // namespace

std::span<const RowCase> expert_row_cases() { return kRowCases; }

}  // namespace llmtrain::plan
