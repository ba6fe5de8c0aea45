#include "lib/data/tokenizer_json.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"
#include "lib/data/byte_level.hpp"
#include "tests/unit/data/support.hpp"

namespace llmtrain::data {

namespace {

using Json = nlohmann::json;

/// A minimal tokenizer.json: the bytes, two merges, one added token in and one behind the
/// vocabulary.
Json minimal() {
  Json vocab;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    vocab[to_byte_level(std::string_view(&c, 1))] = byte;
  }
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  vocab["<|endoftext|>"] = 258;
  const auto added = [](int id, const char* content) {
    return Json{{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", true}};
  };
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"normalizer", nullptr},
      {"added_tokens", {added(258, "<|endoftext|>"), added(259, "<|im|>")}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", ""},
        {"end_of_word_suffix", nullptr},
        {"byte_fallback", false},
        {"vocab", vocab},
        {"merges", {"#version: 0.2", "a b", "ab c"}}}}};
}

std::string refusal(const Json& json) {
  return message_of<DataError>([&] { BpeTokenizer(parse_tokenizer_json(json.dump(), "t.json")); });
}

}  // namespace

TEST_CASE("a minimal tokenizer.json loads, with merges in both notations") {
  Json json = minimal();
  const BpeTokenizer legacy(parse_tokenizer_json(json.dump(), "t.json"));
  json["model"]["merges"] = Json::parse(R"([["a", "b"], ["ab", "c"]])");
  const BpeTokenizer pairs(parse_tokenizer_json(json.dump(), "t.json"));
  CHECK(legacy.encode("abc<|im|>ab") == std::vector<std::int32_t>{257, 259, 256});
  CHECK(pairs.fingerprint() == legacy.fingerprint());
  CHECK(pairs.vocab_size() == 260);
}

