#pragma once
/// A library's algorithms for products, measured once and remembered in a text file.

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain::kernels::cuda {

/// An algorithm as its library serialises it, and what one product took.
struct ProductAlgorithm {
  std::array<std::uint64_t, 8> words{};
  double microseconds = 0;
  bool operator==(const ProductAlgorithm&) const = default;
};

/// The algorithms of one library version on one GPU model. Its text is a header line, then a line
/// per product, fields between tabs:
///   <product> <library and version> <GPU> <algorithm, 128 hexadecimal digits> <microseconds>
/// Lines of other libraries and GPUs are kept, unused, so that machines may share a file; lines
/// that cannot be read are dropped.
class AlgorithmCache {
 public:
  /// Neither name may contain tabs or line feeds; nor may products.
  AlgorithmCache(std::string library, std::string gpu);

  /// Adds what a text says; later lines win. Returns how many of its lines cannot be read; all of
  /// them where the header is another.
  std::size_t read(std::string_view text);
  std::string text() const;

  /// The same from a file, which may be absent; unreadable lines are a line in the log.
  void load(const std::filesystem::path& file);
  /// StorageError when that fails.
  void save(const std::filesystem::path& file) const;

  /// Null when the product has not been measured.
  const ProductAlgorithm* find(std::string_view product) const;
  void put(std::string_view product, const ProductAlgorithm& algorithm);

 private:
  bool read_line(std::string_view line);

  std::string library_, gpu_;
  std::map<std::string, ProductAlgorithm, std::less<>> algorithms_;
  /// Lines of other libraries and GPUs.
  std::vector<std::string> others_;
};

}  // namespace llmtrain::kernels::cuda
