// tokenizer.json from arbitrary bytes: refused with a DataError, or a tokenizer that encodes and
// decodes any text, keeps every byte if it says so, and is the same after writing and reading.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "lib/base/error.hpp"
#include "lib/data/tokenizer_json.hpp"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

std::unique_ptr<const llmtrain::data::BpeTokenizer> written_and_read(
    const llmtrain::data::BpeTokenizer& tokenizer) {
  using namespace llmtrain::data;
  try {
    return std::make_unique<const BpeTokenizer>(parse_tokenizer_json(tokenizer.to_json(), "again"));
  } catch (const llmtrain::DataError&) {
    std::abort();  // what we write we must read
  }
}

void check_tokenizer(const llmtrain::data::BpeTokenizer& tokenizer, std::string_view text) {
  using namespace llmtrain::data;
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  const std::string decoded = tokenizer.decode(ids);
  if (tokenizer.keeps_text()) check(decoded == text);
  for (const std::int32_t id : ids) tokenizer.token_bytes(id);  // each is in the vocabulary
  check(tokenizer.encode(text) == ids);                         // now from the cache
  const std::vector<std::int32_t> framed = tokenizer.encode(text, SpecialTokens::framed);
  check(framed.size() == ids.size() + tokenizer.frame().size() - 1);
  tokenizer.decode(framed);
  const auto again = written_and_read(tokenizer);
  check(again->to_json() == tokenizer.to_json());
  check(again->encode(text) == ids && again->decode(ids) == decoded);
  check(again->frame() == tokenizer.frame());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  // Everything behind a NUL byte is a text to encode; all before it is the file.
  const std::string_view input(reinterpret_cast<const char*>(bytes), size);
  const std::size_t end = input.find('\0');
  const std::string_view text =
      end == input.npos ? "I'll take \u00e9 12 <|x|>\n\xFF" : input.substr(end + 1);
  try {
    check_tokenizer(llmtrain::data::BpeTokenizer(
                        llmtrain::data::parse_tokenizer_json(input.substr(0, end), "fuzz")),
                    text);
  } catch (const llmtrain::DataError&) {
  }
  return 0;
}
