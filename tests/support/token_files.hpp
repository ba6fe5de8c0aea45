#pragma once
/// Token files of other programs, byte by byte, for tests.

#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

namespace llmtrain::test {

using TokenDocuments = std::vector<std::vector<std::int32_t>>;

/// Appends `value` as it lies in memory (little-endian).
template <class T>
void put(std::string& bytes, std::type_identity_t<T> value) {
  char raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof value);
  bytes.append(raw, sizeof raw);
}

/// Replaces what lies at `offset`.
template <class T>
void patch(std::string& bytes, std::size_t offset, std::type_identity_t<T> value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

/// llm.c: `end_of_text` in front of each document. T: std::uint16_t or std::uint32_t.
template <class T>
std::string llmc_file(const TokenDocuments& documents, std::int32_t end_of_text) {
  std::string ids;
  for (const auto& document : documents) {
    put<T>(ids, static_cast<T>(end_of_text));
    for (const std::int32_t id : document) put<T>(ids, static_cast<T>(id));
  }
  std::string file(1024, '\0');
  patch<std::int32_t>(file, 0, sizeof(T) == 2 ? 20240520 : 20240801);
  patch<std::int32_t>(file, 4, sizeof(T) == 2 ? 1 : 7);
  patch<std::int32_t>(file, 8, static_cast<std::int32_t>(ids.size() / sizeof(T)));
  return file + ids;
}

struct MegatronFiles {
  std::string bin, idx;
};

/// Megatron-LM: sequences of T, of which `per_document` each make a document. `code` is that of T.
template <class T>
MegatronFiles megatron_files(const TokenDocuments& sequences, std::uint8_t code,
                             std::size_t per_document = 1) {
  MegatronFiles files;
  files.idx.append("MMIDIDX\0\0", 9);
  put<std::uint64_t>(files.idx, 1);
  put<std::uint8_t>(files.idx, code);
  put<std::uint64_t>(files.idx, sequences.size());
  put<std::uint64_t>(files.idx, (sequences.size() + per_document - 1) / per_document + 1);
  std::vector<std::int64_t> pointers;
  for (const auto& sequence : sequences) {
    put<std::int32_t>(files.idx, static_cast<std::int32_t>(sequence.size()));
    pointers.push_back(static_cast<std::int64_t>(files.bin.size()));
    for (const std::int32_t id : sequence) put<T>(files.bin, static_cast<T>(id));
  }
  for (const std::int64_t pointer : pointers) put<std::int64_t>(files.idx, pointer);
  for (std::size_t s = 0; s < sequences.size(); s += per_document) {
    put<std::int64_t>(files.idx, static_cast<std::int64_t>(s));
  }
  put<std::int64_t>(files.idx, static_cast<std::int64_t>(sequences.size()));
  return files;
}

/// `documents` with `id` behind each.
inline TokenDocuments with_end(TokenDocuments documents, std::int32_t id) {
  for (auto& document : documents) document.push_back(id);
  return documents;
}

}  // namespace llmtrain::test
