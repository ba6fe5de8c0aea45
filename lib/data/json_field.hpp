#pragma once
/// JSON values that know where they came from, for the messages of tokenizer.json's readers.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "lib/base/require.hpp"

namespace llmtrain::data {

/// Why a field is refused that would have to be guessed at.
inline constexpr std::string_view kUnlikeHuggingFace =
    "ids or text would differ from those of Hugging Face's tokenizers; use a file without it";

/// What to do about a tokenizer's file that no program would write.
inline constexpr std::string_view kSaveAgain =
    "save it again by save() of Hugging Face's tokenizers, or save_pretrained() of transformers";

/// A view of a value inside a JsonDocument. Every reader throws DataError naming the place.
class Field {
 public:
  const std::string& where() const { return where_; }
  bool is_null() const;
  bool is_object() const;
  bool is_array() const;
  bool is_string() const;
  /// The number 0, whole or not.
  bool is_zero() const;

  /// Member `key` of an object; a null value if it is absent.
  Field operator[](std::string_view key) const;
  /// The only key of an object; empty if it is no object or has another number of them.
  std::string only_key() const;
  std::size_t object_size() const;
  void for_each_member(
      const std::function<void(const std::string& key, const Field& value)>& visit) const;

  std::size_t array_size() const;
  Field at(std::size_t index) const;

  const std::string& string() const;
  std::string string_or_empty() const { return is_null() ? std::string() : string(); }
  bool boolean(bool missing) const;
  /// A whole number in [0, limit).
  std::int64_t id(std::int64_t limit) const;
  /// The value as JSON text.
  std::string dump() const;

  /// Refuses anything but null.
  void must_be_null() const {
    require<DataError>(is_null(), "{}: not supported: {}", where_, kUnlikeHuggingFace);
  }
  /// The row of `table` whose `type` is this object's; DataError listing the types without one.
  template <class Table>
  const auto& row_of(const Table& table) const {
    const Field type = (*this)["type"];
    std::string known;
    for (const auto& row : table) {
      if (row.type == type.string()) return row;
      known += fmt::format("{}{}", known.empty() ? "" : ", ", row.type);
    }
    fail<DataError>("{}: '{}' is not supported ({}): {}", type.where(), type.string(), known,
                    kUnlikeHuggingFace);
  }

 private:
  friend class JsonDocument;
  Field(const void* value, std::string where) : value_(value), where_(std::move(where)) {}

  const void* value_;  // a JSON library's value, which headers do not name
  std::string where_;
};

/// A parsed text.
class JsonDocument {
 public:
  /// DataError with `name` for a text that is no JSON, or has a key twice in an object.
  JsonDocument(std::string_view text, std::string name);
  ~JsonDocument();
  Field root() const;

 private:
  struct Value;
  std::unique_ptr<const Value> value_;
  std::string name_;
};

}  // namespace llmtrain::data
