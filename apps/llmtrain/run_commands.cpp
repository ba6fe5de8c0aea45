// generate, eval, report, ckpt, version: verbs that look at a run's output directory.
#include <cmath>
#include <cstdio>
#include <span>

#include "apps/llmtrain/commands.hpp"
#include "lib/base/directory.hpp"
#include "lib/base/ending.hpp"
#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/base/units.hpp"
#include "lib/checkpoint/hf_directory.hpp"
#include "lib/comm/job_place.hpp"
#include "lib/train/checkpoint_tensors.hpp"
#include "lib/train/exported_model.hpp"
#include "lib/train/generate.hpp"
#include "lib/train/import_run.hpp"
#include "lib/train/local_checkpoints.hpp"
#include "lib/train/peers.hpp"
#include "lib/train/report.hpp"
#include "lib/train/run_directory.hpp"
#include "lib/train/run_status.hpp"
#include "lib/train/saved_run.hpp"
#include "lib/train/trainer.hpp"

namespace llmtrain::app {

namespace {

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

/// For verbs that one process does: of several the first says so. The others keep quiet and are
/// done, since a launcher ends all processes, the first perhaps before it has spoken, when one
/// fails.
bool is_one_of_several(std::string_view verb) {
  const Launch& launch = this_launch();
  require<RecipeError>(launch.place.size == 1 || launch.place.rank > 0,
                       "`llmtrain {}` is the work of one process, and {} has started {}: start it "
                       "without {}",
                       verb, launch.launcher, launch.place.size, launch.launcher);
  return launch.place.size > 1;
}

}  // namespace

ExitCode generate(const Generation& arguments) {
  if (is_one_of_several("generate")) return ExitCode::done;
  train::SavedRun run(arguments.run, arguments.step);
  train::generate(run.engine(), run.tokenizer(), arguments.prompt,
                  {.max_tokens = arguments.max_tokens,
                   .temperature = arguments.temperature,
                   .top_k = arguments.top_k,
                   .top_p = arguments.top_p,
                   .seed = arguments.seed,
                   .on_start = [&] { print(arguments.prompt); },
                   .on_token = print});
  print("\n");
  return ExitCode::done;
}

ExitCode evaluate(const std::filesystem::path& path, std::optional<std::uint64_t> step) {
  if (is_one_of_several("eval")) return ExitCode::done;
  train::SavedRun run(path, step);
  const train::Corpus corpus = run.corpus();
  engine::StepBatch batch;
  const train::EvalReport report =
      train::total(*train::evaluate(run.engine(), corpus.parts, std::nullopt, batch));
  const auto bits = report.bits_per_byte();
  print(fmt::format("step {}: loss {:.4f}, perplexity {:.3f}{} over {} tokens{}\n", run.step(),
                    report.loss(), std::exp(report.loss()),
                    bits ? fmt::format(", {:.4f} bits per byte", *bits) : "", report.tokens,
                    bits ? ", " + format_bytes(*report.source_bytes) : ""));
  return ExitCode::done;
}

ExitCode report(const std::filesystem::path& run, ReportForm form) {
  const std::filesystem::path html = run / "report.html";
  switch (form) {
    case ReportForm::html:
      train::write_report(run, html);
      print(html.string() + "\n");
      break;
    case ReportForm::text:
      print(train::text_report(run));
      break;
    case ReportForm::check:
      print(train::to_line(train::read_report_facts(read_file(html))) + "\n");
      break;
  }
  return ExitCode::done;
}

ExitCode compare_runs(const std::filesystem::path& a, const std::filesystem::path& b) {
  print(train::compare_runs(a, b));
  return ExitCode::done;
}

ExitCode status(const std::filesystem::path& run, bool as_json) {
  const train::RunStatus status = train::status_of_run(run);
  const double now = train::unix_time();
  print(as_json ? train::to_json(status)
                : fmt::format("{}: {}", run.string(), train::describe(status, now)));
  if (status.has_ended()) return static_cast<ExitCode>(*status.exit_code);
  const train::Life life = train::life_of(status, now);
  return life == train::Life::alive ? ExitCode::done : ExitCode::peer_lost;
}

namespace {

/// A run's checkpoints, and its local ones where they can be reached from here.
struct SavedSteps {
  checkpoint::CheckpointStore durable;
  std::optional<checkpoint::CheckpointStore> local;
  bool local_is_unread = false;

