#include "lib/recipe/fill.hpp"

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lib/recipe/unknown_key.hpp"

namespace llmtrain::recipe {

namespace {

void reset(Section& section);

void reset(Entry& entry) {
  switch (entry.kind()) {
    case Entry::Kind::value:
      return static_cast<ValueEntry&>(entry).reset();
    case Entry::Kind::choice: {
      auto& choice = static_cast<ChoiceEntry&>(entry);
      choice.reset();
      for (const auto& option : choice.options()) {
        if (option.section) reset(*option.section);
      }
      return;
    }
    case Entry::Kind::section: {
      auto& sub = static_cast<SectionEntry&>(entry);
      sub.set_present(!sub.optional());
      reset(sub.section());
      break;
    }
    case Entry::Kind::list:
      static_cast<ListEntry&>(entry).clear();
      break;
  }
  entry.set_position({});
  entry.set_refused(false);
}

void reset(Section& section) {
  section.set_section_position({});
  for (Entry* entry : section.entries()) reset(*entry);
}

// Calls `visit(section)` for every section that is part of the recipe, inner ones first; for none
// inside an entry that was refused.
template <class Visit>
void each_section(Section& section, const Visit& visit) {
  for (Entry* entry : section.entries()) {
    if (entry->is_refused()) continue;
    if (auto* choice = dynamic_cast<ChoiceEntry*>(entry)) {
      if (choice->section() != nullptr) each_section(*choice->section(), visit);
    } else if (auto* sub = dynamic_cast<SectionEntry*>(entry)) {
      if (sub->present()) each_section(sub->section(), visit);
    } else if (auto* list = dynamic_cast<ListEntry*>(entry)) {
      for (std::size_t i = 0; i < list->size(); ++i) each_section(list->at(i), visit);
    }
  }
  visit(section);
}

class Filler {
 public:
  Filler(Section& root, bool complete, const LoadRequest& request, Issues& issues)
      : unknown_(root, request), issues_(issues), complete_(complete) {}

  void fill(Section& section, const Node& mapping) {
    section.set_section_position(mapping.where);
    std::unordered_map<std::string_view, Entry*> active;
    activate(section, mapping, active);
    std::vector<std::string> names;
    for (const Member& member : mapping.members) {
      if (member.key.starts_with("x-")) continue;
      const auto found = active.find(member.key);
      if (found != active.end()) {
        take(*found->second, member.value);
      } else {
        if (names.empty()) names = names_of(section);
        report_unknown(section, member, names);
      }
    }
    if (complete_) fill_absent(section);
  }

  void validate(Section& root) {
    if (!complete_) return;
    each_section(root, [&](Section& section) {
      const std::size_t before = issues_.size();
      try {
        section.validate(issues_);
      } catch (const RefusedRead&) {
        issues_.truncate(before);
      }
    });
  }

  // From here on every key may be read: the refused ones have their defaults.
  void forget_refusals() {
    for (Entry* entry : refused_) entry->set_refused(false);
  }

 private:
  // Maps the names that this mapping may hold; choices are made first, for they add their row's
  // keys.
  void activate(Section& section, const Node& mapping,
                std::unordered_map<std::string_view, Entry*>& active) {
    for (Entry* entry : section.entries()) {
      active.emplace(entry->name(), entry);
      auto* choice = dynamic_cast<ChoiceEntry*>(entry);
      if (choice == nullptr) continue;
      for (const Member& member : mapping.members) {
        if (member.key == choice->name()) take_scalar(*choice, member.value);
      }
      if (choice->section() != nullptr) activate(*choice->section(), mapping, active);
    }
  }

  static void add_names(const Section& section, std::vector<std::string>& names) {
    for (const Entry* entry : section.entries()) {
      names.emplace_back(entry->name());
      const auto* choice = dynamic_cast<const ChoiceEntry*>(entry);
      if (choice != nullptr && choice->section() != nullptr) add_names(*choice->section(), names);
    }
  }

  static std::vector<std::string> names_of(const Section& section) {
    std::vector<std::string> names;
    add_names(section, names);
    return names;
  }

  void report_unknown(const Section& section, const Member& member,
                      const std::vector<std::string>& names) {
    const std::string path = section.section_path();
    auto answer = issues_.plenty() ? unknown_.explain_briefly(path, member.key)
                                   : unknown_.explain(path, member.key, names);
    const std::string key = printable(member.key);
    issues_.add(member.where, path.empty() ? key : path + "." + key, std::move(answer.problem),
                std::move(answer.hint));
  }

