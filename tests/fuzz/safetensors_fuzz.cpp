// Arbitrary bytes as a safetensors header: an error or a header that describes its data exactly;
// or, where the first byte is above 127, as an index of weights.

#include <cstdint>
#include <string_view>

#include "lib/base/error.hpp"
#include "lib/base/require.hpp"
#include "lib/checkpoint/safetensors.hpp"
#include "lib/checkpoint/tensor_set.hpp"

using namespace llmtrain;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] > 127) {
    try {
      checkpoint::parse_weight_map(text, "fuzz");
    } catch (const CheckpointError&) {
    }
    return 0;
  }
  // The length of the data, so that small valid files are found.
  const std::uint64_t data_bytes = data[0];
  try {
    const checkpoint::SafetensorsHeader header =
        checkpoint::parse_safetensors_header(text, data_bytes, "fuzz");
    std::uint64_t end = 0;
    for (const checkpoint::SafetensorsEntry& entry : header.entries) {
      require(entry.offset == end, "a hole");
      require(entry.bytes == static_cast<std::uint64_t>(*checkpoint::num_elements(entry.shape)) *
                                 checkpoint::size_of(entry.type),
              "wrong size");
      end += entry.bytes;
    }
    require(end == data_bytes, "wrong end");
  } catch (const CheckpointError&) {
  }
  return 0;
}
