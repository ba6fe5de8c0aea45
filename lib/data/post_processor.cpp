#include "lib/data/post_processor.hpp"

#include <algorithm>
#include <array>

#include "lib/data/component_json.hpp"
#include "lib/data/json_field.hpp"

namespace llmtrain::data {

namespace {

constexpr std::int64_t kIdLimit = std::int64_t{1} << 31;

std::int32_t id_of(const Field& field) { return static_cast<std::int32_t>(field.id(kIdLimit)); }

void append_template_piece(const Field& piece, const Field& special_tokens, const TokenFrame& text,
                           TokenFrame& out) {
  const std::string kind = piece.only_key();
  if (kind == "Sequence") {
    const Field id = piece["Sequence"]["id"];
    require<DataError>(id.string() == "A", "{}: '{}' in the template of a single text; {}",
                       id.where(), id.string(), kSaveAgain);
    out.insert(out.end(), text.begin(), text.end());
    return;
  }
  require<DataError>(kind == "SpecialToken", "{}: neither a Sequence nor a SpecialToken; {}",
                     piece.where(), kSaveAgain);
  const Field ids = special_tokens[piece["SpecialToken"]["id"].string()]["ids"];
  const std::size_t count = ids.array_size();
  for (std::size_t i = 0; i < count; ++i) out.push_back(id_of(ids.at(i)));
}

void apply_template(const Field& field, TokenFrame& frame) {
  const Field pieces = field["single"];
  const std::size_t count = pieces.array_size();
  TokenFrame out;
  for (std::size_t i = 0; i < count; ++i) {
    append_template_piece(pieces.at(i), field["special_tokens"], frame, out);
  }
  require<DataError>(std::count(out.begin(), out.end(), PostProcessor::kText) == 1,
                     "{}: the text is not there exactly once: {}", pieces.where(),
                     kUnlikeHuggingFace);
  frame = std::move(out);
}

/// BERT's and RoBERTa's: "cls" in front, "sep" behind, each as [text, id].
void apply_cls_and_sep(const Field& field, TokenFrame& frame) {
  for (const char* key : {"cls", "sep"}) {
    require<DataError>(field[key].array_size() == 2, "{}: not [text, id]; {}", field[key].where(),
                       kSaveAgain);
  }
  frame.insert(frame.begin(), id_of(field["cls"].at(1)));
  frame.push_back(id_of(field["sep"].at(1)));
}

constexpr std::array kTypes = {
    PostProcessorType{"ByteLevel", [](const Field&, TokenFrame&) {}},
    PostProcessorType{"TemplateProcessing", apply_template},
    PostProcessorType{"BertProcessing", apply_cls_and_sep},
    PostProcessorType{"RobertaProcessing", apply_cls_and_sep},
};

}  // namespace

std::span<const PostProcessorType> post_processor_types() { return kTypes; }

PostProcessor::PostProcessor() : json_(kByteLevelJson) {}

PostProcessor::PostProcessor(const Field& field) : json_(field.dump()) {
  if (field.is_null()) return;
  apply(field);
  if (field["type"].string() == "ByteLevel") json_ = kByteLevelJson;
}

void PostProcessor::apply(const Field& field) {
  if (field["type"].string() != "Sequence") {
    const PostProcessorType& row = field.row_of(post_processor_types());
    // There Hugging Face sees every special token as a text of its own.
    require<DataError>(frame_.size() == 1 || row.type == "ByteLevel",
                       "{}: '{}' behind another that adds tokens is not supported: {}",
                       field["type"].where(), row.type, kUnlikeHuggingFace);
    return row.apply(field, frame_);
  }
  const Field steps = field["processors"];
  const std::size_t count = steps.array_size();
  for (std::size_t i = 0; i < count; ++i) apply(steps.at(i));
}

}  // namespace llmtrain::data
