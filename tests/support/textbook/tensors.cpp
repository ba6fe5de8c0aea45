#include "tests/support/textbook/tensors.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace llmtrain::test {

namespace {

// Megatron-LM (arXiv 1909.08053): what a block reads with is divided by its outputs, what it writes
// with by its inputs, and tables by the vocabulary.
class ModelTensors {
 public:
  ModelTensors(const TextbookRun& run, int tp_index)
      : spec_(run.options.model), mesh_(run.mesh), tp_(run.mesh[Axis::tp]), index_(tp_index) {}

  std::vector<TextbookTensor> all() &&;

 private:
  struct Linear {
    std::int64_t out, in;
    int divided_dim;  // of its weight
    bool bias;
    int replicas = 1;
    std::int64_t head_rows = 1;
  };

  void embedding();
  void block(int number);
  void attention();
  void mlp(std::int64_t width, bool gated, bool bias);
  void experts();
  void norm();
  void linear(const Linear& linear);
  void table(bool is_tied);
  void add(TextbookTensor tensor);
  bool shares_rows() const { return mesh_.tp_sequence_parallel && tp_ > 1; }
  /// Where ranks have enough rows of the vocabulary each, their parts begin at multiples of 64.
  std::int64_t first_word(int rank) const {
    const std::int64_t each = spec_.vocab_size >= 64 * tp_ ? 64 : 1;
    const std::int64_t count = (spec_.vocab_size + each - 1) / each;
    return std::min(spec_.vocab_size, count * rank / tp_ * each);
  }

  const models::DecoderSpec& spec_;
  const MeshShape& mesh_;
  int tp_, index_;
  int unit_ = 0;
  std::vector<TextbookTensor> tensors_;
};

void ModelTensors::add(TextbookTensor tensor) {
  tensor.unit = unit_;
  if (tensor.here.empty()) {
    tensor.here = tensor.whole;
    if (tensor.divided_dim >= 0) {
      tensor.here[static_cast<std::size_t>(tensor.divided_dim)] /= tp_ / tensor.replicas;
    }
    if (tensor.of_experts) tensor.here.front() /= mesh_.ep;
  }
  tensors_.push_back(std::move(tensor));
}

void ModelTensors::norm() {
  add({.kind = TensorKind::norm, .whole = {spec_.hidden_size}, .is_partial = shares_rows()});
  if (!spec_.norm_bias) return;
  add({.kind = TensorKind::bias, .whole = {spec_.hidden_size}, .is_partial = shares_rows()});
}

void ModelTensors::linear(const Linear& of) {
  add({.whole = {of.out, of.in},
       .divided_dim = of.divided_dim,
       .replicas = of.replicas,
       .head_rows = of.head_rows});
  if (!of.bias) return;
  const bool divided = of.divided_dim == 0;
  add({.kind = TensorKind::bias,
       .whole = {of.out},
       .divided_dim = divided ? 0 : -1,
       .replicas = of.replicas});
}

// Of fewer key/value heads than ranks neighbours have the same.
void ModelTensors::attention() {
  const std::int64_t dim = spec_.head_dim, hidden = spec_.hidden_size;
  const std::int64_t q = spec_.num_attention_heads * dim, k = spec_.num_key_value_heads * dim;
  const int same = std::max(1, tp_ / static_cast<int>(spec_.num_key_value_heads));
  linear({q, hidden, 0, spec_.qkv_bias, 1, dim});
  linear({k, hidden, 0, spec_.qkv_bias, same, dim});
  linear({k, hidden, 0, spec_.qkv_bias, same});
  linear({hidden, q, 1, spec_.attention_output_bias});
  if (spec_.attention_sinks) {
    add({.kind = TensorKind::bias, .whole = {spec_.num_attention_heads}, .divided_dim = 0});
  }
  for (int i = 0; spec_.qk_norm && i < 2; ++i) {
    add({.kind = TensorKind::norm, .whole = {dim}, .is_partial = true});
  }
}

void ModelTensors::mlp(std::int64_t width, bool gated, bool bias) {
  for (int i = 0; i < (gated ? 2 : 1); ++i) linear({width, spec_.hidden_size, 0, bias});
  linear({spec_.hidden_size, width, 1, bias});
}

void ModelTensors::experts() {
  const std::int64_t count = spec_.experts.num_experts, width = spec_.experts.intermediate_size;
  add({.whole = {count, spec_.hidden_size}, .is_partial = true});  // the router
  for (int i = 0; i < 2; ++i) {
    add({.whole = {count, width, spec_.hidden_size}, .divided_dim = 1, .of_experts = true});
  }
  add({.whole = {count, spec_.hidden_size, width}, .divided_dim = 2, .of_experts = true});
  if (spec_.experts.num_shared > 0) mlp(spec_.experts.num_shared * width, true, false);
}

void ModelTensors::block(int number) {
  unit_ = ModelUnits::block(number);
  for (int i = 0; i < (spec_.post_norms ? 4 : 2); ++i) norm();
  attention();
  if (spec_.has_experts(number)) return experts();
  mlp(spec_.intermediate_size, spec_.gated_mlp, spec_.mlp_bias);
}

void ModelTensors::table(bool is_tied) {
  add({.kind = TensorKind::table,
       .whole = {spec_.vocab_size, spec_.hidden_size},
       .here = {first_word(index_ + 1) - first_word(index_), spec_.hidden_size},
       .divided_dim = 0,
       .is_tied = is_tied});
}

std::vector<TextbookTensor> ModelTensors::all() && {
  const int blocks = static_cast<int>(spec_.num_hidden_layers);
  table(spec_.tie_word_embeddings);
  if (spec_.learned_positions) {
    add({.kind = TensorKind::table, .whole = {spec_.max_position_embeddings, spec_.hidden_size}});
  }
  for (int i = 0; i < blocks; ++i) block(i);
  const ModelUnits units{blocks};
  unit_ = units.norm();
  norm();
  unit_ = units.head();
  if (!spec_.tie_word_embeddings) table(false);
  return std::move(tensors_);
}

}  // namespace

double TextbookTensor::elements() const {
  return static_cast<double>(
      std::accumulate(here.begin(), here.end(), std::int64_t{1}, std::multiplies<>()));
}

std::vector<TextbookTensor> textbook_tensors(const TextbookRun& run, int tp_index) {
  return ModelTensors(run, tp_index).all();
}

}  // namespace llmtrain::test
