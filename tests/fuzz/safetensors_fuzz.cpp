// Arbitrary bytes as a safetensors header: an error or a header that describes its data exactly;
// or, where the first byte is 127, as a whole file.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/base/require.hpp"
#include "lib/checkpoint/safetensors.hpp"

using namespace llmtrain;

namespace {

// Names lie where the file says, and every tensor's bytes are there to be read.
void open_file(std::string_view bytes) {
  static const int file = ::memfd_create("fuzz", 0);
  const auto written =
      ::ftruncate(file, 0) == 0 ? ::pwrite(file, bytes.data(), bytes.size(), 0) : -1;
  if (written != static_cast<ssize_t>(bytes.size())) std::abort();
  try {
    const auto opened = checkpoint::SafetensorsFile::open("/proc/self/fd/" + std::to_string(file));
    for (const checkpoint::SafetensorsEntry& entry : opened.entries()) {
      std::vector<std::byte> values(entry.bytes);
      opened.read_tensor(entry.name, values);
      require(opened.find(entry.name) == &entry, "another entry of that name");
    }
  } catch (const CheckpointError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == 127) {
    open_file(text);
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
