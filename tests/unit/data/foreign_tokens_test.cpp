// Token files of llm.c and Megatron-LM.
#include "lib/data/foreign_tokens.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/error.hpp"
#include "lib/data/token_format.hpp"
#include "lib/data/token_set.hpp"
#include "tests/support/source_tree.hpp"
#include "tests/support/token_files.hpp"
#include "tests/unit/data/support.hpp"

namespace llmtrain::data {

namespace {

using test::TokenDocuments;

constexpr std::int32_t kEnd = 256;  // of the byte tokenizer
constexpr HeldOutRule kHalf{.modulus = 2, .remainder = 0};

TokenDocuments documents_of(std::initializer_list<std::string_view> texts) {
  TokenDocuments documents;
  const auto tokenizer = make_byte_tokenizer();
  for (const std::string_view text : texts) documents.push_back(tokenizer->encode(text));
  return documents;
}

/// Documents 0 to 19 with text "document 7" and the like.
TokenDocuments twenty() {
  TokenDocuments documents;
  const auto tokenizer = make_byte_tokenizer();
  for (int i = 0; i < 20; ++i)
    documents.push_back(tokenizer->encode(fmt::format("document {}", i)));
  return documents;
}

std::vector<SourceFile> listed(const std::filesystem::path& path, std::string_view format = "") {
  SourceOptions source{.path = path};
  if (!format.empty()) {
    source.format = SourceFormat::tokens;
    source.tokens = find_token_format(format);
  }
  return list_source_files(std::span(&source, 1));
}

TokenDocuments tokens_of(const TokenFile& file) {
  TokenDocuments documents;
  for (std::uint64_t d = 0; d < file.document_count(); ++d) {
    const TokenDocument document = file.document(d);
    CHECK(document.token_begin == file.token_begin(d));
    documents.emplace_back(document.token_count);
    file.read_tokens(document.token_begin, documents.back());
  }
  return documents;
}

/// All documents of a file, in order; no rule divides them.
TokenDocuments all_of(const std::filesystem::path& path, std::string_view format = "") {
  const auto files = listed(path, format);
  const auto opened = open_foreign_tokens(files, *make_byte_tokenizer(), {1, 0});
  REQUIRE(opened.size() == 1);
  CHECK(opened[0].training->document_count() == 0);
  return tokens_of(*opened[0].held_out);
}

struct Dataset {
  TemporaryDirectory directory;
  std::filesystem::path write(const test::MegatronFiles& files) const {
    directory.write("set.idx", files.idx);
    return directory.write("set.bin", files.bin);
  }
  std::string refusal(const test::MegatronFiles& files) const {
    const auto path = write(files);
    return message_of<DataError>([&] { all_of(path, "megatron"); });
  }
  std::string refusal(const std::string& llmc) const {
    const auto path = directory.write("tokens.bin", llmc);
    return message_of<DataError>([&] { all_of(path, "llmc"); });
  }
};

/// `message` names the file and each of `parts`, and behind a semicolon what to do.
void check_names(const std::string& message, std::initializer_list<std::string_view> parts) {
  CAPTURE(message);
  for (const std::string_view part : parts) {
    CAPTURE(part);
    CHECK(contains(message, part));
  }
  CHECK(contains(message, "; "));
}

}  // namespace

TEST_CASE("llm.c files give the documents between end-of-text tokens, of both widths") {
  const TemporaryDirectory directory;
  const TokenDocuments documents = documents_of({"First", "the second", "3"});
  const auto narrow = directory.write("a.bin", test::llmc_file<std::uint16_t>(documents, kEnd));
  const auto wide = directory.write("b.bin", test::llmc_file<std::uint32_t>(documents, kEnd));
  CHECK(all_of(narrow) == documents);
  CHECK(all_of(wide) == documents);
  CHECK(all_of(wide, "llmc") == documents);
  // The tail of a document that the file before began, an end at the end, and no text between two.
  std::string cut = test::llmc_file<std::uint16_t>(documents, kEnd);
  cut.erase(1024, 2);
  test::put<std::uint16_t>(cut, kEnd);
  test::put<std::uint16_t>(cut, kEnd);
  test::patch<std::int32_t>(cut, 8, static_cast<std::int32_t>((cut.size() - 1024) / 2));
  CHECK(all_of(directory.write("c.bin", cut)) == documents);
  // Another tokenizer's file, as it looks: no end-of-text token that we know.
  for (const std::int32_t end : {kEnd, 7}) {
    const auto path = directory.write("d.bin", test::llmc_file<std::uint16_t>(documents, end));
    const auto opened = open_foreign_tokens(listed(path), *make_byte_tokenizer(), {1, 0});
    CHECK(opened[0].undivided == (end != kEnd));
    CHECK(opened[0].held_out->document_count() == (end == kEnd ? 3 : 1));
    const std::vector<std::int32_t>& first = opened[0].first_tokens;
    CHECK(std::vector(first.begin(), first.begin() + 4) ==
          (end == kEnd ? std::vector<std::int32_t>{'F', 'i', 'r', 's'}
                       : std::vector<std::int32_t>{7, 'F', 'i', 'r'}));
  }
}

TEST_CASE("Megatron-LM datasets give their documents, with and without end tokens, of every type") {
  const Dataset data;
  const TokenDocuments documents = documents_of({"First", "the second", "3"});
  CHECK(all_of(data.write(test::megatron_files<std::uint16_t>(documents, 8))) == documents);
  const TokenDocuments ended = test::with_end(documents, kEnd);
  CHECK(all_of(data.write(test::megatron_files<std::uint16_t>(ended, 8))) == documents);
  CHECK(all_of(data.write(test::megatron_files<std::int32_t>(ended, 4))) == documents);
  CHECK(all_of(data.write(test::megatron_files<std::int64_t>(ended, 5)), "megatron") == documents);
  CHECK(all_of(data.write(test::megatron_files<std::int16_t>(ended, 3))) == documents);
  // A start token in front, two ends behind.
  TokenDocuments framed = test::with_end(ended, kEnd);
  for (auto& document : framed) document.insert(document.begin(), kEnd);
  CHECK(all_of(data.write(test::megatron_files<std::uint16_t>(framed, 8))) == documents);
  // Either file may be named, or a directory or pattern with both.
  data.write(test::megatron_files<std::uint16_t>(documents, 8));
  for (const char* name : {"set.idx", "set.bin", "", "set*"}) {
    CAPTURE(name);
    const auto files = listed(data.directory.path() / name);
    REQUIRE(files.size() == 1);
    CHECK(files[0].name == "set.bin");
    CHECK(files[0].tokens == find_token_format("megatron"));
  }
}

TEST_CASE("a Megatron-LM document has all its sequences, and an empty one is skipped") {
  const Dataset data;
  TokenDocuments sequences = documents_of({"a b", " c", "d", "e", "f"});
  sequences[3] = {};
  sequences[2] = {kEnd};
  const auto documents = all_of(data.write(test::megatron_files<std::uint16_t>(sequences, 8, 2)));
  CHECK(documents == documents_of({"a b c", "f"}));
  const auto files = listed(data.directory.path());
  const auto opened = open_foreign_tokens(files, *make_byte_tokenizer(), {1, 0});
  CHECK(opened[0].empty_documents == 1);
  CHECK(!opened[0].undivided);
  // Numbers are those of the file's documents.
  CHECK(opened[0].held_out->document_name(0) == "set.bin@0");
  CHECK(opened[0].held_out->document_name(1) == "set.bin@2");
}

TEST_CASE("the held-out rule divides a file's documents by their names") {
  const TemporaryDirectory directory;
  const TokenDocuments documents = twenty();
  directory.write("a.bin", test::llmc_file<std::uint16_t>(documents, kEnd));
  const auto files = listed(directory.path());
  const auto tokenizer = make_byte_tokenizer();
  auto opened = open_foreign_tokens(files, *tokenizer, kHalf);
  std::uint64_t counts[2] = {0, 0};
  std::uint64_t bytes = 0;
  for (int part = 0; part < 2; ++part) {
    TokenSet set(257, fmt::format("{:016x}", tokenizer->fingerprint()));
    set.add(std::move(part == 0 ? opened[0].training : opened[0].held_out));
    std::uint64_t own_bytes = 0;
    for (std::uint64_t d = 0; d < set.document_count(); ++d) {
      const std::string name = set.document_name(d);
      CHECK(is_held_out(name, kHalf) == (part == 1));
      const auto number = static_cast<std::size_t>(std::stoi(name.substr(name.find('@') + 1)));
      const TokenSet::Document document = set.document(d);
      std::vector<std::int32_t> ids(document.token_count);
      set.read_tokens(document.token_begin, ids);
      CHECK(ids == documents[number]);
      CHECK(document.source_bytes == documents[number].size());
      own_bytes += documents[number].size();
    }
    // Across documents, from any token on.
    std::vector<std::int32_t> all(set.token_count());
    set.read_tokens(0, all);
    for (std::uint64_t begin = 0; begin < all.size(); ++begin) {
      std::vector<std::int32_t> some(std::min<std::uint64_t>(13, all.size() - begin));
      set.read_tokens(begin, some);
      CHECK(std::equal(some.begin(), some.end(), all.begin() + static_cast<std::ptrdiff_t>(begin)));
    }
    CHECK(set.source_bytes() == own_bytes);
    counts[part] = set.document_count();
    bytes += own_bytes;
  }
  CHECK(counts[0] > 2);
  CHECK(counts[1] > 2);
  CHECK(counts[0] + counts[1] == documents.size());
  CHECK(bytes == 10 * 10 + 10 * 11);
}

TEST_CASE("the content hash is that of the documents, not of name or time") {
  const Dataset a, b;
  const TokenDocuments documents = twenty();
  const auto hash = [](const std::filesystem::path& path, const HeldOutRule& rule) {
    return open_foreign_tokens(listed(path), *make_byte_tokenizer(), rule)[0]
        .training->content_hash();
  };
  const auto files = test::megatron_files<std::uint16_t>(documents, 8);
  const std::string first = hash(a.write(files), kHalf);
  CHECK(hash(b.write(files), kHalf) == first);
  CHECK(hash(b.write(files), {2, 1}) != first);
  CHECK(hash(b.write(files), {3, 0}) != first);
  // The same ids, divided otherwise.
  CHECK(hash(b.write(test::megatron_files<std::uint16_t>(documents, 8, 2)), kHalf) != first);
  auto changed = files;
  changed.bin[4] = static_cast<char>(changed.bin[4] ^ 1);
  CHECK(hash(b.write(changed), kHalf) != first);
}

TEST_CASE("bytes of text are left out where the tokens do not tell them") {
  const Dataset data;
  TokenDocuments documents = documents_of({"one two", "three"});
  const auto bytes = [&] {
    const auto path = data.write(test::megatron_files<std::uint16_t>(documents, 8));
    const auto opened = open_foreign_tokens(listed(path), *make_byte_tokenizer(), {1, 0});
    CHECK(opened[0].held_out->document(0).source_bytes == opened[0].held_out->source_bytes());
    return opened[0].held_out->source_bytes();
  };
  documents.resize(1);
  CHECK(bytes() == 7);
  documents[0].insert(documents[0].begin() + 3, kEnd);  // two texts in one document, or "<|end..."
  CHECK(!bytes());
  // One such file is enough for a set.
  const auto tokenizer = make_byte_tokenizer();
  data.directory.write("a.bin", test::llmc_file<std::uint16_t>(twenty(), kEnd));
  for (const bool both : {false, true}) {
    TokenSet set(257, "tokenizer");
    const auto files = listed(data.directory.path() / (both ? "*.bin" : "a.bin"));
    for (auto& file : open_foreign_tokens(files, *tokenizer, {1, 0})) {
      set.add(std::move(file.held_out));
    }
    CHECK(set.document_count() == (both ? 21 : 20));
    CHECK(set.source_bytes().has_value() == !both);
  }
}

TEST_CASE("an id that the tokenizer does not have is refused with file, number and offset") {
  const Dataset data;
  TokenDocuments documents = documents_of({"First", "second"});
  documents[1][2] = 257;
  check_names(data.refusal(test::llmc_file<std::uint16_t>(documents, kEnd)),
              {"tokens.bin", "id 9 (offset 1042) is 257", "257 tokens", "tokenizer.path"});
  check_names(data.refusal(test::megatron_files<std::int32_t>(documents, 4)),
              {"set.bin", "id 7 (offset 28) is 257"});
  documents[1][2] = -1;
  check_names(data.refusal(test::megatron_files<std::int32_t>(documents, 4)), {"is -1"});
  check_names(data.refusal(test::llmc_file<std::uint32_t>(documents, kEnd)), {"is 4294967295"});
  // One byte cannot hold the end token, so another tokenizer made the file.
  check_names(data.refusal(test::megatron_files<std::uint8_t>(documents_of({"abc"}), 1)),
              {"set.bin", "ids of 1 bytes go up to 255", "257 tokens"});
}

TEST_CASE("llm.c headers that lie are refused with field and offset") {
  const Dataset data;
  const std::string good = test::llmc_file<std::uint16_t>(documents_of({"First", "second"}), kEnd);
  CHECK(data.refusal(good) == "");
  const auto with = [&](std::size_t offset, std::int32_t value) {
    std::string bad = good;
    test::patch<std::int32_t>(bad, offset, value);
    return data.refusal(bad);
  };
  check_names(with(0, 20240326), {"tokens.bin", "magic 20240326 at offset 0"});
  check_names(with(0, 20240522), {"magic 20240522 at offset 0", "evaluation"});
  check_names(with(0, 20240801), {"version 1 at offset 4", "have 7"});
  check_names(with(4, 2), {"version 2 at offset 4"});
  check_names(with(8, 0), {"0 tokens at offset 8"});
  check_names(with(8, -5), {"-5 tokens at offset 8"});
  check_names(with(8, 14), {"14 tokens at offset 8", "1052 bytes", "it has 1050"});
  check_names(with(8, 12), {"12 tokens at offset 8"});
  check_names(with(8, 0x7FFFFFFF), {"2147483647 tokens at offset 8"});
  for (std::size_t size = 0; size < good.size(); ++size) {
    CHECK(contains(data.refusal(good.substr(0, size)), "tokens.bin"));
  }
  check_names(data.refusal(test::llmc_file<std::uint16_t>({{}, {}}, kEnd)), {"no document"});
  // Without a wish for a format, other .bin files are not taken for tokens.
  CHECK(token_format_of(data.directory.write("x.bin", "not tokens")) == nullptr);
  CHECK(token_format_of(data.directory.write("x.txt", good)) == nullptr);
  CHECK(contains(
      message_of<DataError>([&] { listed(data.directory.write("tokens.bin.gz", good), "llmc"); }),
      "decompress it first"));
}

TEST_CASE("Megatron-LM indices that lie are refused with field and offset") {
  const Dataset data;
  // Lengths at 34, pointers at 42, document indices at 58.
  const auto good = test::megatron_files<std::uint16_t>(documents_of({"First", "second"}), 8);
  CHECK(data.refusal(good) == "");
  REQUIRE(good.idx.size() == 82);
  const auto with = [&]<class T>(std::size_t offset, T value) {
    auto bad = good;
    test::patch<T>(bad.idx, offset, value);
    return data.refusal(bad);
  };
  check_names(with(0, 'm'), {"set.idx", "does not start with 'MMIDIDX'"});
  check_names(with(9, std::uint64_t{2}), {"version 2 at offset 9"});
  check_names(with(17, std::uint8_t{0}), {"type of ids 0 at offset 17"});
  check_names(with(17, std::uint8_t{9}), {"type of ids 9 at offset 17"});
  check_names(with(17, std::uint8_t{6}), {"float64"});
  check_names(with(17, std::uint8_t{7}), {"float32"});
  for (const std::uint64_t count : {std::uint64_t{3}, std::uint64_t{1} << 61, ~std::uint64_t{0}}) {
    check_names(with(18, count), {fmt::format("{} sequences (offset 18)", count), "do not fit"});
    if (count == 3) continue;
    check_names(with(26, count), {fmt::format("{} document indices (offset 26)", count)});
  }
  check_names(with(26, std::uint64_t{2}), {"8 bytes behind the last document index, at offset 74"});
  check_names(with(34, std::int32_t{-1}), {"sequence 0 has -1 ids (offset 34)"});
  check_names(with(38, std::int32_t{7}), {"sequence 1 has 7 ids (offset 38)", "byte 24", "has 22"});
  check_names(with(38, std::int32_t{5}), {"end at byte 20", "has 22"});
  for (const std::int64_t pointer : {8, 9, 11, 12, -10, 1 << 30}) {
    check_names(with(50, pointer), {fmt::format("sequence 1 begins at byte {} of", pointer),
                                    "(offset 50)", "end at byte 10"});
  }
  check_names(with(58, std::int64_t{1}), {"first document begins at sequence 1 (offset 58)"});
  check_names(with(66, std::int64_t{-1}), {"document index 1 is -1 (offset 66)"});
  check_names(with(66, std::int64_t{3}), {"document index 1 is 3 (offset 66)"});
  check_names(with(74, std::int64_t{0}), {"document index 2 is 0 (offset 74)"});
  check_names(with(74, std::int64_t{1}), {"end at sequence 1 of 2"});
  auto modes = good;
  modes.idx += std::string(2, '\0');
  check_names(data.refusal(modes), {"multimodal", "offset 82"});
  auto none = test::megatron_files<std::uint16_t>({}, 8);
  check_names(data.refusal(none), {"1 document indices at offset 26", "no document"});
  for (std::size_t size = 0; size < good.idx.size(); ++size) {
    CHECK(contains(data.refusal({good.bin, good.idx.substr(0, size)}), "set.idx"));
  }
  check_names(data.refusal({good.bin.substr(2), good.idx}), {"ends at byte 22", "has 20"});
}

TEST_CASE("half a Megatron-LM dataset is refused by the name of the other half") {
  const TemporaryDirectory directory;
  const auto files = test::megatron_files<std::uint16_t>(documents_of({"First", "second"}), 8);
  const auto index = directory.write("set.idx", files.idx);
  check_names(message_of<DataError>([&] { listed(index); }), {"set.idx", "set.bin", "missing"});
  check_names(message_of<DataError>([&] { listed(directory.path()); }), {"set.bin", "missing"});
  const auto lonely = directory.write("lonely.bin", files.bin);
  check_names(message_of<DataError>([&] { all_of(lonely, "megatron"); }),
              {"lonely.idx", "missing"});
}

TEST_CASE("what only looks like a token file is refused, and not read as text") {
  const TemporaryDirectory directory;
  const auto files = test::megatron_files<std::uint16_t>(documents_of({"First", "second"}), 8);
  const auto path = directory.write("set.bin", files.bin), index = directory.path() / "set.idx";
  const auto refusal = [&] { return message_of<DataError>([&] { listed(path); }); };
  check_names(refusal(), {"set.bin: ", "set.idx is missing; put its index there", "format: text"});
  for (const std::string& bad : {std::string(), files.idx.substr(0, 8), files.bin}) {
    directory.write("set.idx", bad);
    check_names(refusal(), {"set.bin: ", "set.idx is no index"});
    check_names(message_of<DataError>([&] { listed(index); }), {"set.idx is no index"});
  }
  directory.write("set.idx", files.idx);
  CHECK(all_of(path) == documents_of({"First", "second"}));
  check_names(message_of<DataError>([&] { listed(directory.write("a.bin.gz", files.bin)); }),
              {"a.bin.gz", "decompress it first"});
  SourceOptions text{.path = directory.write("text.bin", "text"), .format = SourceFormat::text};
  CHECK(list_source_files(std::span(&text, 1)).front().tokens == nullptr);
}

TEST_CASE("a token file holds no text to read") {
  const TemporaryDirectory directory;
  const auto path = directory.write("a.bin", test::llmc_file<std::uint16_t>(twenty(), kEnd));
  const auto files = listed(path);
  check_names(message_of<DataError>([&] {
                read_documents(files[0], 0, files[0].size_bytes,
                               [](std::string_view) { return true; });
              }),
              {"a.bin", "holds no text"});
}

// Bytes by scripts/golden/token_files.py, which equal those of the programs' own code (its
// --check).
TEST_CASE("files of an independent writer give their documents") {
  const std::filesystem::path golden = test_file("unit/data/golden/token_files");
  const TokenDocuments documents =
      documents_of({"To be, or not to be", "that is\nthe question:", "été – Ω", "x"});
  for (const char* name : {"gpt2.bin", "llama3.bin", "eod.bin", "plain.bin"}) {
    CAPTURE(name);
    CHECK(all_of(golden / name) == documents);
  }
  std::vector<std::string> names;
  for (const SourceFile& file : listed(golden)) names.push_back(file.name);
  CHECK(names == std::vector<std::string>{"eod.bin", "gpt2.bin", "llama3.bin", "plain.bin"});
}

}  // namespace llmtrain::data
