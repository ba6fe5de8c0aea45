// What a run leaves for its next start, of any content: status.json, starts.jsonl, local.json, a lock.
// Refused, or it reads back equal; a lock names its owner in one line of printable text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "lib/base/error.hpp"
#include "lib/checkpoint/store_lock.hpp"
#include "lib/train/local_checkpoints.hpp"
#include "lib/train/run_status.hpp"
#include "lib/train/starts.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace llmtrain;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const std::string written = train::to_json(train::parse_status(text, "fuzz"));
    if (train::to_json(train::parse_status(written, "again")) != written) std::abort();
  } catch (const DataError&) {
  }
  try {
    for (const train::Start& start : train::parse_starts(text, "fuzz")) {
      const std::string line = train::to_line(start);
      if (train::to_line(train::parse_starts(line + "\n", "again").at(0)) != line) std::abort();
    }
  } catch (const DataError&) {
  }
  try {
    const std::string written = train::to_json(train::parse_local_record(text, "fuzz"));
    if (train::to_json(train::parse_local_record(written, "again")) != written) std::abort();
  } catch (const DataError&) {
  }
  try {
    for (const char c : checkpoint::describe_lock(std::string(text), "fuzz")) {
      if (static_cast<unsigned char>(c) < ' ') std::abort();
    }
  } catch (const CheckpointError&) {
  }
  return 0;
}
