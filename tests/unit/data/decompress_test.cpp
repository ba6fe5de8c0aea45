#include "lib/data/decompress.hpp"

#include <algorithm>
#include <cstring>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/error.hpp"
#include "lib/data/prepare.hpp"
#include "tests/support/compressed.hpp"
#include "tests/unit/data/support.hpp"

namespace llmtrain::data {

namespace {

constexpr DecompressLimits kSmallLimits{.max_ratio = 50, .max_bytes = 4 << 20};

/// Decompresses; `step` bytes of input at a time.
std::string expand(Compression compression, std::string_view stored,
                   const DecompressLimits& limits = kSmallLimits, std::size_t step = 1 << 20) {
  std::string text;
  std::size_t at = 0;
  const auto read = [&](std::span<std::byte> out) {
    const std::size_t count = std::min({out.size(), step, stored.size() - at});
    std::memcpy(out.data(), stored.data() + at, count);
    at += count;
    return count;
  };
  const std::uint64_t size = decompress(
      compression, read, stored.size(), limits, "a.gz", [&](std::span<const std::byte> bytes) {
        text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      });
  CHECK(size == text.size());
  return text;
}

std::string refusal(Compression compression, std::string_view stored,
                    const DecompressLimits& limits = kSmallLimits) {
  return message_of<DataError>([&] { expand(compression, stored, limits); });
}

std::string pack(Compression compression, std::string_view text) {
  return compression == Compression::gzip ? test::gzip(text) : test::zstd(text);
}

constexpr Compression kBoth[] = {Compression::gzip, Compression::zstd};

std::vector<std::int32_t> tokens_of(const TokenSet& set) {
  std::vector<std::int32_t> tokens(set.token_count());
  set.read_tokens(0, tokens);
  return tokens;
}

SourceOptions directory_source(const std::filesystem::path& path,
                               std::uint64_t max_document_bytes) {
  SourceOptions source;
  source.path = path;
  source.max_document_bytes = max_document_bytes;
  return source;
}

}  // namespace

TEST_CASE("gzip and Zstandard streams of any number of parts expand to their text") {
  std::string text;
  for (std::uint64_t seed = 0; seed < 30; ++seed) text += generated_document(seed);
  for (const Compression compression : kBoth) {
    CAPTURE(static_cast<int>(compression));
    const std::string stored = pack(compression, text);
    CHECK(expand(compression, stored) == text);
    CHECK(expand(compression, stored, kSmallLimits, 1) == text);
    CHECK(expand(compression, stored + pack(compression, "") + pack(compression, "end")) ==
          text + "end");
    CHECK(expand(compression, pack(compression, "")) == "");
  }
  const std::string skipped("\x5A\x2A\x4D\x18\x03\0\0\0abc", 11);  // a frame that is no data
  for (const std::size_t step : {1, 3, 1 << 20}) {
    CHECK(expand(Compression::zstd, skipped + test::zstd(text) + skipped, kSmallLimits, step) ==
          text);
  }
}

TEST_CASE("data that is cut off anywhere is refused with the offset") {
  const std::string text = generated_document(1);
  for (const Compression compression : kBoth) {
    CAPTURE(static_cast<int>(compression));
    const std::string part = pack(compression, text);
    const std::string stored = part + pack(compression, "second");
    for (std::size_t size = 0; size < stored.size(); size += size < 40 ? 1 : 97) {
      if (size == part.size()) continue;  // whole, without the second part
      CAPTURE(size);
      CHECK(contains(refusal(compression, std::string_view(stored).substr(0, size)),
                     fmt::format("a.gz: offset {}: the data is cut off", size)));
    }
  }
}

TEST_CASE("damage, other formats and what follows the data are refused with the offset") {
  const std::string text = generated_document(1) + generated_document(2);
  for (const Compression compression : kBoth) {
    CAPTURE(static_cast<int>(compression));
    const std::string stored = pack(compression, text);
    CHECK(contains(refusal(compression, text), "a.gz: offset 0: not "));
    CHECK(contains(refusal(compression, stored + "junk behind it"),
                   fmt::format("offset {}: something else follows", stored.size())));
    for (std::size_t at = 20; at + 12 < stored.size(); at += 131) {
      std::string damaged = stored;
      damaged[at] ^= 0x10;
      CAPTURE(at);
      CHECK(refusal(compression, damaged) != "");
    }
    const Compression other =
        compression == Compression::gzip ? Compression::zstd : Compression::gzip;
    CHECK(contains(refusal(other, stored), "offset 0: not "));
  }
  // A format before Zstandard 0.8, which some builds of the library still read.
  const std::string old("\x27\xB5\x2F\xFD\x30\x01\0\0\0", 9);
  CHECK(contains(refusal(Compression::zstd, old), "offset 0: not Zstandard data"));
  CHECK(contains(refusal(Compression::zstd, test::zstd(text) + old), "something else follows"));
  const std::string inside("\x28\xB5\x2F\xFD\x27\xB5\x2F\xFD\x64\x68\x90\xFF\x74\x6F", 14);
  CHECK(contains(refusal(Compression::zstd, inside), "not Zstandard data, or damaged"));
  // The checksum of the text is the last thing that is looked at.
  std::string damaged = test::gzip(text);
  damaged[damaged.size() - 6] ^= 1;
  CHECK(contains(refusal(Compression::gzip, damaged), "damaged (incorrect data check)"));
}

TEST_CASE("data that expands without end is refused before it fills anything") {
  const std::string zeros(8 << 20, 'x');
  for (const Compression compression : kBoth) {
    const std::string stored = pack(compression, zeros);
    CHECK(contains(refusal(compression, stored), "more than 50 times its"));
    CHECK(contains(refusal(compression, stored, {.max_ratio = 1 << 20, .max_bytes = 4 << 20}),
                   "raise data.max_decompressed_size"));
    CHECK(expand(compression, stored, {.max_ratio = 1 << 20, .max_bytes = 8 << 20}) == zeros);
  }
  // Even a tiny file may hold some text.
  CHECK(expand(Compression::zstd, test::zstd(std::string(1 << 20, 'x'))).size() == 1 << 20);
}

TEST_CASE("a compressed copy gives the same documents, parts and tokens as the plain files") {
  const TemporaryDirectory directory;
  std::string lines;
  for (int i = 0; i < 500; ++i) lines += fmt::format("{{\"text\":\"line number {}\"}}\n", i);
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const std::string text = generated_document(seed);
    const std::string name = fmt::format("d{}.txt", seed);
    directory.write("plain/" + name, text);
    directory.write("packed/" + name + (seed % 2 == 0 ? ".gz" : ".zst"),
                    seed % 2 == 0 ? test::gzip(text.substr(0, 700)) + test::gzip(text.substr(700))
                                  : test::zstd(text));
  }
  directory.write("plain/lines.jsonl", lines);
  directory.write("packed/lines.jsonl.gz", test::gzip(lines));
  const auto tokenizer = make_byte_tokenizer();
  for (const std::uint64_t max_document_bytes : {0u, 2000u}) {
    for (const Part part : {Part::training, Part::held_out}) {
      const auto prepared = [&](const std::string& name) {
        const SourceOptions source = directory_source(directory.path() / name, max_document_bytes);
        const ListOptions list{.scratch_directory = directory.path() / "scratch"};
        PrepareOptions options;
        options.part = part;
        options.held_out = {5, 1};
        options.shard_source_bytes = 9000;
        return open_or_prepare(list_source_files(std::span(&source, 1), list), *tokenizer, options,
                               directory.path() / "out" / name);
      };
      const TokenSet plain = prepared("plain");
      const TokenSet packed = prepared("packed");
      REQUIRE(plain.document_count() > 3);
      REQUIRE(packed.document_count() == plain.document_count());
      for (std::uint64_t d = 0; d < plain.document_count(); ++d) {
        CHECK(packed.document_name(d) == plain.document_name(d));
      }
      CHECK(tokens_of(packed) == tokens_of(plain));
      // By content the sets are the same, so that a run goes on with the other copy.
      CHECK(packed.content_hashes() == plain.content_hashes());
    }
  }
}

