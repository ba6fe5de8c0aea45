#pragma once
/// What JSON from outside may not be.

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lib/base/require.hpp"

namespace llmtrain {

/// A callback for nlohmann's parser. It bounds how deep a value is nested, because what walks one
/// (comparison, printing) recurses as deep: far enough, a file could end the process.
struct JsonDepth {
  static constexpr int kMax = 32;
  std::string_view name;  // of the file
  std::string_view remedy;

  template <class Event, class Json>
  bool operator()(int depth, Event, const Json&) const {
    require<DataError>(depth <= kMax, "{}: nested deeper than {} levels; {}", name, kMax, remedy);
    return true;
  }
};

/// The same, and refuses an object with a key twice: of the two values, readers take either, or
/// none (Hugging Face's tokenizers).
class StrictJson {
 public:
  StrictJson(std::string_view name, std::string_view remedy) : depth_{name, remedy} {}

  template <class Event, class Json>
  bool operator()(int depth, Event event, const Json& parsed) {
    depth_(depth, event, parsed);
    if (event == Event::object_start) seen_.emplace_back();
    if (event == Event::object_end) seen_.pop_back();
    if (event != Event::key) return true;
    const auto& key = parsed.template get_ref<const std::string&>();
    require<DataError>(seen_.back().insert(key).second, "{}: an object has the key '{}' twice; {}",
                       depth_.name, key, depth_.remedy);
    return true;
  }

 private:
  JsonDepth depth_;
  std::vector<std::unordered_set<std::string>> seen_;  // keys of the objects around the parser
};

/// An integer that `Int` has; nlohmann's type_error for anything else. Its own get() takes every
/// number for one, and of a fraction that `Int` has no room for makes whatever the processor does.
template <class Int, class Json>
Int integer_of(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.template get<std::uint64_t>();
    if (std::in_range<Int>(number)) return static_cast<Int>(number);
  } else if (value.is_number_integer()) {
    const auto number = value.template get<std::int64_t>();
    if (std::in_range<Int>(number)) return static_cast<Int>(number);
  }
  throw Json::type_error::create(302, "must be an integer within its range", &value);
}

}  // namespace llmtrain
