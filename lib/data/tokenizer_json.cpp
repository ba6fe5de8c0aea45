#include "lib/data/tokenizer_json.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"
#include "lib/data/component_json.hpp"
#include "lib/data/json_field.hpp"

namespace llmtrain::data {

namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{256} << 20;

std::string split_pattern(const Field& split) {
  const Field pattern = split["pattern"];
  require<DataError>(pattern.only_key() == "Regex", "{}: only a Regex is supported: {}",
                     pattern.where(), kUnlikeHuggingFace);
  require<DataError>(split["behavior"].string() == "Isolated",
                     "{}: '{}' is not supported (only Isolated is): {}", split["behavior"].where(),
                     split["behavior"].string(), kUnlikeHuggingFace);
  return pattern["Regex"].string();
}

/// One row per type of pre-tokenizer; all but Split come last.
struct PreTokenizerType {
  std::string_view type;
  bool last;
  void (*read)(const Field& field, BpeDefinition& definition);
};

constexpr std::array kPreTokenizers = {
    PreTokenizerType{"Split", false,
                     [](const Field& field, BpeDefinition& definition) {
                       definition.pre_tokenizer.patterns.push_back(split_pattern(field));
                     }},
    PreTokenizerType{"ByteLevel", true,
                     [](const Field& field, BpeDefinition& definition) {
                       PreTokenizerOptions& options = definition.pre_tokenizer;
                       definition.byte_level = true;
                       // Hugging Face's own default is true, and the key is always written.
                       if (field["add_prefix_space"].boolean(true)) {
                         options.prefix_space_after = options.patterns.size();
                       }
                       if (field["use_regex"].boolean(true)) {
                         options.patterns.emplace_back(kGpt2Pattern);
                       }
                     }},
    PreTokenizerType{"Metaspace", true,
                     [](const Field& field, BpeDefinition& definition) {
                       definition.pre_tokenizer.metaspace = parse_metaspace(field);
                     }},
};

void parse_pre_tokenizer(const Field& pre_tokenizer, BpeDefinition& definition) {
  definition.byte_level = false;
  if (pre_tokenizer.is_null()) return;
  if (pre_tokenizer["type"].string() != "Sequence") {
    return pre_tokenizer.row_of(kPreTokenizers).read(pre_tokenizer, definition);
  }
  const Field steps = pre_tokenizer["pretokenizers"];
  const std::size_t count = steps.array_size();
  for (std::size_t i = 0; i < count; ++i) {
    const Field step = steps.at(i);
    const PreTokenizerType& row = step.row_of(kPreTokenizers);
    require<DataError>(!row.last || i + 1 == count, "{}: '{}' is supported at the end only: {}",
                       step["type"].where(), row.type, kUnlikeHuggingFace);
    row.read(step, definition);
  }
}

void check_model_options(const Field& model) {
  require<DataError>(model["type"].string() == "BPE",
                     "{}: '{}' is not supported (only BPE is); use a tokenizer of that type",
                     model["type"].where(), model["type"].string());
  const Field dropout = model["dropout"];
  require<DataError>(dropout.is_null() || dropout.is_zero(), "{}: not supported: {}",
                     dropout.where(), kUnlikeHuggingFace);
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    require<DataError>(model[key].string_or_empty().empty(), "{}: not supported: {}",
                       model[key].where(), kUnlikeHuggingFace);
  }
}

/// Ids by spelling, and the spelling by id.
using Ids = std::unordered_map<std::string_view, std::int32_t>;

Ids parse_vocab(const Field& vocab, std::vector<std::string>& by_id) {
  const std::size_t count = vocab.object_size();
  require<DataError>(count > 0, "{}: no tokens; {}", vocab.where(), kSaveAgain);
  // Gaps between ids are legal; a huge one would only be an attempt to exhaust memory.
  const auto limit = static_cast<std::int64_t>(2 * count + 65536);
  Ids ids;
  vocab.for_each_member([&](const std::string& token, const Field& value) {
    const auto id = static_cast<std::size_t>(value.id(limit));
    if (id >= by_id.size()) by_id.resize(id + 1);
    require<DataError>(!token.empty() && by_id[id].empty(),
                       "{}: id {} belongs to '{}' and to '{}'; {}", vocab.where(), id, by_id[id],
                       token, kSaveAgain);
    by_id[id] = token;
  });
  for (std::size_t id = 0; id < by_id.size(); ++id) {
    if (!by_id[id].empty()) ids.emplace(by_id[id], static_cast<std::int32_t>(id));
  }
  return ids;
}

