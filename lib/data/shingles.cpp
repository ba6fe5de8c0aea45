#include "lib/data/shingles.hpp"

#include <algorithm>
#include <array>

#include "lib/base/require.hpp"
#include "lib/base/splitmix64.hpp"
#include "lib/base/utf8.hpp"

namespace llmtrain::data {

namespace {

constexpr std::uint64_t kWordFactor = 0x9FB21C651E98DF25u;     // odd; of bytes within a word
constexpr std::uint64_t kShingleFactor = 0xC2B2AE3D27D4EB4Fu;  // odd; of units within a shingle
constexpr std::uint64_t kWordStart = 0x27D4EB2F165667C5u;
constexpr std::uint32_t kMaxSize = 1024;

/// Per byte: 0 between words, else the byte with ASCII letters in lower case.
constexpr std::array<std::uint8_t, 256> word_bytes() {
  std::array<std::uint8_t, 256> table{};
  for (unsigned c = 0; c < 256; ++c) {
    const bool upper = c >= 'A' && c <= 'Z';
    const bool word =
        upper || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c >= 0x80;
    if (word) table[c] = static_cast<std::uint8_t>(upper ? c + 32 : c);
  }
  return table;
}

/// Hashes every window of `size` values as a polynomial modulo 2^64, in constant time per value.
class WindowHash {
 public:
  WindowHash(std::uint32_t size, std::vector<std::uint64_t>& out)
      : out_(out), size_(size), window_(size) {
    for (std::uint32_t i = 0; i < size; ++i) leaving_factor_ *= kShingleFactor;
  }
  void add(std::uint64_t value) {
    std::uint64_t& slot = window_[at_];
    if (++at_ == size_) at_ = 0;
    sum_ = sum_ * kShingleFactor + value;
    if (count_ >= size_) sum_ -= slot * leaving_factor_;
    slot = value;
    if (++count_ >= size_) out_.push_back(mixed_bits(sum_));
  }
  void finish() {
    if (count_ > 0 && count_ < size_) out_.push_back(mixed_bits(sum_));
  }

 private:
  std::vector<std::uint64_t>& out_;
  std::uint32_t size_;
  std::vector<std::uint64_t> window_;
  std::uint32_t at_ = 0;
  std::uint64_t count_ = 0, sum_ = 0, leaving_factor_ = 1;
};

void add_words(std::string_view text, WindowHash& windows) {
  static constexpr auto kBytes = word_bytes();
  const std::size_t size = text.size();
  std::size_t i = 0;
  while (i < size) {
    std::uint8_t byte = kBytes[static_cast<unsigned char>(text[i++])];
    if (byte == 0) continue;
    std::uint64_t hash = kWordStart;
    while (byte != 0) {
      hash = (hash ^ byte) * kWordFactor;
      byte = i < size ? kBytes[static_cast<unsigned char>(text[i])] : std::uint8_t{0};
      ++i;
    }
    windows.add(mixed_bits(hash));
  }
}

void add_characters(std::string_view text, WindowHash& windows) {
  constexpr std::uint32_t kNoCharacter = 0x110000;  // bytes that are not UTF-8 come behind it
  bool space = true;                                // none in front
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == ' ' || (byte >= '\t' && byte <= '\r')) {
      ++i;
      if (!space) windows.add(' ');
      space = true;
      continue;
    }
    space = false;
    if (byte < 0x80) {
      windows.add(byte >= 'A' && byte <= 'Z' ? byte + 32u : byte);
      ++i;
      continue;
    }
    const std::size_t length = utf8_char_length(text.substr(i));
    windows.add(length == 0 ? kNoCharacter + byte : decode_utf8(text.substr(i)));
    i += std::max<std::size_t>(length, 1);
  }
}

}  // namespace

void append_shingles(std::string_view text, const ShingleOptions& options,
                     std::vector<std::uint64_t>& out) {
  require(options.size >= 1 && options.size <= kMaxSize, "shingles of {}", options.size);
  WindowHash windows(options.size, out);
  if (options.unit == ShingleUnit::words) {
    add_words(text, windows);
  } else {
    add_characters(text, windows);
  }
  windows.finish();
}

}  // namespace llmtrain::data
