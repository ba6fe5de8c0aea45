#pragma once
/// The declaration of a component's options: a struct whose fields are the schema.
///
///   struct AdamWOptions : recipe::Section {
///     recipe::Key<double> lr{this, "lr", 3e-4, "peak learning rate", recipe::at_least(0.0)};
///     recipe::Required<std::string> path{this, "path", "where the weights are"};
///     recipe::Sub<InitOptions> init{this, "init", "how weights start"};
///     void validate(recipe::Issues& issues) const override;  // rules over several keys
///   };
///
/// Parsing, error messages, help, the resolved dump, the JSON Schema and read-tracking all come
/// from these fields (load.hpp, dump.hpp, json_schema.hpp, keys.hpp). Names and docs are string
/// literals: they are kept as views. Sections are neither copied nor moved, because their fields
/// refer to them. Reading a key is thread-safe; everything else is not.

#include <atomic>
#include <concepts>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/require.hpp"
#include "lib/recipe/issue.hpp"
#include "lib/recipe/value.hpp"

namespace llmtrain::recipe {

class Section;

/// Ends a rule over several keys that asks for one whose value was refused: there is nothing to
/// judge, and what stands in for the value (a zero, say) may not even be computed with.
struct RefusedRead {};

/// Judges one rule of a `validate` that has several: where it reads a refused value, what it added
/// is dropped, and the others still stand.
template <class Judge>
void judge(Issues& issues, const Judge& rule) {
  const std::size_t before = issues.size();
  try {
    rule();
  } catch (const RefusedRead&) {
    issues.truncate(before);
  }
}

/// What all fields of a Section have in common.
class Entry {
 public:
  enum class Kind { value, choice, section, list };

  virtual ~Entry() = default;
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  Kind kind() const { return kind_; }
  std::string_view name() const { return name_; }
  std::string_view doc() const { return doc_; }
  /// "optimizer.lr", "data.sources.0.path".
  std::string path() const;
  /// True if a file, the command line or the program gave the value.
  bool is_set() const { return static_cast<bool>(position_); }
  /// "recipe.yaml:3:5", "optimizer.lr=1 on the command line", "default".
  std::string where() const { return position_.text(); }
  const Where& position() const { return position_; }
  const Section& owner() const { return *owner_; }
  bool was_read() const { return read_.load(std::memory_order_relaxed); }

  // For the loader.
  void set_position(Where where) { position_ = std::move(where); }
  void mark_read(bool read = true) const { read_.store(read, std::memory_order_relaxed); }
  /// True from the refusal of the value to the end of the load; reading it then throws RefusedRead.
  bool is_refused() const { return refused_; }
  void set_refused(bool refused) { refused_ = refused; }

 protected:
  /// What every way of reading the value does first.
  void note_read() const;
  Entry(Kind kind, Section* owner, std::string_view name, std::string_view doc);

 private:
  Kind kind_;
  Section* owner_;
  std::string_view name_, doc_;
  Where position_;
  bool refused_ = false;
  mutable std::atomic<bool> read_{false};
};

/// A mapping of the recipe; base of all option structs.
class Section {
 public:
  Section() = default;
  virtual ~Section() = default;
  Section(const Section&) = delete;
  Section& operator=(const Section&) = delete;

  /// Rules over several keys of this section and of those inside it. Called after all values are
  /// in; ends, and what it added is dropped, where it reads a key whose own value was refused.
  virtual void validate(Issues&) const {}

  std::span<Entry* const> entries() const { return entries_; }
  /// Path of the mapping; empty for the root.
  std::string section_path() const;
  /// The mapping's position, or that of the nearest mapping around it that the recipe has.
  Where section_position() const;

  // For the loader and the entries that hold sections.
  /// True if the recipe has this mapping itself.
  bool has_position() const { return static_cast<bool>(position_); }
  void set_section_position(Where where) { position_ = std::move(where); }
  void set_holder(const Entry* holder, std::string element = {});

