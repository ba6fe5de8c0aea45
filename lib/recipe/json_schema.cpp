#include "lib/recipe/json_schema.hpp"

#include <nlohmann/json.hpp>

#include "lib/recipe/scalar.hpp"
#include "lib/recipe/yaml_reader.hpp"

namespace llmtrain::recipe {

namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Node& node) {
  switch (node.kind) {
    case Node::Kind::null:
      return nullptr;
    case Node::Kind::sequence: {
      Json list = Json::array();
      for (const Node& item : node.items) list.push_back(to_json(item));
      return list;
    }
    case Node::Kind::mapping: {
      Json object = Json::object();
      for (const Member& member : node.members) object[member.key] = to_json(member.value);
      return object;
    }
    case Node::Kind::scalar:
      break;
  }
  if (node.quoted) return node.text;
  if (node.text == "true" || node.text == "false") return node.text == "true";
  const auto number = parse_number(node.text).number;
  if (!number) return node.text;
  if (!number->whole) return number->value;
  if (!number->negative) return number->magnitude;
  return number->magnitude <= (std::uint64_t{1} << 53)
             ? Json(-static_cast<std::int64_t>(number->magnitude))
             : Json(number->value);
}

Json yaml_to_json(const std::string& text) {
  Node node;
  Issues issues;
  const auto source = std::make_shared<Source>(Source{Source::Kind::program, "default", 0});
  require(read_yaml(text, source, node, issues), "the default `{}` is no YAML", text);
  return to_json(node);
}

void add_range(const Rule& rule, Json& schema) {
  if (rule.min) schema[rule.min_excluded ? "exclusiveMinimum" : "minimum"] = *rule.min;
  if (rule.max) schema[rule.max_excluded ? "exclusiveMaximum" : "maximum"] = *rule.max;
}

Json leaf_schema(const TypeInfo& type) {
  Json schema = Json::object();
  switch (type.leaf) {
    case TypeInfo::Leaf::boolean:
      schema["type"] = "boolean";
      break;
    case TypeInfo::Leaf::integer:
      schema["type"] = "integer";
      add_range(type.rule, schema);
      break;
    case TypeInfo::Leaf::number:
      schema["type"] = "number";
      add_range(type.rule, schema);
      break;
    case TypeInfo::Leaf::text:
      if (!type.rule.allowed.empty()) {
        schema["enum"] = type.rule.allowed;
      } else {
        schema["type"] = "string";
        if (type.rule.min_length && !type.list) schema["minLength"] = *type.rule.min_length;
      }
      break;
    case TypeInfo::Leaf::quantity: {
      Json number = {{"type", "number"}, {"minimum", 0}};
      add_range(type.rule, number);
      schema["anyOf"] = {number, {{"type", "string"}, {"pattern", type.pattern}}};
      break;
    }
  }
  return schema;
}

Json value_schema(const TypeInfo& type) {
  Json schema = leaf_schema(type);
  if (type.list) {
    Json list = {{"type", "array"}, {"items", std::move(schema)}};
    if (type.rule.min_length) list["minItems"] = *type.rule.min_length;
    if (type.rule.max_length) list["maxItems"] = *type.rule.max_length;
    schema = std::move(list);
  }
  if (!type.nullable && type.automatic.empty()) return schema;
  Json either = Json::array({std::move(schema)});
  if (type.nullable) either.push_back({{"type", "null"}});
  if (!type.automatic.empty()) either.push_back({{"const", type.automatic}});
  return {{"anyOf", std::move(either)}};
}

// The schema of one mapping: own keys, then per row of each choice what holds if it is selected.
struct Mapping {
  bool whole = false;  // nothing merges into it, so that keys may be required
  Json properties = Json::object();
  Json required = Json::array();
  Json conditions = Json::array();

  Json finish() && {
    Json schema = {{"type", "object"}, {"properties", std::move(properties)}};
    if (whole && !required.empty()) schema["required"] = std::move(required);
    if (!conditions.empty()) schema["allOf"] = std::move(conditions);
    schema["patternProperties"] = {{"^x-", true}};
    schema["additionalProperties"] = false;
    return schema;
  }
};

void add_entries(const Section& section, Mapping& mapping);