  bool empty() const { return durable.list().empty() && (!local || local->list().empty()); }
  std::vector<std::filesystem::path> set_aside() const {
    std::vector<std::filesystem::path> all = durable.list_aside();
    const auto more = local ? local->list_aside() : std::vector<std::filesystem::path>();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  /// For each of both and its place, which is told of local ones.
  template <class See>
  void for_each(const See& see) const {
    for (const std::uint64_t step : durable.list()) see(durable, step, "");
    if (!local) return;
    for (const std::uint64_t step : local->list()) {
      see(*local, step, fmt::format("  in {}", local->root().string()));
    }
  }
};

SavedSteps checkpoints_of(const std::filesystem::path& run) {
  const std::filesystem::path root = run / "checkpoints";
  require<RecipeError>(std::filesystem::is_directory(root),
                       "{}: no directory of a run: it has no checkpoints/; expected the "
                       "run.output_dir of a recipe",
                       run.string());
  SavedSteps saved{checkpoint::CheckpointStore::open_reader(root), std::nullopt};
  const auto local = train::recorded_local_checkpoints(root);
  if (!local) return saved;
  try {
    auto store = checkpoint::CheckpointStore::open_reader(*local);
    store.list();
    if (std::filesystem::is_directory(*local)) saved.local.emplace(std::move(store));
  } catch (const std::exception& error) {
    const Ending ending = ending_of(error);
    if (ending.code != ExitCode::storage) throw;
    saved.local_is_unread = true;
    print(fmt::format("{}: UNREAD: {}\n", local->string(), ending.text));
    return saved;
  }
  if (!saved.local) {
    print(fmt::format("{}: not here, but on the machine that the run was on\n", local->string()));
  }
  return saved;
}

}  // namespace

namespace {

// Retention of a run that goes on has been there.
constexpr std::string_view kDeleted = "deleted meanwhile";

/// Of the checkpoints that a verb has looked at.
class Verdict {
 public:
  explicit Verdict(bool is_unread = false) : is_unread_(is_unread) {}
  /// Of one more; what could not be read may be whole.
  void add(std::span<const checkpoint::Problem> problems) {
    for (const auto& problem : problems) (problem.is_unread ? is_unread_ : is_damaged_) = true;
  }
  void add(const Error& error) {
    (error.exit_code() == ExitCode::storage ? is_unread_ : is_damaged_) = true;
  }
  std::string_view word() const {
    return is_damaged_ ? "INVALID" : is_unread_ ? "UNREAD" : "valid";
  }
  ExitCode exit_code() const {
    if (is_damaged_) return ExitCode::invalid_data;
    return is_unread_ ? ExitCode::storage : ExitCode::done;
  }

