#include "tests/flip/observe.hpp"

#include <algorithm>
#include <fstream>
#include <regex>
#include <set>

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/philox.hpp"
#include "lib/base/require.hpp"
#include "lib/checkpoint/store.hpp"
#include "lib/data/bpe_trainer.hpp"
#include "lib/engine/engine.hpp"
#include "lib/engine/geometry.hpp"
#include "lib/plan/plan.hpp"
#include "lib/plan/plan_text.hpp"
#include "lib/train/batch_script.hpp"
#include "lib/train/corpus.hpp"
#include "lib/train/device.hpp"
#include "lib/train/exported_model.hpp"
#include "lib/train/job.hpp"
#include "lib/train/metrics.hpp"
#include "lib/train/planned_time.hpp"
#include "tests/flip/flip_table.hpp"
#include "tests/support/compressed.hpp"
#include "tests/support/process.hpp"
#include "tests/support/token_files.hpp"

namespace llmtrain::test {

namespace fs = std::filesystem;

namespace {

constexpr double kHangSeconds = 60;

std::string random_words(std::string_view name, std::uint64_t count) {
  const PhiloxKey key = philox_key(3, "test", name);
  std::string text;
  for (std::uint64_t i = 0; i < count; ++i) {
    text += fmt::format("word{}{}", philox_below(key, 0, i, 40), i % 9 == 8 ? "\n" : " ");
    if (i % 90 == 89) text += "\n";
  }
  return text;
}

// One object per line, with the text under two keys.
std::string json_lines() {
  std::string lines;
  for (int i = 0; i < 120; ++i) {
    lines += fmt::format(
        R"({{"text":"first text of line {0}","other":"another of line {0}","number":"{0}"}})", i);
    lines += '\n';
  }
  return lines;
}

// Documents that duplicate others in every way that cleaning knows, and one for each filter. Words
// of document n come from a vocabulary of its own.
std::string repetitive_lines() {
  std::string lines;
  const auto put = [&](std::string text) {
    for (std::size_t at = text.find('\n'); at != text.npos; at = text.find('\n', at + 2)) {
      text.replace(at, 1, "\\n");
    }
    lines += fmt::format(R"({{"text":"{}"}})", text) + "\n";
  };
  const auto words = [](int n, int count, int changed) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      text += fmt::format("{}{}x{} ", i % 17 < changed ? "other" : "term", n, i * i % 101);
    }
    return text;
  };
  for (int n = 0; n < 12; ++n) {
    put(words(n, 60, 0));
    put(words(n, 60, 0));
    put("  " + words(n, 60, 0));
    for (const int changed : {1, 2, 4}) put(words(n, 60, changed));
    put(words(n, 6, 0));
    put(words(n, 200, 0));
    put(fmt::format("{} 1 2 3 4 5 6 7 8", n));
    put(words(n, 3, 17) + std::string(40, 'y'));
    put(fmt::format("# {} # a # b # c # d ", n) + words(n, 9, 17));
    put(fmt::format("a{}b...\nb{}c...\nc{}d", n, n, n));
    put(fmt::format("- a{}bc\n- b{}cd\n- c{}de", n, n, n));
    put(fmt::format("ab{0}\nab{0}\nab{0}\ncd{0} ef gh ij", n));
    put(fmt::format("of{0} the of{0} the of{0} the", n));
  }
  return lines;
}

// Paragraphs of which every third one holds a byte that is no UTF-8.
std::string latin_text() {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    for (int word = 0; word < 60; ++word) text += fmt::format("word{}x{} ", i, word);
    text += i % 3 == 0 ? "\xE9\n\n" : "e\n\n";
  }
  return text;
}

// Where names, capitals, numbers and lines end differs from pattern to pattern.
std::string lines_of_code() {
  const PhiloxKey key = philox_key(3, "test", "code");
  std::string text;
  for (std::uint64_t i = 0; i < 200; ++i) {
    text += fmt::format("my_name{} = otherName(x.value, 123456);\n{}", philox_below(key, 0, i, 9),
                        i % 10 == 9 ? "\n" : "");
  }
  return text;
}

