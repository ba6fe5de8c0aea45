#pragma once
/// Parts of tokenizer.json that several readers share.

#include <string>
#include <string_view>

#include "lib/data/json_field.hpp"
#include "lib/data/pre_tokenizer.hpp"

namespace llmtrain::data {

/// ByteLevel as decoder and post-processor, where no option changes ids or text.
inline constexpr std::string_view kByteLevelJson =
    R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";

/// A text of one character; DataError otherwise.
std::string one_character(const Field& field);

/// A Metaspace with `prepend_scheme` and `split`, or with the older `add_prefix_space`.
Metaspace parse_metaspace(const Field& field);

/// In the newer form.
std::string metaspace_json(const Metaspace& metaspace);

}  // namespace llmtrain::data
