#pragma once
/// A recipe's model as a Hugging Face directory: declared, and read from a checkpoint part by part.

#include <filesystem>
#include <string>
#include <string_view>

#include "lib/checkpoint/hf_directory.hpp"
#include "lib/data/tokenizer.hpp"
#include "lib/models/architecture.hpp"

namespace llmtrain::train {

/// Of exports that ask for no other.
inline constexpr DType kExportDType = DType::f32;

/// Does not move: its content points into it.
class ExportedModel {
 public:
  /// RecipeError, naming the key, for a model that transformers cannot express.
  ExportedModel(const models::ModelSection& model, const data::Tokenizer& tokenizer,
                DType dtype = kExportDType);
  ExportedModel(const ExportedModel&) = delete;
  ExportedModel& operator=(const ExportedModel&) = delete;

  const checkpoint::HfContent& content() const { return content_; }

 private:
  Mesh mesh_;
  ParameterStore parameters_;
  HfLayout layout_;
  checkpoint::HfContent content_;
};

/// For the saves of a run (checkpoint.export_hf).
checkpoint::ModelExport export_of_saves(const models::ModelSection& model,
                                        const data::Tokenizer& tokenizer);

/// Bytes of the weights that it writes.
std::uint64_t exported_bytes(const models::DecoderSpec& model);

}  // namespace llmtrain::train
