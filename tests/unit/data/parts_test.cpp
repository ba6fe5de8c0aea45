// Normalizers, decoders, added tokens and character symbols one by one; styles_test.cpp compares
// whole tokenizers with Hugging Face's.
#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/data/added_tokens.hpp"
#include "lib/data/bpe_symbols.hpp"
#include "lib/data/decoder.hpp"
#include "lib/data/json_field.hpp"
#include "lib/data/normalizer.hpp"
#include "lib/data/pre_tokenizer.hpp"
#include "lib/data/unicode.hpp"
#include "tests/unit/data/support.hpp"

namespace llmtrain::data {

namespace {

std::string normalized(std::string_view json, std::string_view text) {
  return Normalizer(JsonDocument(json, "n").root()).apply(text);
}

std::string decoded(std::string_view json, std::vector<std::string> tokens) {
  return Decoder(JsonDocument(json, "d").root()).decode(std::move(tokens));
}

using Split = std::vector<std::pair<std::int32_t, std::string>>;

Split split(const std::vector<AddedToken>& tokens, std::string_view text) {
  Split parts;
  AddedTokenSplitter(tokens).split(text, [&](std::int32_t id, std::string_view part) {
    parts.emplace_back(id, id == AddedTokenSplitter::kText ? std::string(part) : "");
  });
  return parts;
}

}  // namespace

TEST_CASE("normalizers: forms, case, marks, white space, replacement") {
  CHECK(normalized(R"({"type":"NFC"})", "e\u0301 \u1100\u1161\u11A8") == "\u00e9 \uac01");
  // U+11A7 stands before the final consonants and is none.
  CHECK(normalized(R"({"type":"NFC"})", "\uac00\u11A7") == "\uac00\u11A7");
  CHECK(normalized(R"({"type":"NFD"})", "\u00e9") == "e\u0301");
  CHECK(normalized(R"({"type":"NFKC"})", "\ufb01\u1e9b\u0323") == "fi\u1e69");
  CHECK(normalized(R"({"type":"NFKD"})", "\u2167\u00a0") == "VIII ");
  // Characters of later Unicode versions than Hugging Face's tables stay as they are.
  CHECK(normalized(R"({"type":"NFKC"})", "\u32ff") == "\u32ff");
  CHECK(normalized(R"({"type":"Lowercase"})", "\u0130\u0391\u03a3 \U00010D50") ==
        "i\u0307\u03b1\u03c3 \U00010D70");
  CHECK(normalized(R"({"type":"StripAccents"})", "e\u0301\u0301x") == "ex");
  CHECK(normalized(R"({"type":"Strip","strip_left":true,"strip_right":true})",
                   "\u3000 a b\u2028\n") == "a b");
  CHECK(normalized(R"({"type":"Replace","pattern":{"String":"aa"},"content":"b"})", "aaaaa") ==
        "bba");
  CHECK(normalized(R"({"type":"Replace","pattern":{"Regex":"a+"},"content":""})", "baac") == "bc");
  CHECK(normalized(R"({"type":"Prepend","prepend":"_"})", "a") == "_a");
  CHECK(normalized(R"({"type":"Prepend","prepend":"_"})", "") == "");
  CHECK(normalized(R"({"type":"Sequence","normalizers":[{"type":"NFD"},{"type":"StripAccents"}]})",
                   "\u00e9") == "e");
}

TEST_CASE("replacements that would fill the memory are stopped") {
  std::string step = R"({"type":"Replace","pattern":{"String":"a"},"content":")";
  step += std::string(100, 'a') + "\"}";
  const std::string steps = fmt::format("[{0},{0},{0},{0},{0},{0}]", step);
  const std::string text(500, 'a');
  CHECK(contains(message_of<DataError>([&] {
                   normalized(R"({"type":"Sequence","normalizers":)" + steps + "}", text);
                 }),
                 "makes a text longer"));
  CHECK(contains(message_of<DataError>([&] {
                   decoded(R"({"type":"Sequence","decoders":)" + steps + "}",
                           std::vector<std::string>(50, "aaaa"));
                 }),
                 "makes a text longer"));
}

TEST_CASE("bytes that are not UTF-8 pass a normalizer as they are") {
  CHECK(normalized(R"({"type":"NFC"})",
                   "e\u0301\xFF"
                   "e\u0301\xC3") == "\u00e9\xFF\u00e9\xC3");
}

TEST_CASE("decoders: replacement, byte tokens, stripping, metaspace") {
  const std::string llama2 =
      R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"_"},"content":" "},)"
      R"({"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]})";
  CHECK(decoded(llama2, {"_a", "_", "_b", "<0xC3>", "<0xA9>", "<0xFF>"}) == "a  b\u00e9\xFF");
  CHECK(decoded(R"({"type":"Strip","content":"a","start":2,"stop":1})", {"aaabaa", "a", "b"}) ==
        "abab");
  const std::string metaspace = R"({"type":"Metaspace","replacement":"_")";
  CHECK(decoded(metaspace + "}", {"__a", "_b"}) == "a b");
  CHECK(decoded(metaspace + R"(,"prepend_scheme":"never"})", {"__a", "_b"}) == "  a b");
  CHECK(decoded("null", {"a", "b"}) == "a b");
  CHECK(decoded(R"({"type":"ByteLevel"})", {"\u0120a", "\u4e2d"}) == " a\u4e2d");
}

