#include "lib/data/tokenizer_json.hpp"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/data/byte_level.hpp"

namespace llmtrain::data {

namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{256} << 20;
constexpr std::string_view kRemedy =
    "ids would differ from those of Hugging Face's tokenizers; use a byte-level BPE without it";

/// A JSON value that knows where it came from, for messages.
class Field {
 public:
  Field(const Json& value, std::string where) : value_(value), where_(std::move(where)) {}

  const Json& json() const { return value_; }
  const std::string& where() const { return where_; }
  bool is_null() const { return value_.is_null(); }

  /// Member `key`; a null value if it is absent.
  Field operator[](const char* key) const {
    static const Json kNull;
    require<DataError>(value_.is_object(), "{}: not an object", where_);
    const auto found = value_.find(key);
    return {found == value_.end() ? kNull : *found, fmt::format("{}.{}", where_, key)};
  }
  Field at(std::size_t index) const {
    return {value_[index], fmt::format("{}[{}]", where_, index)};
  }
  const std::string& string() const {
    require<DataError>(value_.is_string(), "{}: not a string", where_);
    return value_.get_ref<const std::string&>();
  }
  std::string string_or_empty() const { return is_null() ? std::string() : string(); }
  bool boolean(bool missing) const {
    require<DataError>(is_null() || value_.is_boolean(), "{}: not a boolean", where_);
    return is_null() ? missing : value_.get<bool>();
  }
  std::int64_t id(std::int64_t limit) const {
    require<DataError>(value_.is_number_unsigned() &&
                           value_.get<std::uint64_t>() < static_cast<std::uint64_t>(limit),
                       "{}: not an id below {}", where_, limit);
    return value_.get<std::int64_t>();
  }
  std::size_t array_size() const {
    require<DataError>(value_.is_array(), "{}: not an array", where_);
    return value_.size();
  }
  /// Refuses anything but null.
  void must_be_null() const {
    require<DataError>(is_null(), "{}: not supported: {}", where_, kRemedy);
  }
  void must_be_false() const {
    require<DataError>(!boolean(false), "{}: true is not supported: {}", where_, kRemedy);
  }

 private:
  const Json& value_;
  std::string where_;
};

Json parse_json(std::string_view text, std::string_view name) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    fail<DataError>("{}: not valid JSON: {}", name, e.what());
  }
}

std::string split_pattern(const Field& split) {
  const Field pattern = split["pattern"];
  require<DataError>(
      pattern.json().is_object() && pattern.json().size() == 1 && pattern.json().contains("Regex"),
      "{}: only a Regex is supported: {}", pattern.where(), kRemedy);
  require<DataError>(split["behavior"].string() == "Isolated",
                     "{}: '{}' is not supported (only Isolated is): {}", split["behavior"].where(),
                     split["behavior"].string(), kRemedy);
  return pattern["Regex"].string();
}

void add_byte_level(const Field& byte_level, std::vector<std::string>& patterns) {
  // Hugging Face's own default is true, and the key is always written.
  require<DataError>(!byte_level["add_prefix_space"].boolean(true), "{}: true is not supported: {}",
                     byte_level["add_prefix_space"].where(), kRemedy);
  if (byte_level["use_regex"].boolean(true)) patterns.emplace_back(kGpt2Pattern);
}

std::vector<std::string> parse_pre_tokenizer(const Field& pre_tokenizer) {
  std::vector<std::string> patterns;
  require<DataError>(!pre_tokenizer.is_null(), "{}: missing; a byte-level BPE needs ByteLevel",
                     pre_tokenizer.where());
  if (pre_tokenizer["type"].string() == "ByteLevel") {
    add_byte_level(pre_tokenizer, patterns);
    return patterns;
  }
  require<DataError>(
      pre_tokenizer["type"].string() == "Sequence",
      "{}: '{}' is not supported (ByteLevel, or Sequence of Split and ByteLevel): {}",
      pre_tokenizer["type"].where(), pre_tokenizer["type"].string(), kRemedy);
  const Field steps = pre_tokenizer["pretokenizers"];
  const std::size_t count = steps.array_size();
  for (std::size_t i = 0; i < count; ++i) {
    const Field step = steps.at(i);
    const bool last = i + 1 == count;
    require<DataError>(step["type"].string() == (last ? "ByteLevel" : "Split"),
                       "{}: '{}' is not supported here (Split, and ByteLevel at the end): {}",
                       step["type"].where(), step["type"].string(), kRemedy);
    if (last) {
      add_byte_level(step, patterns);
    } else {
      patterns.push_back(split_pattern(step));
    }
  }
  require<DataError>(count > 0, "{}: empty; a byte-level BPE needs ByteLevel", steps.where());
  return patterns;
}

