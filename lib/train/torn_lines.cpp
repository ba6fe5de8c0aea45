#include "lib/train/torn_lines.hpp"

#include <string>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/log.hpp"

namespace llmtrain::train {

namespace {

std::filesystem::path beside(const std::filesystem::path& path) { return path.string() + ".torn"; }

void append_beside(const std::filesystem::path& path, std::string_view lines) {
  File file = File::open_append(beside(path));
  file.write(lines);
  file.sync();
  file.close();
}

}  // namespace

void put_torn_part_beside(const std::filesystem::path& path, std::string_view torn,
                          std::string_view problem) {
  append_beside(path, torn);
  log::warning("{}; it and what follows, {} bytes, is now in {}", problem, torn.size(),
               beside(path).string());
}

void keep_lines(const std::filesystem::path& path, const JudgeLine& stays) {
  if (!std::filesystem::exists(path)) return;
  const std::string content = read_file(path);
  std::string kept, damaged, problem;
  std::size_t number = 0, num_damaged = 0, begin = 0;
  for (std::size_t end; (end = content.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string_view line(content.data() + begin, end - begin);
    try {
      if (stays(line, ++number)) kept.append(line).push_back('\n');
    } catch (const DataError& error) {
      if (num_damaged++ == 0) problem = error.what();
      damaged.append(line).push_back('\n');
    }
  }
  if (num_damaged > 0) {
    append_beside(path, damaged);
    const std::string more =
        num_damaged == 1 ? " is" : fmt::format(" and {} more are", num_damaged - 1);
    log::warning("{}; the line{} now in {}", problem, more, beside(path).string());
  }
  if (kept != content) write_file_atomic(path, kept);
}

}  // namespace llmtrain::train
