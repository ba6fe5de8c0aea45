#include "lib/train/starts.hpp"

#include <set>

#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::train {

namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kFile = "starts.jsonl";

Start parse_start(std::string_view line, const std::filesystem::path& path) {
  const Json json = Json::parse(line, nullptr, false);
  try {
    Start start;
    start.time = json.at("time").get<double>();
    start.host = json.at("host").get<std::string>();
    start.pid = json.at("pid").get<std::int64_t>();
    start.ranks = json.at("ranks").get<std::int64_t>();
    start.job = json.at("job").get<std::string>();
    start.restarts = json.at("restarts").get<std::int64_t>();
    if (!json.at("step").is_null()) start.step = json.at("step").get<std::int64_t>();
    start.lost_steps = json.at("lost_steps").get<std::int64_t>();
    return start;
  } catch (const Json::exception&) {
    fail<DataError>("{}: a line is no start of a run: {}; move the file away", path.string(), line);
  }
}

}  // namespace

std::vector<Start> read_starts(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kFile;
  std::vector<Start> starts;
  if (!std::filesystem::exists(path)) return starts;
  const std::string content = read_file(path);
  std::size_t begin = 0;
  for (std::size_t end; (end = content.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string_view line(content.data() + begin, end - begin);
    if (!line.empty()) starts.push_back(parse_start(line, path));
  }
  return starts;
}

void append_start(const std::filesystem::path& directory, const Start& start) {
  Json json;
  json["time"] = start.time;
  json["host"] = start.host;
  json["pid"] = start.pid;
  json["ranks"] = start.ranks;
  json["job"] = start.job;
  json["restarts"] = start.restarts;
  json["step"] = start.step ? Json(*start.step) : Json(nullptr);
  json["lost_steps"] = start.lost_steps;
  const std::filesystem::path path = directory / kFile;
  const std::string content = std::filesystem::exists(path) ? read_file(path) : "";
  // A line that a killed process has not finished must not take this one with it.
  const std::string whole = content.substr(0, content.rfind('\n') + 1);
  write_file_atomic(path, whole + json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::int64_t starts_without_progress(const std::vector<Start>& starts, const Job& job,
                                     std::optional<std::int64_t> step) {
  if (job.id.empty()) return 0;
  std::set<std::int64_t> restarts;  // several steps of one job's script are one start of it
  for (auto start = starts.rbegin(); start != starts.rend(); ++start) {
    if (start->job != job.id || start->step != step) break;
    if (start->restarts < job.restarts) restarts.insert(start->restarts);
  }
  return std::ssize(restarts);
}

void check_progress(const std::filesystem::path& directory, const Job& job,
                    std::optional<std::int64_t> step, std::int64_t limit) {
  const std::int64_t before = starts_without_progress(read_starts(directory), job, step);
  require<NoProgressError>(
      before <= limit,
      "job {} was started {} times before and came never beyond {}; "
      "resilience.max_restarts_without_progress is {}. What ended them is in the job's log; a "
      "first save may need more time (checkpoint.interval, slurm.time). To go on, submit it anew",
      job.id, before, step ? fmt::format("the checkpoint of step {}", *step) : "the start", limit);
}

}  // namespace llmtrain::train