/// "left right", or ["left", "right"].
std::pair<std::string, std::string> parse_merge(const Field& merge) {
  if (merge.is_array()) {
    require<DataError>(merge.array_size() == 2, "{}: not a pair; {}", merge.where(), kSaveAgain);
    return {merge.at(0).string(), merge.at(1).string()};
  }
  const std::string& line = merge.string();
  const std::size_t space = line.find(' ');
  require<DataError>(space != std::string::npos && line.find(' ', space + 1) == std::string::npos,
                     "{}: '{}' is not two tokens separated by a space; {}", merge.where(), line,
                     kSaveAgain);
  return {line.substr(0, space), line.substr(space + 1)};
}

std::vector<Merge> parse_merges(const Field& merges, const Ids& ids) {
  std::vector<Merge> parsed;
  const std::size_t count = merges.array_size();
  parsed.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Field merge = merges.at(i);
    if (merge.is_string() && merge.string().starts_with("#version")) continue;
    const auto [left, right] = parse_merge(merge);
    const auto id = [&, where = merge.where()](const std::string& token) {
      const auto found = ids.find(token);
      require<DataError>(found != ids.end(), "{}: '{}' is not in the vocabulary; {}", where, token,
                         kSaveAgain);
      return found->second;
    };
    parsed.push_back({id(left), id(right), id(left + right)});
  }
  return parsed;
}

/// What becomes of characters that are no tokens; a byte-level model has none.
BpeSymbols::Unknown parse_unknown(const Field& model, const Ids& ids) {
  BpeSymbols::Unknown unknown;
  unknown.byte_fallback = model["byte_fallback"].boolean(false);
  unknown.fuse_unk = model["fuse_unk"].boolean(false);
  const Field token = model["unk_token"];
  if (token.is_null()) return unknown;
  const auto found = ids.find(token.string());
  require<DataError>(found != ids.end(), "{}: '{}' is not in the vocabulary; {}", token.where(),
                     token.string(), kSaveAgain);
  unknown.unk_id = found->second;
  return unknown;
}

std::vector<AddedToken> parse_added_tokens(const Field& added, const Ids& ids) {
  std::vector<AddedToken> tokens;
  if (added.is_null()) return tokens;
  const std::size_t count = added.array_size();
  const auto limit = static_cast<std::int64_t>(2 * (ids.size() + count) + 65536);
  auto next_id = static_cast<std::int64_t>(ids.size());
  for (std::size_t i = 0; i < count; ++i) {
    const Field token = added.at(i);
    const std::string& content = token["content"].string();
    const std::int64_t id = token["id"].id(limit);
    // Hugging Face ignores `id`: the vocabulary's id counts, else the next free number.
    const auto found = ids.find(content);
    const std::int64_t expected = found != ids.end() ? found->second : next_id++;
    require<DataError>(id == expected,
                       "{}: '{}' has the id {}, but Hugging Face would give it {}; {}",
                       token["id"].where(), content, id, expected, kSaveAgain);
    tokens.push_back({.id = static_cast<std::int32_t>(id),
                      .content = content,
                      .normalized = token["normalized"].boolean(true),
                      .special = token["special"].boolean(false),
                      .single_word = token["single_word"].boolean(false),
                      .lstrip = token["lstrip"].boolean(false),
                      .rstrip = token["rstrip"].boolean(false)});
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
  const std::string text = field.is_object() ? field["content"].string() : field.string();
  const std::optional<std::int32_t> id = find_token(definition, text);
  require<DataError>(id.has_value(),
                     "{}: '{}' is not in the vocabulary; name a token that is, or {}",
                     field.where(), text, kSaveAgain);
  return id;
}

}  // namespace

