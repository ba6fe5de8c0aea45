#include "lib/train/starts.hpp"

#include <set>

#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/base/strict_json.hpp"
#include "lib/train/torn_lines.hpp"

namespace llmtrain::train {

namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kFile = "starts.jsonl";

Start parse_start(std::string_view line, std::string_view name, std::size_t number) {
  const std::string where = fmt::format("{}:{}", name, number);
  try {
    const Json json = Json::parse(line, JsonDepth{where, "take the line out"});
    Start start;
    start.time = json.at("time").get<double>();
    start.host = json.at("host").get<std::string>();
    start.pid = integer_of<std::int64_t>(json.at("pid"));
    start.ranks = integer_of<std::int64_t>(json.at("ranks"));
    start.job = json.at("job").get<std::string>();
    start.restarts = integer_of<std::int64_t>(json.at("restarts"));
    if (!json.at("step").is_null()) start.step = integer_of<std::int64_t>(json.at("step"));
    start.lost_steps = integer_of<std::int64_t>(json.at("lost_steps"));
    // Lines of earlier versions have none.
    if (json.contains("prepared_bytes")) {
      start.prepared_bytes = integer_of<std::uint64_t>(json["prepared_bytes"]);
    }
    return start;
  } catch (const Json::exception&) {
    fail<DataError>("{}: not a start of a run", where);
  }
}

}  // namespace

std::string to_line(const Start& start) {
  Json json;
  json["time"] = start.time;
  json["host"] = start.host;
  json["pid"] = start.pid;
  json["ranks"] = start.ranks;
  json["job"] = start.job;
  json["restarts"] = start.restarts;
  json["step"] = start.step ? Json(*start.step) : Json(nullptr);
  json["lost_steps"] = start.lost_steps;
  json["prepared_bytes"] = start.prepared_bytes;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<Start> parse_starts(std::string_view content, std::string_view name) {
  std::vector<Start> starts;
  std::size_t begin = 0, number = 0;
  for (std::size_t end; (end = content.find('\n', begin)) != content.npos; begin = end + 1) {
    const std::string_view line = content.substr(begin, end - begin);
    ++number;
    if (!line.empty()) starts.push_back(parse_start(line, name, number));
  }
  return starts;
}

std::vector<Start> read_starts(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kFile;
  if (!std::filesystem::exists(path)) return {};
  return parse_starts(read_file(path), path.string());
}

std::vector<Start> keep_starts(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kFile;
  std::vector<Start> starts;
  keep_lines(path, [&](std::string_view line, std::size_t number) {
    if (!line.empty()) starts.push_back(parse_start(line, path.string(), number));
    return true;
  });
  return starts;
}

void append_start(const std::filesystem::path& directory, const Start& start) {
  const std::filesystem::path path = directory / kFile;
  const std::string content = std::filesystem::exists(path) ? read_file(path) : "";
  // A line that a killed process has not finished must not take this one with it.
  write_file_atomic(path, content.substr(0, content.rfind('\n') + 1) + to_line(start) + "\n");
}

void take_back_start(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kFile;
  const std::string content = read_file(path);
  const std::string_view before = std::string_view(content).substr(0, content.rfind('\n'));
  write_file_atomic(path, before.substr(0, before.rfind('\n') + 1));
}

std::uint64_t prepared_bytes_in(const std::filesystem::path& cache) {
  namespace fs = std::filesystem;
  std::uint64_t bytes = 0;
  std::error_code error;  // files of other runs come and go
  for (fs::recursive_directory_iterator at(cache, error), end; !error && at != end;
       at.increment(error)) {
    // What a killed process has not finished is made again.
    if (at->path().filename().string().find(".tmp-") != std::string::npos) continue;
    std::error_code gone;
    const std::uint64_t size = at->is_regular_file(gone) ? at->file_size(gone) : 0;
    if (!gone) bytes += size;
  }
  return bytes;
}

std::int64_t starts_without_progress(const std::vector<Start>& starts, const Start& now) {
  if (now.job.empty()) return 0;
  std::set<std::int64_t> restarts;  // several steps of one job's script are one start of it
  for (auto start = starts.rbegin(); start != starts.rend(); ++start) {
    if (start->job != now.job || start->step != now.step) break;
    if (!now.step && start->prepared_bytes != now.prepared_bytes) break;
    if (start->restarts < now.restarts) restarts.insert(start->restarts);
  }
  return std::ssize(restarts);
}

void check_progress(const std::vector<Start>& starts, const Start& now, std::int64_t limit) {
  const std::int64_t before = starts_without_progress(starts, now);
  require<NoProgressError>(
      before <= limit,
      "job {} was started {} times before and came never beyond {}; "
      "resilience.max_restarts_without_progress is {}. What ended them is in the job's log; {} may "
      "need more time (slurm.time). To go on, submit it anew",
      now.job, before,
      now.step ? fmt::format("the checkpoint of step {}", *now.step)
               : "the start, nor were more data prepared",
      limit, now.step ? "a save" : "preparing the data, or a first save,");
}

}  // namespace llmtrain::train
