#include "tests/parity/golden.hpp"

#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include "lib/models/architecture.hpp"
#include "tests/support/formula.hpp"
#include "tests/support/source_tree.hpp"

namespace llmtrain::test {

const std::vector<std::string> kGoldenModels{"gpt2_tied",
                                             "gpt2_untied_gelu",
                                             "llama_one_kv_head",
                                             "llama_grouped_biased_tied",
                                             "llama_multi_head",
                                             "mistral_window",
                                             "qwen2_upper_windows",
                                             "qwen2_multi_head",
                                             "llama_linear_rope",
                                             "llama_dynamic_rope",
                                             "llama_llama3_rope",
                                             "llama_yarn_rope",
                                             "qwen3_upper_windows",
                                             "qwen3_one_kv_head",
                                             "gemma2_alternating",
                                             "gemma2_uncapped",
                                             "mpt_alibi",
                                             "mpt_untied",
                                             "gpt_oss_dense_sinks",
                                             "llama_whole_heads",
                                             "mistral_whole_heads",
                                             "mixtral_window",
                                             "qwen3_moe_some_layers",
                                             "qwen3_moe_balanced",
                                             "qwen3_moe_capacity",
                                             "dots1_groups",
                                             "dots1_one_group"};

namespace {

template <class T>
std::vector<T> read(const checkpoint::SafetensorsFile& file, const std::string& name) {
  const checkpoint::SafetensorsEntry& entry = file.entry(name);
  require(entry.type == checkpoint::stored_type(dtype_of<T>), "{}: {} has another type",
          file.path().string(), name);
  std::vector<T> values(entry.bytes / sizeof(T));
  file.read_tensor(name, std::as_writable_bytes(std::span(values)));
  return values;
}

nlohmann::json read_fp16_errors() {
  std::ifstream file(golden_folder() / "fp16_errors.json");
  return nlohmann::json::parse(file);
}

}  // namespace

std::filesystem::path golden_folder() { return test_file("parity/golden"); }

Golden::Golden(const std::string& name)
    : file_(checkpoint::SafetensorsFile::open(golden_folder() / (name + ".safetensors"))),
      spec_(models::spec_from_hf_config(file_.metadata().at("config"), name)) {
  const checkpoint::Dims& shape = file_.entry("tokens").shape;
  batch_ = {.num_sequences = shape[0],
            .length = shape[1],
            .tokens = read<std::int32_t>(file_, "tokens"),
            .targets = read<std::int32_t>(file_, "targets"),
            .document_begin = read<std::int32_t>(file_, "document_begin"),
            .embedding_position = read<std::int32_t>(file_, "embedding_position")};
  // transformers' config.json has no such key.
  const auto capacity = file_.metadata().find("capacity_factor");
  if (capacity != file_.metadata().end()) {
    spec_.experts.capacity_factor = std::stod(capacity->second);
  }
  const nlohmann::json fp16 = read_fp16_errors().at(name);
  fp16_logits_error_ = fp16.at("logits");
  fp16_loss_error_ = fp16.at("loss");
  fp16_gradient_errors_ = fp16.at("gradients");
}

std::vector<float> Golden::weights(const Parameter& parameter) const {
  const std::vector<double> meta = read<double>(file_, "meta." + parameter.name());
  return formula_weights(parameter.name(), parameter.global_shape().numel(), meta[0], meta[1]);
}

Reference Golden::gradient(const std::string& parameter) const {
  const std::vector<double> meta = read<double>(file_, "meta." + parameter);
  return {read<double>(file_, "grad." + parameter), meta[2], meta[3],
          fp16_gradient_errors_.at(parameter)};
}

Reference Golden::overall(const std::string& what, double fp16_error) const {
  const std::vector<double> errors = read<double>(file_, "error." + what);
  return {read<double>(file_, what), errors[0], errors[1], fp16_error};
}

std::vector<std::string> Golden::parameters() const {
  std::vector<std::string> names;
  for (const checkpoint::SafetensorsEntry& entry : file_.entries()) {
    if (entry.name.starts_with("grad.")) names.push_back(entry.name.substr(5));
  }
  return names;
}

double l2_norm(const std::vector<double>& x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum);
}

double l2_distance(const std::vector<double>& a, const std::vector<double>& b) {
  require(a.size() == b.size(), "{} values against {}", a.size(), b.size());
  std::vector<double> difference(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return l2_norm(difference);
}

}  // namespace llmtrain::test
