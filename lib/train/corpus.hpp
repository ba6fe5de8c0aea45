#pragma once
/// From the recipe's sources to samples: training and held-out streams.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/data/eval_windows.hpp"
#include "lib/data/mixed_stream.hpp"
#include "lib/data/sample_stream.hpp"
#include "lib/train/sources.hpp"

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
  data::Mixture mixture;                           ///< of the parts
  std::shared_ptr<const data::Cleaning> cleaning;  ///< null if data.cleaning asks for nothing
  /// Of everything that decides the stream of training samples.
  std::string fingerprint;
  /// Of the text of evaluations.
  std::string held_out_fingerprint;

  bool is_mixture() const { return parts.size() > 1; }
  /// The order of training.
  data::MixedStream stream(std::uint64_t seed) const;
};

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
