#pragma once
/// The small tree that a recipe's YAML becomes, with the position of every key and value.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain::recipe {

/// Where text came from: a file, one `a.b=value` argument, or the program itself.
struct Source {
  enum class Kind { file, command_line, program };
  Kind kind = Kind::file;
  std::string name;  ///< file name as the user wrote it, the whole argument, or who set the value
  int order = 0;     ///< issues are sorted by it
};

/// A position; lines and columns count from 1 (columns in bytes), 0 means "the source as a whole".
/// Without a source it stands for a declared default.
struct Where {
  std::shared_ptr<const Source> source;
  int line = 0;
  int column = 0;

  explicit operator bool() const { return source != nullptr; }
  /// "recipe.yaml:3:5", "optimizer.lr=1 on the command line", "default".
  std::string text() const;
};

struct Member;

/// One YAML value. Scalars keep their text untouched: its meaning depends on the declared key.
struct Node {
  enum class Kind { null, scalar, sequence, mapping };
  Kind kind = Kind::null;
  bool quoted = false;   ///< scalar in quotes or a block scalar: never a number, bool or null
  bool emptied = false;  ///< null that took the place of a mapping of an included file
  std::string text;
  Where where;  ///< of a scalar its own, otherwise that of the key or list entry that holds it
  std::vector<Node> items;
  std::vector<Member> members;

  /// The member called `key`, or null.
  Node* find(std::string_view key);
};

struct Member {
  std::string key;
  Where where;
  Node value;
};

/// "the number 3", "the text `abc`", "a list", ... for messages; long texts are shortened.
std::string describe(const Node& node);
/// Text fit for one line of a message: control characters and bytes that are not UTF-8 replaced, at
/// most `limit` bytes kept.
std::string printable(std::string_view text, std::size_t limit = 60);

}  // namespace llmtrain::recipe
