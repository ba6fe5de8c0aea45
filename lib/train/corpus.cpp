#include "lib/train/corpus.hpp"

#include <algorithm>

#include "lib/base/directory.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/base/units.hpp"
#include "lib/data/bpe_trainer.hpp"

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
  return {.path = section.path(),
          .format = format,
          .text_key = section.text_key(),
          .max_document_bytes = max_document_bytes};
}

std::uint64_t automatic_document_bytes(const SourceSection& section) {
  const data::SourceOptions whole = source_options(section, 0);
  const std::vector<data::SourceFile> files = data::list_source_files({&whole, 1});
  if (files.size() >= kManyFiles) return 0;
  std::uint64_t bytes = 0;
  for (const data::SourceFile& file : files) bytes += file.size_bytes;
  return std::clamp(bytes / kEnoughDocuments, kLeastDocumentBytes, kMostDocumentBytes);
}

}  // namespace

std::vector<data::SourceFile> source_files(const DataSection& section) {
  std::vector<data::SourceOptions> sources;
  for (std::size_t i = 0; i < section.sources.size(); ++i) {
    const SourceSection& source = section.sources[i];
    const auto& given = source.max_document_bytes().value;
    sources.push_back(
        source_options(source, given ? given->value : automatic_document_bytes(source)));
  }
  return data::list_source_files(sources);
}

data::HeldOutRule held_out_rule(const DataSection& section) {
  return {.modulus = section.eval_modulus(), .remainder = section.eval_remainder()};
}

namespace {

void for_each_document(const std::vector<data::SourceFile>& files,
                       const std::function<bool(std::string_view)>& wanted,
                       const std::function<void(data::Document&&)>& visit) {
  for (const data::SourceFile& file : files) {
    for (data::Document& document : data::read_documents(file, 0, file.size_bytes, wanted)) {
      visit(std::move(document));
    }
  }
}

std::shared_ptr<const data::Tokenizer> train_tokenizer(const Recipe& recipe,
                                                       const std::vector<data::SourceFile>& files) {
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
      });
  const BpeOptions& bpe = *recipe.tokenizer.bpe();
  log::info("training a tokenizer of {} tokens on {} of text", bpe.vocab_size().value,
            format_bytes(bytes));
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  return data::train_bpe(views, {.vocab_size = static_cast<std::int64_t>(bpe.vocab_size().value),
                                 .pattern = bpe.pattern()});
}

// Equal keys, equal tokenizers: the files, the split and the size decide.
std::string tokenizer_key(const Recipe& recipe, const std::vector<data::SourceFile>& files) {
  const data::PrepareOptions options{.part = data::Part::training,
                                     .held_out = held_out_rule(recipe.data)};
  const data::TokenSetKey key = data::token_set_key(files, *data::make_byte_tokenizer(), options);
  const BpeOptions& bpe = *recipe.tokenizer.bpe();
  return to_hex(hash128(fmt::format("bpe {} {} {} {}", bpe.vocab_size().value, bpe.pattern(),
                                    key.files, key.options)));
}

}  // namespace

std::shared_ptr<const data::Tokenizer> open_tokenizer(const Recipe& recipe,
                                                      const std::vector<data::SourceFile>& files) {
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
  const std::filesystem::path directory = std::filesystem::path(recipe.data.cache_dir()) /
                                          ("tokenizer-" + tokenizer_key(recipe, files));
  if (std::filesystem::exists(directory / "tokenizer.json")) {
    return data::make_tokenizer({.type = "bpe", .path = directory});
  }
  const auto tokenizer = train_tokenizer(recipe, files);
  create_directories_durably(directory);
  data::save_tokenizer(*tokenizer, directory);
  return tokenizer;
}

namespace {

std::shared_ptr<const data::PackedSamples> open_part(const Recipe& recipe,
                                                     const std::vector<data::SourceFile>& files,
                                                     const data::Tokenizer& tokenizer,
                                                     data::Part part) {
  const data::PrepareOptions options{.part = part, .held_out = held_out_rule(recipe.data)};
  const data::TokenSetKey key = data::token_set_key(files, tokenizer, options);
  const std::string hash =
      to_hex(hash128(fmt::format("{} {} {}", key.files, key.tokenizer, key.options)));
  const auto directory = std::filesystem::path(recipe.data.cache_dir()) / ("tokens-" + hash);
  auto set =
      std::make_shared<data::TokenSet>(data::open_or_prepare(files, tokenizer, options, directory));
  const data::PackingOptions packing{
      .seq_len = static_cast<std::int64_t>(recipe.training.seq_len().value),
      .cross_document_attention = recipe.data.packing.cross_document_attention(),
      .reset_positions = recipe.data.packing.reset_positions()};
  return std::make_shared<data::PackedSamples>(std::move(set), tokenizer, packing);
}

}  // namespace

Corpus open_corpus(const Recipe& recipe) {
  const std::vector<data::SourceFile> files = source_files(recipe.data);
  Corpus corpus;
  corpus.tokenizer = open_tokenizer(recipe, files);
  const std::int64_t vocab_size = recipe.model.spec().vocab_size;
  if (corpus.tokenizer->vocab_size() > vocab_size) {
    throw recipe::RefusedValue(
        recipe.tokenizer.bpe()->path,  // others are checked with the recipe
        fmt::format("the tokenizer has {} tokens, but model.vocab_size is {}",
                    corpus.tokenizer->vocab_size(), vocab_size),
        fmt::format("set it to at least {}", corpus.tokenizer->vocab_size()));
  }
  corpus.training = open_part(recipe, files, *corpus.tokenizer, data::Part::training);
  corpus.held_out = std::make_shared<const data::EvalWindows>(
      open_part(recipe, files, *corpus.tokenizer, data::Part::held_out), recipe.eval_stride());
  // By content, so that a copied or touched file is the same data.
  Hasher128 hasher;
  for (const data::TokenSetShard& shard : corpus.training->set().index().shards) {
    hasher.update(shard.payload_hash);
  }
  hasher.update_value(corpus.tokenizer->fingerprint());
  hasher.update(fmt::format("{} {} {}", recipe.training.seq_len().value,
                            recipe.data.packing.cross_document_attention(),
                            recipe.data.packing.reset_positions()));
  corpus.fingerprint = to_hex(hasher.digest());
  return corpus;
}

void for_each_held_out(const DataSection& section,
                       const std::function<void(const data::Document&)>& visit) {
  const data::HeldOutRule rule = held_out_rule(section);
  for_each_document(
      source_files(section), [&](std::string_view name) { return data::is_held_out(name, rule); },
      [&](data::Document&& document) { visit(document); });
}

}  // namespace llmtrain::train
