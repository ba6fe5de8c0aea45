// Metrics lines and reports of any content: what they hold or a DataError, and that survives a
// round trip.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "lib/base/error.hpp"
#include "lib/train/metrics.hpp"
#include "lib/train/report.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace llmtrain;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    for (const train::StepRecord& record : train::parse_metrics(text, "fuzz")) {
      const std::string line = train::to_line(record);
      if (train::to_line(train::parse_metrics(line + "\n", "again").at(0)) != line) std::abort();
    }
  } catch (const DataError&) {
  }
  try {
    train::read_report_facts(text);
  } catch (const DataError&) {
  }
  return 0;
}
