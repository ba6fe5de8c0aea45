#pragma once
/// Samples as text, for a person who wants to see what the model sees.

#include <cstdint>
#include <string>

#include "lib/data/sample_stream.hpp"
#include "lib/data/tokenizer.hpp"

namespace llmtrain::data {

/// A token's bytes on one line: printable ASCII and valid UTF-8 as they are, '\n', '\t', '\r' and
/// '\\' escaped, everything else as \xNN.
std::string visible_text(std::string_view bytes);

struct InspectOptions {
  /// One line per row (position, rows it may attend to, token read, token predicted) instead of the
  /// running text of each document.
  bool rows = false;
  std::int64_t max_rows = 1 << 20;  ///< the rest is cut off with a line that says so
};

/// Sample `index` of `samples`: a headline, then for each document in it a line with its rows,
/// number, source, tokens and bytes, and its tokens with '|' between them, those that are only
/// read in parentheses, or, with options.rows, its rows.
std::string inspect_sample(const PackedSamples& samples, std::uint64_t index,
                           const Tokenizer& tokenizer, const InspectOptions& options = {});

}  // namespace llmtrain::data
