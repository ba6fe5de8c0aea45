#include "lib/train/prepare_share.hpp"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <set>

#include "lib/base/require.hpp"
#include "lib/train/sources.hpp"

namespace llmtrain::train {

namespace {

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && end == text.data() + text.size() && !text.empty();
  return whole ? std::optional(value) : std::nullopt;
}

std::uint64_t slurm_variable(const char* name, std::optional<std::uint64_t> fallback = {}) {
  const char* text = std::getenv(name);
  const auto value = text == nullptr ? fallback : number(text);
  require<RecipeError>(value.has_value(),
                       "{} is {}: --slurm-array is for the tasks of a Slurm job array; give "
                       "--shard I/N instead",
                       name, text == nullptr ? "not set" : fmt::format("'{}'", text));
  return *value;
}

/// "0-3, 7": rising numbers.
std::string ranges_text(const std::vector<std::size_t>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", numbers[i]);
    if (end - i > 1) text += fmt::format("-{}", numbers[end - 1]);
    i = end;
  }
  return text;
}

/// What is missing of one kind of files, and the commands that make it.
std::string missing_text(std::string_view what, const std::vector<std::size_t>& missing,
                         std::size_t shards, const data::Share& share,
                         const std::string& recipe_arguments) {
  std::string text = fmt::format("{}: {} of {} are missing ({}); made by\n", what, missing.size(),
                                 shards, ranges_text(missing));
  // Where nobody says how many tasks there are, one makes all.
  std::set<std::size_t> makers;
  for (const std::size_t shard : missing) makers.insert(shard % share.count);
  for (const std::size_t maker : makers) {
    text += fmt::format("  llmtrain data prepare {} --shard {}/{}\n", recipe_arguments, maker,
                        share.count);
  }
  return text;
}

}  // namespace

data::Share parse_share(std::string_view text) {
  const std::size_t slash = text.find('/');
  const auto index = number(text.substr(0, slash));
  const auto count = slash == text.npos ? std::nullopt : number(text.substr(slash + 1));
  require<RecipeError>(index && count && *index < *count,
                       "--shard {}: give I/N with I from 0 to N-1, such as 0/8", text);
  return {*index, *count};
}

data::Share slurm_share() {
  const std::uint64_t id = slurm_variable("SLURM_ARRAY_TASK_ID");
  const std::uint64_t first = slurm_variable("SLURM_ARRAY_TASK_MIN");
  const std::uint64_t count = slurm_variable("SLURM_ARRAY_TASK_COUNT");
  const std::uint64_t step = slurm_variable("SLURM_ARRAY_TASK_STEP", 1);
  const bool in_range = step > 0 && id >= first && (id - first) % step == 0;
  require<RecipeError>(in_range && (id - first) / step < count,
                       "task {} of {} from {} on in steps of {}: --slurm-array needs an array that "
                       "is a range, such as --array=0-7; give --shard I/N instead",
                       id, count, first, step);
  return {(id - first) / step, count};
}

SharedPreparation prepare_share(const Recipe& recipe, const data::Share& share,
                                const std::string& recipe_arguments) {
  const std::vector<data::SourceFile> files = source_files(recipe.data);
  const data::CleaningRequest request = cleaning_request(recipe.data);
  SharedPreparation result;
  std::shared_ptr<const data::Cleaning> cleaning;
  if (request.options.active()) {
    const data::CleaningStep step =
        data::clean_share(text_of(files), request, share, cleaning_directory(recipe.data, files));
    if (!step.cleaning) {
      result.text = missing_text("signatures of documents", step.missing, step.shards, share,
                                 recipe_arguments) +
                    "then, when all are there, this command again: it makes token files\n";
      return result;
    }
    cleaning = step.cleaning;
  }
  const auto tokenizer = open_tokenizer(recipe, files, cleaning);
  result.complete = true;
  for (const auto& own : files_of_parts(recipe.data, text_of(files))) {
    if (own.empty()) continue;  // token files are read as they are
    for (const data::Part part : {data::Part::training, data::Part::held_out}) {
      const TokenSetPlace place = token_set_place(recipe.data, own, *tokenizer, part, cleaning);
      const data::PrepareStep step =
          data::prepare_share(own, *tokenizer, place.options, share, place.directory);
      if (step.missing.empty()) continue;
      result.complete = false;
      result.text += missing_text(fmt::format("{}: token files", place.directory.string()),
                                  step.missing, step.shards, share, recipe_arguments);
    }
  }
  if (result.complete) result.text = "complete: token files of all tasks are there\n";
  return result;
}

}  // namespace llmtrain::train
