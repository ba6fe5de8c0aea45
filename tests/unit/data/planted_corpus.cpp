#include "tests/unit/data/planted_corpus.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/base/splitmix64.hpp"

namespace llmtrain::data {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kFewWords = 100;

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || c == '_' || byte >= 0x80) {
      words.back() += static_cast<char>(std::tolower(byte));
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

/// A copy with about `edits` changes, each at a random place between two spaces.
std::string edited(const std::string& text, std::size_t edits, SplitMix64& random) {
  std::string out = text;
  for (std::size_t i = 0; i < edits; ++i) {
    const std::size_t at = out.find(' ', random() % out.size());
    const std::size_t end = at == out.npos ? at : out.find_first_of(" \n", at + 1);
    if (end == out.npos) continue;
    const std::string word = out.substr(at, end - at);
    switch (random() % 3) {
      case 0:
        out.replace(at, end - at, fmt::format(" changed{}", random() % 1000));
        break;
      case 1:
        out.erase(at, end - at);
        break;
      default:
        out.insert(at, word + fmt::format(" added{}", random() % 1000));
    }
  }
  return out;
}

}  // namespace

std::set<std::string> word_5grams(std::string_view text) {
  constexpr std::size_t kSize = 5;
  const std::vector<std::string> words = words_of(text);
  std::set<std::string> grams;
  const std::size_t size = std::min(kSize, words.size());
  for (std::size_t i = 0; size > 0 && i + size <= words.size(); ++i) {
    std::string gram;
    for (std::size_t k = i; k < i + size; ++k) gram += words[k] + " ";
    grams.insert(std::move(gram));
  }
  return grams;
}

double true_jaccard(const std::set<std::string>& a, const std::set<std::string>& b) {
  std::size_t common = 0;
  for (const std::string& gram : a) common += b.count(gram);
  const std::size_t all = a.size() + b.size() - common;
  return all == 0 ? 0.0 : static_cast<double>(common) / static_cast<double>(all);
}

std::vector<std::pair<std::string, std::string>> standard_headers() {
  const fs::path root = fs::path("/usr/include/c++") / std::to_string(__GNUC__);
  std::vector<std::pair<std::string, std::string>> headers;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file()) continue;
    headers.emplace_back(entry.path().lexically_relative(root).string(), read_file(entry.path()));
  }
  std::sort(headers.begin(), headers.end());
  require(headers.size() > 100, "{}: {} headers", root.string(), headers.size());
  return headers;
}

std::vector<PlantedCopy> plant_copies(
    const std::vector<std::pair<std::string, std::string>>& headers) {
  std::vector<PlantedCopy> copies;
  SplitMix64 random(2026);
  for (std::size_t i = 0; i < headers.size(); ++i) {
    const auto& [name, text] = headers[i];
    const std::size_t words = words_of(text).size();
    if (words < kFewWords) continue;
    PlantedCopy copy{.name = fmt::format("copy{:05}.txt", i), .original = name, .text = text};
    copy.exact = i % 3 == 0;
    copy.jaccard = 1;
    if (!copy.exact) {
      // From one change in 400 words to one in 10: true similarities from about 0.98 to 0.3.
      const std::size_t every = std::size_t{10} << (random() % 6);
      copy.text = edited(text, 1 + words / (every + random() % every), random);
      copy.jaccard = true_jaccard(word_5grams(text), word_5grams(copy.text));
    }
    copies.push_back(std::move(copy));
  }
  return copies;
}

}  // namespace llmtrain::data