 private:
  friend class Entry;
  std::vector<Entry*> entries_;
  const Entry* holder_ = nullptr;  // the Sub, List or Choice that this section belongs to
  std::string element_;            // index within a List
  Where position_;
};

/// A key with a value, seen without its type.
class ValueEntry : public Entry {
 public:
  bool required() const { return required_; }
  virtual void reset() = 0;
  /// Takes the node's value; false and problems if it is refused (the default stays).
  virtual bool assign(const Node& node, Problems& problems) = 0;
  /// As assign, without taking it.
  virtual bool accepts(const Node& node, Problems& problems) const = 0;
  virtual std::string value_text() const = 0;
  /// Empty for a required key.
  virtual std::string default_text() const = 0;
  virtual TypeInfo type() const = 0;

 protected:
  ValueEntry(Section* owner, std::string_view name, std::string_view doc, bool required)
      : Entry(Kind::value, owner, name, doc), required_(required) {}

 private:
  bool required_;
};

/// A key of type T with a default.
template <class T>
class Key : public ValueEntry {
 public:
  using Rules = typename Codec<T>::Rules;

  Key(Section* owner, std::string_view name, T fallback, std::string_view doc, Rules rules = {})
      : Key(owner, name, std::move(fallback), doc, std::move(rules), false) {}

  /// The value; marks the key as read.
  const T& operator()() const {
    note_read();
    return value_;
  }
  /// Sets the value from the program, e.g. what "auto" became; `who` is its origin in the dump.
  void set(T value, std::string who = "set by the program") {
    value_ = std::move(value);
    set_position({std::make_shared<Source>(Source{Source::Kind::program, std::move(who)}), 0, 0});
  }

  void reset() final {
    value_ = default_;
    set_position({});
    set_refused(false);
  }
  bool assign(const Node& node, Problems& problems) final {
    T value{};
    const bool good = Codec<T>::read(node, rules_, value, problems);
    if (good) value_ = std::move(value);
    return good;
  }
  bool accepts(const Node& node, Problems& problems) const final {
    T value{};
    return Codec<T>::read(node, rules_, value, problems);
  }
  std::string value_text() const final { return Codec<T>::write(value_, rules_); }
  std::string default_text() const final {
    return required() ? std::string() : Codec<T>::write(default_, rules_);
  }
  TypeInfo type() const final { return Codec<T>::type(rules_); }

 protected:
  Key(Section* owner, std::string_view name, T fallback, std::string_view doc, Rules rules,
      bool required)
      : ValueEntry(owner, name, doc, required),
        default_(std::move(fallback)),
        value_(default_),
        rules_(std::move(rules)) {}

 private:
  T default_, value_;
  Rules rules_;
};

/// A key that the recipe must give.
template <class T>
class Required : public Key<T> {
 public:
  Required(Section* owner, std::string_view name, std::string_view doc,
           typename Key<T>::Rules rules = {})
      : Key<T>(owner, name, T{}, doc, std::move(rules), true) {}
};

/// A key whose value is a mapping with keys of its own, seen without its type.
class SectionEntry : public Entry {
 public:
  SectionEntry(Section* owner, std::string_view name, std::string_view doc, Section& section,
               bool optional);
  Section& section() const { return section_; }
  /// May be null in the recipe, and is by default.
  bool optional() const { return optional_; }
  bool present() const { return present_; }
  /// As present(); marks the entry as read.
  bool read_present() const {
    note_read();
    return present_;
  }
  void set_present(bool present) { present_ = present; }

 private:
  Section& section_;
  bool optional_;
  bool present_;
};

/// A nested section; it is a T: `options.init.std()`.
template <std::derived_from<Section> T>
class Sub : public T {
 public:
  Sub(Section* owner, std::string_view name, std::string_view doc)
      : entry_(owner, name, doc, *this, false) {}

 private:
  SectionEntry entry_;
};

/// A nested section that is null unless the recipe has it: `if (options.ramp) use(options.ramp);`.
template <std::derived_from<Section> T>
class OptionalSub : public T {
 public:
  OptionalSub(Section* owner, std::string_view name, std::string_view doc)
      : entry_(owner, name, doc, *this, true) {}
  /// True if the recipe has the section; marks it as read.
  explicit operator bool() const { return entry_.read_present(); }

