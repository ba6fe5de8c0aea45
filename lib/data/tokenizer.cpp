#include "lib/data/tokenizer.hpp"

#include <array>

#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/data/bpe_tokenizer.hpp"
#include "lib/data/byte_level.hpp"
#include "lib/data/parallel.hpp"
#include "lib/data/tokenizer_json.hpp"

namespace llmtrain::data {

namespace {

constexpr std::int32_t kByteTokenizerEos = 256;

constexpr std::array kKinds = {
    TokenizerKind{"bytes", "every byte is a token; 256 is the end of a document",
                  [](const TokenizerOptions&) { return make_byte_tokenizer(); }},
    TokenizerKind{"bpe", "BPE from a Hugging Face tokenizer.json",
                  [](const TokenizerOptions& options) -> std::shared_ptr<const Tokenizer> {
                    return load_tokenizer_json(options.path);
                  }},
};

}  // namespace

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
  std::vector<std::int32_t> ids;
  if (special == SpecialTokens::none) {
    encode(text, ids);
    return ids;
  }
  for (const std::int32_t id : frame()) {
    if (id == PostProcessor::kText) {
      encode(text, ids);
    } else {
      ids.push_back(id);
    }
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) text += token_bytes(id);
  return text;
}

std::shared_ptr<const Tokenizer> make_byte_tokenizer() {
  BpeDefinition definition;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    definition.vocab.push_back(to_byte_level(std::string_view(&c, 1)));
  }
  definition.added_tokens.push_back({.id = kByteTokenizerEos, .content = std::string(kEndOfText)});
  definition.eos_id = kByteTokenizerEos;
  return std::make_shared<const BpeTokenizer>(std::move(definition));
}

std::span<const TokenizerKind> tokenizer_kinds() { return kKinds; }

std::shared_ptr<const Tokenizer> make_tokenizer(const TokenizerOptions& options) {
  std::string known;
  for (const TokenizerKind& kind : kKinds) {
    if (kind.type == options.type) return kind.make(options);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", kind.type);
  }
  fail<RecipeError>("tokenizer type '{}' is not one of: {}", options.type, known);
}

std::vector<std::vector<std::int32_t>> encode_all(const Tokenizer& tokenizer,
                                                  std::span<const std::string_view> texts) {
  std::vector<std::vector<std::int32_t>> ids(texts.size());
  parallel_for(texts.size(), [&](std::size_t i) {
    ids[i].reserve(texts[i].size() / 3);
    tokenizer.encode(texts[i], ids[i]);
  });
  return ids;
}

std::vector<std::pair<std::string, std::string>> tokenizer_files(const Tokenizer& tokenizer) {
  nlohmann::ordered_json config;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  config["clean_up_tokenization_spaces"] = false;
  const auto set = [&](const char* key, std::optional<std::int32_t> id) {
    if (id) config[key] = std::string(tokenizer.token_spelling(*id));
  };
  set("bos_token", tokenizer.bos_id());
  set("eos_token", tokenizer.eos_id());
  return {{"tokenizer_config.json", config.dump(2) + "\n"},
          {"tokenizer.json", tokenizer.to_json()}};
}

void save_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& directory) {
  for (const auto& [name, text] : tokenizer_files(tokenizer)) {
    write_file_atomic(directory / name, text);
  }
}

}  // namespace llmtrain::data
