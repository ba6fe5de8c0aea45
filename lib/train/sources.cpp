#include "lib/train/sources.hpp"

#include <algorithm>
#include <iterator>

#include "lib/base/directory.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/base/units.hpp"
#include "lib/data/bpe_trainer.hpp"
#include "lib/data/token_format.hpp"

namespace llmtrain::train {

namespace {

constexpr std::size_t kManyFiles = 100;
constexpr std::uint64_t kLeastDocumentBytes = 1024, kMostDocumentBytes = 16384;
// Of so many documents the held-out rule (one in twenty) practically always finds some.
constexpr std::uint64_t kEnoughDocuments = 128;
// Text that a tokenizer is trained on; more hardly changes the merges.
constexpr std::uint64_t kTokenizerTextBytes = std::uint64_t{256} << 20;

data::SourceOptions source_options(const SourceSection& section, std::uint64_t max_document_bytes) {
  data::SourceFormat format = data::SourceFormat::automatic;
  if (section.format() == "text") format = data::SourceFormat::text;
  if (section.format() == "jsonl") format = data::SourceFormat::jsonl;
  const data::TokenFormat* tokens = data::find_token_format(section.format());
  if (tokens != nullptr) format = data::SourceFormat::tokens;
  return {.path = section.path(),
          .format = format,
          .tokens = tokens,
          .text_key = section.text_key(),
          .prompt_key = section.prompt_key().value_or(""),
          .completion_key = section.completion_key().value_or(""),
          .max_document_bytes = max_document_bytes};
}

std::uint64_t automatic_document_bytes(const SourceSection& section,
                                       const data::ListOptions& list) {
  const data::SourceOptions whole = source_options(section, 0);
  const std::vector<data::SourceFile> files = data::list_source_files({&whole, 1}, list);
  if (files.size() >= kManyFiles) return 0;
  std::uint64_t bytes = 0;
  for (const data::SourceFile& file : files) bytes += file.size_bytes;
  return std::clamp(bytes / kEnoughDocuments, kLeastDocumentBytes, kMostDocumentBytes);
}

bool holds_text(const data::SourceFile& file) { return file.tokens == nullptr; }

/// Refuses keys of text in a source that consists of token files, as only its files tell.
void check_token_sources(const DataSection& section, const std::vector<data::SourceFile>& files) {
  for (std::size_t i = 0; i < section.sources.size(); ++i) {
    const recipe::Entry* key = section.sources[i].text_only_key();
    const bool has_text = std::any_of(files.begin(), files.end(), [&](const auto& file) {
      return file.source == i && holds_text(file);
    });
    if (key == nullptr || has_text) continue;
    throw recipe::RefusedValue(*key, "does nothing: the source's files hold tokens, no text",
                               "leave it out");
  }
}

}  // namespace

std::vector<data::SourceFile> source_files(const DataSection& section) {
  const data::ListOptions list{.scratch_directory = section.cache_dir(),
                               .limits = {.max_bytes = section.max_decompressed_size()}};
  std::vector<data::SourceOptions> sources;
  for (std::size_t i = 0; i < section.sources.size(); ++i) {
    const SourceSection& source = section.sources[i];
    const auto& given = source.max_document_bytes().value;
    sources.push_back(
        source_options(source, given ? given->value : automatic_document_bytes(source, list)));
  }
  std::vector<data::SourceFile> files = data::list_source_files(sources, list);
  check_token_sources(section, files);
  return files;
}

std::vector<data::SourceFile> text_of(const std::vector<data::SourceFile>& files) {
  std::vector<data::SourceFile> text;
  std::copy_if(files.begin(), files.end(), std::back_inserter(text), holds_text);
  return text;
}

std::vector<data::SourceFile> tokens_of(const std::vector<data::SourceFile>& files) {
  std::vector<data::SourceFile> tokens;
  std::remove_copy_if(files.begin(), files.end(), std::back_inserter(tokens), holds_text);
  return tokens;
}

data::HeldOutRule held_out_rule(const DataSection& section) {
  return {.modulus = section.eval_modulus(), .remainder = section.eval_remainder()};
}

void for_each_document(const std::vector<data::SourceFile>& files,
                       const std::function<bool(std::string_view)>& wanted,
                       const std::function<void(data::Document&&)>& visit,
                       const data::Cleaning* cleaning) {
  for (const data::SourceFile& file : files) {
    for (data::Document& document : data::read_documents(file, 0, file.size_bytes, wanted)) {
      if (cleaning != nullptr && cleaning->drops(file, document.offset)) continue;
      visit(std::move(document));
    }
  }
}

namespace {

std::shared_ptr<const data::Tokenizer> train_tokenizer(const Recipe& recipe,
                                                       const std::vector<data::SourceFile>& files,
                                                       const data::Cleaning* cleaning) {
  const data::HeldOutRule rule = held_out_rule(recipe.data);
  std::vector<std::string> texts;
  std::uint64_t bytes = 0;
  for_each_document(
      files,
      [&](std::string_view name) {
        return bytes < kTokenizerTextBytes && !data::is_held_out(name, rule);
      },
      [&](data::Document&& document) {
        bytes += document.text.size();
        texts.push_back(std::move(document.text));
      },
      cleaning);
  const BpeOptions& bpe = *recipe.tokenizer.bpe();
  log::info("training a tokenizer of {} tokens on {} of text", bpe.vocab_size().value,
            format_bytes(bytes));
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  return data::train_bpe(views, {.vocab_size = static_cast<std::int64_t>(bpe.vocab_size().value),
                                 .pattern = bpe.pattern()});
}

// Equal keys, equal tokenizers: the files, the split, the cleaning and the size decide.
std::string tokenizer_key(const Recipe& recipe, const std::vector<data::SourceFile>& files,
                          const std::shared_ptr<const data::Cleaning>& cleaning) {
  const data::PrepareOptions options{
      .part = data::Part::training, .held_out = held_out_rule(recipe.data), .cleaning = cleaning};
  const data::TokenSetKey key = data::token_set_key(files, *data::make_byte_tokenizer(), options);
  const BpeOptions& bpe = *recipe.tokenizer.bpe();
  return to_hex(hash128(fmt::format("bpe {} {} {} {}", bpe.vocab_size().value, bpe.pattern(),
                                    key.files, key.options)));
}

}  // namespace

data::CleaningRequest cleaning_request(const DataSection& section) {
  return {.options = section.cleaning.options(),
          .held_out = held_out_rule(section),
          .shard_source_bytes = section.shard_size()};
}

std::filesystem::path cleaning_directory(const DataSection& section,
                                         const std::vector<data::SourceFile>& files) {
  return std::filesystem::path(section.cache_dir()) /
         ("cleaning-" + data::cleaning_key(text_of(files), cleaning_request(section)));
}

std::shared_ptr<const data::Cleaning> open_cleaning(const DataSection& section,
                                                    const std::vector<data::SourceFile>& files) {
  const data::CleaningRequest request = cleaning_request(section);
  if (!request.options.active()) return nullptr;
  const std::vector<data::SourceFile> text = text_of(files);
  require<RecipeError>(
      !text.empty(),
      "data.cleaning: does nothing: data.sources hold tokens, no text; leave it out");
  return data::open_or_clean(text, request, cleaning_directory(section, files));
}

std::shared_ptr<const data::Tokenizer> open_tokenizer(
    const Recipe& recipe, const std::vector<data::SourceFile>& files,
    const std::shared_ptr<const data::Cleaning>& cleaning) {
  const BpeOptions* bpe = recipe.tokenizer.bpe();
  if (bpe == nullptr) return data::make_byte_tokenizer();
  if (bpe->path()) {
    bpe->vocab_size.mark_read();  // the file decides
    bpe->pattern.mark_read();
    auto tokenizer = data::make_tokenizer({.type = "bpe", .path = *bpe->path()});
    if (!tokenizer->keeps_text()) {
      log::info(
          "{}: the tokenizer changes text (normalizer, spaces in front or unknown characters); "
          "bits per byte count the bytes of the source",
          *bpe->path());
    }
    return tokenizer;
  }
  if (!std::all_of(files.begin(), files.end(), holds_text)) {
    throw recipe::RefusedValue(bpe->path,
                               "is missing: data.sources have token files, which hold no text to "
                               "train a tokenizer on",
                               "name the tokenizer that made them");
  }
  const std::filesystem::path directory = std::filesystem::path(recipe.data.cache_dir()) /
                                          ("tokenizer-" + tokenizer_key(recipe, files, cleaning));
  if (std::filesystem::exists(directory / "tokenizer.json")) {
    return data::make_tokenizer({.type = "bpe", .path = directory});
  }
  const auto tokenizer = train_tokenizer(recipe, files, cleaning.get());
  create_directories_durably(directory);
  data::save_tokenizer(*tokenizer, directory);
  return tokenizer;
}

std::vector<std::vector<data::SourceFile>> files_of_parts(
    const DataSection& section, const std::vector<data::SourceFile>& files) {
  if (!section.is_mixture()) return {files};
  std::vector<std::vector<data::SourceFile>> parts(section.sources.size());
  for (const data::SourceFile& file : files) parts[file.source].push_back(file);
  return parts;
}

TokenSetPlace token_set_place(const DataSection& section,
                              const std::vector<data::SourceFile>& files,
                              const data::Tokenizer& tokenizer, data::Part part,
                              const std::shared_ptr<const data::Cleaning>& cleaning) {
  // What is held out does not depend on cleaning.
  data::PrepareOptions options{.part = part,
                               .held_out = held_out_rule(section),
                               .shard_source_bytes = section.shard_size(),
                               .cleaning = part == data::Part::training ? cleaning : nullptr};
  const data::TokenSetKey key = data::token_set_key(files, tokenizer, options);
  const std::string hash =
      to_hex(hash128(fmt::format("{} {} {}", key.files, key.tokenizer, key.options)));
  return {std::move(options), std::filesystem::path(section.cache_dir()) / ("tokens-" + hash)};
}

}  // namespace llmtrain::train
