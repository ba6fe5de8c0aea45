// Arbitrary bytes as a config.json: an error, or a model that is written and read again unchanged.

#include <cstdint>
#include <string_view>

#include "lib/base/require.hpp"
#include "lib/models/architecture.hpp"

using namespace llmtrain;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const models::Architecture& row = models::hf_architecture(text, "fuzz");
    const models::DecoderSpec spec = row.spec_from_hf_config(text, "fuzz");
    const models::DecoderSpec again = row.spec_from_hf_config(row.hf_config(spec, {}), "written");
    const std::string difference = models::computed_difference(spec, again);
    require(difference.empty(), "{}", difference);
    require(spec.intermediate_size == again.intermediate_size, "another width of the MLP");
    require(row.hf_config(again, {}) == row.hf_config(spec, {}), "another text");
  } catch (const DataError&) {
  } catch (const RecipeError&) {
  }
  return 0;
}