void check_model_options(const Field& model) {
  require<DataError>(model["type"].string() == "BPE", "{}: '{}' is not supported (only BPE is)",
                     model["type"].where(), model["type"].string());
  const Json& dropout = model["dropout"].json();
  require<DataError>(dropout.is_null() || dropout == 0, "{}: not supported: {}",
                     model["dropout"].where(), kRemedy);
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    require<DataError>(model[key].string_or_empty().empty(), "{}: not supported: {}",
                       model[key].where(), kRemedy);
  }
}

/// Ids by spelling, and the spelling by id.
using Ids = std::unordered_map<std::string_view, std::int32_t>;

Ids parse_vocab(const Field& vocab, std::vector<std::string>& by_id) {
  require<DataError>(vocab.json().is_object() && !vocab.json().empty(),
                     "{}: not an object with tokens", vocab.where());
  const std::size_t count = vocab.json().size();
  // Gaps between ids are legal; a huge one would only be an attempt to exhaust memory.
  const auto limit = static_cast<std::int64_t>(2 * count + 65536);
  Ids ids;
  for (const auto& item : vocab.json().items()) {
    const auto id = static_cast<std::size_t>(
        Field(item.value(), fmt::format("{} '{}'", vocab.where(), item.key())).id(limit));
    if (id >= by_id.size()) by_id.resize(id + 1);
    require<DataError>(!item.key().empty() && by_id[id].empty(),
                       "{}: id {} belongs to '{}' and to '{}'", vocab.where(), id, by_id[id],
                       item.key());
    by_id[id] = item.key();
  }
  for (std::size_t id = 0; id < by_id.size(); ++id) {
    if (!by_id[id].empty()) ids.emplace(by_id[id], static_cast<std::int32_t>(id));
  }
  return ids;
}

/// "left right", or ["left", "right"].
std::pair<std::string, std::string> parse_merge(const Field& merge) {
  if (merge.json().is_array()) {
    require<DataError>(merge.array_size() == 2, "{}: not a pair", merge.where());
    return {merge.at(0).string(), merge.at(1).string()};
  }
  const std::string& line = merge.string();
  const std::size_t space = line.find(' ');
  require<DataError>(space != std::string::npos && line.find(' ', space + 1) == std::string::npos,
                     "{}: '{}' is not two tokens separated by a space", merge.where(), line);
  return {line.substr(0, space), line.substr(space + 1)};
}

std::vector<Merge> parse_merges(const Field& merges, const Ids& ids) {
  std::vector<Merge> parsed;
  const std::size_t count = merges.array_size();
  parsed.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Field merge = merges.at(i);
    if (merge.json().is_string() && merge.string().starts_with("#version")) continue;
    const auto [left, right] = parse_merge(merge);
    const auto id = [&, where = merge.where()](const std::string& token) {
      const auto found = ids.find(token);
      require<DataError>(found != ids.end(), "{}: '{}' is not in the vocabulary", where, token);
      return found->second;
    };
    parsed.push_back({id(left), id(right), id(left + right)});
  }
  return parsed;
}

std::vector<AddedToken> parse_added_tokens(const Field& added, const Ids& ids) {
  std::vector<AddedToken> tokens;
  if (added.is_null()) return tokens;
  const std::size_t count = added.array_size();
  const auto limit = static_cast<std::int64_t>(2 * (ids.size() + count) + 65536);
  auto next_id = static_cast<std::int64_t>(ids.size());
  for (std::size_t i = 0; i < count; ++i) {
    const Field token = added.at(i);
    for (const char* key : {"single_word", "lstrip", "rstrip"}) token[key].must_be_false();
    const std::string& content = token["content"].string();
    const std::int64_t id = token["id"].id(limit);
    // Hugging Face ignores `id`: the vocabulary's id counts, else the next free number.
    const auto found = ids.find(content);
    const std::int64_t expected = found != ids.end() ? found->second : next_id++;
    require<DataError>(id == expected, "{}: '{}' has the id {}, but Hugging Face would give it {}",
                       token["id"].where(), content, id, expected);
    tokens.push_back({static_cast<std::int32_t>(id), content, token["normalized"].boolean(true),
                      token["special"].boolean(false)});
  }
  return tokens;
}

std::optional<std::int32_t> find_token(const BpeDefinition& definition, std::string_view text) {
  for (const AddedToken& token : definition.added_tokens) {
    if (token.content == text) return token.id;
  }
  for (std::size_t id = 0; id < definition.vocab.size(); ++id) {
    if (definition.vocab[id] == text) return static_cast<std::int32_t>(id);
  }
  return std::nullopt;
}