test::TokenDocuments documents_of_tokens() {
  const auto tokenizer = data::make_byte_tokenizer();
  test::TokenDocuments documents;
  for (int i = 0; i < 40; ++i) {
    documents.push_back(tokenizer->encode(random_words(fmt::format("tokens{}", i), 12)));
  }
  return documents;
}

void write_inputs(const fs::path& directory) {
  const auto put = [&](const char* name, std::string_view content) {
    std::ofstream(directory / name) << content;
  };
  put("text.txt", random_words("text", 1500));
  put("text.txt.gz", gzip(random_words("text", 1500)));
  put("other.txt", random_words("other", 1500));
  put("code.txt", lines_of_code());
  put("lines.jsonl", json_lines());
  put("copies.jsonl", repetitive_lines());
  put("latin.txt", latin_text());
  put("lines.txt", json_lines());
  const test::TokenDocuments documents = documents_of_tokens();
  put("llmc.bin", test::llmc_file<std::uint16_t>(documents, 256));
  const auto megatron = test::megatron_files<std::uint16_t>(documents, 8, 2);
  put("megatron.bin", megatron.bin);
  put("megatron.idx", megatron.idx);
  put("recipe.yaml", kBaseRecipe);
  const std::string text = random_words("tokenizer", 500);
  const std::string_view view = text;
  fs::create_directory(directory / "tokenizer");
  data::save_tokenizer(*data::train_bpe({&view, 1}, {.vocab_size = 295}), directory / "tokenizer");
}

std::unique_ptr<train::Recipe> load(const std::vector<std::string>& overrides) {
  return train::load_recipe(fs::path(Workshop::kRecipeFile), overrides);
}

// Of the first of as many ranks as the recipe names.
std::string plan_of(train::Recipe& recipe) {
  recipe.enter({.size = recipe.parallelism.least_ranks()});
  const engine::BatchGeometry geometry = recipe.geometry();
  engine::Target target = train::target_of(recipe);
  target.mesh = recipe.mesh_shape();
  plan::Plan plan = plan::make_plan(recipe.engine_options(), geometry.global_batch_size(), target);
  if (recipe.checkpoint.export_hf()) {
    plan.export_bytes = train::exported_bytes(recipe.model.spec());
  }
  plan::PlanContext context;
  context.gpu_collectives = train::gpu_collectives_of(recipe, target);
  context.local_checkpoints = train::local_checkpoints_of(recipe);
  context.save_share = train::save_share_of(recipe);
  return plan::to_json(plan, context);
}

std::string job_of(train::Recipe& recipe) {
  train::enter_job(recipe);
  const train::BatchScript script{
      .name = "run", .arguments = "recipe.yaml", .self = "/usr/bin/llmtrain"};
  return train::training_script(recipe, script) + train::data_script(recipe, script, 2);
}

class LaunchLog final : public kernels::Recorder {
 public:
  void record(const kernels::LaunchRecord& launch) override {
    text += fmt::format("{} {} {}\n", launch.name, to_string(launch.dtype),
                        fmt::join(launch.sizes, " "));
  }
  std::string text;
};

std::string operations_of(const train::Recipe& recipe) {
  const engine::EngineOptions options = recipe.engine_options();
  const engine::BatchGeometry geometry = recipe.geometry();
  LaunchLog launches;
  Device device(make_meta_memory(), std::uint64_t{1} << 40);
  engine::Engine engine({.device = &device,
                         .table = &kernels::meta_table(),
                         .threads = recipe.threads(),
                         .communicators = meta_factory(nullptr),
                         .recorder = &launches},
                        options);
  engine.initialize();
  device.ledger().start_trace();
  engine.train_step(engine::StepBatch::planned(geometry.global_batch_size(), options.seq_len), 1,
                    1.0);
  engine.evaluate(engine::StepBatch::planned(options.micro_batch_size, options.seq_len));
  for (const AllocationEvent& event : device.ledger().stop_trace()) {
    launches.text += to_string(event) + "\n";
  }
  return launches.text;
}