 private:
  SectionEntry entry_;
};

/// A key whose value is a list of mappings, seen without its type.
class ListEntry : public Entry {
 public:
  std::size_t size() const { return elements_.size(); }
  Section& at(std::size_t i) const { return *elements_[i]; }
  /// An element with all defaults, for help and schema.
  const Section& prototype() const { return *prototype_; }
  Section& append();
  void clear() { elements_.clear(); }

 protected:
  using Make = std::unique_ptr<Section> (*)();
  ListEntry(Section* owner, std::string_view name, std::string_view doc, Make make);

 private:
  Make make_;
  std::unique_ptr<Section> prototype_;
  std::vector<std::unique_ptr<Section>> elements_;
};

/// A new section of type T; the `options` of a Choice's row.
template <std::derived_from<Section> T>
std::unique_ptr<Section> section_of() {
  return std::make_unique<T>();
}

/// A list of sections: `options.sources[0].path()`; empty by default.
template <std::derived_from<Section> T>
class List : public ListEntry {
 public:
  List(Section* owner, std::string_view name, std::string_view doc)
      : ListEntry(owner, name, doc, &section_of<T>) {}
  /// Number of elements; marks the list as read.
  std::size_t size() const {
    note_read();
    return ListEntry::size();
  }
  const T& operator[](std::size_t i) const { return static_cast<const T&>(at(i)); }
};

/// A key whose value selects a row of an explicit table, seen without the row's type.
class ChoiceEntry : public Entry {
 public:
  struct Option {
    std::string_view name, doc;
    std::unique_ptr<Section> section;  ///< null if the row has no keys of its own
  };
  std::span<const Option> options() const { return options_; }
  /// Index of the selected row; the default's, or 0 while a required choice is not made.
  std::size_t selected() const { return selected_; }
  /// Keys of the selected row, which live in the same mapping as the choice; may be null.
  Section* section() const { return options_[selected_].section.get(); }
  std::string_view fallback() const { return fallback_; }
  bool required() const { return fallback_.empty(); }
  void reset();
  bool assign(const Node& node, Problems& problems);
  /// Selects the row called `name` from the program; InternalError if there is none.
  void select(std::string_view name);

 protected:
  ChoiceEntry(Section* owner, std::string_view name, std::string_view fallback,
              std::string_view doc)
      : Entry(Kind::choice, owner, name, doc), fallback_(fallback) {}
  void add_option(std::string_view name, std::string_view doc, std::unique_ptr<Section> section);
  void finish();

 private:
  std::vector<Option> options_;
  std::string_view fallback_;
  std::size_t selected_ = 0;
};

/// Selects a row of `table`. A Row has `name`, `doc` and, if it brings keys, `options`, a function
/// like `&section_of<AdamWOptions>`. The table outlives the choice. An empty `fallback` makes the
/// choice required.
template <class Row>
class Choice : public ChoiceEntry {
 public:
  Choice(Section* owner, std::string_view name, std::span<const Row> table,
         std::string_view fallback, std::string_view doc)
      : ChoiceEntry(owner, name, fallback, doc), table_(table) {
    for (const Row& row : table) {
      std::unique_ptr<Section> section;
      if constexpr (requires { row.options(); }) {
        if (row.options) section = row.options();
      }
      add_option(row.name, row.doc, std::move(section));
    }
    finish();
  }
  /// The selected row; marks the choice as read.
  const Row& operator()() const {
    note_read();
    return table_[selected()];
  }
  /// The selected row's keys; InternalError if they are not an `Options`.
  template <std::derived_from<Section> Options>
  const Options& as() const {
    const auto* options = dynamic_cast<const Options*>(section());
    require(options != nullptr, "{}: the row `{}` has other options than its user expects", path(),
            table_[selected()].name);
    return *options;
  }

 private:
  std::span<const Row> table_;
};

}  // namespace llmtrain::recipe
