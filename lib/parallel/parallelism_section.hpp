#pragma once
/// The recipe's layout of the run over the ranks of a job.

#include <cstdint>

#include "lib/mesh/mesh.hpp"
#include "lib/parallel/schedule.hpp"
#include "lib/recipe/section.hpp"

namespace llmtrain::parallel {

inline constexpr const char* kDefaultSchedule = "1f1b";
std::vector<std::string> schedule_names();

/// Of an axis: as many ranks as the others leave.
inline constexpr std::int64_t kRest = -1;
inline constexpr std::int64_t kMostRanks = 1 << 20;

enum class GpuCollectives : std::uint8_t { automatic, nccl, host };
std::string_view to_string(GpuCollectives how);

struct ParallelismSection : recipe::Section {
  recipe::Key<std::int64_t> dp{
      this, "dp", -1,
      "ranks that share the samples of a step, each with the whole model; -1 = as many as the "
      "other axes leave",
      recipe::between(kRest, kMostRanks)};
  recipe::Key<std::int64_t> tp{
      this, "tp", 1,
      "neighbouring ranks that share every layer: the heads of attention, the columns of the MLP, "
      "and the vocabulary of embedding and output head; -1 = as many as the other axes leave",
      recipe::between(kRest, 1 << 16)};
  recipe::Key<bool> tp_sequence_parallel{
      this, "tp_sequence_parallel", false,
      "between shared layers, ranks of tp share the tokens, too: norms, dropout and what the "
      "backward keeps of them are computed and held once"};

  recipe::Key<std::int64_t> pp{
      this, "pp", 1,
      "ranks that each have some of the blocks, as stages of a pipeline; -1 = as many as the other "
      "axes leave",
      recipe::between(kRest, 1 << 16)};
  recipe::Key<std::string> pp_schedule{
      this, "pp_schedule", kDefaultSchedule,
      "order in which the stages work on the micro-batches (docs/pipeline-schedules.md)",
      recipe::any_of(schedule_names())};
  recipe::Key<std::optional<std::int64_t>> pp_stages_per_rank{
      this, "pp_stages_per_rank", std::nullopt,
      "stages of every rank, for a schedule that takes any number of them",
      recipe::between(1, 1 << 16)};
  recipe::Key<std::vector<std::int64_t>> pp_layers{this,
                                                   "pp_layers",
                                                   {},
                                                   "blocks of each stage of the pipeline, in their "
                                                   "order; without it as even as whole blocks are",
                                                   recipe::at_least(0)};
  recipe::Key<std::vector<std::string>> pp_stages{
      this,
      "pp_stages",
      {},
      "layers of each stage of the pipeline by their names, instead of pp_layers: \"embed_tokens "
      "layers.0-2\", \"layers.3-6\", \"layers.7 norm lm_head\""};
  recipe::Key<std::vector<double>> pp_costs{
      this,
      "pp_costs",
      {},
      "what a stage's forward and the input and weight parts of its backward cost beside each "
      "other, "
      "for a schedule that is ordered by them (v_half): [1, 1.3, 0.7], say; without it their FLOP",
      recipe::between(1e-3, 1e3)};
  recipe::Key<std::int64_t> sp{
      this, "sp", 1,
      "ranks that each have some of the tokens of every sequence; -1 = as many as the other axes "
      "leave",
      recipe::between(kRest, 1 << 16)};
  recipe::Key<SequenceSharing> sp_algo{
      this, "sp_algo", SequenceSharing::all_gather,
      "how ranks of sp attend to whole sequences: all_gather, each its own queries to the keys and "
      "values of all; ulysses, each all tokens with some of the heads; ring, each its own queries "
      "to "
      "keys and values that go from rank to rank meanwhile",
      recipe::one_of<SequenceSharing>({{"all_gather", SequenceSharing::all_gather},
                                       {"ulysses", SequenceSharing::ulysses},
                                       {"ring", SequenceSharing::ring}})};
  recipe::Key<std::int64_t> sp_ulysses{
      this, "sp_ulysses", 1,
      "neighbours among the ranks of sp that share the heads of their rows as ulysses does, while "
      "groups of them attend to whole sequences by sp_algo",
      recipe::between(1, 1 << 16)};
  recipe::Key<std::int64_t> ep{
      this, "ep", 1,
      "neighbours among the ranks of dp x sp that each have some of the experts; the tokens travel "
      "to them; -1 = all of these, within a group of dp_replicate",
      recipe::between(kRest, 1 << 16)};
  recipe::Key<std::optional<double>> ep_room{
      this, "ep_room", std::nullopt,
      "room for the tokens that a rank has for the experts of another, as a multiple of their even "
      "share: as many are sent to each, filled up with zeros, so that nobody counts them first; a "
      "run that needs more stops and says so; null = just the tokens that there are",
      recipe::at_least(1)};
  recipe::Key<std::int64_t> zero{
      this, "zero", 0,
      "what each rank of dp keeps of its slice alone (ZeRO): 0 nothing, 1 masters and optimizer "
      "states, 2 gradients, too, 3 parameters, too",
      recipe::between(0, 3)};

