#include "lib/train/metrics.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "lib/base/mapped_file.hpp"
#include "lib/base/require.hpp"
#include "lib/base/utf8.hpp"
#include "lib/train/torn_lines.hpp"

namespace llmtrain::train {

namespace {

using Json = nlohmann::ordered_json;

std::string json_string(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string number_text(double value) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
  char buffer[32];
  std::string text(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

struct ValueText {
  std::string operator()(double value) const { return number_text(value); }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(const std::string& value) const { return json_string(value); }
};

bool is_volatile(std::string_view key) {
  return std::any_of(kVolatileGroups.begin(), kVolatileGroups.end(),
                     [key](std::string_view group) { return key.starts_with(group); });
}

template <class Keep>
std::string line_of(const StepRecord& record, Keep keep) {
  std::string line = "{\"step\":" + std::to_string(record.step);
  for (const auto& [key, value] : record.fields) {
    if (!keep(key)) continue;
    line += ',';
    line += json_string(key);
    line += ':';
    line += std::visit(ValueText{}, value);
  }
  return line + '}';
}

StepRecord parse_line(std::string_view line, std::string_view name, std::size_t line_number,
                      std::set<std::string>* unknown) {
  const Json json = Json::parse(line, nullptr, false);
  require<DataError>(json.is_object(), "{}:{}: not a JSON object; a metrics file has one per line",
                     name, line_number);
  StepRecord record;
  const auto step = json.find("step");
  require<DataError>(step != json.end() && step->is_number_integer(),
                     "{}:{}: no integer \"step\" in this record", name, line_number);
  record.step = step->get<std::int64_t>();
  require<DataError>(record.step >= 0, "{}:{}: negative step {}", name, line_number, record.step);
  record.fields.reserve(json.size() - 1);
  for (const auto& [key, value] : json.items()) {
    if (key == "step") continue;
    if (value.is_number_integer()) {
      record.fields.emplace_back(key, value.get<std::int64_t>());
    } else if (value.is_number_float()) {
      record.fields.emplace_back(key, value.get<double>());
    } else if (value.is_string()) {
      record.fields.emplace_back(key, value.get<std::string>());
    } else {
      require<DataError>(unknown != nullptr, "{}:{}: \"{}\" is neither a number nor a string", name,
                         line_number, escape_controls(key));
      unknown->insert(key);
    }
  }
  return record;
}

std::optional<StepRecord> try_parse_line(std::string_view line) {
  try {
    std::set<std::string> unknown;
    return parse_line(line, "", 0, &unknown);
  } catch (const DataError&) {
    return std::nullopt;
  }
}

/// The end of the last line of `content` that is a record before `step`; 0 without one. Steps only
/// grow, and millions of records lie before those that a run makes again.
std::size_t end_of_records_before(std::string_view content, std::int64_t step) {
  for (std::size_t end = content.rfind('\n') + 1; end > 0;) {  // npos + 1 is 0
    const std::size_t before = end > 1 ? content.rfind('\n', end - 2) : std::string_view::npos;
    const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
    const std::optional<StepRecord> record = try_parse_line(content.substr(begin, end - 1 - begin));
    if (record && record->step < step) return end;
    end = begin;
  }
  return 0;
}

std::string problem_of(std::string_view line, std::string_view name, std::size_t number) {
  try {
    check_metrics_line(line, name, number);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

/// Leaves the records before `step` in the file, byte for byte. What a loss of power left of lines
/// that no save had on the disk yet is no record: it and all behind it go into a file beside.
void truncate_from(const std::filesystem::path& path, std::int64_t step) {
  const MappedFile file = MappedFile::open(path);
  const std::string_view content(reinterpret_cast<const char*>(file.bytes().data()),
                                 file.bytes().size());
  const std::size_t kept = end_of_records_before(content, step);
  for (std::size_t begin = kept, end; (end = content.find('\n', begin)) != std::string_view::npos;
       begin = end + 1) {
    const std::string_view line = content.substr(begin, end - begin);
    if (try_parse_line(line)) continue;
    const auto before = std::count(content.begin(), line.begin(), '\n');
    const auto number = static_cast<std::size_t>(before) + 1;
    put_torn_part_beside(path, content.substr(begin), problem_of(line, path.string(), number));
    break;
  }
  if (kept != content.size()) write_file_atomic(path, content.substr(0, kept));
}

File open_metrics(const std::filesystem::path& path, std::optional<std::int64_t> resumed_step) {
  if (!resumed_step) {
    write_file_atomic(path, "");
  } else if (std::filesystem::exists(path)) {
    truncate_from(path, *resumed_step);
  }
  return File::open_append(path);
}

}  // namespace

void StepRecord::set(std::string_view key, MetricValue value) {
  const auto field =
      std::find_if(fields.begin(), fields.end(), [key](const auto& f) { return f.first == key; });
  if (field != fields.end()) {
    field->second = std::move(value);
  } else {
    fields.emplace_back(key, std::move(value));
  }
}

const MetricValue* StepRecord::find(std::string_view key) const {
  const auto field =
      std::find_if(fields.begin(), fields.end(), [key](const auto& f) { return f.first == key; });
  return field == fields.end() ? nullptr : &field->second;
}

std::optional<double> StepRecord::number(std::string_view key) const {
  const MetricValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const double* number = std::get_if<double>(value)) return *number;
  if (const std::int64_t* integer = std::get_if<std::int64_t>(value)) {
    return static_cast<double>(*integer);
  }
  const std::string& text = std::get<std::string>(*value);
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

std::string to_line(const StepRecord& record) {
  return line_of(record, [](std::string_view) { return true; });
}

std::string reproducible_line(const StepRecord& record) {
  return line_of(record, [](std::string_view key) { return !is_volatile(key); });
}

std::int64_t last_recorded_step(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return 0;
  const MappedFile file = MappedFile::open(path);
  const std::string_view content(reinterpret_cast<const char*>(file.bytes().data()),
                                 file.bytes().size());
  const std::size_t end = end_of_records_before(content, std::numeric_limits<std::int64_t>::max());
  if (end == 0) return 0;
  const std::size_t before = end > 1 ? content.rfind('\n', end - 2) : std::string_view::npos;
  const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
  return try_parse_line(content.substr(begin, end - 1 - begin))->step;
}

MetricsWriter::MetricsWriter(const std::filesystem::path& path,
                             std::optional<std::int64_t> resumed_step)
    : file_(open_metrics(path, resumed_step)) {}

void MetricsWriter::write(const StepRecord& record) { file_.write(to_line(record) + '\n'); }

void check_metrics_line(std::string_view line, std::string_view name, std::size_t number) {
  std::set<std::string> unknown;
  parse_line(line, name, number, &unknown);
}

std::vector<StepRecord> parse_metrics(std::string_view content, std::string_view name,
                                      std::set<std::string>* unknown) {
  std::vector<StepRecord> records;
  std::size_t begin = 0;
  for (std::size_t end; (end = content.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string_view line = content.substr(begin, end - begin);
    records.push_back(parse_line(line, name, records.size() + 1, unknown));
  }
  return records;
}

std::vector<StepRecord> read_metrics(const std::filesystem::path& path,
                                     std::set<std::string>* unknown) {
  return parse_metrics(read_file(path), path.string(), unknown);
}

}  // namespace llmtrain::train
