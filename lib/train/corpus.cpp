#include "lib/train/corpus.hpp"

#include <algorithm>
#include <sstream>

#include "lib/base/hash.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/base/units.hpp"
#include "lib/data/foreign_tokens.hpp"
#include "lib/train/data_stages.hpp"

namespace llmtrain::train {

namespace {

data::TokenSet open_text(const Recipe& recipe, const std::vector<data::SourceFile>& files,
                         const data::Tokenizer& tokenizer, data::Part part,
                         const std::shared_ptr<const data::Cleaning>& cleaning) {
  if (files.empty()) {
    return {static_cast<std::uint64_t>(tokenizer.vocab_size()),
            fmt::format("{:016x}", tokenizer.fingerprint())};
  }
  const TokenSetPlace place = token_set_place(recipe.data, files, tokenizer, part, cleaning);
  return data::open_or_prepare(files, tokenizer, place.options, place.directory);
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
CorpusPart open_part(const Recipe& recipe, const std::vector<data::SourceFile>& files,
                     const data::Tokenizer& tokenizer,
                     const std::shared_ptr<const data::Cleaning>& cleaning, std::string name) {
  const std::vector<data::SourceFile> text = text_of(files), token_files = tokens_of(files);
  data::TokenSet training = open_text(recipe, text, tokenizer, data::Part::training, cleaning);
  data::TokenSet held_out = open_text(recipe, text, tokenizer, data::Part::held_out, cleaning);
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

void check_vocabulary(const Recipe& recipe, const data::Tokenizer& tokenizer) {
  const std::int64_t vocab_size = recipe.model.spec().vocab_size;
  if (tokenizer.vocab_size() <= vocab_size) return;
  throw recipe::RefusedValue(recipe.tokenizer.bpe()->path,  // others are checked with the recipe
                             fmt::format("the tokenizer has {} tokens, but model.vocab_size is {}",
                                         tokenizer.vocab_size(), vocab_size),
                             fmt::format("set it to at least {}", tokenizer.vocab_size()));
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
  const std::vector<std::uint64_t> starts = stage_starts(recipe);
  for (std::size_t i = 0; i < starts.size(); ++i) {
    stages.push_back({starts[i], section.stages[i].weights()});
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
  const auto cleaning = open_cleaning(recipe.data, files);
  if (!tokenizer) tokenizer = open_tokenizer(recipe, files, cleaning);
  check_vocabulary(recipe, *tokenizer);
  std::vector<CorpusPart> parts;
  const auto files_by_part = files_of_parts(recipe.data, files);
  for (std::size_t i = 0; i < files_by_part.size(); ++i) {
    parts.push_back(open_part(recipe, files_by_part[i], *tokenizer, cleaning,
                              recipe.data.is_mixture() ? recipe.data.source_name(i) : "samples"));
  }
  std::string mixing =
      recipe.data.packing.strategy() == data::PackingStrategy::best_fit ? " best_fit" : "";
  data::Mixture mixture = make_mixture(recipe, parts, mixing);
  // By content, so that a copied or touched file is the same data.
  Hasher128 hasher, held_out;
  for (const CorpusPart& part : parts) {
    for (const std::string& hash : part.training->set().content_hashes()) hasher.update(hash);
    const data::TokenSet& set = part.held_out->samples().set();
    for (const std::string& hash : set.content_hashes()) held_out.update(hash);
  }
  hasher.update_value(tokenizer->fingerprint());
  hasher.update(fmt::format("{} {} {}{}", recipe.training.seq_len().value,
                            recipe.data.packing.cross_document_attention(),
                            recipe.data.packing.reset_positions(), mixing));
  return {.tokenizer = tokenizer,
          .parts = std::move(parts),
          .mixture = std::move(mixture),
          .cleaning = cleaning,
          .fingerprint = to_hex(hasher.digest()),
          .held_out_fingerprint = to_hex(held_out.digest())};
}

data::MixedStream Corpus::stream(std::uint64_t seed) const {
  std::vector<data::SampleStream> streams;
  for (const CorpusPart& part : parts) {
    streams.emplace_back(part.training, seed, is_mixture() ? "samples of " + part.name : part.name);
  }
  return {std::move(streams), mixture};
}

void log_corpus(const Corpus& corpus, std::uint64_t samples) {
  if (corpus.cleaning) {
    std::istringstream summary(corpus.cleaning->report().summary());
    for (std::string line; std::getline(summary, line);) log::info("{}", line);
  }
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
  const std::vector<data::SourceFile> files = source_files(recipe.data);
  const data::HeldOutRule rule = held_out_rule(recipe.data);
  for_each_document(
      text_of(files), [&](std::string_view name) { return data::is_held_out(name, rule); },
      [&](data::Document&& document) { visit(document.text); });
  const std::vector<data::SourceFile> token_files = tokens_of(files);
  if (token_files.empty()) return;
  const auto tokenizer = open_tokenizer(recipe, files, nullptr);
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
