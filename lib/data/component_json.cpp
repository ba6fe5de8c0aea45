#include "lib/data/component_json.hpp"

#include <array>
#include <utility>

#include <nlohmann/json.hpp>

#include "lib/base/utf8.hpp"

namespace llmtrain::data {

namespace {

struct PrependScheme {
  std::string_view type;
  Metaspace::Prepend prepend;
};
constexpr std::array kSchemes = {PrependScheme{"always", Metaspace::Prepend::always},
                                 PrependScheme{"first", Metaspace::Prepend::first},
                                 PrependScheme{"never", Metaspace::Prepend::never}};

}  // namespace

std::string one_character(const Field& field) {
  const std::string& text = field.string();
  require<DataError>(!text.empty() && utf8_char_length(text) == text.size(),
                     "{}: '{}' is not one character; {}", field.where(), text, kSaveAgain);
  return text;
}

Metaspace parse_metaspace(const Field& field) {
  Metaspace metaspace;
  metaspace.replacement = one_character(field["replacement"]);
  metaspace.split = field["split"].boolean(true);
  const Field scheme = field["prepend_scheme"];
  if (!scheme.is_null()) {
    bool found = false;
    for (const PrependScheme& row : kSchemes) {
      if (row.type != scheme.string()) continue;
      metaspace.prepend = row.prepend;
      found = true;
    }
    require<DataError>(found, "{}: '{}' is not always, first or never; {}", scheme.where(),
                       scheme.string(), kSaveAgain);
  }
  const Field prefix = field["add_prefix_space"];
  require<DataError>(prefix.boolean(true) || metaspace.prepend == Metaspace::Prepend::never,
                     "{}: false contradicts the prepend_scheme; Hugging Face refuses it too; write "
                     "\"prepend_scheme\": \"never\"",
                     prefix.where());
  return metaspace;
}

std::string metaspace_json(const Metaspace& metaspace) {
  nlohmann::ordered_json json;
  json["type"] = "Metaspace";
  json["replacement"] = metaspace.replacement;
  for (const PrependScheme& row : kSchemes) {
    if (row.prepend == metaspace.prepend) json["prepend_scheme"] = row.type;
  }
  json["split"] = metaspace.split;
  return json.dump();
}

}  // namespace llmtrain::data
