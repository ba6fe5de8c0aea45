// Arbitrary bytes as a manifest: an error or a manifest that is written and read back equal.

#include <cstdint>
#include <string>

#include "lib/base/error.hpp"
#include "lib/base/require.hpp"
#include "lib/checkpoint/manifest.hpp"

using namespace llmtrain;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Sealed here, because no mutation would ever get past the hash.
  std::string text(reinterpret_cast<const char*>(data), size);
  text += checkpoint::manifest_seal(text);
  try {
    const checkpoint::Manifest manifest = checkpoint::parse_manifest(text, "fuzz");
    const std::string again = checkpoint::format_manifest(manifest);
    require(checkpoint::parse_manifest(again, "fuzz") == manifest, "does not read back equal");
  } catch (const CheckpointError&) {
  }
  return 0;
}
