#include "lib/recipe/load.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "lib/recipe/fill.hpp"
#include "lib/recipe/merge.hpp"
#include "lib/recipe/yaml_reader.hpp"

namespace llmtrain::recipe {

namespace {

constexpr std::size_t kMaxIncludeDepth = 8;
constexpr int kMaxFiles = 64;

// Where the text of one recipe is.
struct Place {
  std::string name;              // for messages
  std::string identity;          // the same for two spellings of one file
  std::filesystem::path folder;  // includes are relative to it; empty for built-in recipes
  bool builtin = false;
};

// Reads a recipe file and what it includes.
class FileReader {
 public:
  FileReader(const LoadRequest& request, Issues& issues) : request_(request), issues_(issues) {}

  bool read_main(Node& out) {
    if (!request_.text) return read(place_of(request_.file, {}), {}, out);
    const Place place{request_.file.string(), request_.file.string(), request_.file.parent_path(),
                      false};
    return read_text(place, *request_.text, out);
  }

  int files() const { return files_; }

 private:
  // The file, or the built-in recipe if there is no such file. `from` is the file that includes it.
  Place place_of(const std::filesystem::path& path, const Place& from) const {
    std::error_code ignored;
    const std::filesystem::path full = from.folder / path;
    const std::string name = path.string();
    const bool is_file = !from.builtin && std::filesystem::exists(full, ignored);
    if (!is_file && request_.builtin && request_.builtin(name)) {
      return {name, "built-in " + name, {}, true};
    }
    return {full.string(), std::filesystem::weakly_canonical(full, ignored).string(),
            full.parent_path(), false};
  }

  // `asked` is the position of the include, or nothing for the main file.
  bool read(const Place& place, const Where& asked, Node& out) {
    const auto report = [&](std::string problem, std::string hint = {}) {
      const Where where = asked ? asked : Where{source_of(place), 0, 0};
      issues_.add(where, asked ? "include" : "", std::move(problem), std::move(hint));
      return false;
    };
    if (std::find(open_.begin(), open_.end(), place.identity) != open_.end()) {
      return report(fmt::format("{} includes itself", place.name));
    }
    if (open_.size() >= kMaxIncludeDepth || files_ >= kMaxFiles) {
      return report(fmt::format("includes are nested deeper than {} or more than {}",
                                kMaxIncludeDepth, kMaxFiles));
    }
    std::string text;
    try {
      text = place.builtin ? *request_.builtin(place.name) : read_file(place.name, kMaxFileBytes);
    } catch (const Error& error) {
      std::string problem = error.what();
      // A file that nobody asked for in another one is the place of its own problem.
      if (!asked && problem.starts_with(place.name + ": ")) problem.erase(0, place.name.size() + 2);
      return report(std::move(problem), fmt::format("a {} is a file of at most 1 MiB or {}",
                                                    request_.kind.noun, request_.kind.names));
    }
    return read_text(place, text, out);
  }

  std::shared_ptr<const Source> source_of(const Place& place) {
    return std::make_shared<Source>(Source{Source::Kind::file, place.name, files_});
  }

  bool read_text(const Place& place, std::string_view text, Node& out) {
    const auto source = source_of(place);
    ++files_;
    Node file;
    if (!read_yaml(text, source, file, issues_)) return false;
    const Where start{source, 1, 1};
    if (file.kind == Node::Kind::null) {
      issues_.add({source, 0, 0}, {}, "the file holds no keys",
                  fmt::format("start with `{}: 1`", request_.kind.version_key));
      return false;
    }
    if (file.kind != Node::Kind::mapping) {
      issues_.add(start, {}, fmt::format("expected `key: value` lines, found {}", describe(file)));
      return false;
    }
    file.where = start;
    check_version(file);
    open_.push_back(place.identity);
    const bool good = read_includes(place, file, out);
    open_.pop_back();
    const std::string_view key = request_.kind.version_key;
    std::erase_if(file.members,
                  [&](const Member& m) { return m.key == key || m.key == "include"; });
    merge(out, std::move(file));
    return good;
  }

  void check_version(Node& file) {
    const std::string key(request_.kind.version_key);
    const Node* version = file.find(key);
    if (version == nullptr) return;
    if (version->kind == Node::Kind::scalar && !version->quoted && version->text == "1") return;
    issues_.add(version->where, key,
                fmt::format("this program reads {}s of version 1, found {}", request_.kind.noun,
                            describe(*version)),
                fmt::format("write {}: 1", key));
  }

  bool read_includes(const Place& place, Node& file, Node& out) {
    const Node* includes = file.find("include");
    if (includes == nullptr) return true;
    const auto refuse = [&](const Node& node, std::string_view what) {
      issues_.add(node.where, "include", fmt::format("expected {}, found {}", what, describe(node)),
                  "write include: [base.yaml]");
      return false;
    };
    if (includes->kind != Node::Kind::sequence)
      return refuse(*includes, fmt::format("a list of {}s", request_.kind.noun));
    bool good = true;
    for (const Node& item : includes->items) {
      if (item.kind != Node::Kind::scalar || item.text.empty()) {
        good = refuse(item, fmt::format("a path or the name of a built-in {}", request_.kind.noun));
        continue;
      }
      Node included;
      good = read(place_of(item.text, place), item.where, included) && good;
      if (included.kind == Node::Kind::mapping) merge(out, std::move(included));
    }
    return good;
  }

  const LoadRequest& request_;
  Issues& issues_;
  std::vector<std::string> open_;
  int files_ = 0;
};

}  // namespace

std::vector<Issue> check(Section& root, const LoadRequest& request) {
  Issues issues;
  Node tree;
  FileReader reader(request, issues);
  const bool complete = reader.read_main(tree);
  if (tree.kind != Node::Kind::mapping) return issues.sorted();
  int order = reader.files();
  for (const std::string& argument : request.overrides) {
    apply_override(tree, argument, order++, root, issues);
  }
  fill(root, tree, complete, request, issues);
  return issues.sorted();
}

void check_rules(Section& root) {
  Issues issues;
  judge_rules(root, issues);
  if (!issues.empty()) throw InvalidRecipe(issues.sorted());
}

void load(Section& root, const LoadRequest& request) {
  std::vector<Issue> issues = check(root, request);
  if (!issues.empty()) throw InvalidRecipe(std::move(issues));
}

}  // namespace llmtrain::recipe
