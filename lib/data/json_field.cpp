#include "lib/data/json_field.hpp"

#include <nlohmann/json.hpp>

#include "lib/base/strict_json.hpp"

namespace llmtrain::data {

namespace {

using Json = nlohmann::json;

const Json& json(const void* value) { return *static_cast<const Json*>(value); }

}  // namespace

bool Field::is_null() const { return json(value_).is_null(); }
bool Field::is_object() const { return json(value_).is_object(); }
bool Field::is_array() const { return json(value_).is_array(); }
bool Field::is_string() const { return json(value_).is_string(); }
bool Field::is_zero() const { return json(value_).is_number() && json(value_) == 0; }

Field Field::operator[](std::string_view key) const {
  static const Json kNull;
  require<DataError>(is_object(), "{}: not an object; {}", where_, kSaveAgain);
  const auto found = json(value_).find(std::string(key));
  return {found == json(value_).end() ? &kNull : &*found, fmt::format("{}.{}", where_, key)};
}

std::string Field::only_key() const {
  return is_object() && json(value_).size() == 1 ? json(value_).begin().key() : std::string();
}

std::size_t Field::object_size() const {
  require<DataError>(is_object(), "{}: not an object; {}", where_, kSaveAgain);
  return json(value_).size();
}

void Field::for_each_member(
    const std::function<void(const std::string& key, const Field& value)>& visit) const {
  require<DataError>(is_object(), "{}: not an object; {}", where_, kSaveAgain);
  for (const auto& item : json(value_).items()) {
    visit(item.key(), Field(&item.value(), fmt::format("{} '{}'", where_, item.key())));
  }
}

std::size_t Field::array_size() const {
  require<DataError>(is_array(), "{}: not an array; {}", where_, kSaveAgain);
  return json(value_).size();
}

Field Field::at(std::size_t index) const {
  return {&json(value_)[index], fmt::format("{}[{}]", where_, index)};
}

const std::string& Field::string() const {
  require<DataError>(is_string(), "{}: not a string; {}", where_, kSaveAgain);
  return json(value_).get_ref<const std::string&>();
}

bool Field::boolean(bool missing) const {
  require<DataError>(is_null() || json(value_).is_boolean(), "{}: not a boolean; {}", where_,
                     kSaveAgain);
  return is_null() ? missing : json(value_).get<bool>();
}

std::int64_t Field::id(std::int64_t limit) const {
  require<DataError>(json(value_).is_number_unsigned() &&
                         json(value_).get<std::uint64_t>() < static_cast<std::uint64_t>(limit),
                     "{}: not a whole number below {}; {}", where_, limit, kSaveAgain);
  return json(value_).get<std::int64_t>();
}

std::string Field::dump() const { return json(value_).dump(); }

struct JsonDocument::Value {
  Json json;
};

JsonDocument::JsonDocument(std::string_view text, std::string name) : name_(std::move(name)) {
  try {
    value_ = std::make_unique<const Value>(Json::parse(text, StrictJson(name_, kSaveAgain)));
  } catch (const Json::exception& e) {
    fail<DataError>("{}: not valid JSON: {}; {}", name_, e.what(), kSaveAgain);
  }
}

JsonDocument::~JsonDocument() = default;

Field JsonDocument::root() const { return {&value_->json, name_}; }

}  // namespace llmtrain::data
