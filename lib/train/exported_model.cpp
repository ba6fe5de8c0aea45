#include "lib/train/exported_model.hpp"

#include <memory>

namespace llmtrain::train {

ExportedModel::ExportedModel(const models::ModelSection& model, const data::Tokenizer& tokenizer,
                             DType dtype)
    : mesh_({}, 0, self_factory()), parameters_(mesh_) {
  const models::DecoderSpec spec = model.spec();
  const models::Architecture& family = model.architecture();
  const models::Decoder declared(parameters_, spec);
  layout_ = family.hf_layout(spec);
  content_ = {.parameters = &parameters_, .layout = &layout_, .dtype = dtype, .texts = {}};
  content_.texts["config.json"] = family.hf_config(
      spec,
      {.dtype = dtype, .bos_token_id = tokenizer.bos_id(), .eos_token_id = tokenizer.eos_id()});
  for (auto& [name, text] : data::tokenizer_files(tokenizer)) {
    content_.texts[name] = std::move(text);
  }
}

checkpoint::ModelExport export_of_saves(const models::ModelSection& model,
                                        const data::Tokenizer& tokenizer) {
  const auto exported = std::make_shared<const ExportedModel>(model, tokenizer);
  return {.bytes = checkpoint::hf_bytes(exported->content()),
          .write = [exported](const std::filesystem::path& directory, checkpoint::Loader& saved,
                              const checkpoint::WriteLimits& limits) {
            checkpoint::write_hf(directory, exported->content(), checkpoint::values_of(saved),
                                 limits);
          }};
}

std::uint64_t exported_bytes(const models::DecoderSpec& model) {
  const Mesh mesh({}, 0, self_factory());
  ParameterStore parameters(mesh);
  const models::Decoder declared(parameters, model);
  std::uint64_t elements = 0;
  for (const auto& p : parameters.all()) {
    elements += static_cast<std::uint64_t>(p->global_shape().numel());
  }
  return elements * size_of(kExportDType);
}

}  // namespace llmtrain::train