TEST_CASE("what would change ids is refused and the field is named") {
  struct Row {
    const char* pointer;
    Json value;
    const char* expected;
  };
  const Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Removed"}, {"invert", false}};
  Json isolated = split;
  isolated["behavior"] = "Isolated";
  const Json bert = {{"type", "BertProcessing"}, {"cls", {"a", 1}}, {"sep", {"b", 2}}};
  const std::vector<Row> rows = {
      {"/version", "2.0", "t.json.version"},
      {"/truncation", {{"max_length", 5}}, "t.json.truncation"},
      {"/padding", {{"length", 5}}, "t.json.padding"},
      {"/normalizer",
       {{"type", "Nmt"}},
       "t.json.normalizer.type: 'Nmt' is not supported (NFC, NFD"},
      {"/normalizer",
       {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "Prepend"}}}}},
       "t.json.normalizer.normalizers[1].prepend"},
      {"/normalizer",
       {{"type", "Replace"}, {"pattern", "a"}, {"content", ""}},
       "normalizer.pattern"},
      {"/normalizer",
       {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", ""}},
       "normalizer.pattern.String: an empty text"},
      {"/normalizer",
       {{"type", "Replace"}, {"pattern", {{"Regex", "a*"}}}, {"content", ""}},
       "normalizer.pattern.Regex: pattern 'a*' matches the empty string"},
      {"/decoder/type", "WordPiece", "t.json.decoder.type: 'WordPiece'"},
      {"/decoder", {{"type", "Metaspace"}, {"replacement", "ab"}}, "t.json.decoder.replacement"},
      {"/decoder",
       {{"type", "Sequence"}, {"decoders", {{{"type", "Strip"}, {"content", "a"}, {"start", -1}}}}},
       "t.json.decoder.decoders[0].start"},
      {"/post_processor",
       {{"type", "Sequence"}, {"processors", {bert, bert}}},
       "t.json.post_processor.processors[1].type: 'BertProcessing' behind another"},
      {"/post_processor", {{"type", "Template"}}, "t.json.post_processor.type: 'Template'"},
      {"/post_processor",
       {{"type", "BertProcessing"}, {"cls", {"a", 1}}, {"sep", {"b"}}},
       "t.json.post_processor.sep: not [text, id]"},
      {"/post_processor",
       {{"type", "BertProcessing"}, {"cls", {"a", 1}}, {"sep", {"b", 400}}},
       "post_processor: token 400 is not in the vocabulary"},
      {"/post_processor",
       {{"type", "TemplateProcessing"},
        {"single", Json::array()},
        {"special_tokens", Json::object()}},
       "t.json.post_processor.single: the text is not there exactly once"},
      {"/post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {{{"SpecialToken", {{"id", "<s>"}}}}}},
        {"special_tokens", Json::object()}},
       "t.json.post_processor.special_tokens.<s>"},
      {"/post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {{{"Sequence", {{"id", "B"}}}}}},
        {"special_tokens", Json::object()}},
       "t.json.post_processor.single[0].Sequence.id: 'B'"},
      {"/pre_tokenizer", nullptr, "characters outside the vocabulary would vanish"},
      {"/pre_tokenizer/type", "Whitespace", "t.json.pre_tokenizer.type"},
      {"/pre_tokenizer",
       {{"type", "Sequence"}, {"pretokenizers", {minimal()["pre_tokenizer"], isolated}}},
       "pretokenizers[0].type: 'ByteLevel' is supported at the end only"},
      {"/pre_tokenizer",
       {{"type", "Sequence"}, {"pretokenizers", {split, minimal()["pre_tokenizer"]}}},
       "pretokenizers[0].behavior"},
      {"/pre_tokenizer",
       {{"type", "Metaspace"}, {"replacement", "_"}, {"add_prefix_space", false}},
       "t.json.pre_tokenizer.add_prefix_space: false contradicts"},
      {"/pre_tokenizer",
       {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}},
       "t.json.pre_tokenizer.prepend_scheme: 'last'"},
      {"/model/type", "Unigram", "t.json.model.type"},
      {"/model/dropout", 0.1, "t.json.model.dropout"},
      {"/model/continuing_subword_prefix", "##", "t.json.model.continuing_subword_prefix"},
      {"/model/end_of_word_suffix", "</w>", "t.json.model.end_of_word_suffix"},
      {"/model/ignore_merges", 1, "t.json.model.ignore_merges"},
      {"/model/vocab", Json::array(), "t.json.model.vocab"},
      {"/model/vocab/ab", 1, "id 1 belongs"},
      {"/model/vocab/ab", -1, "'ab'"},
      {"/model/vocab/ab", 1e9, "'ab'"},
      {"/model/vocab/ab", 99999999999, "'ab'"},
      {"/model/merges", "a b", "t.json.model.merges"},
      {"/model/merges/1", "a b c", "t.json.model.merges[1]"},
      {"/model/merges/1", {"a"}, "t.json.model.merges[1]"},
      {"/model/merges/1", "a x", "'ax' is not in the vocabulary"},
      {"/added_tokens/0/lstrip", 1, "t.json.added_tokens[0].lstrip"},
      {"/added_tokens/0/rstrip", 1, "t.json.added_tokens[0].rstrip"},
      {"/added_tokens/0/single_word", 1, "t.json.added_tokens[0].single_word"},
      {"/added_tokens/0/id", 7, "t.json.added_tokens[0].id"},
      {"/added_tokens/1/id", 300, "Hugging Face would give it 259"},
      {"/added_tokens/1/content", "", "empty"},
      {"/added_tokens/1/content", 5, "t.json.added_tokens[1].content"},
  };
  CHECK(refusal(minimal()) == "");
  for (const Row& row : rows) {
    Json json = minimal();
    json[Json::json_pointer(row.pointer)] = row.value;
    CAPTURE(row.pointer);
    const std::string message = refusal(json);
    CAPTURE(message);
    CHECK(contains(message, row.expected));
    CHECK(contains(message, "; "));  // behind it stands what to do
  }
}

