// Arbitrary bytes as a `model.safetensors.index.json`: an error, or names of tensors with plain
// names of files, which lie beside the index.

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "lib/base/error.hpp"
#include "lib/base/require.hpp"
#include "lib/checkpoint/tensor_set.hpp"

using namespace llmtrain;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto files =
        checkpoint::parse_weight_map({reinterpret_cast<const char*>(data), size}, "fuzz");
    for (const auto& [tensor, file] : files) {
      require(!tensor.empty(), "a tensor without a name");
      const std::filesystem::path path = file;
      require(!file.empty() && file != "." && file != ".." && path.filename() == path,
              "a file elsewhere");
    }
  } catch (const CheckpointError&) {
  }
  return 0;
}
