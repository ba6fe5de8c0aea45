// data.
#include <cstdio>

#include "apps/llmtrain/commands.hpp"
#include "lib/base/require.hpp"
#include "lib/data/inspect.hpp"
#include "lib/train/corpus.hpp"

namespace llmtrain::app {

namespace {

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace

ExitCode prepare_data(const RecipeArguments& arguments) {
  const auto recipe = train::load_recipe(arguments.recipe, arguments.overrides);
  const train::Corpus corpus = train::open_corpus(*recipe);
  for (const train::CorpusPart& part : corpus.parts) {
    const data::TokenSet& training = part.training->set();
    const data::TokenSet& held_out = part.held_out->samples().set();
    print(
        fmt::format("{}training: {} tokens in {} documents; held out: {} tokens in {} documents\n",
                    corpus.is_mixture() ? part.name + ": " : "", training.token_count(),
                    training.document_count(), held_out.token_count(), held_out.document_count()));
  }
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
      return ExitCode::done;
    }
    before += count;
  }
  fail<RecipeError>("there are {} samples", before);
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
