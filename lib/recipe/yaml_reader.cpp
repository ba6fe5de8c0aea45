#include "lib/recipe/yaml_reader.hpp"

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include "lib/recipe/yaml_text.hpp"

namespace llmtrain::recipe {

namespace {

// Ends the reading of one text.
struct Stop {
  YAML::Mark mark;
  std::string problem;
  std::string hint;
};

// Builds the tree from the parser's events. Depth is checked at each opening event, which comes
// before the parser recurses into the collection.
class Builder : public YAML::EventHandler {
 public:
  Builder(std::string_view text, std::shared_ptr<const Source> source, Issues& issues)
      : text_(text), source_(std::move(source)), issues_(issues) {}

  Node take_root() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (documents_++ > 0) {
      throw Stop{mark, "something follows the end of the document",
                 "a recipe is one mapping of `key: value` lines in one document"};
    }
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_extras(mark, "", anchor);
    if (expects_key()) throw Stop{mark, "a key is missing before `:`", {}};
    place(mark, Node{});
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw Stop{mark, "aliases (*name) are not used in recipes",
               "write the value out, or include a file"};
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_extras(mark, tag, anchor);
    const std::size_t end = end_of_scalar(mark, tag == "!", value);
    if (value.find('\0') != std::string::npos) throw Stop{mark, "text holds a NUL character", {}};
    // The parser makes one byte of the escapes \N and \_, which is no UTF-8.
    if (!is_utf8(value)) {
      throw Stop{mark, "the escapes \\N and \\_ are not used in recipes",
                 "write \\u0085 or \\u00a0"};
    }
    if (expects_key()) {
      check_colon(mark, end, value);
      open_.back().key = value;
      open_.back().key_where = where(mark);
      open_.back().has_key = true;
      return;
    }
    Node node;
    node.kind = Node::Kind::scalar;
    node.text = value;
    node.quoted = tag == "!";
    place(mark, std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Node::Kind::sequence);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Node::Kind::mapping);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    YAML::Mark mark;
    Node node;
    bool has_key = false;
    std::string key;
    Where key_where;
    std::unordered_map<std::string, Where> seen;
  };

  Where where(const YAML::Mark& mark) const { return {source_, mark.line + 1, mark.column + 1}; }

  bool expects_key() const {
    return !open_.empty() && open_.back().node.kind == Node::Kind::mapping && !open_.back().has_key;
  }

  char byte_at(const YAML::Mark& mark) const {
    const auto offset = static_cast<std::size_t>(mark.pos);
    return offset < text_.size() ? text_[offset] : '\0';
  }

  void refuse_extras(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) const {
    if (anchor != 0) {
      throw Stop{mark, "anchors (&name) are not used in recipes",
                 "write the value out, or include a file"};
    }
    // The parser gives plain values the tag "?" and quoted ones "!", as it does for a bare `!`.
    if ((!tag.empty() && tag != "?" && tag != "!") || byte_at(mark) == '!') {
      throw Stop{mark, "tags (!name) are not used in recipes", "remove the tag"};
    }
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            Node::Kind kind) {
    refuse_extras(mark, tag, anchor);
    if (expects_key()) throw Stop{mark, "a key must be text", "is every `[` and `{` closed?"};
    if (open_.size() >= kMaxDepth) {
      throw Stop{mark, fmt::format("nested deeper than {} levels", kMaxDepth), {}};
    }
    open_.emplace_back();
    open_.back().mark = mark;
    open_.back().node.kind = kind;
  }

  void close() {
    const YAML::Mark mark = open_.back().mark;
    Node node = std::move(open_.back().node);
    open_.pop_back();
    place(mark, std::move(node));
  }

