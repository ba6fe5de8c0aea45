// Which files the sources name.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <glob.h>
#include <map>
#include <set>
#include <sys/stat.h>
#include <utility>

#include "lib/base/hash.hpp"
#include "lib/base/require.hpp"
#include "lib/data/source.hpp"
#include "lib/data/token_format.hpp"

namespace llmtrain::data {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMinDocumentBytes = 1024;

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

bool has_wildcard(std::string_view text) { return text.find_first_of("*?[") != text.npos; }

SourceFormat text_format_of(const fs::path& path, SourceFormat format) {
  if (format != SourceFormat::automatic) return format;
  const std::string extension = without_compression(path).extension().string();
  return extension == ".jsonl" || extension == ".ndjson" ? SourceFormat::jsonl : SourceFormat::text;
}

/// Refuses what has a token file's name and is none: its index was forgotten, cut off or mixed up,
/// and as text it would be noise.
void refuse_half_tokens(const fs::path& path) {
  const fs::path plain = without_compression(path);
  if (plain.extension() != ".bin" && plain.extension() != ".idx") return;
  require<DataError>(plain == path,
                     "{}: token files are read where they lie; decompress it first, "
                     "or set format: text if it is text",
                     path.string());
  const fs::path index = fs::path(path).replace_extension(".idx");
  fail<DataError>(
      "{}: by its name a token file, but it is none of llm.c, and for one of Megatron-LM {} {}; "
      "put its index there, leave the file out of the source, or set format: text if it is text",
      path.string(), index.string(),
      fs::exists(index) ? "is no index (its first bytes are not MMIDIDX)" : "is missing");
}

/// What the listing of one source needs at hand.
class Listing {
 public:
  Listing(const SourceOptions& options, std::shared_ptr<DecompressedTexts> decompressed)
      : source(options), texts(std::move(decompressed)) {}

  const SourceOptions& source;
  std::shared_ptr<DecompressedTexts> texts;
  std::vector<SourceFile> files = {};
  std::set<fs::path> token_files = {};

  void add(const fs::path& path, const std::string& name) {
    const TokenFormat* tokens = source.format == SourceFormat::tokens      ? source.tokens
                                : source.format == SourceFormat::automatic ? token_format_of(path)
                                                                           : nullptr;
    if (tokens == nullptr && source.format == SourceFormat::automatic) refuse_half_tokens(path);
    if (tokens == nullptr) {
      add_file(path, name, nullptr);
      return;
    }
    require<DataError>(compression_of(path) == Compression::none,
                       "{}: token files are read where they lie; decompress it first",
                       path.string());
    // One listing may meet a file and its companion.
    const fs::path main = tokens->main_file(path);
    if (!token_files.insert(main).second) return;
    add_file(main, (fs::path(name).parent_path() / main.filename()).string(), tokens);
  }

