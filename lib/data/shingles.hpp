#pragma once
/// A text as a set of shingles (Broder, "On the resemblance and containment of documents", 1997).

#include <cstdint>
#include <string_view>
#include <vector>

namespace llmtrain::data {

enum class ShingleUnit : std::uint8_t {
  words,       ///< runs of ASCII letters, digits, '_' and bytes outside ASCII: prose and code
  characters,  ///< code points, white space runs as one: languages without spaces between words
};

struct ShingleOptions {
  ShingleUnit unit = ShingleUnit::words;
  std::uint32_t size = 5;  ///< words or characters of a shingle, 1 to 1024
};

/// Appends a 64-bit hash of every run of `size` units of `text`, in order, repeated ones included.
/// A text with fewer units has one shingle, of all of them; one without any has none. Upper and
/// lower case of ASCII letters are the same, and so is all that lies between words.
void append_shingles(std::string_view text, const ShingleOptions& options,
                     std::vector<std::uint64_t>& out);

}  // namespace llmtrain::data