std::string sample_text(const data::Sample& sample) {
  return fmt::format("{}: {}; {}; {}; {}\n", sample.index, fmt::join(sample.tokens, " "),
                     fmt::join(sample.targets, " "), fmt::join(sample.doc_begin, " "),
                     fmt::join(sample.positions, " "));
}

std::string data_of(const train::Recipe& recipe) {
  const train::Corpus corpus = train::open_corpus(recipe);
  const data::MixedStream stream = corpus.stream(recipe.run.seed());
  std::string text;
  for (std::uint64_t i = 0; i < stream.epoch_size(); ++i) text += sample_text(stream.sample_at(i));
  text += "held out\n";
  for (const train::CorpusPart& part : corpus.parts) {
    data::Sample window = part.held_out->samples().sample(0);
    for (window.index = 0; window.index < part.held_out->count(); ++window.index) {
      part.held_out->read(window.index, window.view());
      text += sample_text(window);
    }
  }
  return text;
}

// ---- What a run left in the working directory.

std::string content_of(const fs::path& path) { return fs::exists(path) ? read_file(path) : ""; }

// The run's directory is the one that holds `name`; empty if there is none.
fs::path find_file(const std::string& name) {
  for (const auto& entry : fs::recursive_directory_iterator(".")) {
    if (entry.path().filename() == name) return entry.path();
  }
  return {};
}

std::string metrics_text() {
  std::string text;
  const fs::path path = find_file("metrics.jsonl");
  if (path.empty()) return text;
  for (const train::StepRecord& record : train::read_metrics(path)) {
    text += train::reproducible_line(record) + "\n";
  }
  return text;
}

std::string weights_text() {
  const fs::path latest = find_file("latest");
  if (latest.empty()) return "";
  const auto store = checkpoint::CheckpointStore::open_reader(latest.parent_path());
  checkpoint::Loader loader = store.load(store.list().back());
  std::string text;
  for (const auto& [name, record] : loader.manifest().tensors) {
    checkpoint::Box whole{.offset = checkpoint::Dims(record.shape.size(), 0),
                          .shape = record.shape};
    std::size_t bytes = size_of(record.dtype);
    for (const auto n : record.shape) bytes *= static_cast<std::size_t>(n);
    std::vector<std::byte> values(bytes);
    loader.read_box({name, record.dtype, record.shape, whole}, values);
    text += fmt::format("{} {}\n", name, to_hex(hash128(std::as_bytes(std::span(values)))));
  }
  return text;
}

// Names without what depends on the clock, on file times, on chance and on the host.
std::string files_text(const std::set<std::string>& inputs) {
  static const std::regex hash("(tokens|tokenizer|cleaning)-[0-9a-f]{32}");
  static const std::regex events("events\\.out\\..*");
  static const std::regex local("fast/[0-9a-f]{16}");
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(".")) {
    std::string name = entry.path().lexically_relative(".").string();
    if (inputs.contains(name.substr(0, name.find('/')))) continue;
    name = std::regex_replace(std::regex_replace(name, hash, "$1-*"), events, "events");
    names.insert(std::regex_replace(name, local, "fast/*"));
  }
  return fmt::format("{}\n", fmt::join(names, "\n"));
}

const std::set<std::string> kInputs{"text.txt",     "text.txt.gz",  "other.txt",   "code.txt",
                                    "lines.jsonl",  "lines.txt",    "recipe.yaml", "tokenizer",
                                    "hf",           "copies.jsonl", "latin.txt",   "llmc.bin",
                                    "megatron.bin", "megatron.idx"};

}  // namespace

std::string_view to_string(Sight sight) {
  constexpr std::array<std::string_view, 9> kNames{
      "plan", "operations", "data", "metrics", "weights", "files", "samples", "exit", "job"};
  return kNames.at(static_cast<std::size_t>(sight));
}

