#pragma once
/// Helpers of the data tests.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unistd.h>

#include "lib/base/file.hpp"
#include "lib/base/splitmix64.hpp"

namespace llmtrain::data {

/// A directory that lives as long as the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "llmtrain-data-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(std::string_view name, std::string_view content) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    write_file_atomic(file, content);
    return file;
  }

 private:
  std::filesystem::path path_;
};

/// Text with words, numbers, spaces, odd Unicode and special tokens: the same as
/// scripts/golden/tokenizer_golden.py generates for this seed.
std::string generated_document(std::uint64_t seed);

/// What `body` throws, as text; "" if it throws nothing of type E.
template <class E, class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const E& e) {
    return e.what();
  }
  return "";
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace llmtrain::data
