#include "lib/train/corpus.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <span>

#include "lib/base/directory.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/base/units.hpp"
#include "lib/data/bpe_trainer.hpp"
#include "lib/data/foreign_tokens.hpp"
#include "lib/data/token_format.hpp"
#include "lib/engine/geometry.hpp"

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

bool holds_tokens(const data::SourceFile& file) { return file.tokens != nullptr; }

/// Refuses keys of text in a source that consists of token files, as only its files tell.
void check_token_sources(const DataSection& section, const std::vector<data::SourceFile>& files) {
  for (std::size_t i = 0; i < section.sources.size(); ++i) {
    const recipe::Entry* key = section.sources[i].text_only_key();
    const bool has_text = std::any_of(files.begin(), files.end(), [&](const auto& file) {
      return file.source == i && !holds_tokens(file);
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
  if (std::any_of(files.begin(), files.end(), holds_tokens)) {
    throw recipe::RefusedValue(bpe->path,
                               "is missing: data.sources have token files, which hold no text to "
                               "train a tokenizer on",
                               "name the tokenizer that made them");
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

data::TokenSet open_text(const Recipe& recipe, const std::vector<data::SourceFile>& files,
                         const data::Tokenizer& tokenizer, data::Part part) {
  if (files.empty()) {
    return {static_cast<std::uint64_t>(tokenizer.vocab_size()),
            fmt::format("{:016x}", tokenizer.fingerprint())};
  }
  const data::PrepareOptions options{.part = part, .held_out = held_out_rule(recipe.data)};
  const data::TokenSetKey key = data::token_set_key(files, tokenizer, options);
  const std::string hash =
      to_hex(hash128(fmt::format("{} {} {}", key.files, key.tokenizer, key.options)));
  const auto directory = std::filesystem::path(recipe.data.cache_dir()) / ("tokens-" + hash);
  return data::open_or_prepare(files, tokenizer, options, directory);
}

std::shared_ptr<const data::PackedSamples> pack(const Recipe& recipe, data::TokenSet set,
                                                const data::Tokenizer& tokenizer, data::Part part) {
  require<DataError>(set.document_count() > 0,
                     "the held-out rule (hash of FILE@N modulo {} is {}) leaves no document of the "
                     "token files for {}; change data.eval_modulus or data.eval_remainder",
                     recipe.data.eval_modulus().value, recipe.data.eval_remainder().value,
                     part == data::Part::training ? "training" : "evaluation");
  const data::PackingOptions packing{
      .seq_len = static_cast<std::int64_t>(recipe.training.seq_len().value),
      .strategy = part == data::Part::training ? recipe.data.packing.strategy()
                                               : data::PackingStrategy::wrapped,
      .cross_document_attention = recipe.data.packing.cross_document_attention(),
      .reset_positions = recipe.data.packing.reset_positions()};
  return std::make_shared<data::PackedSamples>(
      std::make_shared<const data::TokenSet>(std::move(set)), tokenizer, packing);
}

/// The documents of the text files, then those of the token files.
CorpusPart open_part(const Recipe& recipe, std::vector<data::SourceFile> files,
                     const data::Tokenizer& tokenizer, std::string name) {
  const auto tokens = std::stable_partition(files.begin(), files.end(), std::not_fn(holds_tokens));
  const std::vector<data::SourceFile> token_files(tokens, files.end());
  files.erase(tokens, files.end());
  data::TokenSet training = open_text(recipe, files, tokenizer, data::Part::training);
  data::TokenSet held_out = open_text(recipe, files, tokenizer, data::Part::held_out);
  std::vector<data::ForeignTokens> opened =
      data::open_foreign_tokens(token_files, tokenizer, held_out_rule(recipe.data));
  data::log_foreign_tokens(token_files, opened, tokenizer);
  for (data::ForeignTokens& file : opened) {
    training.add(std::move(file.training));
    held_out.add(std::move(file.held_out));
  }
  return {.name = std::move(name),
          .training = pack(recipe, std::move(training), tokenizer, data::Part::training),
          .held_out = std::make_shared<const data::EvalWindows>(
              pack(recipe, std::move(held_out), tokenizer, data::Part::held_out),
              recipe.eval_stride())};
}

}  // namespace

namespace {

void check_vocabulary(const Recipe& recipe, const data::Tokenizer& tokenizer) {
  const std::int64_t vocab_size = recipe.model.spec().vocab_size;
  if (tokenizer.vocab_size() <= vocab_size) return;
  throw recipe::RefusedValue(recipe.tokenizer.bpe()->path,  // others are checked with the recipe
                             fmt::format("the tokenizer has {} tokens, but model.vocab_size is {}",
                                         tokenizer.vocab_size(), vocab_size),
                             fmt::format("set it to at least {}", tokenizer.vocab_size()));
}

/// The sample before which `start` of the run is over.
std::uint64_t stage_start(const Recipe& recipe, const recipe::Span& start) {
  const engine::BatchGeometry geometry(recipe.training);
  if (start.unit == recipe::Span::Unit::tokens) {
    const auto length = static_cast<std::uint64_t>(geometry.seq_len());
    return (start.count + length - 1) / length;
  }
  const auto steps = static_cast<std::int64_t>(
      start.in_steps(static_cast<std::uint64_t>(*geometry.total_steps(recipe.training)), 1));
  return geometry.samples_before(steps + 1);
}

/// `description` gets everything that decides the mixture.
data::Mixture make_mixture(const Recipe& recipe, const std::vector<CorpusPart>& parts,
                           std::string& description) {
  const DataSection& section = recipe.data;
  for (std::size_t i = 0; i < section.sources.size(); ++i) {  // absent where there is no mixture
    section.sources[i].name.mark_read();
    section.sources[i].weight.mark_read();
    section.sources[i].max_epochs.mark_read();
  }
  std::vector<data::MixtureSource> sources;
  std::vector<data::MixtureStage> stages(1);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool weighted = section.is_mixture();
    sources.push_back({.samples = parts[i].training->sample_count(),
                       .max_epochs = weighted ? section.sources[i].max_epochs() : std::nullopt});
    stages[0].weights.push_back(weighted ? *section.sources[i].weight() : 1.0);
    if (weighted) {
      description += fmt::format(" {}:{}:{}", parts[i].name.size(), parts[i].name,
                                 sources.back().max_epochs.value_or(0));
    }
  }
  for (std::size_t i = 0; i < section.stages.size(); ++i) {
    const DataStageSection& stage = section.stages[i];
    stages.push_back({stage_start(recipe, stage.start()), stage.weights()});
    if (stages[i].first_sample >= stages[i + 1].first_sample) {
      throw recipe::RefusedValue(stage.start, "is not behind the start of the stage before it",
                                 "give the stages in their order");
    }
  }
  for (const data::MixtureStage& stage : stages) {
    if (section.is_mixture()) {
      description += fmt::format(" @{} {}", stage.first_sample, fmt::join(stage.weights, ","));
    }
  }
  return {std::move(sources), stages};
}

}  // namespace

Corpus open_corpus(const Recipe& recipe, std::shared_ptr<const data::Tokenizer> tokenizer) {
  const std::vector<data::SourceFile> files = source_files(recipe.data);
  if (!tokenizer) tokenizer = open_tokenizer(recipe, files);
  check_vocabulary(recipe, *tokenizer);
  std::vector<CorpusPart> parts;
  const std::size_t count = recipe.data.is_mixture() ? recipe.data.sources.size() : 1;
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<data::SourceFile> own;
    std::copy_if(files.begin(), files.end(), std::back_inserter(own),
                 [&](const auto& file) { return count == 1 || file.source == i; });
    parts.push_back(open_part(recipe, std::move(own), *tokenizer,
                              count == 1 ? "samples" : recipe.data.source_name(i)));
  }
  std::string mixing =
      recipe.data.packing.strategy() == data::PackingStrategy::best_fit ? " best_fit" : "";
  data::Mixture mixture = make_mixture(recipe, parts, mixing);
  // By content, so that a copied or touched file is the same data.
  Hasher128 hasher;
  for (const CorpusPart& part : parts) {
    for (const std::string& hash : part.training->set().content_hashes()) hasher.update(hash);
  }
  hasher.update_value(tokenizer->fingerprint());
  hasher.update(fmt::format("{} {} {}{}", recipe.training.seq_len().value,
                            recipe.data.packing.cross_document_attention(),
                            recipe.data.packing.reset_positions(), mixing));
  return {.tokenizer = tokenizer,
          .parts = std::move(parts),
          .mixture = std::move(mixture),
          .fingerprint = to_hex(hasher.digest())};
}

data::MixedStream Corpus::stream(std::uint64_t seed) const {
  std::vector<data::SampleStream> streams;
  for (const CorpusPart& part : parts) {
    streams.emplace_back(part.training, seed, is_mixture() ? "samples of " + part.name : part.name);
  }
  return {std::move(streams), mixture};
}

void log_corpus(const Corpus& corpus, std::uint64_t samples) {
  for (const CorpusPart& part : corpus.parts) {
    const data::PackedSamples& training = *part.training;
    const auto rows = static_cast<double>(training.row_count());
    const auto trained = static_cast<double>(training.trained_row_count());
    const auto ends = static_cast<double>(training.set().document_count());
    const data::PackedSamples& held_out = part.held_out->samples();
    log::info(
        "data{}: {} tokens of training in {} samples ({:.2f} % padding), {:.1f} % of them trained, "
        "{:.2f} % of these ends of documents; {} held out{}",
        corpus.is_mixture() ? " " + part.name : "", format_count(rows), training.sample_count(),
        100 * training.padding_share(), 100 * trained / rows, 100 * ends / trained,
        format_count(static_cast<double>(held_out.trained_row_count())),
        held_out.source_bytes() ? fmt::format(" ({})", format_bytes(*held_out.source_bytes()))
                                : "");
  }
  for (const data::Mixture::End& end : corpus.mixture.ends()) {
    if (end.sample >= samples) continue;
    log::info("data {} ends at sample {} of {}: the others share its part",
              corpus.parts[end.source].name, end.sample, samples);
  }
  require<RecipeError>(corpus.mixture.length() >= samples,
                       "data.sources: all sources end after {} samples, by their max_epochs and "
                       "weights, and the run takes {}; raise max_epochs, or shorten the run",
                       corpus.mixture.length(), samples);
}

void for_each_held_out(const Recipe& recipe,
                       const std::function<void(std::string_view text)>& visit) {
  std::vector<data::SourceFile> files = source_files(recipe.data);
  const data::HeldOutRule rule = held_out_rule(recipe.data);
  const auto tokens = std::stable_partition(files.begin(), files.end(), std::not_fn(holds_tokens));
  for_each_document(
      {files.begin(), tokens}, [&](std::string_view name) { return data::is_held_out(name, rule); },
      [&](data::Document&& document) { visit(document.text); });
  if (tokens == files.end()) return;
  const auto tokenizer = open_tokenizer(recipe, files);
  const std::span<const data::SourceFile> token_files(tokens, files.end());
  for (const data::ForeignTokens& file : data::open_foreign_tokens(token_files, *tokenizer, rule)) {
    const data::TokenFile& held_out = *file.held_out;
    for (std::uint64_t i = 0; i < held_out.document_count(); ++i) {
      const data::TokenDocument document = held_out.document(i);
      std::vector<std::int32_t> ids(document.token_count);
      held_out.read_tokens(document.token_begin, ids);
      visit(tokenizer->decode(ids));
    }
  }
}

}  // namespace llmtrain::train
