#pragma once
/// Layouts of token files that other programs write: one row each.
///
/// A row's reader checks what the file says about itself and gives the place of its ids and the
/// ends of its documents. Everything else is the same for all layouts (foreign_tokens.hpp).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lib/base/mapped_file.hpp"

namespace llmtrain::data {

/// How an id is stored, little-endian.
enum class IdType : std::uint8_t { u8, i8, u16, i16, u32, i32, i64 };
std::size_t size_of(IdType type);
/// The largest id of the type.
std::uint64_t largest_id(IdType type);

/// A token file as its layout describes it. The ids themselves are not checked yet.
struct TokenLayout {
  std::vector<MappedFile> files;  ///< keeps `ids`
  IdType type = IdType::u16;
  std::span<const std::byte> ids;  ///< whole ids, document behind document
  std::uint64_t ids_offset = 0;    ///< of `ids` in the file that the source names
  /// The number of ids before each document's end, rising, the last one that of all ids. Empty if
  /// the layout does not say: then documents lie between the tokenizer's start and end tokens.
  std::optional<std::vector<std::uint64_t>> document_ends;
};

struct TokenFormat {
  std::string_view name;  ///< as data.sources.*.format spells it
  std::string_view doc;
  /// Whether a file is one of this layout, by its extension and what it holds.
  bool (*recognises)(const std::filesystem::path& path);
  /// The file that stands for the whole where it consists of several: what is listed and named.
  /// DataError if that file is missing.
  std::filesystem::path (*main_file)(const std::filesystem::path& path);
  /// DataError naming file, field and offset for anything that the layout does not allow.
  TokenLayout (*open)(const std::filesystem::path& main_file);
};

std::span<const TokenFormat> token_formats();
/// The row called `name`; null if there is none.
const TokenFormat* find_token_format(std::string_view name);
/// The row that recognises `path`; null if it is no token file.
const TokenFormat* token_format_of(const std::filesystem::path& path);

/// The rows' functions.
///
/// llm.c (karpathy/llm.c, dev/data/data_common.py): 256 int32, of which magic, version and the
/// number of tokens count, then the ids: magic 20240520, version 1: uint16 (GPT-2); magic 20240801,
/// version 7: uint32 (Llama 3). The end-of-text token stands before each document; a writer of
/// several files cuts documents where a file is full.
bool recognises_llmc(const std::filesystem::path& path);
TokenLayout open_llmc(const std::filesystem::path& path);

/// Megatron-LM (megatron/core/datasets/indexed_dataset.py): NAME.bin holds the ids, NAME.idx
///
///     offset  size
///          0     9  magic "MMIDIDX", two zeros
///          9     8  version 1
///         17     1  type of the ids
///         18     8  number of sequences S
///         26     8  number of document indices D: documents + 1
///         34   4 S  length of each sequence in ids (int32)
///              8 S  offset of each sequence in NAME.bin in bytes (int64)
///              8 D  index of the sequence before which each document begins, and S (int64)
///                S  mode of each sequence (int8), in multimodal sets only
///
/// A document is the sequences between two indices.
bool recognises_megatron(const std::filesystem::path& path);
std::filesystem::path megatron_main_file(const std::filesystem::path& path);
TokenLayout open_megatron(const std::filesystem::path& path);

}  // namespace llmtrain::data
