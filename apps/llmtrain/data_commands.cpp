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
  print(fmt::format("training: {} tokens in {} documents; held out: {} tokens in {} documents\n",
                    corpus.training->set().token_count(), corpus.training->set().document_count(),
                    corpus.held_out->samples().set().token_count(),
                    corpus.held_out->samples().set().document_count()));
  return ExitCode::done;
}

ExitCode inspect_data(const RecipeArguments& arguments, std::uint64_t sample, bool rows) {
  const auto recipe = train::load_recipe(arguments.recipe, arguments.overrides);
  const train::Corpus corpus = train::open_corpus(*recipe);
  require<RecipeError>(sample < corpus.training->sample_count(), "there are {} samples",
                       corpus.training->sample_count());
  print(data::inspect_sample(*corpus.training, sample, *corpus.tokenizer, {.rows = rows}));
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
  const data::TokenSet& set = corpus.held_out->samples().set();
  for (std::uint64_t i = 0; i < set.document_count(); ++i) print(set.document_name(i) + "\n");
  return ExitCode::done;
}

ExitCode print_held_out(const RecipeArguments& arguments) {
  const auto recipe = train::load_recipe(arguments.recipe, arguments.overrides);
  train::for_each_held_out(recipe->data,
                           [](const data::Document& document) { print(document.text); });
  return ExitCode::done;
}

}  // namespace llmtrain::app
