#pragma once
/// From the recipe's text to samples: files, tokenizer, token sets, training and held-out streams.

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/data/eval_windows.hpp"
#include "lib/data/mixed_stream.hpp"
#include "lib/data/prepare.hpp"
#include "lib/data/sample_stream.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain::train {

/// What is packed together: all sources, or one of a mixture.
struct CorpusPart {
  std::string name;  ///< of the source; "samples" when the part is all of them
  std::shared_ptr<const data::PackedSamples> training;
  std::shared_ptr<const data::EvalWindows> held_out;
};

struct Corpus {
  std::shared_ptr<const data::Tokenizer> tokenizer;
  std::vector<CorpusPart> parts;
  data::Mixture mixture;  ///< of the parts
  /// Of everything that decides the stream of training samples.
  std::string fingerprint;

  bool is_mixture() const { return parts.size() > 1; }
  /// The order of training.
  data::MixedStream stream(std::uint64_t seed) const;
};

/// Files of data.sources; DataError if there are none, RecipeError for keys of text in a source of
/// token files.
std::vector<data::SourceFile> source_files(const DataSection& section);
data::HeldOutRule held_out_rule(const DataSection& section);

/// The recipe's tokenizer: read, or trained on the training documents once and kept in the cache.
/// RecipeError if it is to be trained beside token files, whose ids are another one's.
std::shared_ptr<const data::Tokenizer> open_tokenizer(const Recipe& recipe,
                                                      const std::vector<data::SourceFile>& files);

/// Opens what the cache has and prepares the rest, with a line for each thing done. DataError when
/// there is no text; RecipeError when the model is too small for the tokenizer.
/// `tokenizer` is that of a run which exists already; without it the recipe's.
Corpus open_corpus(const Recipe& recipe,
                   std::shared_ptr<const data::Tokenizer> tokenizer = nullptr);

/// How much there is of each part and what of it is trained, and where sources of the mixture end
/// in a run of `samples` samples. RecipeError when the mixture ends before the run.
void log_corpus(const Corpus& corpus, std::uint64_t samples);

/// Calls `visit` with the text of every held-out document, in order; of token files, with what
/// their tokens decode to.
void for_each_held_out(const Recipe& recipe,
                       const std::function<void(std::string_view text)>& visit);

}  // namespace llmtrain::train
