#include "tests/mesh/probe/routing.hpp"

#include <algorithm>

#include "kernels/experts.hpp"
#include "kernels/matmul.hpp"
#include "kernels/router.hpp"
#include "lib/base/require.hpp"
#include "lib/ops/experts.hpp"

namespace llmtrain::test {

namespace {

Routing* g_listener = nullptr;

// Where n groups share rows, group g has the pieces g and 2n - 1 - g of 2n, and those of a group
// that share heads as many of its rows each.
std::vector<std::int64_t> positions_of(const MeshShape& mesh, int rank, std::int64_t seq_len) {
  const int place = coordinate_of(mesh, rank)[static_cast<int>(Axis::sp)];
  const int sharers = mesh.head_sharers(), groups = mesh.row_groups();
  const std::int64_t piece = groups == 1 ? seq_len : seq_len / (2 * groups);
  std::vector<std::int64_t> of_group;
  for (const int number : {place / sharers, 2 * groups - 1 - place / sharers}) {
    for (std::int64_t i = 0; i < piece; ++i) of_group.push_back(number * piece + i);
    if (groups == 1) break;
  }
  const auto share = std::ssize(of_group) / sharers;
  const auto begin = of_group.begin() + place % sharers * share;
  return {begin, begin + share};
}

}  // namespace

Routing::Routing(const engine::EngineOptions& options, const MeshShape& mesh, int rank)
    : num_experts_(options.model.experts.num_experts),
      top_k_(options.model.experts.rule.top_k),
      layers_count_(options.model.num_expert_layers()),
      seq_len_(options.seq_len),
      micro_batch_size_(options.micro_batch_size),
      ep_(mesh.ep),
      as_many_to_each_(mesh.ep_room > 0),
      positions_(positions_of(mesh, rank, options.seq_len)) {
  most_kept_ = micro_batch_size_ * std::ssize(positions_) * top_k_;
  if (const double factor = options.model.experts.capacity_factor; factor > 0) {
    const std::int64_t capacity = ops::expert_capacity(factor, seq_len_, top_k_, num_experts_);
    most_kept_ = std::min(most_kept_, num_experts_ * capacity * micro_batch_size_ *
                                          std::ssize(positions_) / seq_len_);
  }
  g_listener = this;
}

Routing::~Routing() { g_listener = nullptr; }

const kernels::KernelTable* Routing::listen(const kernels::KernelTable& table) {
  std::vector<kernels::KernelRow> rows(table.rows().begin(), table.rows().end());
  const auto replace = [&](std::string_view name, kernels::KernelFunction& real,
                           kernels::KernelFunction ear) {
    const auto row = std::ranges::find(rows, name, &kernels::KernelRow::name);
    real = std::exchange(row->run, ear);
  };
  replace(kernels::CountChoices::name, count_choices_, &Routing::count_choices);
  replace(kernels::ColumnSum::name, column_sum_, &Routing::column_sum);
  replace(kernels::GroupByExpert::name, group_, &Routing::group_by_expert);
  table_ = std::make_unique<kernels::KernelTable>(
      table.device(), std::move(rows),
      std::vector(table.workspaces().begin(), table.workspaces().end()), table.fuses());
  return table_.get();
}

void Routing::know(const engine::Engine& engine) {
  if (layers_count_ == 0) return;
  choices_counter_ = engine.model().router_choices().view();
  if (engine.model().router_kept().defined()) kept_counter_ = engine.model().router_kept().view();
  place_among_experts_ = engine.mesh().experts().rank();
}

void Routing::begin_step() {
  choices_.assign(static_cast<std::size_t>(layers_count_), {});
  kept_ = choices_;
}

// What a layer's backward counts, once for each micro-batch, is what its forward chose: the kernel
// counts a micro-batch's choices, and the next one adds them to the layer's counter.
void Routing::count_choices(const kernels::KernelCtx& ctx, const void* kernel, const View& space) {
  Routing& self = *g_listener;
  self.count_choices_(ctx, kernel, space);
  const auto& op = *static_cast<const kernels::CountChoices*>(kernel);
  self.counted_ = op.choices.data;
  const auto* first = op.expert.as<std::int32_t>();
  self.last_.assign(first, first + op.expert.numel());
}

void Routing::column_sum(const kernels::KernelCtx& ctx, const void* kernel, const View& space) {
  Routing& self = *g_listener;
  self.column_sum_(ctx, kernel, space);
  const auto& op = *static_cast<const kernels::ColumnSum*>(kernel);
  if (op.x.data != self.counted_) return;
  const auto add_to = [&](const View& counter, Layers& layers) {
    for (std::int64_t l = 0; counter.defined() && l < counter.rows(); ++l) {
      if (op.out.data != static_cast<std::byte*>(counter.data) +
                             static_cast<std::size_t>(l * counter.cols()) * size_of(counter.dtype))
        continue;
      layers[static_cast<std::size_t>(l)].push_back(self.last_);
    }
  };
  add_to(self.choices_counter_, self.choices_);
  add_to(self.kept_counter_, self.kept_);
}

// Experts that are elsewhere, too, group what comes from all ranks.
void Routing::group_by_expert(const kernels::KernelCtx& ctx, const void* kernel,
                              const View& space) {
  Routing& self = *g_listener;
  self.group_(ctx, kernel, space);
  const auto& op = *static_cast<const kernels::GroupByExpert*>(kernel);
  if (self.ep_ == 1 || op.experts() != self.num_experts_ / self.ep_) return;
  const std::int64_t rows = op.offsets.as<std::int32_t>()[op.experts()];
  ++self.arrivals_;
  self.idle_arrivals_ += rows == 0;
  self.most_rows_ = std::max(self.most_rows_, rows);
  self.room_ = std::max(self.room_, op.expert.numel());
}

void Routing::write_layers(Output& out, std::string_view kind, const Layers& layers,
                           std::int64_t step, std::int64_t first_sample, std::int64_t samples,
                           std::int64_t samples_of_step) const {
  const std::array global{samples_of_step * seq_len_, top_k_};
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const auto& of_layer = layers[l];
    if (of_layer.empty()) continue;  // another stage's
    const std::string name = fmt::format("{} step {} layer {}", kind, step, l);
    require(std::ssize(of_layer) * micro_batch_size_ == samples,
            "{}: {} micro-batches of {} samples counted, of {}", name, of_layer.size(),
            micro_batch_size_, samples);
    for (std::int64_t s = 0; s < samples; ++s) {
      const Choices& choices = of_layer[static_cast<std::size_t>(s / micro_batch_size_)];
      const std::int64_t length = std::ssize(positions_);
      const std::int32_t* row =
          &choices[static_cast<std::size_t>(s % micro_batch_size_ * length * top_k_)];
      for (std::int64_t begin = 0, end = 0; begin < length; begin = end) {
        const auto at = [&](std::int64_t i) { return positions_[static_cast<std::size_t>(i)]; };
        for (end = begin + 1; end < length && at(end) == at(end - 1) + 1;) ++end;
        out.box(
            name, global, std::array{(first_sample + s) * seq_len_ + at(begin), std::int64_t{0}},
            std::array{end - begin, top_k_}, std::span(row + begin * top_k_, row + end * top_k_));
      }
    }
  }
}

