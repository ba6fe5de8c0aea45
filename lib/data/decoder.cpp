#include "lib/data/decoder.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "lib/base/utf8.hpp"
#include "lib/data/byte_level.hpp"
#include "lib/data/component_json.hpp"
#include "lib/data/json_field.hpp"
#include "lib/data/replacer.hpp"

namespace llmtrain::data {

namespace {

using Tokens = DecoderType::Tokens;
using Step = DecoderType::Step;

constexpr std::int64_t kMaxStripped = 1 << 20;

std::string joined(const Tokens& tokens, std::string_view between) {
  std::string text;
  for (const std::string& token : tokens) {
    if (&token != tokens.data()) text += between;
    text += token;
  }
  return text;
}

void fuse(Tokens& tokens, std::size_t) { tokens = {joined(tokens, "")}; }

void join_byte_level(Tokens& tokens, std::size_t) {
  for (std::string& token : tokens) token = from_byte_level(token).value_or(token);
  tokens = {joined(tokens, "")};
}

/// Consecutive byte tokens become one piece of text.
void join_bytes(Tokens& tokens, std::size_t) {
  Tokens out;
  bool in_bytes = false;
  for (std::string& token : tokens) {
    const std::optional<unsigned char> byte = byte_of_token(token);
    if (!byte) {
      out.push_back(std::move(token));
    } else if (in_bytes) {
      out.back() += static_cast<char>(*byte);
    } else {
      out.emplace_back(1, static_cast<char>(*byte));
    }
    in_bytes = byte.has_value();
  }
  tokens = std::move(out);
}

Step make_replace(const Field& field) {
  return [replacer = Replacer(field)](Tokens& tokens, std::size_t limit) {
    for (std::string& token : tokens) {
      // Bytes of a character that several tokens hold are no text to search.
      if (valid_utf8_prefix(token) != token.size()) continue;
      std::string replaced;
      replacer.append(token, replaced, limit);
      limit -= replaced.size();
      token = std::move(replaced);
    }
  };
}

/// Up to `start` times `content` from the front and `stop` times from the back of each token.
Step make_strip(const Field& field) {
  const std::string content = one_character(field["content"]);
  const std::int64_t start = field["start"].id(kMaxStripped);
  const std::int64_t stop = field["stop"].id(kMaxStripped);
  return [content, start, stop](Tokens& tokens, std::size_t) {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (std::int64_t i = 0; i < start && rest.starts_with(content); ++i) {
        rest.remove_prefix(content.size());
      }
      for (std::int64_t i = 0; i < stop && rest.ends_with(content); ++i) {
        rest.remove_suffix(content.size());
      }
      token = std::string(rest);
    }
  };
}

Step make_metaspace(const Field& field) {
  return [metaspace = parse_metaspace(field)](Tokens& tokens, std::size_t) {
    for (std::string& token : tokens) {
      const bool dropped =
          &token == tokens.data() && metaspace.prepend != Metaspace::Prepend::never;
      std::string text;
      std::size_t done = 0;
      for (std::size_t at = 0; (at = token.find(metaspace.replacement, done)) != token.npos;) {
        text.append(token, done, at - done).append(dropped ? "" : " ");
        done = at + metaspace.replacement.size();
      }
      token = text.append(token, done);
    }
  };
}

constexpr std::array kTypes = {
    DecoderType{"ByteLevel", [](const Field&) -> Step { return join_byte_level; }},
    DecoderType{"ByteFallback", [](const Field&) -> Step { return join_bytes; }},
    DecoderType{"Fuse", [](const Field&) -> Step { return fuse; }},
    DecoderType{"Metaspace", make_metaspace},
    DecoderType{"Replace", make_replace},
    DecoderType{"Strip", make_strip},
};

}  // namespace

std::span<const DecoderType> decoder_types() { return kTypes; }

Decoder::Decoder() : steps_{join_byte_level}, json_(kByteLevelJson) {}

Decoder::Decoder(const Field& field) : json_(field.dump()) {
  if (field.is_null()) {  // Hugging Face puts a space between tokens then
    byte_level_ = false;
    steps_.emplace_back([](Tokens& tokens, std::size_t) { tokens = {joined(tokens, " ")}; });
    return;
  }
  add(field);
  byte_level_ = field["type"].string() == "ByteLevel";
  if (byte_level_) json_ = kByteLevelJson;  // its options do nothing
}

void Decoder::add(const Field& field) {
  if (field["type"].string() == "Sequence") {
    const Field steps = field["decoders"];
    const std::size_t count = steps.array_size();
    for (std::size_t i = 0; i < count; ++i) add(steps.at(i));
    return;
  }
  steps_.push_back(field.row_of(decoder_types()).make(field));
}

std::string Decoder::decode(std::vector<std::string> spellings) const {
  std::size_t size = 0;
  for (const std::string& spelling : spellings) size += spelling.size();
  for (const DecoderType::Step& step : steps_) step(spellings, growth_limit(size));
  return joined(spellings, "");
}

}  // namespace llmtrain::data