TEST_CASE("files that are not tokenizers are refused") {
  for (const char* text : {"", "{", "[]", "null", "{\"version\":\"1.0\"}", "{\"version\":1}"}) {
    const auto parse = [&] { parse_tokenizer_json(text, "t.json"); };
    CHECK(contains(message_of<DataError>(parse), "; save it again"));
  }
  for (const auto& [pointer, value] : {std::pair("/model/merges/1", Json::array({"a"})),
                                       {"/model/merges/1", Json("ab")},
                                       {"/model/merges/1", Json("a nowhere")},
                                       {"/model/vocab/b", Json(97)}}) {
    Json json = minimal();
    json[Json::json_pointer(pointer)] = value;
    CAPTURE(json.dump());
    CHECK(contains(refusal(json), "; save it again"));
  }
  Json json = minimal();
  json["model"]["vocab"].erase("!");
  json["added_tokens"].erase(1);
  CHECK(contains(refusal(json), "no token for byte 0x21"));
  std::string nested(100000, '[');
  CHECK_THROWS_AS(parse_tokenizer_json(nested, "t.json"), DataError);
}

TEST_CASE("a key that is there twice is refused, wherever it is") {
  const auto doubled = [](const std::string& at, const std::string& with) {
    std::string text = minimal().dump();
    const std::size_t begin = text.find(at);
    REQUIRE(begin != std::string::npos);
    text.insert(begin, with);
    return message_of<DataError>([&] { parse_tokenizer_json(text, "t.json"); });
  };
  CHECK(contains(doubled(R"("model":)", R"("model":{},)"),
                 "t.json: an object has the key 'model' twice; save it again"));
  CHECK(contains(doubled(R"("abc":)", R"("abc":3,)"), "the key 'abc' twice"));
  CHECK(contains(doubled(R"("lstrip":)", R"("lstrip":true,)"), "the key 'lstrip' twice"));
  CHECK(doubled(R"("model":)", R"("made_by":{"model":1,"vocab":2},)") == "");
}

TEST_CASE("nesting that would end the process is refused") {
  constexpr std::size_t kDeep = 200000;
  const std::string deep = std::string(kDeep, '[') + std::string(kDeep, ']');
  for (const char* key : {"normalizer", "pre_tokenizer", "post_processor", "decoder", "model"}) {
    CAPTURE(key);
    std::string text = minimal().dump();
    text.insert(1, R"("other":{")" + std::string(key) + R"(":)" + deep + "},");
    CHECK(contains(message_of<DataError>([&] { parse_tokenizer_json(text, "t.json"); }),
                   "t.json: nested deeper than 32 levels; save it again"));
  }
}

TEST_CASE("start and end tokens come from tokenizer_config.json, else from a well-known name") {
  const TemporaryDirectory directory;
  directory.write("tokenizer.json", minimal().dump());
  CHECK(load_tokenizer_json(directory.path())->eos_id() == 258);
  directory.write("tokenizer_config.json",
                  R"({"eos_token": {"content": "<|im|>"}, "bos_token": "abc"})");
  const auto configured = load_tokenizer_json(directory.path() / "tokenizer.json");
  CHECK(configured->eos_id() == 259);
  CHECK(configured->bos_id() == 257);
  directory.write("tokenizer_config.json", R"({"eos_token": "<nowhere>"})");
  CHECK(contains(message_of<DataError>([&] { load_tokenizer_json(directory.path()); }),
                 "tokenizer_config.json.eos_token: '<nowhere>'"));
  CHECK_THROWS_AS(load_tokenizer_json(directory.path() / "absent.json"), DataError);
}

TEST_CASE("an end token that stands for a byte is saved as the vocabulary writes it") {
  const TemporaryDirectory directory;
  directory.write("tokenizer.json", minimal().dump());
  directory.write("tokenizer_config.json", "{\"eos_token\": \"\xc3\xbf\"}");  // of byte 0xff
  const auto tokenizer = load_tokenizer_json(directory.path());
  REQUIRE(tokenizer->token_bytes(*tokenizer->eos_id()) == "\xff");
  const TemporaryDirectory other;
  save_tokenizer(*tokenizer, other.path());
  CHECK(load_tokenizer_json(other.path())->eos_id() == tokenizer->eos_id());
}

}  // namespace llmtrain::data
