#include "lib/train/run_start.hpp"

#include <algorithm>
#include <array>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "lib/base/directory.hpp"
#include "lib/base/file.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/base/unfinished_write.hpp"
#include "lib/base/units.hpp"
#include "lib/mesh/rank_map.hpp"
#include "lib/plan/machine.hpp"
#include "lib/recipe/dump.hpp"
#include "lib/train/data_stages.hpp"
#include "lib/train/device_links.hpp"
#include "lib/train/metrics.hpp"
#include "lib/train/run_directory.hpp"

namespace llmtrain::train {

namespace {

// Variables by their beginnings. Others may hold secrets.
constexpr std::array<std::string_view, 8> kTold{"SLURM_", "OMP_",  "GOMP_",     "LLMTRAIN_",
                                                "CUDA_",  "NCCL_", "OMPI_MCA_", "MASTER_"};

Start this_process(const JobPlace& place) {
  return {.time = unix_time(),
          .host = plan::machine_facts().host,
          .pid = ::getpid(),
          .ranks = place.size,
          .job = this_job().id,
          .restarts = this_job().restarts};
}

/// Files that killed starts have not finished. Reports are also written by others.
void remove_temporaries(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    const bool is_file = at->symlink_status(error).type() == std::filesystem::file_type::regular;
    if (is_file && is_unfinished_write(name) && !name.starts_with("report")) {
      found.push_back(at->path());
    }
  }
  for (const auto& path : found) remove_tree(path);
}

}  // namespace

RunIdentity identity_of(const Recipe& recipe, const Corpus& corpus, std::uint64_t epoch_size,
                        std::string product_choices) {
  return {.seed = recipe.run.seed(),
          .epoch_size = epoch_size,
          .data_fingerprint = corpus.fingerprint,
          .recipe = recipe::dump(recipe),
          .environment = environment(recipe.threads(), recipe.run.determinism()),
          .product_choices = std::move(product_choices)};
}

void take_directory(const JobPlace& place, const std::filesystem::path& directory,
                    StatusFile& status) {
  if (place.rank == 0) {
    remove_temporaries(directory);
    status.open(directory, this_process(place));
  }
  create_directories_durably(directory / "logs");
  log::open_file(directory / "logs" / fmt::format("rank-{}.log", place.rank));
  log::note(fmt::format("start on {}, process {}{}", plan::machine_facts().host, ::getpid(),
                        this_job().id.empty() ? "" : ", job " + this_job().id));
}

void begin_start(const JobPlace& place, const NewestCheckpoint& newest, std::int64_t max_restarts,
                 const std::filesystem::path& cache, const std::filesystem::path& directory,
                 StatusFile& status) {
  Start start = this_process(place);
  start.step = newest.step;
  start.prepared_bytes = prepared_bytes_in(cache);
  if (this_job().end_is_past) {
    log::warning(
        "SLURM_JOB_END_TIME is over: when job {} ends is not known, only Slurm's signal says it",
        start.job);
  }
  const std::vector<Start> before = keep_starts(directory);
  const std::int64_t first_step = start.step.value_or(0);
  // The status is written once in a while.
  const std::int64_t last_step =
      std::max({first_step, status.last_step(), last_recorded_step(directory / "metrics.jsonl")});
  start.lost_steps = last_step - first_step;
  std::int64_t lost = 0;
  for (const Start& other : before) lost += other.lost_steps;
  const bool begins = starts_without_progress(before, start) <= max_restarts;
  status.begin(start.step, std::ssize(before) + (begins ? 1 : 0),
               lost + (begins ? start.lost_steps : 0));
  if (!begins) status.at_step(last_step);  // for the next start that begins to count from
  check_progress(before, start, max_restarts);
  append_start(directory, start);
}

engine::EnginePlace place_in_job(RunDevice& device, const Recipe& recipe, const plan::Plan& plan,
                                 const Peers& peers, const std::filesystem::path& directory) {
  peers.check_same_program(to_string(device.device().kind()));
  engine::EnginePlace place = device.place();
  place.mesh = recipe.mesh_shape();
  place.rank = peers.world().place().rank;
  place.offload_directory = recipe.offload.directory(directory);
  place.host_activation_bytes = plan.host_activation_bytes();
  place.communicators = communicators_of(peers.world(), device, recipe);
  return place;
}

void log_launches(const Device& device, const plan::Plan& plan) {
  if (!device.backend().can_record()) return;
  if (!plan.records_launches) {
    log::info("launches are made one by one: run.cuda_graphs is off");
  } else if (!plan.not_recorded.empty()) {
    log::info("launches are made one by one in {}, where ranks exchange", plan.not_recorded);
  }
  if (plan.records_launches && plan.device_activations) {
    log::info(
        "launches are made one by one in micro-batches, whose activations come and go "
        "beside them");
  }
  if (plan.records_launches && plan.host_updates) {
    log::info("updates are in no recorded launches: the host computes them");
    if (plan.host_updates->brings_copies) {
      log::info("launches are made one by one in micro-batches, beside which parameters come");
    }
  }
}