 private:
  bool is_damaged_ = false, is_unread_;
};

/// "  damaged: shard-0000-0000.safetensors is missing".
std::string to_text(const checkpoint::Problem& problem) {
  return fmt::format("  {}: {} {}", problem.is_unread ? "unread" : "damaged", problem.file,
                     problem.reason);
}

std::string describe(const checkpoint::CheckpointStore& store, std::uint64_t step,
                     const checkpoint::Loader& loader, const std::string& place) {
  std::uint64_t bytes = 0;
  for (const auto& [name, file] : loader.manifest().files) bytes += file.bytes;
  const auto exported = store.directory_of(step) / checkpoint::kExportName;
  return fmt::format(
      "step {:>8}  {:>10}  {:>12} tokens seen{}{}", step, format_bytes(bytes),
      loader.manifest().run.tokens_seen, place,
      std::filesystem::exists(exported) ? fmt::format("  exported to {}", exported.string()) : "");
}

}  // namespace

ExitCode list_checkpoints(const std::filesystem::path& run) {
  const SavedSteps saved = checkpoints_of(run);
  if (saved.empty()) print(fmt::format("{}: no checkpoint yet\n", run.string()));
  Verdict all(saved.local_is_unread);
  saved.for_each(
      [&](const checkpoint::CheckpointStore& store, std::uint64_t step, const std::string& place) {
        try {
          const checkpoint::Loader loader = store.load(step);
          const auto problems =
              checkpoint::check_lengths(store.directory_of(step), step, loader.manifest());
          if (!problems.empty() && !has_entry(store.directory_of(step))) {
            print(fmt::format("step {:>8}  {}{}\n", step, kDeleted, place));
            return;
          }
          all.add(problems);
          std::string line = describe(store, step, loader, place);
          for (const auto& problem : problems) line += to_text(problem);
          print(line + "\n");
        } catch (const Error& error) {
          const bool is_there = has_entry(store.directory_of(step));
          Verdict one;
          if (is_there) one.add(error);
          if (is_there) all.add(error);
          print(fmt::format("step {:>8}  {}{}\n", step,
                            is_there ? fmt::format("{}: {}", one.word(), error.what()) : kDeleted,
                            place));
        }
      });
  for (const std::filesystem::path& path : saved.set_aside()) {
    print(fmt::format("set aside when a run went back, read by no run: {}\n", path.string()));
  }
  return all.exit_code();
}

ExitCode verify_checkpoints(const std::filesystem::path& run) {
  const SavedSteps saved = checkpoints_of(run);
  require<CheckpointError>(!saved.empty(), "{}: no checkpoint yet", run.string());
  Verdict all(saved.local_is_unread);
  saved.for_each(
      [&](const checkpoint::CheckpointStore& store, std::uint64_t step, const std::string& place) {
        const auto problems = store.verify(step, checkpoint::VerifyLevel::hash);
        if (!problems.empty() && !has_entry(store.directory_of(step))) {
          print(fmt::format("step {:>8}  {}{}\n", step, kDeleted, place));
          return;
        }
        Verdict one;
        one.add(problems);
        all.add(problems);
        print(fmt::format("step {:>8}  {}{}\n", step, one.word(), place));
        for (const auto& problem : problems) {
          print(fmt::format("  {}\n", checkpoint::to_string(problem)));
        }
      });
  return all.exit_code();
}

ExitCode export_checkpoint(const Export& arguments) {
  const auto dtype = parse_dtype(arguments.dtype);
  require<RecipeError>(dtype && (dtype == DType::f32 || is_half_width(*dtype)),
                       "--dtype {}: exports are fp32, bf16 or fp16", arguments.dtype);
  const train::SavedFiles run(arguments.run, arguments.step);
  const train::ExportedModel model(run.recipe->model, *run.tokenizer, *dtype);
  checkpoint::Loader saved = run.store.load(run.step);
  checkpoint::export_hf(arguments.to, model.content(), checkpoint::values_of(saved));
  print(fmt::format("{}: step {} in {}\n", arguments.to.string(), run.step, arguments.dtype));
  return ExitCode::done;
}

ExitCode import_checkpoint(const RecipeArguments& arguments, const std::filesystem::path& from) {
  return train::run_as_rank([&](World& world) {
    const auto recipe = train::load_importing_recipe(arguments.recipe, arguments.overrides, from,
                                                     world.place().size);
    recipe->enter(world.place());
    return train::import_run(*recipe, arguments.recipe, world);
  });
}

ExitCode version() {
  for (const auto& [key, value] : train::build_facts()) print(fmt::format("{}: {}\n", key, value));
  print("features: cpu\n");
  return ExitCode::done;
}

}  // namespace llmtrain::app