int execute(std::vector<std::string> arguments, int expected) {
  arguments.insert(arguments.begin(), LLMTRAIN_EXECUTABLE);
  const ProcessResult result = run_process(arguments, ".", {.limit_seconds = kHangSeconds});
  INFO(fmt::format("{}\n{}", fmt::join(arguments, " "), result.output));
  REQUIRE(!result.timed_out);
  if (expected >= 0) REQUIRE(result.exit_code == expected);
  return result.exit_code;
}

// Sanitized builds have none.
#ifdef LLMTRAIN_EMULATED_GPU
bool Workshop::has_gpu() { return true; }
constexpr const char* kPlugin = LLMTRAIN_EMULATED_GPU;
#else
bool Workshop::has_gpu() { return false; }
constexpr const char* kPlugin = "none";
#endif

Workshop::Workshop() : before_(fs::current_path()) {
  ::setenv("LLMTRAIN_CUDA_PLUGIN", kPlugin, 1);
  ::setenv("XDG_CACHE_HOME", "user_cache", 1);  // relative: in what a run leaves here
  // As in a job of Slurm that has an hour left.
  ::setenv("SLURM_JOB_ID", "1", 1);
  ::setenv("SLURM_JOB_END_TIME", fmt::format("{:.0f}", train::unix_time() + 3600).c_str(), 1);
  std::string name = (fs::temp_directory_path() / "llmtrain-flip-XXXXXX").string();
  require<StorageError>(::mkdtemp(name.data()) != nullptr, "cannot create {}", name);
  directory_ = name;
  fs::current_path(directory_);
  write_inputs(".");
  execute({"run", std::string(kRecipeFile), "run.seed=9"}, 0);
  execute({"ckpt", "export", "runs/recipe", "hf"}, 0);
  empty_runs();
}

Workshop::~Workshop() {
  std::error_code ignored;
  fs::current_path(before_, ignored);
  fs::remove_all(directory_, ignored);
}

void Workshop::empty_runs() const {
  for (const auto& entry : fs::directory_iterator(".")) {
    if (!kInputs.contains(entry.path().filename())) fs::remove_all(entry.path());
  }
}

const Workshop::Run& Workshop::run(const std::vector<std::string>& overrides, bool after_a_run) {
  for (const Run& run : runs_) {
    if (run.overrides == overrides && run.after_a_run == after_a_run) return run;
  }
  empty_runs();
  if (after_a_run) {
    // Twice: of a job that Slurm starts again, the second is no progress.
    ::setenv("SLURM_RESTART_COUNT", "0", 1);
    for (int i = 0; i < 2; ++i) execute({"run", std::string(kRecipeFile)}, 0);
    ::setenv("SLURM_RESTART_COUNT", "1", 1);
  }
  std::vector<std::string> arguments{"run", std::string(kRecipeFile)};
  arguments.insert(arguments.end(), overrides.begin(), overrides.end());
  const int code = execute(arguments, -1);
  Run run{.overrides = overrides, .after_a_run = after_a_run, .exit = std::to_string(code)};
  run.metrics = metrics_text();
  run.weights = weights_text();
  run.files = files_text(kInputs);
  const fs::path texts = find_file("samples.jsonl");
  run.samples = texts.empty() ? "" : content_of(texts);
  return runs_.emplace_back(std::move(run));
}

std::string Workshop::see(Sight sight, const std::vector<std::string>& overrides,
                          bool after_a_run) {
  switch (sight) {
    case Sight::plan:
      return plan_of(*load(overrides));
    case Sight::operations:
      return operations_of(*load(overrides));
    case Sight::data:
      return data_of(*load(overrides));
    case Sight::metrics:
      return run(overrides, after_a_run).metrics;
    case Sight::weights:
      return run(overrides, after_a_run).weights;
    case Sight::files:
      return run(overrides, after_a_run).files;
    case Sight::samples:
      return run(overrides, after_a_run).samples;
    case Sight::exit:
      return run(overrides, after_a_run).exit;
    case Sight::job:
      return job_of(*load(overrides));
  }
  return {};
}

}  // namespace llmtrain::test
