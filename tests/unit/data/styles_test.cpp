// Tokenizers in the styles of GPT-2, Llama 3, o200k and Llama 2, and variants of them, against
// Hugging Face's tokenizers; golden/styles is made by scripts/golden/tokenizer_styles.py.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"
#include "lib/data/adversarial_text.hpp"
#include "lib/data/bpe_tokenizer.hpp"
#include "lib/data/tokenizer_json.hpp"
#include "tests/support/source_tree.hpp"
#include "tests/unit/data/support.hpp"

namespace llmtrain::data {

namespace {

using Json = nlohmann::json;

Json golden(const std::string& name) {
  return Json::parse(read_file(test_file("unit/data/golden/styles") / (name + ".json")));
}

class Fnv1a {
 public:
  void update(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) {
      value_ = (value_ ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001B3u;
    }
  }
  std::string hex() const { return fmt::format("{:016x}", value_); }

 private:
  std::uint64_t value_ = 0xCBF29CE484222325u;
};

struct Measured {
  std::size_t tokens = 0;
  std::size_t bytes = 0;
  Fnv1a ids;
  Fnv1a framed;
  Fnv1a decoded;
};

template <class Check>
Measured measure(const Tokenizer& tokenizer, std::uint64_t first_seed, std::uint64_t pieces,
                 const Check& check) {
  Measured measured;
  for (std::uint64_t seed = first_seed; seed < first_seed + 100; ++seed) {
    const std::string text = adversarial_text(seed, pieces);
    const std::vector<std::int32_t> ids = tokenizer.encode(text);
    const std::string decoded = tokenizer.decode(ids);
    check(text, decoded);
    measured.tokens += ids.size();
    measured.bytes += text.size();
    measured.ids.update(std::as_bytes(std::span(ids)));
    const std::vector<std::int32_t> framed = tokenizer.encode(text, SpecialTokens::framed);
    measured.framed.update(std::as_bytes(std::span(framed)));
    measured.decoded.update(std::as_bytes(std::span(decoded)));
  }
  return measured;
}

void compare(const Measured& measured, const Json& expected) {
  CHECK(measured.tokens == expected["tokens"].get<std::size_t>());
  CHECK(measured.ids.hex() == expected["ids"].get<std::string>());
  CHECK(measured.framed.hex() == expected["framed"].get<std::string>());
  CHECK(measured.decoded.hex() == expected["decoded"].get<std::string>());
}

}  // namespace

TEST_CASE("four styles of tokenizer give Hugging Face's ids and text on 5 MB of adversarial text") {
  const Json expected = golden("ids");
  for (const std::string name : {"gpt2", "llama3", "o200k", "llama2"}) {
    CAPTURE(name);
    const BpeTokenizer tokenizer(parse_tokenizer_json(golden(name).dump(), name));
    CHECK(tokenizer.keeps_text() == (name != "llama2"));
    const Measured measured =
        measure(tokenizer, 0, 11000, [&](const std::string& text, const std::string& decoded) {
          // Llama 2's spelling of a space in the text comes back as a space.
          if (tokenizer.keeps_text()) REQUIRE(decoded == text);
        });
    CHECK(measured.bytes > 5'000'000);
    compare(measured, expected[name]);
  }
}

TEST_CASE("a tokenizer in the style of Llama 2 gives back text without U+2581 and special tokens") {
  const auto tokenizer =
      std::make_shared<const BpeTokenizer>(parse_tokenizer_json(golden("llama2").dump(), "llama2"));
  for (std::string text : {"", " ", "  two  ", "a\nb\t", "\u00e9e\u0301 \U0001f469\u200d\U0001f467",
                           "<0x0A>", "stray \xFF\xC3 bytes", "x"}) {
    CAPTURE(text);
    CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
  }
  // A space is put in front of what follows a special token.
  CHECK(tokenizer->decode(tokenizer->encode("a</s>b")) == "a</s> b");
  const std::int32_t the = tokenizer->encode("the").front();
  CHECK(tokenizer->token_bytes(the) == " the");
  CHECK(tokenizer->token_bytes(3 + '\n') == "\n");
  CHECK(!tokenizer->keeps_text());
}

TEST_CASE("a frame stands around one text and does not change the fingerprint") {
  Json file = golden("llama2");
  const BpeTokenizer with(parse_tokenizer_json(file.dump(), "t"));
  file["post_processor"] = nullptr;
  const BpeTokenizer without(parse_tokenizer_json(file.dump(), "t"));
  std::vector<std::int32_t> ids = with.encode("a b");
  CHECK(without.encode("a b", SpecialTokens::framed) == ids);
  ids.insert(ids.begin(), 1);
  CHECK(with.encode("a b", SpecialTokens::framed) == ids);
  CHECK(with.fingerprint() == without.fingerprint());
  CHECK(with.to_json() != without.to_json());
}

TEST_CASE("what Hugging Face's alignment decides is refused") {
  Json file = golden("llama2");
  file["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}};
  CHECK(
      contains(message_of<DataError>([&] { BpeTokenizer(parse_tokenizer_json(file.dump(), "t")); }),
               "pre_tokenizer.prepend_scheme: 'first'"));
}

TEST_CASE("variants of tokenizer.json give Hugging Face's ids and text") {
  for (const Json& row : golden("variants")) {
    const std::string name = row["name"].get<std::string>();
    CAPTURE(name);
    Json file = golden(row["base"].get<std::string>());
    file.merge_patch(row["patch"]);
    const BpeTokenizer tokenizer(parse_tokenizer_json(file.dump(), name));
    compare(measure(tokenizer, 1000, 200, [](const std::string&, const std::string&) {}), row);
    // What we write is the same tokenizer.
    const BpeTokenizer again(parse_tokenizer_json(tokenizer.to_json(), name));
    CHECK(again.to_json() == tokenizer.to_json());
    const std::string text = adversarial_text(7);
    CHECK(again.encode(text) == tokenizer.encode(text));
  }
}

}  // namespace llmtrain::data
