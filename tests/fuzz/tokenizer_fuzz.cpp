// tokenizer.json from arbitrary bytes: refused with a DataError, or a tokenizer that keeps every
// byte.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "lib/base/error.hpp"
#include "lib/data/tokenizer_json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace llmtrain;
  // Everything behind a NUL byte is a text to encode; all before it is the file.
  const std::string_view input(reinterpret_cast<const char*>(bytes), size);
  const std::size_t end = input.find('\0');
  const std::string_view text =
      end == input.npos ? "I'll take 12 <|x|>\n\xFF" : input.substr(end + 1);
  try {
    const data::BpeTokenizer tokenizer(data::parse_tokenizer_json(input.substr(0, end), "fuzz"));
    const auto ids = tokenizer.encode(text);
    if (tokenizer.decode(ids) != text) std::abort();
    const data::BpeTokenizer again(data::parse_tokenizer_json(tokenizer.to_json(), "again"));
    if (again.to_json() != tokenizer.to_json() || again.encode(text) != ids) std::abort();
  } catch (const DataError&) {
  }
  return 0;
}
