#include "lib/train/torn_lines.hpp"

#include "lib/base/file.hpp"
#include "lib/base/log.hpp"

namespace llmtrain::train {

void put_torn_part_beside(const std::filesystem::path& path, std::string_view torn) {
  const std::filesystem::path beside = path.string() + ".torn";
  File file = File::open_append(beside);
  file.write(torn);
  file.sync();
  file.close();
  log::warning(
      "{}: a line is damaged, as by a loss of power; it and what follows, {} bytes, is now "
      "in {}",
      path.string(), torn.size(), beside.string());
}

}  // namespace llmtrain::train
