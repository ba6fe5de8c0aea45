#include "tests/support/textbook/rank.hpp"

#include <utility>

namespace llmtrain::test {

namespace {

using parallel::Action;
using parallel::ActionKind;

double bytes_of(DType dtype) { return static_cast<double>(size_of(dtype)); }

// Statistics and gradients of bf16 and fp16 are FP32.
double wide_bytes(DType compute) { return compute == DType::f64 ? 8 : 4; }

std::vector<Action> actions_of(const std::string& schedule, const parallel::ScheduleShape& shape,
                               int rank) {
  return parallel::find_schedule(schedule).make(shape).ranks[static_cast<std::size_t>(rank)];
}

}  // namespace

TextbookRank::TextbookRank(const TextbookRun& run, int tp_index, int pp_index)
    : run_(run),
      pp_(pp_index),
      tp_(size(Axis::tp)),
      data_(size(Axis::dp) * size(Axis::sp)),
      schedule_(size(Axis::pp) == 1 ? "1f1b" : run.options.pipeline.schedule),
      blocks_(static_cast<int>(spec().num_hidden_layers)),
      stages_(size(Axis::pp) == 1 ? 1 : size(Axis::pp) * run.options.pipeline.stages_per_rank),
      actions_(actions_of(schedule_,
                          {.num_ranks = size(Axis::pp),
                           .num_stages = stages_,
                           .num_micro_batches = run.micro_batches,
                           .costs = run.options.pipeline.costs},
                          pp_index)),
      tensors_(textbook_tensors(run, tp_index)),
      micro_batches_(run.micro_batches),
      sequences_(static_cast<double>(run.options.micro_batch_size)),
      length_(static_cast<double>(run.options.seq_len)),
      rows_(sequences_ * length_ / size(Axis::sp)),
      bytes_(bytes_of(run.options.compute)),
      wide_(wide_bytes(run.options.compute)),
      travel_(run.options.grad_reduce ? bytes_of(*run.options.grad_reduce) : wide_),
      activations_(rows_ * static_cast<double>(spec().hidden_size) * bytes_),
      first_(has(0)),
      last_(has(stages_ - 1)) {}

// Around, or forth and back (zero bubble V, arXiv 2401.10241).
int TextbookRank::rank_of(int stage) const {
  const int ranks = size(Axis::pp), turn = stage / ranks, place = stage % ranks;
  const bool is_v = schedule_ == "zbv" || schedule_ == "v_half" || schedule_ == "dualpipev";
  return is_v && turn % 2 == 1 ? ranks - 1 - place : place;
}

// As the recipe says, else as even as whole blocks are.
int TextbookRank::first_block(int stage) const {
  const auto& given = run_.options.pipeline.layers;
  if (given.empty() || stages_ == 1) return (blocks_ * stage + stages_ - 1) / stages_;
  std::int64_t first = 0;
  for (int s = 0; s < stage; ++s) first += given[static_cast<std::size_t>(s)];
  return static_cast<int>(first);
}

int TextbookRank::stage_of_block(int block) const {
  int stage = 0;
  while (first_block(stage + 1) <= block) ++stage;
  return stage;
}

bool TextbookRank::has_tensor(const TextbookTensor& tensor) const {
  if (tensor.unit == ModelUnits::embedding()) return first_ || (tensor.is_tied && last_);
  return tensor.unit <= blocks_ ? has_block(tensor.unit - 1) : last_;
}

bool TextbookRank::begins(const Stretch& stretch, const Action& action) {
  const bool is_backward = stretch.from == ActionKind::input_grad;
  return action.stage == stretch.stage &&
         (action.kind == stretch.from || (is_backward && action.kind == ActionKind::backward));
}

bool TextbookRank::ends(const Stretch& stretch, const Action& action) {
  const bool is_backward = stretch.to != ActionKind::forward;
  return action.stage == stretch.stage &&
         (action.kind == stretch.to || (is_backward && action.kind == ActionKind::backward));
}

double TextbookRank::times_made(std::initializer_list<Stretch> stretches) const {
  int open = 0, made = 0;
  for (const Action& action : actions_) {
    for (const Stretch& s : stretches) {
      if (begins(s, action) && open++ == 0) ++made;
    }
    for (const Stretch& s : stretches) open -= ends(s, action);
  }
  return made;
}

SentVolumes TextbookRank::volumes() && {
  tensor_parallel();
  partial_gradients();
  pipeline();
  sequences();
  experts();
  gradients_and_parameters();
  optimizer();
  agreements();
  std::erase_if(sent_, [](const auto& entry) { return entry.second == 0; });
  return std::move(sent_);
}

SentVolumes textbook_volumes(const TextbookRun& run, int tp_index, int pp_index) {
  return TextbookRank(run, tp_index, pp_index).volumes();
}

}  // namespace llmtrain::test