TEST_CASE("added tokens take the white space beside them, and only single words if they say so") {
  const AddedToken left{.id = 1, .content = "<l>", .lstrip = true};
  const AddedToken right{.id = 2, .content = "<r>", .rstrip = true};
  const AddedToken word{.id = 3, .content = "ab", .single_word = true};
  CHECK(split({left, right}, "a \u3000<l> b<r>\n c") ==
        Split{{-1, "a"}, {1, ""}, {-1, " b"}, {2, ""}, {-1, "c"}});
  // White space that the one before took is not taken twice.
  CHECK(split({left, right}, "<r> <l>") == Split{{2, ""}, {1, ""}});
  CHECK(split({word}, "ab abc ab\u0301 \u00e9ab -ab-") ==
        Split{{3, ""}, {-1, " abc ab\u0301 \u00e9ab -"}, {3, ""}, {-1, "-"}});
}

TEST_CASE("unknown characters become bytes, or unknown tokens in Hugging Face's order") {
  // The byte tokens of U+00E9 are there, those of U+00E8 are not.
  const std::vector<std::string> vocab = {"<unk>", "a", "<0xC3>", "<0xA9>"};
  const auto symbols = [&](BpeSymbols::Unknown unknown, std::string_view text) {
    std::vector<std::int32_t> out;
    BpeSymbols(vocab, {}, unknown).append(text, out);
    return out;
  };
  using Ids = std::vector<std::int32_t>;
  CHECK(symbols({false, 0, true}, "a\u00e9\u00e8a") == Ids{1, 0, 1});
  CHECK(symbols({false, 0, false}, "a\u00e9\u00e8a") == Ids{1, 0, 0, 1});
  CHECK(symbols({true, 0, true}, "\u00e8\u00e9\u00e8a") == Ids{2, 3, 0, 1});
  CHECK(symbols({true, 0, false}, "\u00e8\u00e9\u00e8a") == Ids{2, 3, 0, 0, 1});
  CHECK(symbols({true, 0, false},
                "a\xC3"
                "a\xFF") == Ids{1, 2, 1, 0});
  CHECK(contains(message_of<DataError>([&] {
                   symbols({true, std::nullopt, false}, "a");
                 }),
                 "not all 256 tokens <0xNN> are there"));
}

TEST_CASE("text is cut for merging only where no merge joins the characters") {
  const std::vector<std::string> vocab = {"<unk>", "a", "b", "_", "ab", "_a", "__"};
  const std::vector<Merge> merges = {{1, 2, 4}, {3, 1, 5}, {3, 3, 6}};
  const BpeSymbols symbols(vocab, merges, {.byte_fallback = false, .unk_id = 0});
  CHECK(symbols.independent_prefix("__ab_ab") == 4);
  CHECK(symbols.independent_prefix("ba") == 1);
  // Unknown characters stay with their neighbours: a run of them may be one token.
  CHECK(symbols.independent_prefix("a??b_") == 4);
  CHECK(symbols.independent_prefix("ab") == 2);
}

TEST_CASE("spaces in front: before the last pattern, or as metaspace") {
  const auto pieces = [](PreTokenizerOptions options, std::string_view text, bool at_start = true) {
    const PreTokenizer pre_tokenizer(std::move(options));
    std::vector<std::string> out;
    PreTokenizer::Worker(pre_tokenizer)
        .split(
            text, [&](std::string_view piece) { out.emplace_back(piece); }, at_start);
    return out;
  };
  using Pieces = std::vector<std::string>;
  PreTokenizerOptions options{.patterns = {R"(\p{N})", std::string(kGpt2Pattern)}};
  options.prefix_space_after = 1;
  CHECK(pieces(options, "ab1 c") == Pieces{" ab", " 1", " c"});
  options.patterns.pop_back();
  CHECK(pieces(options, "a b1") == Pieces{" a b", " 1"});
  PreTokenizerOptions spaces{.metaspace = Metaspace{.replacement = "_"}};
  CHECK(pieces(spaces, "a  b") == Pieces{"_a", "_", "_b"});
  CHECK(pieces(spaces, " a") == Pieces{"_a"});
  spaces.metaspace->split = false;
  CHECK(pieces(spaces, "a b") == Pieces{"_a_b"});
  spaces.metaspace->prepend = Metaspace::Prepend::first;
  CHECK(pieces(spaces, "a b", false) == Pieces{"a_b"});
  spaces.metaspace->prepend = Metaspace::Prepend::never;
  CHECK(pieces(spaces, "a b") == Pieces{"a_b"});
}

}  // namespace llmtrain::data