void log_fp8(const engine::Engine& engine, bool device_does) {
  const QuantizedLayers* layers = engine.quantized_layers();
  if (layers == nullptr) return;
  log::info("fp8: {}", summary_of(layers->layers()));
  if (layers->num_local() == 0) return;
  const engine::EngineOptions& options = engine.options();
  const std::string_view obstacle = engine::obstacle_to_codes(
      layers->options(), engine.context().kernel.determinism, device_does);
  if (!obstacle.empty()) {
    log::info("fp8: products in bf16, of the numbers that codes stand for: {}", obstacle);
    return;
  }
  const std::int64_t rows =
      options.micro_batch_size * options.seq_len / engine.mesh().size(Axis::sp);
  const std::size_t all = layers->num_local(), some = layers->num_multiplying_codes(rows);
  log::info("fp8: products of codes by cuBLASLt in {} of {} layers{}", some, all,
            some < all ? "; in the others in bf16: their sizes are no multiples of 16" : "");
}

void log_offload(engine::Engine& engine) {
  if (const optim::OffloadedStates* states = engine.optimizer()->offloaded()) {
    log::info("{}: {} in a file, read and written {}, through {} of memory", states->contents(),
              format_bytes(states->file_bytes()), states->how(),
              format_bytes(states->pool_bytes()));
  }
  if (const optim::HostUpdates* updates = engine.optimizer()->host_updates()) {
    const optim::HostUpdateFacts facts = updates->facts();
    const std::string pinned = format_bytes(facts.pinned_bytes);
    if (facts.contents.empty()) {
      log::info("updates: the host's; {} of its memory pinned, for what travels", pinned);
    } else {
      log::info("{}: in the host's memory, which updates; {} of it pinned, for what travels",
                facts.contents, pinned);
    }
  }
  if (const engine::ActivationOffload* activations = engine.offloaded_activations()) {
    log::info(
        "activations: in a file from the pass forth to the walk back, {}, through {} of memory",
        activations->how(), format_bytes(activations->pool_bytes()));
  }
  if (const engine::ActivationShelf* shelf = engine.activation_shelf()) {
    const std::string pinned = format_bytes(shelf->pinned_bytes());
    if (shelf->traffic()) {
      log::info(
          "activations: in a file of the host from the pass forth to the walk back, {}, through {} "
          "of its memory, pinned",
          shelf->how(), pinned);
    } else {
      log::info(
          "activations: in the host's memory from the pass forth to the walk back, {} of it pinned",
          pinned);
    }
  }
}

namespace {

void log_activation_traffic(const offload::StoreTraffic& traffic) {
  log::info("activations: {} read, {} written; micro-batches waited {} for the disk",
            format_bytes(traffic.read_bytes), format_bytes(traffic.written_bytes),
            format_duration(traffic.waited_seconds));
}

}  // namespace

void log_offload_traffic(engine::Engine& engine) {
  if (const optim::OffloadedStates* states = engine.optimizer()->offloaded()) {
    const auto traffic = states->traffic();
    std::string besides;
    if (const std::uint64_t reads = states->copy_bytes_read(); reads > 0) {
      besides = fmt::format("; {} of parameters read besides, for which products waited {}",
                            format_bytes(reads), format_duration(engine.waited_for_parameters()));
    }
    log::info("{}: {} read, {} written; updates waited {} for the disk{}", states->contents(),
              format_bytes(traffic.read_bytes), format_bytes(traffic.written_bytes),
              format_duration(traffic.waited_seconds), besides);
  }
  if (const optim::HostUpdates* updates = engine.optimizer()->host_updates()) {
    const optim::HostUpdateTimes& times = updates->times();
    const std::string contents = updates->facts().contents;
    std::string besides;
    if (const std::uint64_t brought = updates->copy_bytes_brought(); brought > 0) {
      besides = fmt::format("; {} of parameters came to the device for its products",
                            format_bytes(brought));
    }
    log::info(
        "{}{}updates on the host took {}, of which {} waited for the device's gradients and "
        "{} for copies{}",
        contents, contents.empty() ? "" : ": ", format_duration(times.all),
        format_duration(times.waited_for_decisions), format_duration(times.waited_for_copies),
        besides);
  }
  if (const engine::ActivationOffload* activations = engine.offloaded_activations()) {
    log_activation_traffic(*activations->traffic());
  }
  if (const engine::ActivationShelf* shelf = engine.activation_shelf()) {
    const engine::DeviceActivationFacts facts = shelf->facts();
    log::info("activations: {} copied to the host and {} back; it used {} of its memory for them",
              format_bytes(facts.down_bytes), format_bytes(facts.up_bytes),
              format_bytes(facts.pinned_bytes));
    if (const auto traffic = shelf->traffic()) log_activation_traffic(*traffic);
  }
}

