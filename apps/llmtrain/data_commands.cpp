// data.
#include <cstdio>
#include <span>

#include "apps/llmtrain/commands.hpp"
#include "apps/llmtrain/shell_words.hpp"
#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/base/stop_request.hpp"
#include "lib/data/inspect.hpp"
#include "lib/data/preparation_speed.hpp"
#include "lib/train/corpus.hpp"
#include "lib/train/prepare_share.hpp"

namespace llmtrain::app {

namespace {

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace

ExitCode prepare_data(const RecipeArguments& arguments, const PreparedShare& share) {
  install_stop_handlers();
  const auto recipe = train::load_recipe(arguments.recipe, arguments.overrides);
  if (share.shard || share.slurm_array || share.finish) {
    const data::Share part = share.finish        ? data::Share::nothing()
                             : share.slurm_array ? train::slurm_share()
                                                 : train::parse_share(*share.shard);
    const train::SharedPreparation done =
        train::prepare_share(*recipe, part, shell_words(arguments));
    require<DataError>(done.complete || !share.finish, "{}", done.text);
    print(done.text);
    if (!share.finish) return ExitCode::done;
  }
  const train::Corpus corpus = train::open_corpus(*recipe);
  for (const train::CorpusPart& part : corpus.parts) {
    const data::TokenSet& training = part.training->set();
    const data::TokenSet& held_out = part.held_out->samples().set();
    print(
        fmt::format("{}training: {} tokens in {} documents; held out: {} tokens in {} documents\n",
                    corpus.is_mixture() ? part.name + ": " : "", training.token_count(),
                    training.document_count(), held_out.token_count(), held_out.document_count()));
  }
  if (corpus.cleaning) print(corpus.cleaning->report().summary());
  return ExitCode::done;
}

ExitCode measure_preparation(const RecipeArguments& arguments) {
  const auto recipe = train::load_recipe(arguments.recipe, arguments.overrides);
  const data::PreparationSpeed speed = data::measure_preparation(
      train::text_of(train::source_files(recipe->data)), train::cleaning_request(recipe->data));
  const double megabytes = static_cast<double>(speed.bytes) / 1e6;
  print(fmt::format("{:.1f} MB of text in {} documents, one thread\n", megabytes, speed.documents));
  for (const data::StageSpeed& stage : speed.stages) {
    print(fmt::format("  {:<8} {:>8.3f} s {:>8.0f} MB/s\n", stage.stage, stage.seconds,
                      megabytes / stage.seconds));
  }
  print(fmt::format("  {:<8} {:>8.3f} s {:>8.0f} MB/s\n", "all", speed.seconds(),
                    megabytes / speed.seconds()));
  return ExitCode::done;
}

ExitCode inspect_data(const RecipeArguments& arguments, std::uint64_t sample, bool rows) {
  const auto recipe = train::load_recipe(arguments.recipe, arguments.overrides);
  const train::Corpus corpus = train::open_corpus(*recipe);
  // Numbered through the sources.
  std::uint64_t before = 0;
  for (const train::CorpusPart& part : corpus.parts) {
    const std::uint64_t count = part.training->sample_count();
    if (sample < before + count) {
      print(
          data::inspect_sample(*part.training, sample - before, *corpus.tokenizer, {.rows = rows}));
      if (corpus.cleaning) print(corpus.cleaning->report().summary());
      return ExitCode::done;
    }
    before += count;
  }
  fail<RecipeError>("there are {} samples", before);
}

ExitCode write_batches(const RecipeArguments& arguments, std::int64_t steps,
                       const std::filesystem::path& to) {
  const auto recipe = train::load_recipe(arguments.recipe, arguments.overrides);
  const train::Corpus corpus = train::open_corpus(*recipe);
  const data::MixedStream stream = corpus.stream(recipe->run.seed());
  const engine::BatchGeometry geometry = recipe->geometry();
  const std::uint64_t count = geometry.samples_before(steps + 1);
  const auto length = static_cast<std::size_t>(geometry.seq_len());
  data::Sample sample;
  for (auto* values : {&sample.tokens, &sample.targets, &sample.doc_begin, &sample.positions}) {
    values->resize(length);
  }
  std::string content;
  for (std::uint64_t i = 0; i < count; ++i) {
    stream.read(i, sample.view());
    for (const auto* values : {&sample.tokens, &sample.targets}) {
      const auto bytes = std::as_bytes(std::span(*values));
      content.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
  }
  write_file_atomic(to, content);
  print(fmt::format("{}: {} samples of {} tokens, of each what it reads and predicts, int32\n",
                    to.string(), count, length));
  return ExitCode::done;
}

ExitCode list_data(const RecipeArguments& arguments, bool held_out) {
  const auto recipe = train::load_recipe(arguments.recipe, arguments.overrides);
  if (!held_out) {
    for (const data::SourceFile& file : train::source_files(recipe->data)) {
      print(file.path.string() + "\n");
    }
    return ExitCode::done;
  }
  const train::Corpus corpus = train::open_corpus(*recipe);
  for (const train::CorpusPart& part : corpus.parts) {
    const data::TokenSet& set = part.held_out->samples().set();
    for (std::uint64_t i = 0; i < set.document_count(); ++i) print(set.document_name(i) + "\n");
  }
  return ExitCode::done;
}

ExitCode print_held_out(const RecipeArguments& arguments) {
  const auto recipe = train::load_recipe(arguments.recipe, arguments.overrides);
  train::for_each_held_out(*recipe, [](std::string_view text) { print(text); });
  return ExitCode::done;
}

}  // namespace llmtrain::app