// An included recipe may give what a file leaves out; only an element of a list is never merged.
Json section_schema(const Section& section, bool whole) {
  Mapping mapping;
  mapping.whole = whole;
  add_entries(section, mapping);
  return std::move(mapping).finish();
}

void add_choice(const ChoiceEntry& choice, Mapping& mapping) {
  Json names = Json::array();
  std::string doc(choice.doc());
  for (const auto& option : choice.options()) {
    names.push_back(option.name);
    doc += "\n- " + std::string(option.name) + ": " + std::string(option.doc);
  }
  const std::string key(choice.name());
  mapping.properties[key] = {{"enum", names}, {"description", doc}};
  if (choice.required()) {
    mapping.required.push_back(key);
  } else {
    mapping.properties[key]["default"] = choice.fallback();
  }
  std::vector<Mapping> rows;
  for (const auto& option : choice.options()) {
    rows.emplace_back().whole = mapping.whole;
    if (option.section) add_entries(*option.section, rows.back());
    // The mapping itself lists the keys of all rows, or it would refuse them.
    for (const auto& [name, schema] : rows.back().properties.items()) {
      if (!mapping.properties.contains(name)) mapping.properties[name] = Json::object();
    }
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Json then = {{"properties", std::move(rows[i].properties)}};
    for (std::size_t other = 0; other < rows.size(); ++other) {
      const Section* section = choice.options()[other].section.get();
      if (section == nullptr) continue;
      for (const Entry* entry : section->entries()) {
        const std::string name(entry->name());
        if (!then["properties"].contains(name)) then["properties"][name] = false;
      }
    }
    if (mapping.whole && !rows[i].required.empty()) then["required"] = std::move(rows[i].required);
    if (!rows[i].conditions.empty()) then["allOf"] = std::move(rows[i].conditions);
    Json when = {{"properties", {{key, {{"const", names[i]}}}}}};
    if (names[i] != choice.fallback()) when["required"] = Json::array({key});
    mapping.conditions.push_back({{"if", std::move(when)}, {"then", std::move(then)}});
  }
}

void add_value(const ValueEntry& entry, Mapping& mapping) {
  const TypeInfo type = entry.type();
  Json schema = value_schema(type);
  std::string doc(entry.doc());
  if (!type.rule.unit.empty()) doc += " [" + type.rule.unit + "]";
  schema["description"] = doc;
  if (entry.required()) {
    mapping.required.push_back(entry.name());
  } else {
    schema["default"] = yaml_to_json(entry.default_text());
  }
  mapping.properties[std::string(entry.name())] = std::move(schema);
}

void add_entry(const Entry& entry, Mapping& mapping) {
  const std::string name(entry.name());
  switch (entry.kind()) {
    case Entry::Kind::value:
      return add_value(static_cast<const ValueEntry&>(entry), mapping);
    case Entry::Kind::choice:
      return add_choice(static_cast<const ChoiceEntry&>(entry), mapping);
    case Entry::Kind::section: {
      const auto& sub = static_cast<const SectionEntry&>(entry);
      Json schema = section_schema(sub.section(), mapping.whole);
      const bool may_be_absent = sub.optional() || !schema.contains("required");
      // `training:` with nothing below it is null to YAML.
      if (may_be_absent) schema["type"] = {"object", "null"};
      if (!may_be_absent) mapping.required.push_back(name);
      schema["description"] = entry.doc();
      mapping.properties[name] = std::move(schema);
      return;
    }
    case Entry::Kind::list:
      mapping.properties[name] = {
          {"type", "array"},
          {"items", section_schema(static_cast<const ListEntry&>(entry).prototype(), true)},
          {"description", entry.doc()},
          {"default", Json::array()}};
      return;
  }
}

void add_entries(const Section& section, Mapping& mapping) {
  for (const Entry* entry : section.entries()) add_entry(*entry, mapping);
}

}  // namespace

std::string json_schema(const Section& root, std::string_view title) {
  Json schema = {{"$schema", "http://json-schema.org/draft-07/schema#"}, {"title", title}};
  schema.update(section_schema(root, false));
  schema["properties"]["recipe"] = {{"const", 1}, {"description", "version of the recipe format"}};
  schema["properties"]["include"] = {{"type", "array"},
                                     {"items", {{"type", "string"}}},
                                     {"description", "recipes that are merged before this one"}};
  return schema.dump(2) + "\n";
}

}  // namespace llmtrain::recipe
