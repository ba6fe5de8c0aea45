#include "kernels/cuda/rules/algorithm_cache.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "lib/base/file.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::kernels::cuda {

namespace {

constexpr std::string_view kHeader = "llmtrain product algorithms 1";
constexpr std::uint64_t kMaxFileBytes = 16 << 20;
constexpr std::size_t kDigitsPerWord = 16;

/// What is before the next `separator`, which is taken off the text.
std::string_view next_part(std::string_view& text, char separator) {
  const std::size_t end = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

template <class T, class... Base>
std::optional<T> number(std::string_view text, Base... base) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base...);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

std::optional<ProductAlgorithm> algorithm_of(std::string_view digits, std::string_view time) {
  ProductAlgorithm algorithm;
  if (digits.size() != algorithm.words.size() * kDigitsPerWord) return std::nullopt;
  for (std::size_t i = 0; i < algorithm.words.size(); ++i) {
    const auto word = number<std::uint64_t>(digits.substr(i * kDigitsPerWord, kDigitsPerWord), 16);
    if (!word) return std::nullopt;
    algorithm.words[i] = *word;
  }
  const auto microseconds = number<double>(time);
  if (!microseconds || !std::isfinite(*microseconds) || *microseconds < 0) return std::nullopt;
  algorithm.microseconds = *microseconds;
  return algorithm;
}

void require_field(std::string_view text) {
  require(!text.empty() && text.find_first_of("\t\n") == text.npos,
          "'{}' cannot be a field of the algorithm cache", text);
}

}  // namespace

AlgorithmCache::AlgorithmCache(std::string library, std::string gpu)
    : library_(std::move(library)), gpu_(std::move(gpu)) {
  require_field(library_);
  require_field(gpu_);
}

bool AlgorithmCache::read_line(std::string_view line) {
  std::string_view rest = line;
  const std::string_view product = next_part(rest, '\t');
  const std::string_view library = next_part(rest, '\t');
  const std::string_view gpu = next_part(rest, '\t');
  const std::string_view digits = next_part(rest, '\t');
  const auto algorithm = algorithm_of(digits, rest);
  if (product.empty() || library.empty() || gpu.empty() || !algorithm) return false;
  if (library == library_ && gpu == gpu_) {
    put(product, *algorithm);
  } else if (std::find(others_.begin(), others_.end(), line) == others_.end()) {
    others_.emplace_back(line);
  }
  return true;
}

std::size_t AlgorithmCache::read(std::string_view text) {
  const bool known = next_part(text, '\n') == kHeader;
  std::size_t unreadable = known ? 0 : 1;
  while (!text.empty()) {
    const std::string_view line = next_part(text, '\n');
    if (!line.empty() && !(known && read_line(line))) ++unreadable;
  }
  return unreadable;
}

std::string AlgorithmCache::text() const {
  std::string text = fmt::format("{}\n", kHeader);
  for (const std::string& line : others_) text += line + '\n';
  for (const auto& [product, algorithm] : algorithms_) {
    text += fmt::format("{}\t{}\t{}\t", product, library_, gpu_);
    for (const std::uint64_t word : algorithm.words) text += fmt::format("{:016x}", word);
    text += fmt::format("\t{:.3f}\n", algorithm.microseconds);
  }
  return text;
}

void AlgorithmCache::load(const std::filesystem::path& file) {
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return;
  std::string content;
  try {
    content = read_file(file, kMaxFileBytes);
  } catch (const DataError& e) {
    log::warning("products are measured anew: {}", e.what());
    return;
  }
  if (const std::size_t unreadable = read(content); unreadable > 0) {
    log::warning("{}: {} lines cannot be read and are ignored", file.string(), unreadable);
  }
}

void AlgorithmCache::save(const std::filesystem::path& file) const {
  write_file_atomic(file, text());
}

const ProductAlgorithm* AlgorithmCache::find(std::string_view product) const {
  const auto known = algorithms_.find(product);
  return known == algorithms_.end() ? nullptr : &known->second;
}

void AlgorithmCache::put(std::string_view product, const ProductAlgorithm& algorithm) {
  require_field(product);
  algorithms_.insert_or_assign(std::string(product), algorithm);
}

}  // namespace llmtrain::kernels::cuda
