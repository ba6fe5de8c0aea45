#include "lib/data/text_statistics.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "lib/base/hash.hpp"
#include "lib/base/splitmix64.hpp"
#include "lib/base/utf8.hpp"

namespace llmtrain::data {

namespace {

constexpr std::string_view kEllipsis = "\xE2\x80\xA6";
constexpr std::array<std::string_view, 6> kBullets{
    "-", "*", "\xE2\x80\xA2", "\xE2\x80\xA3", "\xE2\x97\xA6", "\xE2\x96\xAA"};

constexpr bool is_space(unsigned char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
constexpr bool is_continuation(unsigned char c) { return (c & 0xC0u) == 0x80u; }

std::uint64_t count_characters(std::string_view text) {
  std::uint64_t count = 0;
  for (const char c : text) count += is_continuation(static_cast<unsigned char>(c)) ? 0u : 1u;
  return count;
}

/// What a word consists of, by its bytes.
enum ByteClass : std::uint8_t { kSpace = 1, kLetter = 2, kContinuation = 4, kHash = 8, kDots = 16 };

constexpr std::array<std::uint8_t, 256> byte_classes() {
  std::array<std::uint8_t, 256> table{};
  for (unsigned c = 0; c < 256; ++c) {
    const auto byte = static_cast<unsigned char>(c);
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 0x80;
    table[c] =
        static_cast<std::uint8_t>((is_space(byte) ? kSpace : 0) | (letter ? kLetter : 0) |
                                  (is_continuation(byte) ? kContinuation : 0) |
                                  (c == '#' ? kHash : 0) | (c == '.' || c == 0xE2 ? kDots : 0));
  }
  return table;
}

constexpr auto kClasses = byte_classes();

std::uint8_t class_of(char c) { return kClasses[static_cast<unsigned char>(c)]; }

/// Ellipses of one word; three dots count once, and so do the next three.
std::uint64_t count_ellipses(std::string_view word) {
  std::uint64_t count = 0;
  for (const std::string_view mark : {std::string_view("..."), kEllipsis}) {
    for (std::size_t at = word.find(mark); at != word.npos;
         at = word.find(mark, at + mark.size())) {
      ++count;
    }
  }
  return count;
}

/// Calls `visit(word, classes, continuation bytes, '#'s)` for each word.
template <class Visit>
void for_each_word(std::string_view text, const Visit& visit) {
  const std::size_t size = text.size();
  for (std::size_t i = 0; i < size;) {
    std::uint8_t byte = class_of(text[i]);
    if ((byte & kSpace) != 0) {
      ++i;
      continue;
    }
    const std::size_t begin = i;
    std::uint8_t all = 0;
    std::uint32_t continuations = 0, hashes = 0;
    do {
      all |= byte;
      continuations += (byte & kContinuation) != 0 ? 1u : 0u;
      hashes += (byte & kHash) != 0 ? 1u : 0u;
      if (++i == size) break;
      byte = class_of(text[i]);
    } while ((byte & kSpace) == 0);
    visit(text.substr(begin, i - begin), all, continuations, hashes);
  }
}

/// Counts hashes of one text: 40 bits of each beside its place, and 24 of how often it came.
class Counter {
 public:
  /// Room for `count` different hashes.
  explicit Counter(std::size_t count)
      : slots_(std::bit_ceil(std::max<std::size_t>(2 * count, 8))), mask_(slots_.size() - 1) {}
  /// How often the hash has been here before.
  std::uint64_t visit(std::uint64_t hash) {
    const std::uint64_t tag = hash & ~kCount;
    for (std::size_t at = hash & mask_;; at = (at + 1) & mask_) {
      std::uint64_t& slot = slots_[at];
      if (slot == 0) {
        slot = tag | 1;
        return 0;
      }
      if ((slot & ~kCount) != tag) continue;
      const std::uint64_t before = slot & kCount;
      if (before < kCount) ++slot;
      return before;
    }
  }

 private:
  static constexpr std::uint64_t kCount = (std::uint64_t{1} << 24) - 1;
  std::vector<std::uint64_t> slots_;
  std::size_t mask_;
};

std::string_view stripped(std::string_view line) {
  while (!line.empty() && is_space(static_cast<unsigned char>(line.front()))) line.remove_prefix(1);
  while (!line.empty() && is_space(static_cast<unsigned char>(line.back()))) line.remove_suffix(1);
  return line;
}

bool starts_with_bullet(std::string_view line) {
  return std::any_of(kBullets.begin(), kBullets.end(), [&](std::string_view bullet) {
    return line.starts_with(bullet) && line.size() > bullet.size() &&
           is_space(static_cast<unsigned char>(line[bullet.size()]));
  });
}

template <class Visit>
void for_each_line(std::string_view text, const Visit& visit) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = stripped(text.substr(at, end - at));
    if (!line.empty()) visit(line);
    at = end + 1;
  }
}

void measure_lines(std::string_view text, TextStatistics& statistics) {
  std::uint64_t longest = 0;
  for_each_line(text, [&](std::string_view line) {
    ++statistics.lines;
    statistics.ellipsis_lines += line.ends_with("...") || line.ends_with(kEllipsis) ? 1u : 0u;
    statistics.bullet_lines += starts_with_bullet(line) ? 1u : 0u;
    // Characters are no more than bytes.
    if (line.size() <= longest) return;
    longest = std::max(longest, count_characters(line));
  });
  statistics.longest_line = longest;
}

void measure_duplicate_lines(std::string_view text, TextStatistics& statistics) {
  const auto ends = std::count(text.begin(), text.end(), '\n');
  Counter seen(static_cast<std::size_t>(ends) + 1);
  std::uint64_t lines = 0, duplicates = 0;
  for_each_line(text, [&](std::string_view line) {
    ++lines;
    duplicates += seen.visit(hash64(line)) > 0 ? 1u : 0u;
  });
  statistics.lines = lines;
  statistics.duplicate_lines = duplicates;
}

struct Word {
  std::uint64_t hash;
  std::uint64_t characters;
};

void measure_words(std::string_view text, bool with_bigrams, TextStatistics& statistics) {
  thread_local std::vector<Word> words;
  words.clear();
  statistics.characters = count_characters(text);
  for_each_word(text, [&](std::string_view word, std::uint8_t bytes, std::uint32_t continuations,
                          std::uint32_t hashes) {
    ++statistics.words;
    statistics.word_characters += word.size() - continuations;
    statistics.alphabetic_words += (bytes & kLetter) != 0 ? 1u : 0u;
    statistics.hashes += hashes;
    if ((bytes & kDots) != 0) statistics.ellipses += count_ellipses(word);
    if (with_bigrams) words.push_back({hash64(word), word.size() - continuations});
  });
  if (!with_bigrams) return;
  Counter seen(words.size());
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::uint64_t before = seen.visit(mixed_bits(words[i - 1].hash) + words[i].hash);
    if (before == 0) continue;
    statistics.top_bigram_characters =
        std::max(statistics.top_bigram_characters,
                 (before + 1) * (words[i - 1].characters + words[i].characters));
  }
}

void measure_invalid_bytes(std::string_view text, TextStatistics& statistics) {
  for (std::size_t at = valid_utf8_prefix(text); at < text.size();) {
    const std::size_t run = invalid_utf8_prefix(text.substr(at));
    statistics.invalid_bytes += run;
    at += run;
    at += valid_utf8_prefix(text.substr(at));
  }
}

}  // namespace

TextStatistics measure_text(std::string_view text, unsigned groups) {
  TextStatistics statistics{.bytes = text.size()};
  const auto wanted = [&](Statistic group) { return (groups & static_cast<unsigned>(group)) != 0; };
  const bool bigrams = wanted(Statistic::bigrams);
  if (wanted(Statistic::words) || bigrams) measure_words(text, bigrams, statistics);
  if (wanted(Statistic::lines)) measure_lines(text, statistics);
  if (wanted(Statistic::duplicate_lines)) measure_duplicate_lines(text, statistics);
  if (wanted(Statistic::invalid_bytes)) measure_invalid_bytes(text, statistics);
  return statistics;
}

}  // namespace llmtrain::data
