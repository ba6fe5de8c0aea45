#include "lib/recipe/dump.hpp"

#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace llmtrain::recipe {

namespace {

class Dumper {
 public:
  explicit Dumper(bool minimal) : minimal_(minimal) {}

  std::string text;

  // Writes the section's keys at `indent`; false if there was nothing to write.
  bool section(const Section& section, std::size_t indent) {
    bool any = false;
    for (const Entry* entry : section.entries()) any = write(*entry, indent) || any;
    return any;
  }

 private:
  void line(std::size_t indent, std::string_view name, std::string_view value, const Entry& entry) {
    text +=
        fmt::format("{:{}}{}: {}  # {}\n", "", indent, name, value, printable(entry.where(), 400));
  }

  bool write(const Entry& entry, std::size_t indent) {
    switch (entry.kind()) {
      case Entry::Kind::value: {
        const auto& key = static_cast<const ValueEntry&>(entry);
        const std::string value = key.value_text();
        if (minimal_ && value == key.default_text()) return false;
        line(indent, entry.name(), value, entry);
        return true;
      }
      case Entry::Kind::choice:
        return choice(static_cast<const ChoiceEntry&>(entry), indent);
      case Entry::Kind::section:
        return sub(static_cast<const SectionEntry&>(entry), indent);
      case Entry::Kind::list:
        return list(static_cast<const ListEntry&>(entry), indent);
    }
    return false;
  }

  bool choice(const ChoiceEntry& entry, std::size_t indent) {
    const std::string_view name = entry.options()[entry.selected()].name;
    const bool shown = !minimal_ || name != entry.fallback();
    if (shown) line(indent, entry.name(), write_leaf(std::string(name)), entry);
    const bool keys = entry.section() != nullptr && section(*entry.section(), indent);
    return shown || keys;
  }

  // The name line, then the keys; `{}` where no key follows.
  bool sub(const SectionEntry& entry, std::size_t indent) {
    if (!entry.present()) {
      if (!minimal_) line(indent, entry.name(), "null", entry);
      return !minimal_;
    }
    const std::size_t before = text.size();
    text += fmt::format("{:{}}{}:\n", "", indent, entry.name());
    if (section(entry.section(), indent + 2)) return true;
    text.resize(before);
    if (minimal_ && !entry.optional()) return false;
    line(indent, entry.name(), "{}", entry);
    return true;
  }

  bool list(const ListEntry& entry, std::size_t indent) {
    if (entry.size() == 0) {
      if (!minimal_) line(indent, entry.name(), "[]", entry);
      return !minimal_;
    }
    text +=
        fmt::format("{:{}}{}:  # {}\n", "", indent, entry.name(), printable(entry.where(), 400));
    for (std::size_t i = 0; i < entry.size(); ++i) {
      const std::size_t start = text.size();
      if (section(entry.at(i), indent + 4)) {
        text[start + indent + 2] = '-';
      } else {
        text += fmt::format("{:{}}- {{}}\n", "", indent + 2);
      }
    }
    return true;
  }

  bool minimal_;
};

}  // namespace

std::string dump(const Section& root, DumpKeys keys) {
  Dumper dumper(keys == DumpKeys::minimal);
  dumper.text = "recipe: 1\n";
  dumper.section(root, 0);
  return dumper.text;
}

}  // namespace llmtrain::recipe
