#include "lib/recipe/unknown_key.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "lib/recipe/suggest.hpp"

namespace llmtrain::recipe {

namespace {

std::string join(std::string_view section_path, std::string_view key) {
  return section_path.empty() ? std::string(key) : fmt::format("{}.{}", section_path, key);
}

std::string_view last_part(std::string_view path) {
  return path.substr(path.rfind('.') == std::string_view::npos ? 0 : path.rfind('.') + 1);
}

bool is_at_or_below(std::string_view path, std::string_view top) {
  return path == top || (path.starts_with(top) && path[top.size()] == '.');
}

}  // namespace

const std::vector<KeyInfo>& UnknownKeys::keys() {
  if (keys_.empty()) keys_ = list_keys(root_);
  return keys_;
}

UnknownKeys::Answer UnknownKeys::explain_briefly(std::string_view section_path,
                                                 std::string_view key) const {
  const std::string path = join(section_path, key);
  for (const Reserved& row : request_.reserved) {
    if (is_at_or_below(path, row.path)) return {std::string(row.reason), {}};
  }
  for (const ForeignKey& row : request_.foreign) {
    if (row.name != key || row.ours == path) continue;
    if (row.ours.empty()) return {"is a key of other tools", std::string(row.note)};
    const std::string note = row.note.empty() ? "" : fmt::format("; {}", row.note);
    return {"is a key of other tools", fmt::format("here it is `{}`{}", row.ours, note)};
  }
  return {"unknown key", {}};
}

UnknownKeys::Answer UnknownKeys::explain(std::string_view section_path, std::string_view key,
                                         const std::vector<std::string>& here) {
  const std::string path = join(section_path, key);
  Answer answer = explain_briefly(section_path, key);
  if (answer.problem != "unknown key") return answer;
  const std::string rows = other_rows(path);
  if (!rows.empty()) return {"does not belong to what was chosen", rows};
  // A slip of one letter is likelier than a key in the wrong section, and that than two slips.
  const std::string_view near = nearest(key, here);
  const bool one_slip = !near.empty() && edit_distance(key, near, 1) <= 1;
  const std::string other = one_slip ? "" : elsewhere(key, path);
  answer.hint = other.empty() ? suggestion(key, here) : fmt::format("did you mean `{}`?", other);
  return answer;
}

// "only with optimizer.name: sgd; here it is adamw", if the key belongs to a row that is not
// selected.
std::string UnknownKeys::other_rows(const std::string& path) {
  std::vector<std::string> rows;
  for (const KeyInfo& key : keys()) {
    if (key.path == path && !key.only_with.empty()) rows.push_back(key.only_with.back());
  }
  return rows.empty() ? "" : fmt::format("only with {}", fmt::join(rows, " or "));
}

// Path of a key with this name, or nearly, in another section; empty if there is none.
std::string UnknownKeys::elsewhere(std::string_view key, const std::string& path) {
  if (key.size() < 2) return {};
  const auto distance = [&](const KeyInfo& other) {
    return edit_distance(key, last_part(other.path), key.size() < 5 ? 0 : 1);
  };
  const KeyInfo* best = nullptr;
  for (const KeyInfo& other : keys()) {
    if (other.path == path || distance(other) > (key.size() < 5 ? 0u : 1u)) continue;
    if (best == nullptr || distance(other) < distance(*best)) best = &other;
  }
  return best == nullptr ? std::string() : best->path;
}

}  // namespace llmtrain::recipe
