#include "lib/data/cleaning_report.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "lib/base/require.hpp"
#include "lib/base/units.hpp"

namespace llmtrain::data {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "llmtrain-cleaning";
constexpr int kVersion = 1;
constexpr std::size_t kExamples = 3;
constexpr std::string_view kRemedy = "delete the folder and prepare the data again";

Json to_object(const DroppedDocument& d) {
  Json line{{"document", d.document}, {"file", d.file},     {"offset", d.offset},
            {"bytes", d.bytes},       {"reason", d.reason}, {"value", d.value}};
  if (!d.partner.empty()) line["partner"] = d.partner;
  return line;
}

// Names of files are bytes: those that are not UTF-8 are stored with replacement characters.
std::string dumped(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::uint64_t count_in(const nlohmann::json& object, const char* member, std::string_view name) {
  const auto& value = object.at(member);
  require<DataError>(value.is_number_unsigned(), "{}: '{}' is no count; {}", name, member, kRemedy);
  return value.get<std::uint64_t>();
}

DroppedDocument from_object(const nlohmann::json& line, std::string_view name) {
  return {.document = line.at("document"),
          .file = count_in(line, "file", name),
          .offset = count_in(line, "offset", name),
          .bytes = count_in(line, "bytes", name),
          .reason = line.at("reason"),
          .value = line.at("value").get<double>(),
          .partner = line.value("partner", "")};
}

/// Calls `read`; DataError for what the library throws.
template <class Read>
auto parsed(std::string_view name, const Read& read) {
  try {
    return read();
  } catch (const nlohmann::json::exception& e) {
    fail<DataError>("{}: not written by cleaning: {}; {}", name, e.what(), kRemedy);
  }
}

std::string example_text(const DroppedDocument& d) {
  if (d.partner.empty()) return fmt::format("{} ({:.4g})", d.document, d.value);
  const std::string sign = d.value == 1.0 ? "=" : fmt::format("~ ({:.2f})", d.value);
  return fmt::format("{} {} {}", d.document, sign, d.partner);
}

}  // namespace

std::string DroppedDocument::to_json_line() const { return dumped(to_object(*this), -1) + "\n"; }

DroppedDocument DroppedDocument::from_json_line(std::string_view line, std::string_view name) {
  return parsed(name, [&] { return from_object(nlohmann::json::parse(line), name); });
}

void CleaningReport::add(const DroppedDocument& document) {
  const auto found = std::find_if(dropped.begin(), dropped.end(), [&](const DropCount& count) {
    return count.reason == document.reason;
  });
  require(found != dropped.end(), "documents dropped for '{}'", document.reason);
  ++found->documents;
  found->bytes += document.bytes;
  if (found->examples.size() < kExamples) found->examples.push_back(document);
}

std::uint64_t CleaningReport::dropped_documents() const {
  std::uint64_t sum = 0;
  for (const DropCount& count : dropped) sum += count.documents;
  return sum;
}

std::uint64_t CleaningReport::dropped_bytes() const {
  std::uint64_t sum = 0;
  for (const DropCount& count : dropped) sum += count.bytes;
  return sum;
}

std::string CleaningReport::reasons() const {
  std::string text;
  for (const DropCount& count : dropped) {
    if (count.documents == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count.reason, count.documents);
  }
  return text;
}

std::string CleaningReport::summary() const {
  std::string text = fmt::format("cleaning: {} of {} training documents stay, {} of {}\n",
                                 documents - dropped_documents(), documents,
                                 format_bytes(bytes - dropped_bytes()), format_bytes(bytes));
  std::size_t width = 0;
  for (const DropCount& count : dropped) width = std::max(width, count.reason.size());
  for (const DropCount& count : dropped) {
    text += fmt::format("  {:<{}} {:>9} documents {:>11}{}\n", count.reason, width, count.documents,
                        format_bytes(count.bytes),
                        count.examples.empty() ? "" : "   " + example_text(count.examples[0]));
  }
  if (held_out_exact_duplicates + held_out_near_duplicates > 0) {
    text += fmt::format(
        "  held-out documents that duplicate each other stay: {} exact and {} near of {}\n",
        held_out_exact_duplicates, held_out_near_duplicates, held_out_documents);
  }
  return text;
}

std::string CleaningReport::to_json(std::string_view key, const Hash128& list_hash) const {
  Json root{{"format", kFormat},
            {"version", kVersion},
            {"key", key},
            {"documents", documents},
            {"bytes", bytes},
            {"dropped_documents", dropped_documents()},
            {"dropped_bytes", dropped_bytes()},
            {"held_out",
             {{"documents", held_out_documents},
              {"exact_duplicates", held_out_exact_duplicates},
              {"near_duplicates", held_out_near_duplicates}}}};
  auto& list = root["dropped"] = Json::array();
  for (const DropCount& count : dropped) {
    Json examples = Json::array();
    for (const DroppedDocument& example : count.examples) examples.push_back(to_object(example));
    list.push_back({{"reason", count.reason},
                    {"documents", count.documents},
                    {"bytes", count.bytes},
                    {"examples", std::move(examples)}});
  }
  root["list_xxh3_128"] = to_hex(list_hash);
  return dumped(root, 1) + "\n";
}

CleaningReport::Parsed CleaningReport::from_json(std::string_view text, std::string_view name) {
  return parsed(name, [&] {
    const nlohmann::json root = nlohmann::json::parse(text);
    require<DataError>(root.at("format") == kFormat && root.at("version") == kVersion,
                       "{}: not of format '{}' version {}; {}", name, kFormat, kVersion, kRemedy);
    const nlohmann::json& held_out = root.at("held_out");
    Parsed result{
        .report = {.documents = count_in(root, "documents", name),
                   .bytes = count_in(root, "bytes", name),
                   .held_out_documents = count_in(held_out, "documents", name),
                   .held_out_exact_duplicates = count_in(held_out, "exact_duplicates", name),
                   .held_out_near_duplicates = count_in(held_out, "near_duplicates", name)},
        .key = root.at("key"),
        .list_hash = root.at("list_xxh3_128")};
    for (const nlohmann::json& item : root.at("dropped")) {
      DropCount count{.reason = item.at("reason"),
                      .documents = count_in(item, "documents", name),
                      .bytes = count_in(item, "bytes", name)};
      for (const nlohmann::json& example : item.at("examples")) {
        count.examples.push_back(from_object(example, name));
      }
      result.report.dropped.push_back(std::move(count));
    }
    return result;
  });
}

}  // namespace llmtrain::data