TEST_CASE("a compressed file says its name, and decompressing leaves nothing but its size") {
  const TemporaryDirectory directory;
  const auto path = directory.write("a.jsonl.gz", test::gzip("{\"text\":\"one\"}\n{\"txt\":1}\n"));
  const SourceOptions source = directory_source(path, 0);
  const ListOptions list{.scratch_directory = directory.path() / "scratch"};
  const auto read = [&](const ListOptions& options) {
    return message_of<DataError>([&] {
      const SourceFile file = list_source_files(std::span(&source, 1), options).front();
      CHECK(file.format == SourceFormat::jsonl);
      CHECK(file.name == "a.jsonl");
      CHECK(file.size_bytes == 25);
      read_documents(file, 0, file.size_bytes, [](std::string_view) { return true; });
    });
  };
  CHECK(contains(read({}), "a.jsonl.gz:2: no key 'text'"));
  CHECK(contains(read(list), "a.jsonl.gz:2: no key 'text'"));
  std::vector<std::filesystem::path> left;
  for (const auto& entry : std::filesystem::directory_iterator(list.scratch_directory)) {
    left.push_back(entry.path());
  }
  REQUIRE(left.size() == 1);
  CHECK(read_file(left[0]) == "25\n");
  // A size that is not the file's is found when the text is read, and not believed twice.
  write_file_atomic(left[0], "24\n");
  CHECK(contains(message_of<DataError>([&] {
                   const auto files = list_source_files(std::span(&source, 1), list);
                   read_documents(files.front(), 0, 24, [](std::string_view) { return true; });
                 }),
                 "expands to 25 bytes, and to 24 when"));
  CHECK(contains(read(list), "a.jsonl.gz:2: no key 'text'"));
  CHECK(contains(message_of<DataError>([&] {
                   list_source_files(
                       std::span(&source, 1),
                       {.scratch_directory = list.scratch_directory, .limits = {.max_bytes = 24}});
                 }),
                 "data.max_decompressed_size"));
}

TEST_CASE("a file beside its compressed copy is named twice") {
  const TemporaryDirectory directory;
  const SourceOptions source = directory_source(directory.path(), 0);
  const auto listed = [&] {
    return message_of<DataError>([&] { list_source_files(std::span(&source, 1)); });
  };
  directory.write("a.txt.gz", test::gzip("text"));
  CHECK(listed() == "");
  directory.write("a.txt.zst", test::zstd("text"));
  CHECK(contains(listed(), "named twice"));
  std::filesystem::remove(directory.path() / "a.txt.gz");
  directory.write("a.txt", "text");
  CHECK(contains(listed(), "named twice"));
}

}  // namespace llmtrain::data