namespace {

void log_without_effect(std::string_view why,
                        std::initializer_list<const recipe::ValueEntry*> keys) {
  std::vector<std::string> idle;
  for (const recipe::ValueEntry* key : keys) {
    if (key->value_text() != key->default_text()) idle.push_back(key->path());
  }
  if (!idle.empty()) log::info("{}: {}", why, fmt::join(idle, ", "));
}

}  // namespace

void log_idle_layout_keys(const Recipe& recipe) {
  const MeshShape mesh = recipe.mesh_shape();
  const int data_ranks = mesh[Axis::dp] * mesh[Axis::sp];
  if (data_ranks == 1) {
    log_without_effect("for several ranks of dp x sp, without effect on one",
                       {&recipe.parallelism.zero, &recipe.precision.grad_reduce});
  } else if (data_ranks == mesh.dp_replicate) {
    log_without_effect("for several ranks within a replica, without effect on one",
                       {&recipe.parallelism.zero});
  }
}

void log_idle_offload(const Recipe& recipe, const plan::Plan& plan) {
  const bool any_of_gpu = plan.device_activations && plan.device_activations->down_bytes > 0;
  if (plan.activation_traffic_bytes > 0 || any_of_gpu) return;
  log_without_effect("for what other models save, or other recipes; without effect on this rank",
                     {&recipe.offload.activations});
}

void log_idle_keys(const Recipe& recipe, DeviceKind device) {
  const RunSection& run = recipe.run;
  log_idle_layout_keys(recipe);
  const OffloadSection& offload = recipe.offload;
  if (!offload.uses_files(device)) {
    log_without_effect("for files alone, of which this run has none",
                       {&offload.path, &offload.checksum, &offload.activation_buffer});
  } else if (!offload.activations_in_file(device)) {
    log_without_effect("for activations in files alone, and those of this run are in none",
                       {&offload.activation_buffer});
  }
  if (device != DeviceKind::cpu) return;
  log_without_effect("for GPUs alone, without effect on this CPU",
                     {&run.library_workspace, &run.attention, &run.tune_products,
                      &run.product_cache, &run.cuda_graphs, &recipe.precision.fp8.products});
}

void warn_of_places(const Recipe& recipe, const Peers& peers) {
  const auto hosts = peers.texts_of_all(plan::machine_facts().host, "hosts of ranks");
  if (!peers.is_first()) return;
  if (const auto advice = advice_on_tp(recipe.mesh_shape(), places_on(hosts))) {
    log::warning("{}", *advice);
  }
}

void write_environment(const std::filesystem::path& directory, const Peers& peers) {
  using Json = nlohmann::ordered_json;
  const plan::MachineFacts machine = plan::machine_facts();
  const Json mine{{"host", machine.host},
                  {"cpu", machine.cpu},
                  {"instruction_set", machine.instruction_set},
                  {"cores", machine.cores},
                  {"memory_bytes", machine.memory_bytes},
                  {"pid", ::getpid()}};
  const auto replace = Json::error_handler_t::replace;
  const auto all = peers.texts_of_all(mine.dump(-1, ' ', false, replace), "machines of ranks");
  if (!peers.is_first()) return;
  Json json;
  for (const auto& [key, value] : build_facts()) json["build"][key] = value;
  json["launcher"] = this_launch().launcher;
  json["connection"] = peers.world().kind();
  for (const std::string& rank : all) json["ranks"].push_back(Json::parse(rank));
  json["variables"] = Json::object();
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('='));
    const bool known =
        std::ranges::any_of(kTold, [&](auto part) { return name.starts_with(part); });
    if (known) json["variables"][std::string(name)] = text.substr(name.size() + 1);
  }
  write_file_atomic(directory / "environment.json", json.dump(2, ' ', false, replace) + "\n");
}

void write_start(const std::filesystem::path& directory, const Recipe& recipe,
                 const RunPlan& planned, const RunIdentity& identity, const Corpus& corpus) {
  warn_of_unreached_stages(recipe);
  write_file_atomic(directory / "resolved.yaml", identity.recipe);
  data::save_tokenizer(*corpus.tokenizer, directory);
  write_run_facts(directory, recipe, planned.plan, identity.environment);
  write_plan(directory, planned.plan, planned.time);
  if (!identity.product_choices.empty()) {
    write_file_atomic(directory / "products.txt", identity.product_choices);
  }
  if (corpus.cleaning) write_file_atomic(directory / "cleaning.json", corpus.cleaning->json());
}

}  // namespace llmtrain::train