  recipe::Key<std::int64_t> dp_replicate{
      this, "dp_replicate", 1,
      "groups of neighbours along dp that each have all slices of ZeRO, so that it sends within a "
      "group and only gradients between them",
      recipe::between(1, 1 << 16)};

  recipe::Key<std::vector<std::string>> order{
      this,
      "order",
      {"tp", "sp", "dp", "pp"},
      "axes from the one that neighbouring ranks share to the one of the ranks farthest apart",
      recipe::any_of({"tp", "sp", "dp", "pp"}) & recipe::length(4)};

  recipe::Key<GpuCollectives> gpu_collectives{
      this, "gpu_collectives", GpuCollectives::automatic,
      "how ranks on GPUs exchange tensors: nccl from one GPU to the other, host through memory of "
      "the host and MPI; auto = nccl where it is there and every rank has a GPU of its own",
      recipe::one_of<GpuCollectives>({{"auto", GpuCollectives::automatic},
                                      {"nccl", GpuCollectives::nccl},
                                      {"host", GpuCollectives::host}})};

  void validate(recipe::Issues& issues) const override;
  /// "tp", "pp" or "sp" where that is kRest: the layout is open until the ranks are known.
  std::string_view rest_axis() const;
  /// Gives that axis, and an `ep` of kRest, their sizes on `ranks` ranks. What the sizes break is
  /// for the recipe's rules to find (recipe::check_rules). RefusedValue, naming layouts that
  /// divide, when the other axes do not.
  void take_rest(int ranks);
  /// Sizes of the axes on `ranks` ranks, none but dp of kRest. RefusedValue, naming layouts that
  /// fit, when they do not.
  MeshShape shape(int ranks) const;
  /// Ranks that the keys name by themselves, one for an axis that takes the rest: what a plan takes
  /// when nobody says how many.
  int least_ranks() const;
  /// Of pp_schedule on the ranks of pp.
  int stages_per_rank() const;
  int num_stages() const { return pp() == 1 ? 1 : static_cast<int>(pp()) * stages_per_rank(); }
  /// What a model of so many blocks has against the stages.
  void validate_blocks(recipe::Issues& issues, std::int64_t num_blocks) const;
  /// Blocks of each stage as pp_layers or pp_stages say, of a model of so many; empty: as even as
  /// they are. RefusedValue for names that are not the model's layers.
  std::vector<std::int64_t> stage_blocks(std::int64_t num_blocks) const;
  /// What one of so many experts has against `ep`; 0: it has none.
  void validate_experts(recipe::Issues& issues, std::int64_t num_experts) const;
  /// Parts into which seq_len must divide, and the keys that ask for it: "parallelism.sp 2 x tp 4".
  /// A rank of sp has two pieces of each sequence, and those of tp share its rows.
  std::int64_t sequence_parts() const;
  std::string sequence_cutters() const;
  /// The pipeline's shape, where a step has so many micro-batches. RefusedValue, with numbers that
  /// it takes, when the schedule refuses it.
  ScheduleShape pipeline(std::int64_t num_micro_batches) const;

 private:
  void validate_sizes(recipe::Issues& issues) const;
  void validate_sequences(recipe::Issues& issues) const;
  void validate_pipeline(recipe::Issues& issues) const;
  /// Whether each stage has its text or number.
  bool validate_stages(recipe::Issues& issues, std::int64_t num_blocks) const;
  /// "2 and 6 do": sizes of ep next to one that does not divide the experts, which divide them and,
  /// where these are known, the ranks that share them.
  std::string expert_sizes(std::int64_t num_experts) const;
  /// Ranks of dp. RefusedValue when the axes do not divide the ranks.
  int data_ranks(int ranks) const;
  /// Of them x sp, those that may share experts. Likewise for dp_replicate.
  int expert_sharers(int ranks) const;
};

}  // namespace llmtrain::parallel