/// `eos_token` or `bos_token` of tokenizer_config.json: a text, an object with `content`, or null.
std::optional<std::int32_t> configured_token(const Field& config, const char* key,
                                             const BpeDefinition& definition) {
  const Field field = config[key];
  if (field.is_null()) return std::nullopt;
  const std::string text = field.json().is_object() ? field["content"].string() : field.string();
  const std::optional<std::int32_t> id = find_token(definition, text);
  require<DataError>(id.has_value(), "{}: '{}' is not in the vocabulary", field.where(), text);
  return id;
}

}  // namespace

BpeDefinition parse_tokenizer_json(std::string_view text, std::string_view name) {
  const Json root_json = parse_json(text, name);
  const Field root(root_json, std::string(name));
  require<DataError>(root["version"].string() == "1.0", "{}: '{}' is not supported (1.0 is)",
                     root["version"].where(), root["version"].string());
  root["truncation"].must_be_null();
  root["padding"].must_be_null();
  root["normalizer"].must_be_null();
  const Field decoder = root["decoder"];
  require<DataError>(!decoder.is_null() && decoder["type"].string() == "ByteLevel",
                     "{}: not ByteLevel; only a byte-level BPE is supported", decoder.where());
  const Field model = root["model"];
  check_model_options(model);

  BpeDefinition definition;
  definition.patterns = parse_pre_tokenizer(root["pre_tokenizer"]);
  const Ids ids = parse_vocab(model["vocab"], definition.vocab);
  definition.merges = parse_merges(model["merges"], ids);
  definition.added_tokens = parse_added_tokens(root["added_tokens"], ids);
  definition.ignore_merges = model["ignore_merges"].boolean(false);
  return definition;
}

std::shared_ptr<const BpeTokenizer> load_tokenizer_json(const std::filesystem::path& path) {
  const std::filesystem::path file =
      std::filesystem::is_directory(path) ? path / "tokenizer.json" : path;
  BpeDefinition definition = parse_tokenizer_json(read_file(file, kMaxFileBytes), file.string());
  const std::filesystem::path config_file = file.parent_path() / "tokenizer_config.json";
  if (std::filesystem::exists(config_file)) {
    const Json json = parse_json(read_file(config_file, kMaxFileBytes), config_file.string());
    const Field config(json, config_file.string());
    definition.eos_id = configured_token(config, "eos_token", definition);
    definition.bos_id = configured_token(config, "bos_token", definition);
  } else {
    for (const std::string_view text :
         {kEndOfText, std::string_view("<|end_of_text|>"), std::string_view("</s>")}) {
      if (!definition.eos_id) definition.eos_id = find_token(definition, text);
    }
  }
  try {
    return std::make_shared<const BpeTokenizer>(std::move(definition));
  } catch (const DataError& e) {
    fail<DataError>("{}: {}", file.string(), e.what());
  }
}

namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson byte_level_json(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

OrderedJson pre_tokenizer_json(const std::vector<std::string>& patterns) {
  if (patterns.empty()) return byte_level_json(false);
  if (patterns.size() == 1 && patterns[0] == kGpt2Pattern) return byte_level_json(true);
  OrderedJson steps = OrderedJson::array();
  for (const std::string& pattern : patterns) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  steps.push_back(byte_level_json(false));
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

}  // namespace

std::string BpeTokenizer::to_json() const {
  OrderedJson added = OrderedJson::array();
  for (const AddedToken& token : definition_.added_tokens) {
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  }
  // Each text is a key once, so the entries are appended without the search of operator[].
  OrderedJson vocab = OrderedJson::object();
  auto& entries = vocab.get_ref<OrderedJson::object_t&>();
  for (std::size_t id = 0; id < definition_.vocab.size(); ++id) {
    if (definition_.vocab[id].empty()) continue;
    static_cast<OrderedJson::object_t::Container&>(entries).emplace_back(definition_.vocab[id], id);
  }
  OrderedJson merges = OrderedJson::array();
  for (const Merge& m : definition_.merges) {
    merges.push_back({definition_.vocab[static_cast<std::size_t>(m.left)],
                      definition_.vocab[static_cast<std::size_t>(m.right)]});
  }
  OrderedJson root;
  root["version"] = "1.0";
  root["truncation"] = nullptr;
  root["padding"] = nullptr;
  root["added_tokens"] = std::move(added);
  root["normalizer"] = nullptr;
  root["pre_tokenizer"] = pre_tokenizer_json(definition_.patterns);
  root["post_processor"] = byte_level_json(true);
  root["decoder"] = byte_level_json(true);
  OrderedJson& model = root["model"];
  model["type"] = "BPE";
  for (const char* key :
       {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
    model[key] = nullptr;
  }
  model["fuse_unk"] = false;
  model["byte_fallback"] = false;
  model["ignore_merges"] = definition_.ignore_merges;
  model["vocab"] = std::move(vocab);
  model["merges"] = std::move(merges);
  return root.dump();
}

}  // namespace llmtrain::data
