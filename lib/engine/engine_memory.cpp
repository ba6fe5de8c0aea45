// What an engine allocates before its first step.
#include <cstring>

#include "lib/base/refused_key.hpp"
#include "lib/base/require.hpp"
#include "lib/checkpoint/snapshot.hpp"
#include "lib/engine/engine.hpp"
#include "lib/engine/file_shelf.hpp"
#include "lib/engine/host_shelf.hpp"

namespace llmtrain::engine {

namespace {

ParameterDTypes parameter_dtypes(const EngineOptions& options) {
  const DType wide = statistics_dtype(options.compute);
  ParameterDTypes dtypes{
      .compute = options.compute, .master = wide, .grad = wide, .form = options.master};
  const bool is_offloaded = options.optimizer != nullptr && options.offload;
  dtypes.master_elsewhere = is_offloaded && options.offload->masters;
  dtypes.copy_elsewhere = is_offloaded && options.offload->parameters;
  if (options.master == MasterForm::none && options.rounding == Rounding::stochastic) {
    dtypes.rounding_seed = options.seed;
  }
  return dtypes;
}

std::vector<parallel::Unit> units_of(const models::Decoder& decoder, const ParameterStore& store) {
  std::vector<parallel::Unit> units;
  for (auto& groups : decoder.units(store)) units.push_back({.groups = std::move(groups)});
  // A look-up's backward reads no table; the loss makes the head's gradients with itself.
  units.front().reads_on_way_back = false;
  units.back().reads_on_way_back = false;
  units.back().writes_on_way_forth = true;
  // The way back begins with the final norm and the last block.
  for (const std::size_t behind : {2, 3}) units[units.size() - behind].stays_until_way_back = true;
  return units;
}

// A sum of micro-batches whose order is that of the tree is not cut before its end.
Shards shards_of(const EngineOptions& options) {
  return {.gradients = options.zero >= 2 && options.virtual_workers == 0,
          .parameters = options.zero >= 3,
          .parameters_of_one = options.offload && options.offload->parameters};
}

}  // namespace

void Engine::allocate_parameters() {
  if (options_.optimizer != nullptr) divide_parameters();
  store_.allocate(*place_.device, parameter_dtypes(options_), options_.optimizer != nullptr);
}

void Engine::divide_parameters() {
  Shards shards = shards_of(options_);
  const bool is_sliced = options_.zero > 0 && mesh_.owners().size() > 1;
  if (!is_sliced && !shards.parameters_of_one) return;
  require(!shards.parameters_of_one || shards.parameters || mesh_.owners().size() == 1,
          "parameters elsewhere of several owners without ZeRO 3");
  store_.slice(optim::indivisible_pieces(*options_.optimizer), shards);
  shards.gradients = shards.gradients && is_sliced;
  shards.parameters = shards.parameters || shards.parameters_of_one;
  if (shards.gradients || shards.parameters) {
    shards_.emplace(units_of(decoder_, store_), shards, mesh_, options_.grad_reduce);
  }
}

void Engine::allocate_optimizer() {
  Device& device = *place_.device;
  step_scalars_ = device.allocate({kernels::StepScalars::kScalars}, DType::f64,
                                  Category::activations, "step scalars");
  std::optional<optim::Offload> offload = options_.offload;
  if (offload && offload->directory.empty()) offload->directory = place_.offload_directory;
  if (offload && offload->place == optim::OffloadPlace::file && is_for_gpu()) {
    offload->place = optim::OffloadPlace::host_file;
  }
  optimizer_ =
      std::make_unique<optim::OptimizerSet>(context().kernel, *options_.optimizer, store_, mesh_,
                                            options_.loss_scaling, offload, options_.seed);
  if (const ValuesElsewhere* elsewhere = optimizer_->elsewhere()) {
    store_.keep_in(*elsewhere);
    if (shards_) shards_->take_from(*elsewhere);
  }
  const auto states = optimizer_->states();
  states_.assign(states.begin(), states.end());
  if (options_.quantization) allocate_quantization();
  if (options_.virtual_workers > 0) {
    const bool both_ends = stages_.is_here(0) && stages_.is_here(stages_.last());
    tree_.emplace(device, store_, options_.virtual_workers / mesh_.size(Axis::dp),
                  both_ends ? decoder_.tied_table() : nullptr, loss_sum_);
  }
  if (options_.offloaded_activations) allocate_activation_offload();
  if (options_.diagnostics) {
    diagnostics_.emplace(device, store_, mesh_, options_.model.num_hidden_layers);
  }
  parallel::DataRanks::Completion complete;
  if (tree_) complete = [this](const auto& ctx, const auto& group) { tree_->finish(ctx, group); };
  data_ranks_.set_units(units_of(decoder_, store_), std::move(complete));
  if (options_.model.num_expert_layers() > 0) {
    decoder_.allocate_counters(device, options_.compute);
    routers_.emplace(device, decoder_);
  }
  for (Launched& launched : in_flight_) {
    launched.decision = device.make_host_read(optimizer_->decision().view().bytes());
  }
}

bool Engine::is_for_gpu() const {
  const Device& device = *place_.device;
  return (device.is_meta() ? place_.stands_for : device.kind()) == DeviceKind::cuda;
}

void Engine::allocate_activation_offload() {
  Device& device = *place_.device;
  ActivationOffloadOptions options = *options_.offloaded_activations;
  if (options.directory.empty()) options.directory = place_.offload_directory;
  if (!is_for_gpu()) {
    activations_.emplace(device, options);
    return;
  }
  std::unique_ptr<ActivationShelf> shelf;
  if (options.gpu_has_file) {
    shelf = std::make_unique<FileShelf>(device, options);
  } else {
    shelf = std::make_unique<HostShelf>(device, place_.host_activation_bytes);
  }
  device_activations_.emplace(std::move(shelf), options.names);
}

void Engine::allocate_quantization() {
  // Blocks of rows are those of one rank when each rank's two parts of a sequence are whole ones.
  const std::int64_t pieces = 2 * mesh_.size(Axis::sp);
  const bool by_block = options_.quantization->scaling == OperandScaling::block;
  if (by_block && pieces > 2 && options_.seq_len % (128 * pieces) != 0) {
    const std::string problem = fmt::format(
        "block, and parallelism.sp {} divides sequences of {} tokens, which are not whole blocks",
        mesh_.size(Axis::sp), options_.seq_len);
    const std::string remedy = fmt::format("take a multiple of {} tokens", 128 * pieces);
    throw RefusedKey("precision.fp8.scaling", problem, remedy + ", or scaling: current");
  }
  const kernels::KernelCtx kernel = context().kernel;
  const bool codes =
      obstacle_to_codes(*options_.quantization, place_.determinism, place_.multiplies_codes)
          .empty();
  quantized_.emplace(kernel, *options_.quantization, store_, codes);
  quantization_.emplace(kernel, *quantized_);
  for (const QuantizedLayers::State& state : quantized_->states()) {
    states_.push_back({.name = state.name,
                       .parameter = state.parameter,
                       .place = state.place,
                       .is_first = state.is_first,
                       .tensor = state.tensor});
  }
}

void Engine::allocate_snapshot() {
  Device& device = *place_.device;
  const std::uint64_t bytes =
      checkpoint::snapshot_bytes(saved_bytes(), place_.snapshot_shard_bytes);
  if (bytes == 0) return;
  snapshot_ = device.allocate({static_cast<std::int64_t>(bytes)}, DType::u8, Category::snapshot,
                              "snapshot of a save");
  // Its pages are there before the first save, which would wait for them.
  if (device.kind() == DeviceKind::cpu) std::memset(snapshot_.view().data, 0, bytes);
}

}  // namespace llmtrain::engine
