#include "lib/recipe/section.hpp"

namespace llmtrain::recipe {

Entry::Entry(Kind kind, Section* owner, std::string_view name, std::string_view doc)
    : kind_(kind), owner_(owner), name_(name), doc_(doc) {
  require(name.find_first_not_of("0123456789") != std::string_view::npos &&
              !name.starts_with("x-") && name.find('.') == std::string_view::npos,
          "`{}` cannot be the name of a recipe key", name);
  for (const Entry* other : owner->entries_) {
    require(other->name() != name, "recipe key `{}` is declared twice in one section", name);
  }
  owner->entries_.push_back(this);
}

void Entry::note_read() const {
  if (refused_) throw RefusedRead{};
  mark_read();
}

std::string Entry::path() const {
  std::string path = owner_->section_path();
  if (!path.empty()) path += '.';
  return path.append(name_);
}

std::string Section::section_path() const {
  if (holder_ == nullptr) return {};
  // A choice's keys live in the mapping that holds the choice.
  if (holder_->kind() == Entry::Kind::choice) return holder_->owner().section_path();
  return element_.empty() ? holder_->path() : holder_->path() + "." + element_;
}

Where Section::section_position() const {
  if (position_ || holder_ == nullptr) return position_;
  return holder_->owner().section_position();
}

void Section::set_holder(const Entry* holder, std::string element) {
  holder_ = holder;
  element_ = std::move(element);
}

SectionEntry::SectionEntry(Section* owner, std::string_view name, std::string_view doc,
                           Section& section, bool optional)
    : Entry(Kind::section, owner, name, doc),
      section_(section),
      optional_(optional),
      present_(!optional) {
  section.set_holder(this);
}

ListEntry::ListEntry(Section* owner, std::string_view name, std::string_view doc, Make make)
    : Entry(Kind::list, owner, name, doc), make_(make), prototype_(make()) {
  prototype_->set_holder(this, "*");
}

Section& ListEntry::append() {
  elements_.push_back(make_());
  elements_.back()->set_holder(this, std::to_string(elements_.size() - 1));
  return *elements_.back();
}

void ChoiceEntry::add_option(std::string_view name, std::string_view doc,
                             std::unique_ptr<Section> section) {
  if (section) section->set_holder(this);
  options_.push_back({name, doc, std::move(section)});
}

void ChoiceEntry::finish() {
  require(!options_.empty(), "recipe key `{}` chooses from an empty table", name());
  reset();
}

void ChoiceEntry::reset() {
  selected_ = 0;
  if (!required()) select(fallback_);
  set_position({});
  set_refused(false);
}

void ChoiceEntry::select(std::string_view name) {
  for (std::size_t i = 0; i < options_.size(); ++i) {
    if (options_[i].name == name) {
      selected_ = i;
      return;
    }
  }
  fail("recipe key `{}` has no row `{}` in its table", this->name(), name);
}

bool ChoiceEntry::assign(const Node& node, Problems& problems) {
  Rule names;
  for (const Option& option : options_) names.allowed.emplace_back(option.name);
  const auto index = read_name(node, names, problems);
  if (index) selected_ = *index;
  return index.has_value();
}

}  // namespace llmtrain::recipe