  // Puts a finished value where it belongs.
  void place(const YAML::Mark& mark, Node node) {
    node.where = where(mark);
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.node.kind == Node::Kind::sequence) {
      parent.node.items.push_back(std::move(node));
      return;
    }
    parent.has_key = false;
    // A collection's mark is that of its first child, an empty value's that of the next token.
    if (node.kind != Node::Kind::scalar) node.where = parent.key_where;
    if (!accept_key(parent)) return;
    parent.node.members.push_back(
        {std::move(parent.key), std::move(parent.key_where), std::move(node)});
  }

  bool accept_key(Open& map) {
    if (map.key == "<<") {
      issues_.add(map.key_where, path_of(map.key), "merge keys are not used in recipes",
                  "write the values out, or include a file");
      return false;
    }
    const auto [first, is_new] = map.seen.emplace(map.key, map.key_where);
    if (is_new) return true;
    issues_.add(map.key_where, path_of(map.key),
                fmt::format("duplicate key, first given at {}", first->second.text()),
                "keep one of them");
    return false;
  }

  // Offset behind a quoted scalar or a plain one of one line. The parser ends an open quote at the
  // next line with less indentation, or at the end of the file, and says nothing; all that stood
  // between is lost. Hence quotes have to close on their line.
  std::size_t end_of_scalar(const YAML::Mark& mark, bool quoted, const std::string& value) const {
    const auto start = static_cast<std::size_t>(mark.pos);
    if (!quoted) return start + value.size();
    const char quote = byte_at(mark);
    if (quote != '"' && quote != '\'') return text_.size();  // a block scalar
    for (std::size_t i = start + 1; i < text_.size() && text_[i] != '\n'; ++i) {
      if (quote == '"' && text_[i] == '\\') {
        ++i;
      } else if (text_[i] == quote) {
        const bool doubled = quote == '\'' && i + 1 < text_.size() && text_[i + 1] == quote;
        if (!doubled) return i + 1;
        ++i;
      }
    }
    throw Stop{mark, fmt::format("the quote {} is not closed on its line", quote),
               "close it; text of several lines goes into a block scalar `|`"};
  }

  // The parser takes a last line without `:` as a key without a value, and keys of several lines.
  void check_colon(const YAML::Mark& mark, std::size_t end, const std::string& key) const {
    const std::size_t next = text_.find_first_not_of(" \t", std::min(end, text_.size()));
    if (next != std::string_view::npos && text_[next] == ':') return;
    throw Stop{mark, fmt::format("there is no `:` behind the key `{}`", printable(key)), {}};
  }

  std::string path_of(const std::string& key) const {
    std::string path;
    for (std::size_t i = 0; i + 1 < open_.size(); ++i) {
      const Open& open = open_[i];
      path +=
          open.node.kind == Node::Kind::mapping ? open.key : std::to_string(open.node.items.size());
      path += '.';
    }
    return path + key;
  }

  std::string_view text_;
  std::shared_ptr<const Source> source_;
  Issues& issues_;
  std::vector<Open> open_;
  Node root_;
  int documents_ = 0;
};

// The parser's messages are kept short; these are the ones that beginners meet.
Stop explain(const YAML::Exception& error) {
  const std::string_view message = error.msg;
  Stop stop{error.mark, "is not valid YAML: " + printable(error.msg), {}};
  if (message == YAML::ErrorMsg::MAP_VALUE) {
    stop.hint = "is the indentation right? text with `: ` in it needs quotes";
  } else if (message == YAML::ErrorMsg::END_OF_SEQ_FLOW) {
    stop.hint = "a list that starts with `[` is not closed by `]`";
  } else if (message == YAML::ErrorMsg::END_OF_MAP_FLOW) {
    stop.hint = "a mapping that starts with `{` is not closed by `}`";
  } else if (message == YAML::ErrorMsg::UNKNOWN_TOKEN) {
    stop.hint = "text that starts with a special character needs quotes";
  }
  return stop;
}

}  // namespace

bool read_yaml(std::string_view text, const std::shared_ptr<const Source>& source, Node& out,
               Issues& issues) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // byte order mark
  if (const auto found = check_text(text)) {
    issues.add({source, found->line, found->column}, {}, found->problem, found->hint);
    return false;
  }
  const auto report = [&](const Stop& stop) {
    issues.add({source, stop.mark.line + 1, stop.mark.column + 1}, {}, stop.problem, stop.hint);
  };
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    Builder builder(text, source, issues);
    while (parser.HandleNextDocument(builder)) {
    }
    out = builder.take_root();
    return true;
  } catch (const Stop& stop) {
    report(stop);
  } catch (const YAML::Exception& error) {
    report(explain(error));
  }
  return false;
}

}  // namespace llmtrain::recipe