 private:
  void add_file(const fs::path& path, const std::string& name, const TokenFormat* tokens) {
    struct stat info {};
    require<DataError>(::stat(path.c_str(), &info) == 0, "{}: cannot stat: {}", path.string(),
                       std::strerror(errno));
    require<DataError>(S_ISREG(info.st_mode), "{}: not a regular file", path.string());
    SourceFile file{
        .path = path,
        .name = without_compression(name).string(),
        .format = tokens != nullptr ? SourceFormat::tokens : text_format_of(path, source.format),
        .tokens = tokens,
        .text_key = source.text_key,
        .prompt_key = source.prompt_key,
        .completion_key = source.completion_key,
        .max_document_bytes = source.max_document_bytes,
        .size_bytes = static_cast<std::uint64_t>(info.st_size),
        .mtime_ns = std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
    require<DataError>(file.prompt_key.empty() || file.format == SourceFormat::jsonl,
                       "{}: a source with prompt_key is JSONL, and this file is not by its name; "
                       "set format: jsonl, or leave it out of the source",
                       path.string());
    if (compression_of(path) != Compression::none) {
      file.compressed = {fs::canonical(path), compression_of(path), file.size_bytes, file.mtime_ns};
      file.texts = texts;
    }
    files.push_back(std::move(file));
  }
};

void add_tree(const fs::path& directory, const fs::path& root, Listing& listing) {
  std::error_code error;
  fs::recursive_directory_iterator entry(directory, error);
  const fs::recursive_directory_iterator end;
  for (; !error && entry != end; entry.increment(error)) {
    const fs::path& path = entry->path();
    if (is_hidden(path)) {
      entry.disable_recursion_pending();
    } else if (fs::is_regular_file(path)) {
      listing.add(path, path.lexically_relative(root).string());
    }
  }
  require<DataError>(!error, "{}: cannot list: {}", directory.string(), error.message());
}

void add_path(const fs::path& path, const fs::path& root, Listing& listing) {
  if (fs::is_directory(path)) {
    add_tree(path, root, listing);
  } else {
    listing.add(path, path.lexically_relative(root).string());
  }
}

void add_pattern(Listing& listing) {
  const fs::path& pattern = listing.source.path;
  fs::path root;
  for (const fs::path& part : pattern) {
    if (has_wildcard(part.string())) break;
    root /= part;
  }
  glob_t matches{};
  const int result = ::glob(pattern.c_str(), GLOB_ERR, nullptr, &matches);
  std::vector<fs::path> paths;
  for (std::size_t i = 0; result == 0 && i < matches.gl_pathc; ++i) {
    paths.emplace_back(matches.gl_pathv[i]);
  }
  ::globfree(&matches);
  require<DataError>(result == 0 || result == GLOB_NOMATCH, "{}: cannot be matched: {}",
                     pattern.string(), std::strerror(errno));
  for (const fs::path& path : paths) add_path(path, root, listing);
}

std::vector<SourceFile> files_of(const SourceOptions& source,
                                 const std::shared_ptr<DecompressedTexts>& texts) {
  require<RecipeError>(
      source.max_document_bytes == 0 || source.max_document_bytes >= kMinDocumentBytes,
      "max_document_bytes {} is below {}", source.max_document_bytes, kMinDocumentBytes);
  require<RecipeError>(source.prompt_key.empty() == source.completion_key.empty(),
                       "prompt_key and completion_key go together");
  Listing listing(source, texts);
  if (fs::is_directory(source.path)) {
    add_tree(source.path, source.path, listing);
  } else if (fs::exists(source.path) || !has_wildcard(source.path.string())) {
    listing.add(source.path, source.path.filename().string());
  } else {
    add_pattern(listing);
  }
  require<DataError>(!listing.files.empty(),
                     "{}: no file there; name a file, a directory with files, or a "
                     "pattern that matches some",
                     source.path.string());
  std::sort(listing.files.begin(), listing.files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.name < b.name; });
  return std::move(listing.files);
}

}  // namespace

std::vector<SourceFile> list_source_files(std::span<const SourceOptions> sources,
                                          const ListOptions& list) {
  require<DataError>(!sources.empty(), "no data source is named");
  const auto texts = std::make_shared<DecompressedTexts>(list.scratch_directory, list.limits);
  std::vector<SourceFile> all;
  std::map<fs::path, fs::path> seen;
  for (const SourceOptions& source : sources) {
    for (SourceFile& file : files_of(source, texts)) {
      file.source = static_cast<std::size_t>(&source - sources.data());
      // A file and its compressed copy are the same text.
      const auto [place, is_new] =
          seen.emplace(without_compression(fs::canonical(file.path)), file.path);
      require<DataError>(is_new,
                         "{}: named twice by the data sources (also as {}); its text would "
                         "count twice",
                         file.path.string(), place->second.string());
      all.push_back(std::move(file));
    }
  }
  for (SourceFile& file : all) {
    if (file.compressed) file.size_bytes = texts->size(*file.compressed);
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