  template <class E>
  void take_scalar(E& entry, const Node& node) {
    Problems problems;
    entry.set_position(node.where);
    if (entry.assign(node, problems)) return;
    refuse(entry);
    for (Problem& problem : problems) {
      issues_.add(problem.where, entry.path(), std::move(problem.text), std::move(problem.hint));
    }
  }

  // With everything inside: nobody filled it.
  void refuse(Entry& entry) {
    if (entry.is_refused()) return;
    entry.set_refused(true);
    refused_.push_back(&entry);
    if (auto* choice = dynamic_cast<ChoiceEntry*>(&entry)) {
      if (choice->section() != nullptr) refuse_all(*choice->section());
    } else if (auto* sub = dynamic_cast<SectionEntry*>(&entry)) {
      refuse_all(sub->section());
    }
  }

  void refuse_all(Section& section) {
    for (Entry* entry : section.entries()) refuse(*entry);
  }

  void take(Entry& entry, const Node& node) {
    switch (entry.kind()) {
      case Entry::Kind::value:
        return take_scalar(static_cast<ValueEntry&>(entry), node);
      case Entry::Kind::choice:
        return;  // taken by activate()
      case Entry::Kind::section:
        return take_section(static_cast<SectionEntry&>(entry), node);
      case Entry::Kind::list:
        return take_list(static_cast<ListEntry&>(entry), node);
    }
  }

  void take_section(SectionEntry& entry, const Node& node) {
    entry.set_position(node.where);
    if (node.kind == Node::Kind::null) {
      if (node.emptied && !entry.optional()) {
        refuse(entry);
        issues_.add(node.where, entry.path(),
                    "is empty here, which would drop what is set below it",
                    "remove the line, or unset single keys");
      }
      return;
    }
    if (node.kind != Node::Kind::mapping) return expected(entry, node, "a section of `key: value`");
    entry.set_present(true);
    fill(entry.section(), node);
  }

  void take_list(ListEntry& list, const Node& node) {
    list.set_position(node.where);
    if (node.kind != Node::Kind::sequence) return expected(list, node, "a list of sections");
    for (const Node& item : node.items) {
      Section& element = list.append();
      element.set_section_position(item.where);
      if (item.kind == Node::Kind::mapping) {
        fill(element, item);
      } else {
        issues_.add(item.where, element.section_path(),
                    fmt::format("expected a section of `key: value`, found {}", describe(item)));
        refuse(list);
      }
    }
  }

  void expected(Entry& entry, const Node& node, std::string_view what) {
    refuse(entry);
    issues_.add(node.where, entry.path(),
                fmt::format("expected {}, found {}", what, describe(node)));
  }

  // What the mapping did not give: required keys, and the same inside sections it does not mention.
  void fill_absent(Section& section) {
    for (Entry* entry : section.entries()) {
      if (auto* value = dynamic_cast<ValueEntry*>(entry)) {
        if (value->required() && !value->is_set()) missing(*value, value->type().text());
      } else if (auto* choice = dynamic_cast<ChoiceEntry*>(entry)) {
        if (choice->required() && !choice->is_set()) {
          missing(*choice, "one of");
        } else if (choice->section() != nullptr) {
          fill_absent(*choice->section());
        }
      } else if (auto* sub = dynamic_cast<SectionEntry*>(entry)) {
        const bool untouched = !sub->section().has_position();
        if (sub->present() && untouched && !sub->is_refused()) fill_absent(sub->section());
      }
    }
  }

  void missing(Entry& entry, std::string_view what) {
    refuse(entry);
    issues_.add(entry, "required key is missing", fmt::format("{}: {}", what, entry.doc()));
  }

  UnknownKeys unknown_;
  Issues& issues_;
  bool complete_;
  std::vector<Entry*> refused_;
};

}  // namespace

void fill(Section& root, const Node& tree, bool complete, const LoadRequest& request,
          Issues& issues) {
  reset(root);
  Filler filler(root, complete, request, issues);
  filler.fill(root, tree);
  filler.validate(root);
  filler.forget_refusals();
  each_section(root, [](Section& section) {
    for (const Entry* entry : section.entries()) entry->mark_read(false);
  });
}

void judge_rules(Section& root, Issues& issues) {
  std::vector<std::pair<const Entry*, bool>> reads;
  each_section(root, [&](Section& section) {
    for (const Entry* entry : section.entries()) reads.emplace_back(entry, entry->was_read());
  });
  each_section(root, [&](Section& section) { section.validate(issues); });
  for (const auto& [entry, was_read] : reads) entry->mark_read(was_read);
}

}  // namespace llmtrain::recipe