void Routing::write(Output& out, std::int64_t step, std::int64_t first_sample, std::int64_t samples,
                    std::int64_t samples_of_step) const {
  write_layers(out, "choices", choices_, step, first_sample, samples, samples_of_step);
  write_layers(out, "kept", kept_, step, first_sample, samples, samples_of_step);
}

RowsToExperts Routing::rows_to_experts(const plan::PassPlan& step) const {
  RowsToExperts all{.planned_bytes = 0, .planned_rows = 0, .rows = 0};
  for (const plan::CollectiveGroup& group : step.collectives) {
    if (group.group != "experts" || group.kind != Collective::all_to_all) continue;
    all.planned_bytes += static_cast<double>(group.count) * static_cast<double>(group.bytes);
  }
  if (as_many_to_each_) return even_rows_to_experts(step);
  for (const auto& of_layer : kept_counter_.defined() ? kept_ : choices_) {
    all.planned_rows += static_cast<double>(most_kept_ * std::ssize(of_layer));
  }
  for (const double rows : rows_elsewhere()) all.rows += rows;
  return all;
}

std::vector<double> Routing::rows_elsewhere() const {
  std::vector<double> of_layers;
  for (const auto& of_layer : kept_counter_.defined() ? kept_ : choices_) {
    double rows = 0;
    for (const Choices& choices : of_layer) {
      const auto elsewhere = std::ranges::count_if(choices, [&](std::int32_t expert) {
        return expert >= 0 && expert / (num_experts_ / ep_) != place_among_experts_;
      });
      rows += static_cast<double>(elsewhere);
    }
    of_layers.push_back(rows);
  }
  return of_layers;
}

void Routing::write_rows(Output& out, const plan::Plan& plan) const {
  std::uint64_t planned = 0;
  for (const AllocationEvent& event : plan.step_trace) {
    if (event.tag == "experts of rows that come") planned = std::max(planned, event.bytes);
  }
  require(
      most_rows_ <= room_ && static_cast<std::uint64_t>(room_) * sizeof(std::int32_t) <= planned,
      "{} rows came to a rank's experts at once, with room for {}, {} B planned for their ids",
      most_rows_, room_, planned);
  out.own_number("arrivals", static_cast<double>(arrivals_));
  out.own_number("arrivals of none", static_cast<double>(idle_arrivals_));
  out.own_number("most rows", static_cast<double>(most_rows_));
  out.own_number("room", static_cast<double>(room_));
}

}  // namespace llmtrain::test
