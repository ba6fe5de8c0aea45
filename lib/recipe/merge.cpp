#include "lib/recipe/merge.hpp"

#include <charconv>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>

#include "lib/recipe/keys.hpp"
#include "lib/recipe/suggest.hpp"
#include "lib/recipe/yaml_reader.hpp"
#include "lib/recipe/yaml_text.hpp"

namespace llmtrain::recipe {

namespace {

std::vector<std::string> split(std::string_view path) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t dot = path.find('.');
    parts.emplace_back(path.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    path.remove_prefix(dot + 1);
  }
}

std::optional<std::size_t> index_below(std::string_view part, std::size_t end) {
  std::size_t index = 0;
  const auto [stop, error] = std::from_chars(part.data(), part.data() + part.size(), index);
  const bool good = error == std::errc{} && stop == part.data() + part.size() && index < end;
  return good ? std::optional(index) : std::nullopt;
}

// One override being applied.
class Override {
 public:
  Override(const std::string& argument, int order, Issues& issues)
      : source_(std::make_shared<Source>(Source{Source::Kind::command_line, argument, order})),
        issues_(issues) {}

  void set(Node& root, std::string_view path, std::string_view value_text) {
    path_ = path;
    if (path == "include" || path == "recipe" || path.starts_with("include.")) {
      return report("cannot be set on the command line");
    }
    Node value;
    if (!read_yaml(value_text, source_, value, issues_)) return;
    if (value.kind == Node::Kind::null) value.where = where();
    const std::vector<std::string> parts = split(path);
    if (parts.size() > kMaxDepth) return report("a key path this deep exists nowhere");
    Node* node = &root;
    for (const std::string& part : parts) {
      node = step(*node, part);
      if (node == nullptr) return;
    }
    merge(*node, std::move(value));
  }

  void unset(Node& root, std::string_view path, const Section& schema) {
    path_ = path;
    std::vector<std::string> parts = split(path);
    const std::string last = parts.back();
    parts.pop_back();
    Node* node = &root;
    for (const std::string& part : parts) {
      node = find(*node, part);
      if (node == nullptr) break;
    }
    if (node != nullptr && erase(*node, last)) return;
    if (!find_keys(schema, path).empty()) return;
    std::vector<std::string> paths;
    for (const KeyInfo& key : list_keys(schema)) paths.push_back(key.path);
    const std::string_view near = nearest(path, paths);
    report("unknown key", near.empty() ? "" : fmt::format("did you mean `{}`?", near));
  }

  void report(std::string problem, std::string hint = {}) {
    issues_.add(where(), path_, std::move(problem), std::move(hint));
  }

 private:
  Where where() const { return {source_, 0, 0}; }

  static Node* find(Node& node, const std::string& part) {
    if (node.kind == Node::Kind::mapping) return node.find(part);
    const auto index = index_below(part, node.items.size());
    return index ? &node.items[*index] : nullptr;
  }

  static bool erase(Node& node, const std::string& part) {
    if (node.kind == Node::Kind::mapping) {
      return std::erase_if(node.members, [&](const Member& m) { return m.key == part; }) > 0;
    }
    const auto index = index_below(part, node.items.size());
    if (index) node.items.erase(node.items.begin() + static_cast<std::ptrdiff_t>(*index));
    return index.has_value();
  }

  // The value below `node` called `part`, made if it is not there; null and an issue if it cannot
  // be.
  Node* step(Node& node, const std::string& part) {
    if (part.empty()) {
      report("a key path has a part without a name", "write a.b=value");
      return nullptr;
    }
    if (node.kind == Node::Kind::null) {
      // No key is a number, so that a number can only mean an element.
      const bool index = part.find_first_not_of("0123456789") == std::string::npos;
      node.kind = index ? Node::Kind::sequence : Node::Kind::mapping;
      node.where = where();
    }
    if (node.kind == Node::Kind::mapping) {
      if (Node* found = node.find(part)) return found;
      node.members.push_back({part, where(), Node{}});
      return &node.members.back().value;
    }
    if (node.kind == Node::Kind::scalar) {
      report(fmt::format("cannot set `{}` below {}", printable(part), describe(node)));
      return nullptr;
    }
    const auto index = index_below(part, node.items.size() + 1);
    if (!index) {
      report(fmt::format("the list has {} elements, `{}` is none of them nor the next",
                         node.items.size(), printable(part)));
      return nullptr;
    }
    if (*index == node.items.size()) node.items.emplace_back().where = where();
    return &node.items[*index];
  }

  std::shared_ptr<const Source> source_;
  Issues& issues_;
  std::string path_;
};

}  // namespace

void merge(Node& base, Node top) {
  if (base.kind != Node::Kind::mapping || top.kind != Node::Kind::mapping) {
    top.emptied = base.kind == Node::Kind::mapping && top.kind == Node::Kind::null;
    base = std::move(top);
    return;
  }
  std::unordered_map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < base.members.size(); ++i) index.emplace(base.members[i].key, i);
  base.where = top.where;
  for (Member& member : top.members) {
    const auto found = index.find(member.key);
    if (found == index.end()) {
      base.members.push_back(std::move(member));
      continue;
    }
    Member& old = base.members[found->second];
    old.where = member.where;
    merge(old.value, std::move(member.value));
  }
}

void apply_override(Node& root, const std::string& argument, int order, const Section& schema,
                    Issues& issues) {
  Override override(argument, order, issues);
  if (const auto found = check_text(argument)) {
    return override.report("the argument " + found->problem, found->hint);
  }
  if (argument.starts_with('~')) {
    return override.unset(root, std::string_view(argument).substr(1), schema);
  }
  const std::size_t equals = argument.find('=');
  if (equals == std::string::npos || equals == 0) {
    return override.report("is no override", "write key.path=value or ~key.path");
  }
  override.set(root, std::string_view(argument).substr(0, equals),
               std::string_view(argument).substr(equals + 1));
}

}  // namespace llmtrain::recipe
