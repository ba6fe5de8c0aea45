#pragma once
/// Raw text: which files, and which documents in them.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/data/decompressed_texts.hpp"

namespace llmtrain::data {

struct TokenFormat;

enum class SourceFormat {
  automatic,  ///< jsonl for .jsonl and .ndjson, also compressed (.jsonl.gz); tokens for files that
              ///< a TokenFormat recognises; else text
  text,       ///< UTF-8 text; a file is one document, unless max_document_bytes cuts it
  jsonl,      ///< one JSON object per line; a line is one document
  tokens,     ///< ids instead of text, written by another program
};

/// One entry of `data.sources`.
struct SourceOptions {
  /// A file; a directory, of which all files are taken, recursively, except hidden ones (".*"); or
  /// a pattern with * ? [ ] whose matches are files and directories.
  std::filesystem::path path;
  SourceFormat format = SourceFormat::automatic;
  const TokenFormat* tokens = nullptr;  ///< for SourceFormat::tokens
  std::string text_key = "text";        ///< jsonl: the key that holds the text
  /// jsonl, instead of text_key, both or none: a document is a prompt, which is only read, and its
  /// completion, which is trained.
  std::string prompt_key = {}, completion_key = {};
  /// text: 0, or at least 1024: a larger file is cut into documents of about this many bytes, at
  /// empty lines or else at line ends.
  std::uint64_t max_document_bytes = 0;
};

/// A file that a source names. Sizes and offsets are those of its text: of the decompressed bytes
/// when its name ends in .gz or .zst.
struct SourceFile {
  std::filesystem::path path;
  /// Path relative to the directory, or to the pattern's directory; the bare name of a single file.
  /// Without the suffix of the compression, so that a compressed file gives the same documents.
  std::string name;
  SourceFormat format = SourceFormat::text;  ///< not automatic
  const TokenFormat* tokens = nullptr;       ///< null unless `format` is tokens
  std::string text_key;
  std::string prompt_key, completion_key;  ///< empty unless the lines have prompts
  std::size_t source = 0;                  ///< index of the SourceOptions that named it
  std::uint64_t max_document_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::int64_t mtime_ns = 0;
  std::optional<CompressedFile> compressed = std::nullopt;
  std::shared_ptr<DecompressedTexts> texts = nullptr;  ///< of compressed files
};

/// Where and how far compressed files are decompressed.
struct ListOptions {
  std::filesystem::path scratch_directory = {};  ///< as DecompressedTexts has it
  DecompressLimits limits = {};
};

/// The files of all sources, in the order of the sources and in byte order of names within each.
/// DataError if a source names no file, a file is named twice or stands beside a compressed copy of
/// it, or has prompts and is no JSONL, or is a compressed token file, and as `decompress`;
/// RecipeError for options out of range.
std::vector<SourceFile> list_source_files(std::span<const SourceOptions> sources,
                                          const ListOptions& list = {});

/// The held-out documents are those whose XXH3-64 of the name is `remainder` modulo `modulus`, so
/// that nobody chooses them.
struct HeldOutRule {
  std::uint64_t modulus = 20;
  std::uint64_t remainder = 0;
};
bool is_held_out(std::string_view document_name, const HeldOutRule& rule);

/// A document and where it came from.
struct Document {
  std::uint64_t offset = 0;  ///< in the file
  bool whole_file = false;
  std::string text;              ///< the prompt's bytes, then the others
  std::size_t prompt_bytes = 0;  ///< 0 without a prompt
};

/// "name" for a whole file, "name@offset" for a part of one.
std::string document_name(std::string_view file_name, std::uint64_t offset, bool whole_file);

/// Where a document of `file` may start: the first such place at or behind `offset`, which depends
/// on nothing but the bytes there. File size if there is none.
std::uint64_t next_document_start(const SourceFile& file, std::uint64_t offset);

/// Reads the documents in bytes [begin, end) of `file`; both must be starts of documents or the
/// end. An empty file is one empty document. Documents for whose name `wanted` is false are neither
/// parsed nor returned. DataError naming file and line or offset for binary junk (a NUL byte, or
/// more than 1 % invalid UTF-8), for lines that are not JSON objects with a string under the
/// key, for empty completions, and for token files, which hold no text.
std::vector<Document> read_documents(const SourceFile& file, std::uint64_t begin, std::uint64_t end,
                                     const std::function<bool(std::string_view name)>& wanted);

}  // namespace llmtrain::data
