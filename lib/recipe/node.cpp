#include "lib/recipe/node.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "lib/recipe/yaml_text.hpp"

namespace llmtrain::recipe {

std::string Where::text() const {
  if (!source) return "default";
  switch (source->kind) {
    case Source::Kind::command_line:
      return printable(source->name, 200) + " on the command line";
    case Source::Kind::program:
      return source->name;
    case Source::Kind::file:
      break;
  }
  return line > 0 ? fmt::format("{}:{}:{}", source->name, line, column) : source->name;
}

Node* Node::find(std::string_view key) {
  for (Member& member : members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

std::string printable(std::string_view text, std::size_t limit) {
  std::string out;
  while (!text.empty()) {
    const std::size_t n = utf8_sequence(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    if (out.size() + std::max<std::size_t>(n, 1) > limit) return out + "...";
    if (n == 0 || byte < 0x20 || byte == 0x7f) {
      out += '?';
    } else {
      out += text.substr(0, n);
    }
    text.remove_prefix(std::max<std::size_t>(n, 1));
  }
  return out;
}

std::string describe(const Node& node) {
  switch (node.kind) {
    case Node::Kind::null:
      return "no value (null)";
    case Node::Kind::sequence:
      return "a list";
    case Node::Kind::mapping:
      return "a section";
    case Node::Kind::scalar:
      break;
  }
  return fmt::format("{}`{}`", node.quoted ? "the text " : "", printable(node.text));
}

}  // namespace llmtrain::recipe
