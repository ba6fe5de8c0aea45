// Which files the sources name.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <glob.h>
#include <map>
#include <sys/stat.h>
#include <utility>

#include "lib/base/hash.hpp"
#include "lib/base/require.hpp"
#include "lib/data/source.hpp"

namespace llmtrain::data {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMinDocumentBytes = 1024;

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

bool has_wildcard(std::string_view text) { return text.find_first_of("*?[") != text.npos; }

SourceFormat format_of(const fs::path& path, SourceFormat format) {
  if (format != SourceFormat::automatic) return format;
  const std::string extension = path.extension().string();
  return extension == ".jsonl" || extension == ".ndjson" ? SourceFormat::jsonl : SourceFormat::text;
}

SourceFile make_file(const fs::path& path, std::string name, const SourceOptions& options) {
  struct stat info {};
  require<DataError>(::stat(path.c_str(), &info) == 0, "{}: cannot stat: {}", path.string(),
                     std::strerror(errno));
  require<DataError>(S_ISREG(info.st_mode), "{}: not a regular file", path.string());
  return {path,
          std::move(name),
          format_of(path, options.format),
          options.text_key,
          options.max_document_bytes,
          static_cast<std::uint64_t>(info.st_size),
          std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
}

void add_tree(const fs::path& directory, const fs::path& root, const SourceOptions& options,
              std::vector<SourceFile>& files) {
  std::error_code error;
  fs::recursive_directory_iterator entry(directory, error);
  const fs::recursive_directory_iterator end;
  for (; !error && entry != end; entry.increment(error)) {
    const fs::path& path = entry->path();
    if (is_hidden(path)) {
      entry.disable_recursion_pending();
    } else if (fs::is_regular_file(path)) {
      files.push_back(make_file(path, path.lexically_relative(root).string(), options));
    }
  }
  require<DataError>(!error, "{}: cannot list: {}", directory.string(), error.message());
}

void add_path(const fs::path& path, const fs::path& root, const SourceOptions& options,
              std::vector<SourceFile>& files) {
  if (fs::is_directory(path)) {
    add_tree(path, root, options, files);
  } else {
    files.push_back(make_file(path, path.lexically_relative(root).string(), options));
  }
}

std::vector<SourceFile> files_of_pattern(const SourceOptions& options) {
  fs::path root;
  for (const fs::path& part : options.path) {
    if (has_wildcard(part.string())) break;
    root /= part;
  }
  glob_t matches{};
  const int result = ::glob(options.path.c_str(), GLOB_ERR, nullptr, &matches);
  std::vector<fs::path> paths;
  for (std::size_t i = 0; result == 0 && i < matches.gl_pathc; ++i) {
    paths.emplace_back(matches.gl_pathv[i]);
  }
  ::globfree(&matches);
  require<DataError>(result == 0 || result == GLOB_NOMATCH, "{}: cannot be matched: {}",
                     options.path.string(), std::strerror(errno));
  std::vector<SourceFile> files;
  for (const fs::path& path : paths) add_path(path, root, options, files);
  return files;
}

}  // namespace

std::vector<SourceFile> list_source_files(std::span<const SourceOptions> sources) {
  require<DataError>(!sources.empty(), "no data source is named");
  std::vector<SourceFile> all;
  std::map<fs::path, fs::path> seen;
  for (const SourceOptions& source : sources) {
    require<RecipeError>(
        source.max_document_bytes == 0 || source.max_document_bytes >= kMinDocumentBytes,
        "max_document_bytes {} is below {}", source.max_document_bytes, kMinDocumentBytes);
    std::vector<SourceFile> files;
    if (fs::is_directory(source.path)) {
      add_tree(source.path, source.path, source, files);
    } else if (fs::exists(source.path) || !has_wildcard(source.path.string())) {
      files.push_back(make_file(source.path, source.path.filename().string(), source));
    } else {
      files = files_of_pattern(source);
    }
    require<DataError>(!files.empty(),
                       "{}: no file there; name a file, a directory with files, or a "
                       "pattern that matches some",
                       source.path.string());
    std::sort(files.begin(), files.end(),
              [](const SourceFile& a, const SourceFile& b) { return a.name < b.name; });
    for (SourceFile& file : files) {
      const auto [place, is_new] = seen.emplace(fs::canonical(file.path), file.path);
      require<DataError>(is_new,
                         "{}: named twice by the data sources (also as {}); its text would "
                         "count twice",
                         file.path.string(), place->second.string());
      all.push_back(std::move(file));
    }
  }
  return all;
}

bool is_held_out(std::string_view document_name, const HeldOutRule& rule) {
  require<RecipeError>(rule.modulus >= 1 && rule.remainder < rule.modulus,
                       "held-out rule: remainder {} is not below the modulus {}", rule.remainder,
                       rule.modulus);
  return hash64(document_name) % rule.modulus == rule.remainder;
}

std::string document_name(std::string_view file_name, std::uint64_t offset, bool whole_file) {
  return whole_file ? std::string(file_name) : fmt::format("{}@{}", file_name, offset);
}

}  // namespace llmtrain::data