BpeDefinition parse_tokenizer_json(std::string_view text, std::string_view name) {
  const JsonDocument document(text, std::string(name));
  const Field root = document.root();
  require<DataError>(root["version"].string() == "1.0", "{}: '{}' is not supported (1.0 is); {}",
                     root["version"].where(), root["version"].string(), kSaveAgain);
  root["truncation"].must_be_null();
  root["padding"].must_be_null();
  const Field model = root["model"];
  check_model_options(model);

  BpeDefinition definition;
  definition.normalizer = Normalizer(root["normalizer"]);
  definition.post_processor = PostProcessor(root["post_processor"]);
  definition.decoder = Decoder(root["decoder"]);
  parse_pre_tokenizer(root["pre_tokenizer"], definition);
  const Ids ids = parse_vocab(model["vocab"], definition.vocab);
  definition.merges = parse_merges(model["merges"], ids);
  if (!definition.byte_level) definition.unknown = parse_unknown(model, ids);
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
    const JsonDocument document(read_file(config_file, kMaxFileBytes), config_file.string());
    const Field config = document.root();
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

OrderedJson byte_level_json(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

OrderedJson pre_tokenizer_json(const BpeDefinition& definition) {
  const PreTokenizerOptions& options = definition.pre_tokenizer;
  std::vector<std::string> patterns = options.patterns;
  OrderedJson last;
  if (definition.byte_level) {
    // Between a space in front and the end only ByteLevel's own pattern can stand.
    const std::size_t after = options.prefix_space_after.value_or(patterns.size());
    const bool use_regex = options.prefix_space_after
                               ? after < patterns.size()
                               : patterns.size() == 1 && patterns[0] == kGpt2Pattern;
    if (use_regex) patterns.pop_back();
    last = byte_level_json(options.prefix_space_after.has_value(), use_regex);
  } else if (options.metaspace) {
    last = OrderedJson::parse(metaspace_json(*options.metaspace));
  }
  if (patterns.empty()) return last;
  OrderedJson steps = OrderedJson::array();
  for (const std::string& pattern : patterns) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  if (!last.is_null()) steps.push_back(std::move(last));
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

OrderedJson model_json(const BpeDefinition& definition) {
  const auto& spelling = [&](std::int32_t id) -> const std::string& {
    return definition.vocab[static_cast<std::size_t>(id)];
  };
  // Each text is a key once, so the entries are appended without the search of operator[].
  OrderedJson vocab = OrderedJson::object();
  auto& entries = vocab.get_ref<OrderedJson::object_t&>();
  for (std::size_t id = 0; id < definition.vocab.size(); ++id) {
    if (definition.vocab[id].empty()) continue;
    static_cast<OrderedJson::object_t::Container&>(entries).emplace_back(definition.vocab[id], id);
  }
  OrderedJson merges = OrderedJson::array();
  for (const Merge& m : definition.merges) merges.push_back({spelling(m.left), spelling(m.right)});
  OrderedJson model;
  model["type"] = "BPE";
  model["dropout"] = nullptr;
  model["unk_token"] = nullptr;
  if (definition.unknown.unk_id) model["unk_token"] = spelling(*definition.unknown.unk_id);
  model["continuing_subword_prefix"] = nullptr;
  model["end_of_word_suffix"] = nullptr;
  model["fuse_unk"] = definition.unknown.fuse_unk;
  model["byte_fallback"] = definition.unknown.byte_fallback;
  model["ignore_merges"] = definition.ignore_merges;
  model["vocab"] = std::move(vocab);
  model["merges"] = std::move(merges);
  return model;
}

}  // namespace

std::string BpeTokenizer::to_json() const { return json_with(definition_.post_processor); }

std::string BpeTokenizer::json_with(const PostProcessor& post_processor) const {
  OrderedJson added = OrderedJson::array();
  for (const AddedToken& token : definition_.added_tokens) {
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", token.single_word},
                     {"lstrip", token.lstrip},
                     {"rstrip", token.rstrip},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  }
  OrderedJson root;
  root["version"] = "1.0";
  root["truncation"] = nullptr;
  root["padding"] = nullptr;
  root["added_tokens"] = std::move(added);
  root["normalizer"] = OrderedJson::parse(definition_.normalizer.json());
  root["pre_tokenizer"] = pre_tokenizer_json(definition_);
  root["post_processor"] = OrderedJson::parse(post_processor.json());
  root["decoder"] = OrderedJson::parse(definition_.decoder.json());
  root["model"] = model_json(definition_);
  return root.dump();
}

}  // namespace llmtrain::data
