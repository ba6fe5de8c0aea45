// Token files of other programs from arbitrary bytes: a file of llm.c, and a dataset of Megatron-LM
// whose index and ids are the two halves of the input (the first two bytes say where it is cut).
// Counts are made right as well, so that the checks behind the sizes are reached.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/data/foreign_tokens.hpp"
#include "lib/data/token_format.hpp"

namespace {

using namespace llmtrain;

/// A directory in memory where there is one; gone at the end.
struct Place {
  std::filesystem::path path;
  Place() {
    const std::filesystem::path memory = "/dev/shm";
    std::string name =
        (std::filesystem::exists(memory) ? memory : std::filesystem::temp_directory_path()) /
        "token-file-fuzz-XXXXXX";
    path = ::mkdtemp(name.data());
  }
  ~Place() { std::filesystem::remove_all(path); }
};

void write(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::remove(path);
  File file = File::create_new(path);
  file.write(bytes);
}

void read_all(const data::TokenFile& file, std::uint64_t vocab_size) {
  std::uint64_t tokens = 0;
  for (std::uint64_t d = 0; d < file.document_count(); ++d) {
    const data::TokenDocument document = file.document(d);
    std::vector<std::int32_t> ids(document.token_count);
    file.read_tokens(document.token_begin, ids);
    tokens += ids.size();
    for (const std::int32_t id : ids) {
      if (id < 0 || static_cast<std::uint64_t>(id) >= vocab_size) __builtin_trap();
    }
    if (ids.empty() || document.token_begin + ids.size() != tokens) __builtin_trap();
  }
  if (tokens != file.token_count()) __builtin_trap();
}

void open(const std::filesystem::path& path, std::string_view format) {
  static const auto tokenizer = data::make_byte_tokenizer();
  try {
    data::token_format_of(path);
    data::SourceOptions source{.path = path, .format = data::SourceFormat::tokens};
    source.tokens = data::find_token_format(format);
    const auto files = data::list_source_files({&source, 1});
    for (const auto& file : data::open_foreign_tokens(files, *tokenizer, {2, 0})) {
      read_all(*file.training, 257);
      read_all(*file.held_out, 257);
    }
  } catch (const DataError&) {
  }
}

std::string with_right_count(std::string llmc) {
  if (llmc.size() < 1024) return llmc;
  std::int32_t magic = 0;
  std::memcpy(&magic, llmc.data(), sizeof magic);
  const std::size_t size = magic == 20240801 ? 4 : 2;
  const auto count = static_cast<std::int32_t>((llmc.size() - 1024) / size);
  llmc.resize(1024 + static_cast<std::size_t>(count) * size);
  std::memcpy(llmc.data() + 8, &count, sizeof count);
  return llmc;
}

/// Pointers that fit the lengths, and as many ids as the lengths say, if they are not too many.
void make_right(std::string& index, std::string& ids) {
  std::uint64_t sequences = 0;
  if (index.size() < 34) return;
  std::memcpy(&sequences, index.data() + 18, sizeof sequences);
  if (sequences > (index.size() - 34) / 12) return;
  const int code = index[17];
  const std::uint64_t size = code == 5 ? 8 : code == 4 ? 4 : code == 1 || code == 2 ? 1 : 2;
  std::int64_t at = 0;
  for (std::uint64_t s = 0; s < sequences; ++s) {
    std::int32_t length = 0;
    std::memcpy(&length, index.data() + 34 + 4 * s, sizeof length);
    std::memcpy(index.data() + 34 + 4 * sequences + 8 * s, &at, sizeof at);
    if (length < 0 || length > 4096) return;
    at += length * static_cast<std::int64_t>(size);
  }
  if (at <= 65536) ids.resize(static_cast<std::size_t>(at), 'a');
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  static const Place place;
  const std::string input(reinterpret_cast<const char*>(bytes), size);
  for (const std::string& file : {input, with_right_count(input)}) {
    write(place.path / "llmc.bin", file);
    open(place.path / "llmc.bin", "llmc");
  }
  if (size < 2) return 0;
  const std::size_t cut = std::min<std::size_t>(size - 2, bytes[0] + 256u * bytes[1]);
  std::string index = input.substr(2, cut);
  std::string ids = input.substr(2 + cut);
  for (int round = 0; round < 2; ++round) {
    write(place.path / "set.idx", index);
    write(place.path / "set.bin", ids);
    open(place.path / "set.idx", "megatron");
    make_right(index, ids);
  }
  return 0;
}
