#pragma once
/// Text that is hard on tokenizers, from a seed.

#include <cstdint>
#include <string>

namespace llmtrain::data {

/// About `pieces` * 5.5 bytes of valid UTF-8: words, numbers, runs, line ends, every kind of space,
/// combining marks in and out of order, Hangul, ideographs, emoji, unassigned code points, and the
/// texts of special tokens. The same for the same arguments on every machine, and the same as
/// scripts/golden/adversarial_text.py makes.
std::string adversarial_text(std::uint64_t seed, std::uint64_t pieces = 1000);

}  // namespace llmtrain::data
